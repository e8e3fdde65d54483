/* The two kinds of stores behind object_store.h. */
#pragma once

#include "node/object_store.h"

struct object_backend {
    int (*put)(void *self, const char *key, struct span bytes, struct error *err);
    int (*get)(void *self, const char *key, size_t max, struct buf *ret, struct error *err);
    int (*has)(void *self, const char *key, uint64_t *ret_bytes, struct error *err);
    int (*list)(void *self, const char *prefix, object_list_fn fn, void *arg, struct error *err);
    int (*remove)(void *self, const char *key, struct error *err);
    /* NULL: an object comes whole or not at all. */
    int (*abort_cut)(void *self, const char *prefix, int64_t keep_seconds, struct error *err);
    void (*close)(void *self);
};

extern const struct object_backend object_dir_backend;
extern const struct object_backend object_s3_backend;

/* NULL with err. */
void *object_dir_open(const struct object_place *place, struct error *err);
void *object_s3_open(const struct object_place *place, struct error *err);
