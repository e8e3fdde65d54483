#include "node/object_work.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void object_key_manifest(const char *owner, const struct object_sum *sum, char out[OBJECT_KEY_SIZE])
{
    char text[OBJECT_SUM_TEXT];

    object_sum_format(sum, text);
    (void)snprintf(out, OBJECT_KEY_SIZE, "manifests/%s.%s", owner, text);
}

void object_key_base(const struct object_sum *sum, char out[OBJECT_KEY_SIZE])
{
    char text[OBJECT_SUM_TEXT];

    object_sum_format(sum, text);
    (void)snprintf(out, OBJECT_KEY_SIZE, "bases/%s", text);
}

void object_key_chunk(const struct object_sum *sum, char out[OBJECT_KEY_SIZE])
{
    char text[OBJECT_SUM_TEXT];

    object_sum_format(sum, text);
    (void)snprintf(out, OBJECT_KEY_SIZE, "chunks/%.2s/%s", text, text);
}

int object_work_fd(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) && json_integer_value(value) >= OBJECT_FD_FIRST &&
                   json_integer_value(value) < 65536
               ? (int)json_integer_value(value)
               : -1;
}

int object_work_manifest(struct object_store *store,
                         const char *key,
                         const struct object_sum *sum,
                         struct buf *bytes,
                         struct object_manifest *ret,
                         struct error *err)
{
    _cleanup_buf_ struct buf stored = buf_make(0);
    int r = object_store_get(store, key, OBJECT_MANIFEST_MAX + OBJECT_HEAD_BYTES, &stored, err);

    if (r < 0) {
        return r;
    }
    if (r == 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "snapshot",
                              "the object store does not have the snapshot");
    }
    r = object_open(buf_span(&stored), sum, OBJECT_MANIFEST_MAX, bytes);
    if (r == 0) {
        r = object_manifest_parse(buf_span(bytes), ret);
    }
    return r == 0 ? 0
                  : error_set(err, -r,
                              r == -EBADMSG ? "the snapshot in the object store is damaged: "
                                              "its manifest is not what was written"
                                            : "the snapshot's manifest cannot be read");
}

/* ---- threads ---- */

struct each {
    const struct object_place *place;
    object_each_fn fn;
    void *arg;
    uint64_t count;
    pthread_mutex_t lock;
    uint64_t next;
    int result;
    struct error err;
};

/* The next one's number, or count when there is nothing more to do. */
static uint64_t take(struct each *e)
{
    uint64_t i;

    (void)pthread_mutex_lock(&e->lock);
    i = e->result < 0 ? e->count : e->next;
    e->next += i < e->count ? 1 : 0;
    (void)pthread_mutex_unlock(&e->lock);
    return i;
}

static void note(struct each *e, int r, const struct error *err)
{
    (void)pthread_mutex_lock(&e->lock);
    if (e->result == 0) {
        e->result = r;
        e->err = *err;
    }
    (void)pthread_mutex_unlock(&e->lock);
}

static void *run_thread(void *arg)
{
    struct each *e = arg;
    struct error err = {0};
    struct object_bench bench = {.stored = buf_make(0), .opened = buf_make(0)};
    uint64_t i;
    int r = 0;

    bench.store = object_store_open(e->place, &err);
    bench.raw = malloc(OBJECT_CHUNK_MAX);
    if (bench.store == NULL || bench.raw == NULL) {
        r = bench.store == NULL ? -EIO : error_set(&err, ENOMEM, "no memory");
    }
    while (r >= 0 && (i = take(e)) < e->count) {
        buf_clear(&bench.stored);
        buf_clear(&bench.opened);
        r = e->fn(e->arg, &bench, i, &err);
    }
    if (r < 0) {
        note(e, r, &err);
    }
    object_store_close(bench.store);
    free(bench.raw);
    buf_done(&bench.stored);
    buf_done(&bench.opened);
    return NULL;
}

int object_work_each(const struct object_place *place,
                     uint64_t count,
                     object_each_fn fn,
                     void *arg,
                     struct error *err)
{
    struct each e = {.place = place, .fn = fn, .arg = arg, .count = count};
    pthread_t threads[OBJECT_THREADS];
    unsigned int wanted = count < OBJECT_THREADS ? (unsigned int)count : OBJECT_THREADS;
    unsigned int started = 0;

    if (count == 0) {
        return 0;
    }
    if (pthread_mutex_init(&e.lock, NULL) != 0) {
        return error_set(err, ENOMEM, "no memory");
    }
    while (started < wanted && pthread_create(&threads[started], NULL, run_thread, &e) == 0) {
        started++;
    }
    if (started == 0) {
        (void)run_thread(&e);
    }
    for (unsigned int i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)pthread_mutex_destroy(&e.lock);
    if (e.result < 0) {
        *err = e.err;
    }
    return e.result;
}
