#include "api/store_key.h"

#include <errno.h>

#define COLUMNS "seq, id, name, role, hash, created_at, expires_at"

static const char *const role_names[] = {
    [KEY_ROLE_READ] = "read",
    [KEY_ROLE_MEMBER] = "member",
    [KEY_ROLE_ADMIN] = "admin",
};

const char *key_role_name(enum key_role role)
{
    return role_names[role];
}

int key_role_find(const char *name, enum key_role *ret_role)
{
    for (int i = KEY_ROLE_READ; i <= KEY_ROLE_ADMIN; i++) {
        if (strcmp(role_names[i], name) == 0) {
            *ret_role = (enum key_role)i;
            return 0;
        }
    }
    return -EINVAL;
}

int store_key_insert(struct store *store, const struct key_record *key, struct error *err)
{
    int r = store_exec(store, err,
                       "INSERT INTO keys (id, name, role, hash, created_at, expires_at)"
                       " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                       "tttbii", key->id, key->name, role_names[key->role],
                       span_make(key->hash, sizeof(key->hash)), key->created_at, key->expires_at);

    return r < 0 ? r : 0;
}

static int read_row(sqlite3_stmt *stmt, void *ret, struct error *err)
{
    struct key_record *key = ret;
    char role[16];

    memset(key, 0, sizeof(*key));
    key->seq = sqlite3_column_int64(stmt, 0);
    store_column_copy(stmt, 1, key->id, sizeof(key->id));
    store_column_copy(stmt, 2, key->name, sizeof(key->name));
    store_column_copy(stmt, 3, role, sizeof(role));
    if (key_role_find(role, &key->role) < 0 || sqlite3_column_bytes(stmt, 4) != KEY_HASH_SIZE) {
        return error_set(err, EIO, "the store holds a damaged key record");
    }
    memcpy(key->hash, sqlite3_column_blob(stmt, 4), KEY_HASH_SIZE);
    key->created_at = sqlite3_column_int64(stmt, 5);
    key->expires_at = sqlite3_column_int64(stmt, 6);
    return 0;
}

int store_key_find_hash(struct store *store,
                        const uint8_t hash[KEY_HASH_SIZE],
                        struct key_record *ret_key,
                        struct error *err)
{
    return store_read_one(
        store,
        store_start(store, err, "SELECT " COLUMNS " FROM keys WHERE hash = ?1 AND revoked_at = 0",
                    "b", span_make(hash, KEY_HASH_SIZE)),
        read_row, ret_key, err);
}

int store_key_get(struct store *store,
                  const char *id,
                  struct key_record *ret_key,
                  struct error *err)
{
    return store_read_one(
        store,
        store_start(store, err, "SELECT " COLUMNS " FROM keys WHERE id = ?1 AND revoked_at = 0",
                    "t", id),
        read_row, ret_key, err);
}

int store_key_revoke(struct store *store, const char *id, int64_t now, struct error *err)
{
    return store_exec(store, err,
                      "UPDATE keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at = 0", "ti", id,
                      now);
}

int store_key_list(struct store *store,
                   int64_t before_seq,
                   int64_t limit,
                   key_visit_fn visit,
                   void *arg,
                   struct error *err)
{
    sqlite3_stmt *stmt = store_start(store, err,
                                     "SELECT " COLUMNS " FROM keys WHERE revoked_at = 0"
                                     " AND (?1 = 0 OR seq < ?1) ORDER BY seq DESC LIMIT ?2",
                                     "ii", before_seq, limit);
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        struct key_record key;

        r = read_row(stmt, &key, err);
        if (r == 0) {
            r = visit(arg, &key);
        }
        if (r != 0) {
            (void)sqlite3_reset(stmt);
            return r;
        }
        r = 1;
    }
    return r;
}

int store_key_count_admins(struct store *store, int64_t now, struct error *err)
{
    sqlite3_stmt *stmt = store_start(store, err,
                                     "SELECT count(*) FROM keys WHERE role = 'admin'"
                                     " AND revoked_at = 0"
                                     " AND (expires_at = 0 OR expires_at > ?1)",
                                     "i", now);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        r = sqlite3_column_int(stmt, 0);
        (void)sqlite3_reset(stmt);
    }
    return r;
}
