/* Fetching a snapshot: its manifest by name, then all its chunks, each checked against its name
 * before a byte of it is written. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/json_field.h"
#include "node/object_work.h"

struct target {
    const struct object_file *file;
    struct object_cursor *cursors;
    int fd;
    uint32_t first; /* number of its first chunk */
};

struct get {
    int dir_fd;
    struct object_manifest manifest;
    struct object_manifest base;
    struct buf manifest_bytes;
    struct buf base_bytes;
    struct target *targets;
    uint32_t count;
    uint64_t chunks;
};

static void get_done(struct get *g)
{
    for (uint32_t i = 0; g->targets != NULL && i < g->count; i++) {
        free(g->targets[i].cursors);
        if (g->targets[i].fd >= 0) {
            (void)close(g->targets[i].fd);
        }
    }
    free(g->targets);
    object_manifest_done(&g->manifest);
    object_manifest_done(&g->base);
    buf_done(&g->manifest_bytes);
    buf_done(&g->base_bytes);
}

/* ---- manifests ---- */

static bool is_at_hand(const struct object_work *w, const char *base)
{
    const json_t *have = json_object_get(w->request, "have");

    for (size_t i = 0; i < json_array_size(have); i++) {
        const char *one = json_string_value(json_array_get(have, i));

        if (one != NULL && strcmp(one, base) == 0) {
            return true;
        }
    }
    return false;
}

static int read_base(struct object_work *w, struct get *g, json_t *result, struct error *err)
{
    char text[OBJECT_SUM_TEXT];
    char key[OBJECT_KEY_SIZE];
    int r;

    object_sum_format(&g->manifest.base, text);
    (void)json_object_set_new(result, "base", json_string(text));
    if (is_at_hand(w, text)) {
        return 0;
    }
    object_key_base(&g->manifest.base, key);
    r = object_work_manifest(w->store, key, &g->manifest.base, &g->base_bytes, &g->base, err);
    if (r == 0 && object_manifest_find(&g->base, "ram") == NULL) {
        r = error_set(err, EBADMSG, "the snapshot's base in the object store has no memory");
    }
    return r;
}

static int read_manifests(struct object_work *w, struct get *g, json_t *result, struct error *err)
{
    const char *text = json_string_value(json_object_get(w->request, "manifest"));
    char owner[ID_SIZE];
    char key[OBJECT_KEY_SIZE];
    struct object_sum sum;
    int r;

    if (!json_field_text(w->request, "owner", owner, sizeof(owner)) || text == NULL ||
        object_sum_parse(span_of_str(text), &sum) < 0) {
        return error_set(err, EINVAL, "the request names no manifest");
    }
    object_key_manifest(owner, &sum, key);
    r = object_work_manifest(w->store, key, &sum, &g->manifest_bytes, &g->manifest, err);
    if (r == 0 && (!g->manifest.has_base || strcmp(g->manifest.owner, owner) != 0)) {
        r = error_set(err, EBADMSG, "the snapshot in the object store is of another owner");
    }
    return r < 0 ? r : read_base(w, g, result, err);
}

/* ---- files ---- */

static int make_parent(int dir_fd, const char *name)
{
    char parent[OBJECT_NAME_SIZE];
    const char *slash = strchr(name, '/');

    if (slash == NULL) {
        return 0;
    }
    (void)snprintf(parent, sizeof(parent), "%.*s", (int)(slash - name), name);
    return mkdirat(dir_fd, parent, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* One that lies over the template's disk is there already, as a copy of that. */
static int open_target(struct get *g, const struct object_file *file)
{
    bool is_there = file->over == OBJECT_OVER_TEMPLATE;
    struct target *t = &g->targets[g->count];
    int r = make_parent(g->dir_fd, file->name);

    *t = (struct target){.file = file, .fd = -1, .first = (uint32_t)g->chunks};
    g->count++;
    if (r < 0) {
        return r;
    }
    t->fd = openat(g->dir_fd, file->name,
                   O_WRONLY | O_CLOEXEC | O_NOFOLLOW | (is_there ? 0 : O_CREAT | O_EXCL), 0600);
    if (t->fd < 0 || ftruncate(t->fd, (off_t)file->bytes) < 0) {
        return -errno;
    }
    if (file->is_inline) {
        return fd_pwrite_all(t->fd, file->content, 0);
    }
    t->cursors = object_plan_cursors(file);
    g->chunks += file->chunk_count;
    return t->cursors == NULL ? -ENOMEM : 0;
}

static int open_targets(struct get *g, const struct object_manifest *m)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < m->file_count; i++) {
        r = open_target(g, &m->files[i]);
    }
    return r;
}

