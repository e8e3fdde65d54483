/* Storing a snapshot: chunks first, then the manifest that refers to them, then what it replaces
 * goes. Whatever ends this in between leaves chunks that nothing refers to, and no more. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/json_field.h"
#include "node/object_work.h"

struct put {
    struct object_plan *plans;
    uint32_t count;
    uint32_t *first; /* number of each plan's first chunk; [count] is the sum */
    uint64_t raw_bytes;
    uint64_t stored_bytes; /* of all chunks of the snapshot, as they are stored */
    uint64_t new_bytes;    /* of those that were not there */
};

static void put_done(struct put *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        object_plan_done(&p->plans[i]);
    }
    free(p->plans);
    free(p->first);
}

static int put_init(struct put *p, size_t room)
{
    *p = (struct put){.plans = calloc(room + 1, sizeof(struct object_plan)),
                      .first = calloc(room + 1, sizeof(uint32_t))};
    return p->plans == NULL || p->first == NULL ? -ENOMEM : 0;
}

/* What is too large once is so for good. */
static int refuse(struct error *err, int r, const char *what)
{
    return r == -E2BIG || r == -EMSGSIZE ? error_set_code(err, ERROR_PAYLOAD_TOO_LARGE, NULL,
                                                          "%s: it has too many parts", what)
                                         : error_set(err, -r, "%s: %s", what, strerror(-r));
}

static int count_chunks(struct put *p)
{
    uint64_t sum = 0;

    if (p->first == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        p->first[i] = (uint32_t)sum;
        sum += p->plans[i].file.chunk_count;
        if (sum > UINT32_MAX / 2) {
            return -EMSGSIZE;
        }
    }
    p->first[p->count] = (uint32_t)sum;
    return 0;
}

/* ---- chunks ---- */

static struct object_plan *plan_of(const struct put *p, uint64_t i, uint32_t *ret_chunk)
{
    uint32_t low = 0;
    uint32_t high = p->count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (p->first[middle] <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *ret_chunk = (uint32_t)(i - p->first[low]);
    return &p->plans[low];
}

static int put_chunk(void *arg, struct object_bench *bench, uint64_t i, struct error *err)
{
    struct put *p = arg;
    uint32_t n;
    struct object_plan *plan = plan_of(p, i, &n);
    struct object_ref *ref = &plan->file.chunks[n];
    struct span raw = span_make(bench->raw, ref->bytes);
    char key[OBJECT_KEY_SIZE];
    uint64_t bytes = 0;
    int r = object_plan_read(plan, n, bench->raw);

    if (r == 0) {
        r = object_sum_of(raw, &ref->sum);
    }
    if (r < 0) {
        return error_set(err, -r, "the snapshot's %s cannot be read: %s", plan->file.name,
                         strerror(-r));
    }
    object_key_chunk(&ref->sum, key);
    r = object_store_has(bench->store, key, &bytes, err);
    if (r == 0) {
        r = object_pack(raw, &bench->stored);
        if (r < 0) {
            return error_set(err, -r, "no memory");
        }
        bytes = bench->stored.n;
        r = object_store_put(bench->store, key, buf_span(&bench->stored), err);
        (void)__atomic_add_fetch(&p->new_bytes, bytes, __ATOMIC_RELAXED);
    }
    (void)__atomic_add_fetch(&p->stored_bytes, bytes, __ATOMIC_RELAXED);
    (void)__atomic_add_fetch(&p->raw_bytes, raw.n, __ATOMIC_RELAXED);
    return r < 0 ? r : 0;
}

/* The manifest, when everything that it refers to is there. */
static int put_manifest(struct object_work *w,
                        struct put *p,
                        struct object_manifest *m,
                        struct object_sum *ret,
                        struct error *err)
{
    _cleanup_buf_ struct buf raw = buf_make(OBJECT_MANIFEST_MAX);
    _cleanup_buf_ struct buf stored = buf_make(0);
    _cleanup_free_ struct object_file *files = calloc(p->count + 1, sizeof(*files));
    char key[OBJECT_KEY_SIZE];
    int r = files == NULL ? -ENOMEM : 0;

    if (r == 0) {
        for (uint32_t i = 0; i < p->count; i++) {
            files[i] = p->plans[i].file;
        }
        m->files = files;
        m->file_count = p->count;
        r = object_manifest_format(m, &raw);
    }
    if (r == 0) {
        r = object_sum_of(buf_span(&raw), ret);
    }
    if (r == 0) {
        r = object_pack(buf_span(&raw), &stored);
    }
    if (r < 0) {
        return refuse(err, r, "the snapshot's manifest cannot be made");
    }
    if (m->owner[0] == '\0') {
        object_key_base(ret, key);
    } else {
        object_key_manifest(m->owner, ret, key);
    }
    p->stored_bytes += stored.n;
    p->new_bytes += stored.n;
    return object_store_put(w->store, key, buf_span(&stored), err);
}

static int put_all(struct object_work *w,
                   struct put *p,
                   struct object_manifest *m,
                   struct object_sum *ret,
                   struct error *err)
{
    int r = count_chunks(p);

