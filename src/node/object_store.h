/* Where objects are: a directory, or a bucket of an S3-compatible server.
 *
 * Keys are "manifests/OWNER.SUM", "bases/SUM" and "chunks/XX/SUM" (XX: the first two digits). An
 * object is there whole or not at all. Every call blocks, may be made from several threads at once
 * (each with a store of its own, object_store_open), and is given up after a few attempts.
 *
 * Errors: service_unavailable while the store cannot be reached or says that it is busy,
 * storage_full, failed_precondition (state "object_store") when it refuses us or its settings make
 * no sense, else internal. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "node/object_place.h"

#define OBJECT_KEY_SIZE 160

struct object_store;

struct object_entry {
    const char *key;
    uint64_t bytes;
    int64_t age_seconds; /* by the clock of the store */
};

typedef int (*object_list_fn)(void *arg, const struct object_entry *entry);

/* The place stays the caller's, and as it is, for as long as the store is open. */
struct object_store *object_store_open(const struct object_place *place, struct error *err);
void object_store_close(struct object_store *store); /* NULL is fine */
int object_store_put(struct object_store *store,
                     const char *key,
                     struct span bytes,
                     struct error *err) _must_check_;
/* Into an empty buffer, at most max. 1, or 0 when there is none. */
int object_store_get(struct object_store *store,
                     const char *key,
                     size_t max,
                     struct buf *ret,
                     struct error *err) _must_check_;
/* 1 with its length, or 0. */
int object_store_has(struct object_store *store,
                     const char *key,
                     uint64_t *ret_bytes,
                     struct error *err) _must_check_;
/* All keys that begin so; a prefix has at least its directory. Stops at fn's first -errno. */
int object_store_list(struct object_store *store,
                      const char *prefix,
                      object_list_fn fn,
                      void *arg,
                      struct error *err) _must_check_;
/* Of writes of such keys that were cut and are as old: what the store has kept for their end.
 * Returns how many, a hundred at most. */
int object_store_abort_cut(struct object_store *store,
                           const char *prefix,
                           int64_t keep_seconds,
                           struct error *err) _must_check_;
/* 0, also when there is none. */
int object_store_remove(struct object_store *store, const char *key, struct error *err)
    _must_check_;