static int fail_write(struct error *err, int r)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the node's disk has no room for the snapshot");
    }
    return error_set(err, -r, "the snapshot cannot be written: %s", strerror(-r));
}

/* ---- chunks ---- */

static const struct target *target_of(const struct get *g, uint64_t i, uint32_t *ret_chunk)
{
    uint32_t low = 0;
    uint32_t high = g->count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (g->targets[middle].first <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *ret_chunk = (uint32_t)(i - g->targets[low].first);
    return &g->targets[low];
}

static int get_chunk(void *arg, struct object_bench *bench, uint64_t i, struct error *err)
{
    const struct get *g = arg;
    uint32_t n;
    const struct target *t = target_of(g, i, &n);
    const struct object_ref *ref = &t->file->chunks[n];
    char key[OBJECT_KEY_SIZE];
    int r;

    object_key_chunk(&ref->sum, key);
    r = object_store_get(bench->store, key, OBJECT_CHUNK_MAX + OBJECT_HEAD_BYTES, &bench->stored,
                         err);
    if (r < 0) {
        return r;
    }
    if (r == 0) {
        return error_set(err, EBADMSG,
                         "the snapshot in the object store is damaged: a part of its %s is missing",
                         t->file->name);
    }
    r = object_open(buf_span(&bench->stored), &ref->sum, ref->bytes, &bench->opened);
    if (r == 0 && bench->opened.n != ref->bytes) {
        r = -EBADMSG;
    }
    if (r < 0) {
        return error_set(
            err, -r,
            "the snapshot in the object store is damaged: a part of its %s is not what "
            "was written",
            t->file->name);
    }
    r = object_plan_write(t->file, &t->cursors[n], buf_span(&bench->opened), t->fd);
    return r < 0 ? fail_write(err, r) : 0;
}

/* ---- the end ---- */

/* Onto stable storage, with the times that a layer of pages is bound to. */
static int finish_files(const struct get *g)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < g->count; i++) {
        const struct target *t = &g->targets[i];
        const struct timespec at = {t->file->time_ns / 1000000000, t->file->time_ns % 1000000000};
        const struct timespec times[2] = {at, at};

        if (futimens(t->fd, times) < 0 || fsync(t->fd) < 0) {
            r = -errno;
        }
    }
    return r;
}

int object_work_get(struct object_work *w, json_t *result, struct error *err)
{
    struct get g = {.dir_fd = object_work_fd(w->request, "dir_fd"),
                    .manifest_bytes = buf_make(OBJECT_MANIFEST_MAX),
                    .base_bytes = buf_make(OBJECT_MANIFEST_MAX)};
    int r = read_manifests(w, &g, result, err);

    if (r == 0) {
        g.targets =
            calloc((size_t)g.manifest.file_count + g.base.file_count + 1, sizeof(*g.targets));
        r = g.targets == NULL ? -ENOMEM : open_targets(&g, &g.base);
        if (r == 0) {
            r = open_targets(&g, &g.manifest);
        }
        r = r < 0 ? fail_write(err, r) : 0;
    }
    if (r == 0) {
        r = object_work_each(w->place, g.chunks, get_chunk, &g, err);
    }
    if (r == 0) {
        r = finish_files(&g);
        r = r < 0 ? fail_write(err, r) : 0;
    }
    get_done(&g);
    return r;
}
