#include "node/object_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/step.h"
#include "node/object_backend.h"
#include "node/object_pulse.h"

struct object_store {
    const struct object_backend *ops;
    void *self;
    struct object_pulse *pulse;
};

struct object_store *object_store_open(const struct object_place *place, struct error *err)
{
    bool is_dir = place->dir_fd >= 0;
    struct object_store *store = calloc(1, sizeof(*store));

    if (store == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    store->pulse = place->pulse;
    store->ops = is_dir ? &object_dir_backend : &object_s3_backend;
    store->self = is_dir ? object_dir_open(place, err) : object_s3_open(place, err);
    if (store->self == NULL) {
        free(store);
        return NULL;
    }
    return store;
}

void object_store_close(struct object_store *store)
{
    if (store != NULL) {
        store->ops->close(store->self);
        free(store);
    }
}

/* Of a key: what is before the first slash. A test may end the process there. */
static void tell(const char *verb, const char *key)
{
    step("%s %.*s", verb, (int)strcspn(key, "/"), key);
}

int object_store_put(struct object_store *store,
                     const char *key,
                     struct span bytes,
                     struct error *err)
{
    unsigned int call = object_pulse_begin(store->pulse);
    int r;

    tell("store", key);
    r = store->ops->put(store->self, key, bytes, err);
    tell("stored", key);
    object_pulse_end(store->pulse, call);
    return r;
}

int object_store_get(
    struct object_store *store, const char *key, size_t max, struct buf *ret, struct error *err)
{
    unsigned int call = object_pulse_begin(store->pulse);
    int r = store->ops->get(store->self, key, max, ret, err);

    object_pulse_end(store->pulse, call);
    return r;
}

int object_store_has(struct object_store *store,
                     const char *key,
                     uint64_t *ret_bytes,
                     struct error *err)
{
    unsigned int call = object_pulse_begin(store->pulse);
    int r = store->ops->has(store->self, key, ret_bytes, err);

    object_pulse_end(store->pulse, call);
    return r;
}

/* A list is many calls: each of its answers is a sign of life. */
struct listing {
    struct object_store *store;
    object_list_fn fn;
    void *arg;
    unsigned int call;
};

static int on_entry(void *arg, const struct object_entry *entry)
{
    struct listing *l = arg;

    object_pulse_end(l->store->pulse, l->call);
    l->call = object_pulse_begin(l->store->pulse);
    return l->fn(l->arg, entry);
}

int object_store_list(
    struct object_store *store, const char *prefix, object_list_fn fn, void *arg, struct error *err)
{
    struct listing l = {store, fn, arg, object_pulse_begin(store->pulse)};
    int r;

    tell("list", prefix);
    r = store->ops->list(store->self, prefix, on_entry, &l, err);
    object_pulse_end(store->pulse, l.call);
    return r;
}

int object_store_abort_cut(struct object_store *store,
                           const char *prefix,
                           int64_t keep_seconds,
                           struct error *err)
{
    unsigned int call;
    int r;

    if (store->ops->abort_cut == NULL) {
        return 0;
    }
    call = object_pulse_begin(store->pulse);
    r = store->ops->abort_cut(store->self, prefix, keep_seconds, err);
    object_pulse_end(store->pulse, call);
    return r;
}

int object_store_remove(struct object_store *store, const char *key, struct error *err)
{
    unsigned int call = object_pulse_begin(store->pulse);
    int r;

    tell("remove", key);
    r = store->ops->remove(store->self, key, err);
    tell("removed", key);
    object_pulse_end(store->pulse, call);
    return r;
}
