/* Garbage collection: mark what manifests refer to, then remove the rest, if it is old enough.
 *
 * A manifest that cannot be read ends the sweep before anything is removed, and so does one that is
 * listed and not there, or a base that a manifest names and the list does not have: what a store
 * says of itself is then not to be relied on. The caller sees to it that no snapshot is being
 * stored meanwhile: one that is may rely on chunks that it found there and that no manifest refers
 * to yet. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/json_field.h"
#include "node/object_work.h"

/* The first half of a name: another one with the same half is kept for nothing, and no more. */
struct mark {
    uint8_t bytes[OBJECT_SUM_BYTES / 2];
};

struct marks {
    struct mark *items;
    size_t count;
    size_t room;
};

struct keys {
    char (*names)[OBJECT_KEY_SIZE];
    size_t count;
    size_t room;
};

struct sweep {
    struct object_work *work;
    struct marks marks;
    struct marks bases; /* of manifests; in `marks` too */
    size_t bases_found;
    struct keys found;
    struct keys left; /* by interrupted writes of manifests */
    const char *prefix;
    int64_t keep_seconds;
    uint64_t kept;
    uint64_t kept_bytes;
    uint64_t removed;
};

/* ---- marks ---- */

static int compare_marks(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct mark));
}

/* Sorted, each one once. */
static void settle_marks(struct marks *m)
{
    size_t kept = 0;

    if (m->count > 0) {
        qsort(m->items, m->count, sizeof(*m->items), compare_marks);
    }
    for (size_t i = 0; i < m->count; i++) {
        if (kept == 0 || compare_marks(&m->items[kept - 1], &m->items[i]) != 0) {
            m->items[kept++] = m->items[i];
        }
    }
    m->count = kept;
}

/* Room for one more: at least half is free after a settling, or the array grows. */
static int make_room(struct marks *m)
{
    size_t room = m->room == 0 ? 4096 : m->room * 2;
    void *grown;

    if (m->count < m->room) {
        return 0;
    }
    settle_marks(m); /* many snapshots refer to the same chunks */
    if (m->room > 0 && m->count < m->room / 2) {
        return 0;
    }
    grown = reallocarray(m->items, room, sizeof(*m->items));
    if (grown == NULL) {
        return -ENOMEM;
    }
    m->items = grown;
    m->room = room;
    return 0;
}

static int add_mark(struct marks *m, const struct object_sum *sum)
{
    int r = make_room(m);

    if (r == 0) {
        memcpy(m->items[m->count++].bytes, sum->bytes, sizeof(m->items[0].bytes));
    }
    return r;
}

static bool is_marked(const struct marks *m, const struct object_sum *sum)
{
    struct mark mark;

    memcpy(mark.bytes, sum->bytes, sizeof(mark.bytes));
    return m->count > 0 && bsearch(&mark, m->items, m->count, sizeof(mark), compare_marks) != NULL;
}

/* ---- lists ---- */

static int add_key(struct keys *k, const char *name)
{
    if (strlen(name) >= OBJECT_KEY_SIZE) {
        return 0; /* none of ours */
    }
    if (k->count == k->room) {
        size_t room = k->room == 0 ? 256 : k->room * 2;
        void *grown = reallocarray(k->names, room, sizeof(*k->names));

        if (grown == NULL) {
            return -ENOMEM;
        }
        k->names = grown;
        k->room = room;
    }
    (void)snprintf(k->names[k->count++], OBJECT_KEY_SIZE, "%s", name);
    return 0;
}

static const char *last_part(const char *key)
{
    const char *slash = strrchr(key, '/');

    return slash == NULL ? key : slash + 1;
}

/* What an interrupted write left in a directory. */
static bool is_left_over(const char *key)
{
    return strncmp(last_part(key), ".new-", 5) == 0;
}

static int on_any(void *arg, const struct object_entry *entry)
{
    struct sweep *s = arg;

    if (!is_left_over(entry->key)) {
        return add_key(&s->found, entry->key);
    }
    return entry->age_seconds < s->keep_seconds ? 0 : add_key(&s->left, entry->key);
}

/* Of bases and chunks: what nothing refers to, and is old. */
static int on_candidate(void *arg, const struct object_entry *entry)
{
    struct sweep *s = arg;
    struct object_sum sum;
    bool is_ours = object_sum_parse(span_of_str(last_part(entry->key)), &sum) == 0;

    if (entry->age_seconds < s->keep_seconds || (!is_ours && !is_left_over(entry->key)) ||
        (is_ours && is_marked(&s->marks, &sum))) {
        s->kept++;
        s->kept_bytes += entry->bytes;
        return 0;
    }
    s->removed++;
    return add_key(&s->found, entry->key);
}

static int on_base(void *arg, const struct object_entry *entry)
{
    struct sweep *s = arg;
    struct object_sum sum;

    if (object_sum_parse(span_of_str(last_part(entry->key)), &sum) == 0 &&
        is_marked(&s->bases, &sum)) {
        s->bases_found++;
    }
    return on_candidate(arg, entry);
}

