/* Idempotency records: which request a key was used for, and its answer once there is one. */
#pragma once

#include <stdint.h>

#include "api/store.h"
#include "base/buf.h"

#define IDEMPOTENCY_HASH_SIZE 32
#define IDEMPOTENCY_KEEP_MS   (24LL * 3600 * 1000)

struct idempotency_record {
    uint8_t hash[IDEMPOTENCY_HASH_SIZE];
    /* Ids that the request makes are derived from it, so that a repetition after a crash makes
     * the same ones. */
    uint8_t seed[IDEMPOTENCY_HASH_SIZE];
    int status; /* 0: no answer yet */
};

/* Which use: the header's text belongs to the API key that sent it. */
struct idempotency_use {
    const char *key_id;
    const char *text;
};

/* Finds the record, or makes it from *fresh. 1 made (or taken over when it was older than 24 h),
 * 0 found: *ret_record is filled, and *ret_body when it has an answer. */
int store_idempotency_start(struct store *store,
                            const struct idempotency_use *use,
                            const struct idempotency_record *fresh,
                            struct idempotency_record *ret_record,
                            struct buf *ret_body,
                            struct error *err) _must_check_;
int store_idempotency_finish(struct store *store,
                             const struct idempotency_use *use,
                             int status,
                             struct span body,
                             struct error *err) _must_check_;
int store_idempotency_forget(struct store *store,
                             const struct idempotency_use *use,
                             struct error *err) _must_check_;
/* Forgets up to 500 from before `before`. Returns how many. */
int store_idempotency_prune(struct store *store, int64_t before, struct error *err) _must_check_;
