#include "api/key_table.h"

#include <errno.h>
#include <math.h>

#include <openssl/crypto.h>

#include "api/key_text.h"
#include "base/settings.h"

/* Ids are random: any character but the first two will do. */
static size_t id_bucket(const char *id)
{
    return ((size_t)(unsigned char)id[2] * 31 + (unsigned char)id[3]) % KEY_TABLE_BUCKETS;
}

void key_table_init(struct key_table *table, struct store *store, const struct settings *settings)
{
    memset(table, 0, sizeof(*table));
    table->store = store;
    table->limits = (struct key_limits){
        .requests = (unsigned int)settings->api_key_concurrency,
        .streams = (unsigned int)settings->api_key_streams,
        .rate = (double)settings->api_key_rate,
        .burst = (double)settings->api_key_burst,
    };
}

void key_table_done(struct key_table *table)
{
    for (size_t i = 0; i < KEY_TABLE_BUCKETS; i++) {
        while (table->buckets[i] != NULL) {
            struct key_entry *entry = table->buckets[i];

            table->buckets[i] = entry->next;
            free(entry);
        }
    }
}

static struct key_entry *find_cached(const struct key_table *table,
                                     const uint8_t hash[KEY_HASH_SIZE])
{
    struct key_entry *entry = table->buckets[hash[0]];

    while (entry != NULL && CRYPTO_memcmp(entry->record.hash, hash, KEY_HASH_SIZE) != 0) {
        entry = entry->next;
    }
    return entry;
}

/* `found` is what the store said of the record. */
static struct key_entry *
add(struct key_table *table, int found, const struct key_record *record, struct error *err)
{
    struct key_entry **by_hash = &table->buckets[record->hash[0]];
    struct key_entry **by_id = &table->ids[id_bucket(record->id)];
    struct key_entry *entry;

    if (found <= 0) {
        if (found == 0) {
            (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL, "this API key is not known");
        }
        return NULL;
    }
    entry = calloc(1, sizeof(*entry));
    if (entry == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    entry->record = *record;
    entry->tokens = table->limits.burst;
    list_init(&entry->open);
    list_init(&entry->held);
    entry->next = *by_hash;
    *by_hash = entry;
    entry->next_by_id = *by_id;
    *by_id = entry;
    return entry;
}

static struct key_entry *check(struct key_entry *entry, int64_t now_ms, struct error *err)
{
    if (entry == NULL) {
        return NULL;
    }
    if (entry->revoked || (entry->record.expires_at != 0 && entry->record.expires_at <= now_ms)) {
        (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                             entry->revoked ? "this API key has been revoked"
                                            : "this API key has expired");
        return NULL;
    }
    return entry;
}

struct key_entry *
key_table_find(struct key_table *table, const char *text, int64_t now_ms, struct error *err)
{
    struct key_record record = {0};
    uint8_t hash[KEY_HASH_SIZE];
    struct key_entry *entry;

    if (!key_text_is_valid(text)) {
        (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL, "this is no API key");
        return NULL;
    }
    key_text_hash(text, hash);
    entry = find_cached(table, hash);
    if (entry == NULL) {
        int found = store_key_find_hash(table->store, hash, &record, err);

        entry = add(table, found, &record, err);
    }
    return check(entry, now_ms, err);
}

static struct key_entry *find_cached_id(const struct key_table *table, const char *id)
{
    struct key_entry *entry = table->ids[id_bucket(id)];

    while (entry != NULL && strcmp(entry->record.id, id) != 0) {
        entry = entry->next_by_id;
    }
    return entry;
}

struct key_entry *
key_table_find_id(struct key_table *table, const char *id, int64_t now_ms, struct error *err)
{
    struct key_record record = {0};
    struct key_entry *entry = find_cached_id(table, id);

    if (entry == NULL) {
        int found = store_key_get(table->store, id, &record, err);

        entry = add(table, found, &record, err);
    }
    return check(entry, now_ms, err);
}

struct key_entry *key_table_revoke(struct key_table *table, const char *id)
{
    struct key_entry *entry = find_cached_id(table, id);

    if (entry != NULL) {
        entry->revoked = true;
    }
    return entry;
}

void key_take_hold(struct key_entry *key, struct key_hold *hold, void (*cut)(void *arg), void *arg)
{
    *hold = (struct key_hold){.key = key, .cut = cut, .arg = arg};
    list_append(&key->held, &hold->link);
    key->streams++;
}

void key_release(struct key_hold *hold)
{
    if (hold->key != NULL) {
        list_remove(&hold->link);
        hold->key->streams--;
        hold->key = NULL;
    }
}

void key_cut_held(struct key_entry *key)
{
    while (!list_is_empty(&key->held)) {
        struct key_hold *hold = list_entry(key->held.next, struct key_hold, link);
        void (*cut)(void *arg) = hold->cut;
        void *arg = hold->arg;

        key_release(hold);
        cut(arg);
    }
}

static void refill(const struct key_limits *limits, struct key_entry *key, int64_t now_ns)
{
    if (key->refilled_ns != 0 && now_ns > key->refilled_ns) {
        key->tokens += (double)(now_ns - key->refilled_ns) / 1e9 * limits->rate;
    }
    if (key->tokens > limits->burst) {
        key->tokens = limits->burst;
    }
    key->refilled_ns = now_ns;
}

int key_take(const struct key_table *table,
             struct key_entry *key,
             bool stream,
             int64_t now_ns,
             unsigned int *ret_wait_seconds,
             struct error *err)
{
    const struct key_limits *limits = &table->limits;

    refill(limits, key, now_ns);
    *ret_wait_seconds = 1;
    if (key->tokens < 1.0) {
        *ret_wait_seconds = (unsigned int)ceil((1.0 - key->tokens) / limits->rate);
        return error_set_code(err, ERROR_RATE_LIMITED, "requests",
                              "more than %.0f requests per second with this key", limits->rate);
    }
    if (stream ? key->streams >= limits->streams : key->requests >= limits->requests) {
        return error_set_code(err, ERROR_RATE_LIMITED, stream ? "streams" : "concurrency",
                              "more than %u %s at once with this key",
                              stream ? limits->streams : limits->requests,
                              stream ? "event streams" : "requests");
    }
    key->tokens -= 1.0;
    if (stream) {
        key->streams++;
    } else {
        key->requests++;
    }
    return 0;
}

void key_give_back(struct key_entry *key, bool stream)
{
    if (stream) {
        key->streams--;
    } else {
        key->requests--;
    }
}

struct key_budget key_budget_get(const struct key_table *table, const struct key_entry *key)
{
    double missing = table->limits.burst - key->tokens;

    return (struct key_budget){
        .limit = (unsigned int)table->limits.burst,
        .remaining = key->tokens < 1.0 ? 0 : (unsigned int)key->tokens,
        .reset_seconds = missing <= 0.0 ? 0 : (unsigned int)ceil(missing / table->limits.rate),
    };
}
