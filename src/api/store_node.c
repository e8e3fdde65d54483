#include "api/store_node.h"

#include <errno.h>
#include <string.h>

int store_node_get(struct store *store,
                   const char *name,
                   struct store_node *ret_node,
                   struct error *err)
{
    sqlite3_stmt *stmt = store_start(
        store, err, "SELECT drain_at, drained_at FROM nodes WHERE name = ?1", "t", name);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r < 0) {
        return r;
    }
    *ret_node = (struct store_node){0};
    if (r > 0) {
        ret_node->drain_at = sqlite3_column_int64(stmt, 0);
        ret_node->drained_at = sqlite3_column_int64(stmt, 1);
        (void)sqlite3_reset(stmt);
    }
    return 0;
}

int store_node_set(struct store *store,
                   const char *name,
                   const struct store_node *node,
                   struct error *err)
{
    int r = store_exec(store, err,
                       "INSERT INTO nodes (name, drain_at, drained_at) VALUES (?1, ?2, ?3)"
                       " ON CONFLICT (name) DO UPDATE SET drain_at = ?2, drained_at = ?3",
                       "tii", name, node->drain_at, node->drained_at);

    return r < 0 ? r : 0;
}

int store_node_count(struct store *store,
                     int64_t ret_counts[SANDBOX_STATE_COUNT],
                     struct error *err)
{
    sqlite3_stmt *stmt = store_start(
        store, err, "SELECT state, count(*) FROM sandboxes WHERE deleted_at = 0 GROUP BY state",
        "");
    int64_t counts[SANDBOX_STATE_COUNT] = {0};
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        enum sandbox_state state;
        char name[32];

        store_column_copy(stmt, 0, name, sizeof(name));
        if (sandbox_state_find(name, &state) == 0) {
            counts[state] = sqlite3_column_int64(stmt, 1);
        }
    }
    if (r == 0) {
        memcpy(ret_counts, counts, sizeof(counts));
    }
    return r;
}

int store_node_next(struct store *store,
                    int64_t after,
                    struct store_node_sandbox *ret_sandbox,
                    struct error *err)
{
    sqlite3_stmt *stmt = store_start(
        store, err,
        "SELECT seq, id FROM sandboxes WHERE deleted_at = 0 AND seq > ?1 AND state IN"
        " ('running', 'pausing', 'paused', 'suspending', 'waking') ORDER BY seq LIMIT 1",
        "i", after);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        ret_sandbox->seq = sqlite3_column_int64(stmt, 0);
        store_column_copy(stmt, 1, ret_sandbox->id, sizeof(ret_sandbox->id));
        (void)sqlite3_reset(stmt);
    }
    return r;
}
