#include "node/object_store.h"

#include <errno.h>
#include <stdlib.h>

#include "node/object_backend.h"

struct object_store {
    const struct object_backend *ops;
    void *self;
};

struct object_store *object_store_open(const struct object_place *place, struct error *err)
{
    bool is_dir = place->dir_fd >= 0;
    struct object_store *store = calloc(1, sizeof(*store));

    if (store == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
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

int object_store_put(struct object_store *store,
                     const char *key,
                     struct span bytes,
                     struct error *err)
{
    return store->ops->put(store->self, key, bytes, err);
}

int object_store_get(
    struct object_store *store, const char *key, size_t max, struct buf *ret, struct error *err)
{
    return store->ops->get(store->self, key, max, ret, err);
}

int object_store_has(struct object_store *store,
                     const char *key,
                     uint64_t *ret_bytes,
                     struct error *err)
{
    return store->ops->has(store->self, key, ret_bytes, err);
}

int object_store_list(
    struct object_store *store, const char *prefix, object_list_fn fn, void *arg, struct error *err)
{
    return store->ops->list(store->self, prefix, fn, arg, err);
}

int object_store_remove(struct object_store *store, const char *key, struct error *err)
{
    return store->ops->remove(store->self, key, err);
}
