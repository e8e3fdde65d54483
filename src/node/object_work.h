/* The work of space-objects, the program between space-node and the object store: one job per
 * process, then it ends. It runs as a user of its own that owns nothing, so that neither what a
 * server sends nor what a guest has stored is parsed by root. Everything blocks. */
#pragma once

#include <jansson.h>

#include "node/object_fd.h"
#include "node/object_manifest.h"
#include "node/object_plan.h"
#include "node/object_store.h"

#define OBJECT_THREADS 4U

struct object_work {
    const struct object_place *place;
    struct object_store *store; /* of the first thread */
    json_t *request;            /* borrowed */
};

/* ---- helpers ---- */

void object_key_manifest(const char *owner,
                         const struct object_sum *sum,
                         char out[OBJECT_KEY_SIZE]);
void object_key_base(const struct object_sum *sum, char out[OBJECT_KEY_SIZE]);
void object_key_chunk(const struct object_sum *sum, char out[OBJECT_KEY_SIZE]);
/* A number of the request, or -1. */
int object_work_fd(const json_t *object, const char *key);
/* Reads and checks a manifest; bytes (empty before) must outlive it. not_found (resource
 * "snapshot"). */
int object_work_manifest(struct object_store *store,
                         const char *key,
                         const struct object_sum *sum,
                         struct buf *bytes,
                         struct object_manifest *ret,
                         struct error *err) _must_check_;

/* What one thread has for a chunk. */
struct object_bench {
    struct object_store *store;
    uint8_t *raw; /* OBJECT_CHUNK_MAX */
    struct buf stored;
    struct buf opened;
};

/* Calls fn for 0 to count - 1, from several threads; the first error ends it. */
typedef int (*object_each_fn)(void *arg, struct object_bench *bench, uint64_t i, struct error *err);
int object_work_each(const struct object_place *place,
                     uint64_t count,
                     object_each_fn fn,
                     void *arg,
                     struct error *err) _must_check_;

/* ---- jobs: fill result (an empty object) ---- */

/* Stores the files of a snapshot, and its base; then everything that its owner had before goes. */
int object_work_put(struct object_work *w, json_t *result, struct error *err) _must_check_;
/* Fetches a snapshot into a directory. */
int object_work_get(struct object_work *w, json_t *result, struct error *err) _must_check_;
/* Removes all manifests of some owners; object_forget: of one, but for one key (or NULL). */
int object_work_forget(struct object_work *w, json_t *result, struct error *err) _must_check_;
int object_forget(struct object_store *store, const char *owner, const char *but, struct error *err)
    _must_check_;
/* Removes bases and chunks that no manifest refers to and that are older than the age given. */
int object_work_sweep(struct object_work *w, json_t *result, struct error *err) _must_check_;