static int list(struct sweep *s, const char *prefix, object_list_fn fn, struct error *err)
{
    int r;

    s->found.count = 0;
    r = object_store_list(s->work->store, prefix, fn, s, err);
    return r == -ENOMEM ? error_set(err, ENOMEM, "no memory") : r;
}

static int remove_keys(struct sweep *s, const struct keys *keys, struct error *err)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < keys->count; i++) {
        r = object_store_remove(s->work->store, keys->names[i], err);
    }
    return r;
}

/* ---- marking ---- */

static int mark_manifest(struct sweep *s, const struct object_manifest *m)
{
    int r = m->has_base ? add_mark(&s->marks, &m->base) : 0;

    if (r == 0 && m->has_base) {
        r = add_mark(&s->bases, &m->base);
    }
    for (uint32_t i = 0; r == 0 && i < m->file_count; i++) {
        for (uint32_t j = 0; r == 0 && j < m->files[i].chunk_count; j++) {
            r = add_mark(&s->marks, &m->files[i].chunks[j].sum);
        }
    }
    return r;
}

static int read_one(struct sweep *s, const char *key, struct error *err)
{
    _cleanup_buf_ struct buf bytes = buf_make(OBJECT_MANIFEST_MAX);
    const char *name = strrchr(last_part(key), '.');
    struct object_manifest m;
    struct object_sum sum;
    int r;

    name = name == NULL ? last_part(key) : name + 1;
    if (object_sum_parse(span_of_str(name), &sum) < 0) {
        return error_set(err, EBADMSG, "the object store has %.80s, which is not of this program",
                         key);
    }
    r = object_work_manifest(s->work->store, key, &sum, &bytes, &m, err);
    if (r < 0) {
        return error_wrap(err, "%.100s", key);
    }
    r = mark_manifest(s, &m);
    object_manifest_done(&m);
    return r < 0 ? error_set(err, -r, "no memory") : 0;
}

static int mark_all(struct sweep *s, const char *prefix, struct error *err)
{
    int r = list(s, prefix, on_any, err);

    for (size_t i = 0; r == 0 && i < s->found.count; i++) {
        r = read_one(s, s->found.names[i], err);
    }
    settle_marks(&s->marks);
    settle_marks(&s->bases);
    return r;
}

static int list_bases(struct sweep *s, struct error *err)
{
    int r = list(s, "bases/", on_base, err);

    if (r == 0 && s->bases_found < s->bases.count) {
        r = error_set(err, EBADMSG, "the object store lists %zu of %zu base images in use",
                      s->bases_found, s->bases.count);
    }
    return r;
}

/* Bases that no manifest names go first: then the chunks of those that stay are marked. */
static int sweep_all(struct sweep *s, json_t *result, struct error *err)
{
    int r = mark_all(s, "manifests/", err);

    if (r == 0) {
        (void)json_object_set_new(result, "snapshots", json_integer((json_int_t)s->found.count));
        r = list_bases(s, err);
    }
    if (r == 0) {
        r = remove_keys(s, &s->found, err);
    }
    if (r == 0) {
        s->removed += s->left.count;
        r = remove_keys(s, &s->left, err);
        s->left.count = 0; /* those of bases were in the list before */
    }
    if (r == 0) {
        r = mark_all(s, "bases/", err);
    }
    if (r == 0) {
        s->kept = 0;
        s->kept_bytes = 0;
        r = list(s, "chunks/", on_candidate, err);
    }
    return r == 0 ? remove_keys(s, &s->found, err) : r;
}

/* Large objects alone go in parts. A server that cannot list such writes, or may not, is no reason
 * to give up: it has rules of its own for them. */
static void abort_cut(struct sweep *s)
{
    static const char *const prefixes[] = {"manifests/", "bases/"};
    struct error ignored = {0};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        int n = object_store_abort_cut(s->work->store, prefixes[i], s->keep_seconds, &ignored);

        s->removed += n > 0 ? (uint64_t)n : 0;
    }
}

int object_work_sweep(struct object_work *w, json_t *result, struct error *err)
{
    struct sweep s = {.work = w};
    const json_t *keep = json_object_get(w->request, "keep_seconds");
    int r;

    if (!json_is_integer(keep) || json_integer_value(keep) < 0) {
        return error_set(err, EINVAL, "the request names no age");
    }
    s.keep_seconds = json_integer_value(keep);
    r = sweep_all(&s, result, err);
    if (r == 0) {
        abort_cut(&s);
        (void)json_object_set_new(result, "chunks", json_integer((json_int_t)s.kept));
        (void)json_object_set_new(result, "bytes", json_integer((json_int_t)s.kept_bytes));
        (void)json_object_set_new(result, "removed", json_integer((json_int_t)s.removed));
    }
    free(s.marks.items);
    free(s.bases.items);
    free(s.found.names);
    free(s.left.names);
    return r;
}
