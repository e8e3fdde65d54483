#include "api/store_idempotency.h"

#include <errno.h>

#include "base/clock.h"

int store_idempotency_start(struct store *store,
                            const struct idempotency_use *use,
                            const struct idempotency_record *fresh,
                            struct idempotency_record *ret_record,
                            struct buf *ret_body,
                            struct error *err)
{
    int64_t now = clock_real_ms();
    sqlite3_stmt *stmt;
    int r;

    r = store_exec(store, err,
                   "INSERT INTO idempotency (key_id, idempotency_key, request_hash, seed,"
                   " created_at) VALUES (?1, ?2, ?3, ?4, ?5)"
                   " ON CONFLICT DO UPDATE SET request_hash = ?3, seed = ?4, created_at = ?5,"
                   " status = 0, body = NULL WHERE created_at < ?6",
                   "ttbbii", use->key_id, use->text, span_make(fresh->hash, sizeof(fresh->hash)),
                   span_make(fresh->seed, sizeof(fresh->seed)), now, now - IDEMPOTENCY_KEEP_MS);
    if (r != 0) {
        return r < 0 ? r : 1;
    }
    stmt = store_start(store, err,
                       "SELECT request_hash, seed, status, body FROM idempotency"
                       " WHERE key_id = ?1 AND idempotency_key = ?2",
                       "tt", use->key_id, use->text);
    r = stmt == NULL ? -EIO : store_step(store, stmt, err);
    if (r < 0) {
        return r;
    }
    if (r == 0 || sqlite3_column_bytes(stmt, 0) != IDEMPOTENCY_HASH_SIZE ||
        sqlite3_column_bytes(stmt, 1) != IDEMPOTENCY_HASH_SIZE) {
        (void)sqlite3_reset(stmt);
        return error_set(err, EIO, "the store holds a damaged idempotency record");
    }
    memcpy(ret_record->hash, sqlite3_column_blob(stmt, 0), IDEMPOTENCY_HASH_SIZE);
    memcpy(ret_record->seed, sqlite3_column_blob(stmt, 1), IDEMPOTENCY_HASH_SIZE);
    ret_record->status = sqlite3_column_int(stmt, 2);
    if (ret_record->status != 0) {
        const void *bytes = sqlite3_column_blob(stmt, 3);

        buf_put(ret_body, span_make(bytes, (size_t)sqlite3_column_bytes(stmt, 3)));
    }
    (void)sqlite3_reset(stmt);
    r = buf_error(ret_body);
    return r < 0 ? error_set(err, -r, "no memory") : 0;
}

int store_idempotency_finish(struct store *store,
                             const struct idempotency_use *use,
                             int status,
                             struct span body,
                             struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE idempotency SET status = ?3, body = ?4"
                       " WHERE key_id = ?1 AND idempotency_key = ?2",
                       "ttib", use->key_id, use->text, (int64_t)status, body);

    return r < 0 ? r : 0;
}

int store_idempotency_forget(struct store *store,
                             const struct idempotency_use *use,
                             struct error *err)
{
    int r =
        store_exec(store, err, "DELETE FROM idempotency WHERE key_id = ?1 AND idempotency_key = ?2",
                   "tt", use->key_id, use->text);

    return r < 0 ? r : 0;
}

int store_idempotency_prune(struct store *store, int64_t before, struct error *err)
{
    return store_exec(store, err,
                      "DELETE FROM idempotency WHERE (key_id, idempotency_key) IN (SELECT key_id, "
                      "idempotency_key FROM idempotency WHERE created_at < ?1 LIMIT 500)",
                      "i", before);
}