    if (r < 0) {
        return refuse(err, r, "the snapshot cannot be stored");
    }
    r = object_work_each(w->place, p->first[p->count], put_chunk, p, err);
    return r < 0 ? r : put_manifest(w, p, m, ret, err);
}

/* ---- the base ---- */

/* 1 when the store has the one that the request names. */
static int has_base(struct object_work *w, struct object_sum *ret, struct error *err)
{
    const char *text = json_string_value(json_object_get(w->request, "base"));
    char key[OBJECT_KEY_SIZE];
    uint64_t bytes;

    if (text == NULL || object_sum_parse(span_of_str(text), ret) < 0) {
        return 0;
    }
    object_key_base(ret, key);
    return object_store_has(w->store, key, &bytes, err);
}

static int put_base(struct object_work *w, struct object_sum *ret, struct error *err)
{
    struct object_manifest m = {.owner = ""};
    struct put p;
    int r = has_base(w, ret, err);

    if (r != 0) {
        return r < 0 ? r : 0;
    }
    r = put_init(&p, 1);
    if (r == 0) {
        p.count = 1;
        r = object_plan_file(&p.plans[0], "ram", object_work_fd(w->request, "ram_fd"));
    }
    if (r < 0) {
        put_done(&p);
        return refuse(err, r, "the base image cannot be read");
    }
    r = put_all(w, &p, &m, ret, err);
    put_done(&p);
    return r;
}

/* ---- the job ---- */

static int plan_one(struct object_work *w, const json_t *item, struct object_plan *plan)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    const char *kind = json_string_value(json_object_get(item, "kind"));
    int fd = object_work_fd(item, "fd");

    if (name == NULL || kind == NULL || fd < 0) {
        return -EINVAL;
    }
    if (strcmp(kind, "layer") == 0) {
        return object_plan_layer(plan, name, fd);
    }
    if (strcmp(kind, "disk") == 0) {
        return object_plan_disk(plan, name, fd, object_work_fd(w->request, "template_fd"));
    }
    return object_plan_file(plan, name, fd);
}

static int plan_files(struct object_work *w, struct put *p, struct error *err)
{
    const json_t *list = json_object_get(w->request, "files");
    size_t count = json_array_size(list);
    int r = count == 0 || count > OBJECT_FILES_MAX ? -E2BIG : put_init(p, count);

    for (size_t i = 0; r == 0 && i < count; i++) {
        p->count++;
        r = plan_one(w, json_array_get(list, i), &p->plans[i]);
    }
    return r < 0 ? refuse(err, r, "the snapshot cannot be read") : 0;
}

static int set_sum(json_t *result, const char *key, const struct object_sum *sum)
{
    char text[OBJECT_SUM_TEXT];

    object_sum_format(sum, text);
    return json_object_set_new(result, key, json_string(text));
}

int object_work_put(struct object_work *w, json_t *result, struct error *err)
{
    struct object_manifest m = {.has_base = true};
    struct object_sum sum;
    struct put p = {0};
    char key[OBJECT_KEY_SIZE];
    int r;

    if (!json_field_text(w->request, "owner", m.owner, sizeof(m.owner))) {
        return error_set(err, EINVAL, "the request names no owner");
    }
    r = put_base(w, &m.base, err);
    if (r == 0) {
        r = plan_files(w, &p, err);
    }
    if (r == 0) {
        r = put_all(w, &p, &m, &sum, err);
    }
    if (r == 0) {
        object_key_manifest(m.owner, &sum, key);
        r = object_forget(w->store, m.owner, key, err);
    }
    if (r == 0 &&
        (set_sum(result, "manifest", &sum) < 0 || set_sum(result, "base", &m.base) < 0 ||
         json_object_set_new(result, "raw_bytes", json_integer((json_int_t)p.raw_bytes)) < 0 ||
         json_object_set_new(result, "stored_bytes", json_integer((json_int_t)p.stored_bytes)) <
             0 ||
         json_object_set_new(result, "new_bytes", json_integer((json_int_t)p.new_bytes)) < 0)) {
        r = error_set(err, ENOMEM, "no memory");
    }
    put_done(&p);
    return r;
}

/* ---- what goes ---- */

struct forget {
    struct object_store *store;
    const char *but;
    char (*keys)[OBJECT_KEY_SIZE];
    size_t count;
};

static int on_manifest(void *arg, const struct object_entry *entry)
{
    struct forget *f = arg;
    void *grown;

    if (f->but != NULL && strcmp(entry->key, f->but) == 0) {
        return 0;
    }
    grown = reallocarray(f->keys, f->count + 1, sizeof(*f->keys));
    if (grown == NULL) {
        return -ENOMEM;
    }
    f->keys = grown;
    (void)snprintf(f->keys[f->count++], OBJECT_KEY_SIZE, "%s", entry->key);
    return 0;
}

int object_forget(struct object_store *store, const char *owner, const char *but, struct error *err)
{
    struct forget f = {.store = store, .but = but};
    char prefix[OBJECT_KEY_SIZE];
    int r;

    (void)snprintf(prefix, sizeof(prefix), "manifests/%s.", owner);
    r = object_store_list(store, prefix, on_manifest, &f, err);
    for (size_t i = 0; r == 0 && i < f.count; i++) {
        r = object_store_remove(store, f.keys[i], err);
    }
    free(f.keys);
    return r;
}

int object_work_forget(struct object_work *w, json_t *result, struct error *err)
{
    const json_t *owners = json_object_get(w->request, "owners");
    int r = 0;

    (void)result;
    for (size_t i = 0; r == 0 && i < json_array_size(owners); i++) {
        const char *owner = json_string_value(json_array_get(owners, i));

        r = owner == NULL || strlen(owner) != ID_LENGTH
                ? error_set(err, EINVAL, "the request names no owner")
                : object_forget(w->store, owner, NULL, err);
    }
    return r;
}
