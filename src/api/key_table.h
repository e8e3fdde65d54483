/* The keys that have been used: a cache of their records, and what each may still do (requests at
 * once, event streams at once, a token bucket for the rate).
 *
 * An entry lives as long as the process; a revoked key's entry stays, marked. */
#pragma once

#include <stdint.h>

#include "api/store_key.h"
#include "base/list.h"

#define KEY_TABLE_BUCKETS 256

struct settings;

struct key_entry {
    struct key_entry *next;       /* by hash */
    struct key_entry *next_by_id; /* of the same bucket */
    struct key_record record;
    bool revoked;
    unsigned int requests;
    unsigned int streams;
    uint64_t spilled_bytes; /* spill.h */
    double tokens;
    int64_t refilled_ns;
    struct list open; /* struct request, by key_link */
    struct list held; /* struct key_hold */
};

/* An upgraded connection, which is no request any more: it counts among the key's streams and is
 * cut with the key. */
struct key_hold {
    struct list link;
    struct key_entry *key;
    void (*cut)(void *arg);
    void *arg;
};

struct key_limits {
    unsigned int requests;
    unsigned int streams;
    double rate;
    double burst;
};

struct key_table {
    struct store *store;
    struct key_limits limits;
    struct key_entry *buckets[KEY_TABLE_BUCKETS];
    struct key_entry *ids[KEY_TABLE_BUCKETS];
};

/* What RateLimit-* headers say. */
struct key_budget {
    unsigned int limit;
    unsigned int remaining;
    unsigned int reset_seconds;
};

void key_table_init(struct key_table *table, struct store *store, const struct settings *settings);
void key_table_done(struct key_table *table);
/* The entry of a key by its text, or by its id. NULL with err: unauthorized (not known, expired,
 * revoked), or the store's failure. */
struct key_entry *
key_table_find(struct key_table *table, const char *text, int64_t now_ms, struct error *err);
struct key_entry *
key_table_find_id(struct key_table *table, const char *id, int64_t now_ms, struct error *err);
/* Marks the key with this id revoked and returns its entry, NULL when it was never used. */
struct key_entry *key_table_revoke(struct key_table *table, const char *id);
/* Takes one request (or stream). On rate_limited *ret_wait_seconds says when to come again. */
int key_take(const struct key_table *table,
             struct key_entry *key,
             bool stream,
             int64_t now_ns,
             unsigned int *ret_wait_seconds,
             struct error *err) _must_check_;
void key_give_back(struct key_entry *key, bool stream);
/* Counts a stream until key_release. `cut` is called when the key is revoked; it ends the
 * connection and releases the hold. */
void key_take_hold(struct key_entry *key, struct key_hold *hold, void (*cut)(void *arg), void *arg);
/* Also for one that was never taken and is all zeros, and for one that was released. */
void key_release(struct key_hold *hold);
/* Cuts what is held. */
void key_cut_held(struct key_entry *key);
struct key_budget key_budget_get(const struct key_table *table, const struct key_entry *key);
