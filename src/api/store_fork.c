#include "api/store_fork.h"

#include <errno.h>
#include <stdlib.h>

void fork_children_done(struct fork_child *children, int count)
{
    for (int i = 0; i < count; i++) {
        free(TAKE(children[i].error));
    }
}

int store_fork_add(struct store *store,
                   const char *operation_id,
                   int position,
                   const char *sandbox_id,
                   struct error *err)
{
    int r = store_exec(store, err,
                       "INSERT INTO fork_children (operation_id, position, sandbox_id)"
                       " VALUES (?1, ?2, ?3)",
                       "tit", operation_id, (int64_t)position, sandbox_id);

    return r < 0 ? r : 0;
}

int store_fork_end(struct store *store,
                   const char *operation_id,
                   const char *sandbox_id,
                   const char *error,
                   struct error *err)
{
    return store_exec(store, err,
                      "UPDATE fork_children SET ended = 1, error = ?3"
                      " WHERE sandbox_id = ?2 AND operation_id = ?1 AND ended = 0",
                      "ttt", operation_id, sandbox_id, error);
}

int store_fork_count_open(struct store *store, const char *operation_id, struct error *err)
{
    sqlite3_stmt *stmt = store_start(
        store, err, "SELECT count(*) FROM fork_children WHERE operation_id = ?1 AND ended = 0", "t",
        operation_id);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        r = sqlite3_column_int(stmt, 0);
        (void)sqlite3_reset(stmt);
    }
    return r;
}

int store_fork_read(struct store *store,
                    const char *operation_id,
                    struct fork_child *ret_children,
                    int max,
                    struct error *err)
{
    sqlite3_stmt *stmt = store_start(store, err,
                                     "SELECT sandbox_id, ended, error FROM fork_children"
                                     " WHERE operation_id = ?1 ORDER BY position LIMIT ?2",
                                     "ti", operation_id, (int64_t)max);
    bool failed = false;
    int count = 0;
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        struct fork_child *child = &ret_children[count++];

        store_column_copy(stmt, 0, child->sandbox_id, sizeof(child->sandbox_id));
        child->ended = sqlite3_column_int(stmt, 1) != 0;
        child->error = store_column_dup(stmt, 2, &failed);
    }
    if (r == 0 && failed) {
        r = error_set(err, ENOMEM, "no memory");
    }
    if (r < 0) {
        fork_children_done(ret_children, count);
        return r;
    }
    return count;
}

int store_fork_remove(struct store *store, const char *operation_id, struct error *err)
{
    int r = store_exec(store, err, "DELETE FROM fork_children WHERE operation_id = ?1", "t",
                       operation_id);

    return r < 0 ? r : 0;
}
