#include "api/store_checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS                                                                                    \
    "seq, id, name, sandbox_id, key_id, state, memory, size_bytes, template, template_version,"    \
    " vcpus, memory_mib, disk_mib, env_names, created_at, manifest"

static const char *const state_names[] = {
    [CHECKPOINT_MAKING] = "making",   [CHECKPOINT_READY] = "ready",
    [CHECKPOINT_FORKING] = "forking", [CHECKPOINT_DELETING] = "deleting",
    [CHECKPOINT_LOST] = "lost",
};
_Static_assert(sizeof(state_names) / sizeof(state_names[0]) == CHECKPOINT_STATE_COUNT,
               "every state has a name");

void checkpoint_done(struct checkpoint *checkpoint)
{
    free(checkpoint->env_names);
    checkpoint->env_names = NULL;
}

static const char *or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

int store_checkpoint_insert(struct store *store, const struct checkpoint *c, struct error *err)
{
    int r = store_exec(
        store, err,
        "INSERT INTO checkpoints (id, name, sandbox_id, key_id, state, memory, template,"
        " template_version, vcpus, memory_mib, disk_mib, env_names, created_at)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        "tttttittiiiti", c->id, or_null(c->name), c->sandbox_id, c->key_id, state_names[c->state],
        (int64_t)c->memory, c->template_name, or_null(c->template_version), c->vcpus, c->memory_mib,
        c->disk_mib, c->env_names, c->created_at);

    return r < 0 ? r : 0;
}

static int read_row(sqlite3_stmt *stmt, void *ret, struct error *err)
{
    struct checkpoint *c = ret;
    char state[16];
    bool failed = false;

    memset(c, 0, sizeof(*c));
    c->seq = sqlite3_column_int64(stmt, 0);
    store_column_copy(stmt, 1, c->id, sizeof(c->id));
    store_column_copy(stmt, 2, c->name, sizeof(c->name));
    store_column_copy(stmt, 3, c->sandbox_id, sizeof(c->sandbox_id));
    store_column_copy(stmt, 4, c->key_id, sizeof(c->key_id));
    store_column_copy(stmt, 5, state, sizeof(state));
    c->memory = sqlite3_column_int(stmt, 6) != 0;
    c->size_bytes = sqlite3_column_int64(stmt, 7);
    store_column_copy(stmt, 8, c->template_name, sizeof(c->template_name));
    store_column_copy(stmt, 9, c->template_version, sizeof(c->template_version));
    c->vcpus = sqlite3_column_int64(stmt, 10);
    c->memory_mib = sqlite3_column_int64(stmt, 11);
    c->disk_mib = sqlite3_column_int64(stmt, 12);
    c->env_names = store_column_dup(stmt, 13, &failed);
    c->created_at = sqlite3_column_int64(stmt, 14);
    store_column_copy(stmt, 15, c->manifest, sizeof(c->manifest));
    if (failed) {
        return error_set(err, ENOMEM, "no memory");
    }
    for (size_t i = 0; i < CHECKPOINT_STATE_COUNT; i++) {
        if (strcmp(state, state_names[i]) == 0) {
            c->state = (enum checkpoint_state)i;
            return 0;
        }
    }
    checkpoint_done(c);
    return error_set(err, EIO, "the store holds an unknown checkpoint state");
}

int store_checkpoint_get(struct store *store,
                         const char *id,
                         struct checkpoint *ret_checkpoint,
                         struct error *err)
{
    return store_read_one(
        store,
        store_start(store, err, "SELECT " COLUMNS " FROM checkpoints WHERE id = ?1", "t", id),
        read_row, ret_checkpoint, err);
}

int store_checkpoint_settle(struct store *store, const struct checkpoint *c, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE checkpoints SET state = 'ready', memory = ?2, size_bytes = ?3,"
                       " created_at = ?4 WHERE id = ?1 AND state = 'making'",
                       "tiii", c->id, (int64_t)c->memory, c->size_bytes, c->created_at);

    return r < 0 ? r : 0;
}

int store_checkpoint_set_forking(struct store *store, const char *id, struct error *err)
{
    int r = store_exec(
        store, err, "UPDATE checkpoints SET state = 'forking' WHERE id = ?1 AND state = 'making'",
        "t", id);

    return r < 0 ? r : 0;
}

int store_checkpoint_set_manifest(struct store *store,
                                  const char *id,
                                  const char *manifest,
                                  struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE checkpoints SET manifest = ?2"
                       " WHERE id = ?1 AND manifest IS NOT ?2",
                       "tt", id, or_null(manifest));

    return r < 0 ? r : 0;
}

int store_checkpoint_set_deleting(struct store *store, const char *id, struct error *err)
{
    int r =
        store_exec(store, err, "UPDATE checkpoints SET state = 'deleting' WHERE id = ?1", "t", id);

    return r < 0 ? r : 0;
}

int store_checkpoint_set_lost(struct store *store, const char *id, bool is_lost, struct error *err)
{
    int r = store_exec(store, err, "UPDATE checkpoints SET state = ?2 WHERE id = ?1 AND state = ?3",
                       "ttt", id, state_names[is_lost ? CHECKPOINT_LOST : CHECKPOINT_READY],
                       state_names[is_lost ? CHECKPOINT_READY : CHECKPOINT_LOST]);

    return r < 0 ? r : 0;
}

int store_checkpoint_remove(struct store *store, const char *id, struct error *err)
{
    int r = store_exec(store, err, "DELETE FROM checkpoints WHERE id = ?1", "t", id);

    return r < 0 ? r : 0;
}

int store_checkpoint_is_used(struct store *store, const char *id, struct error *err)
{
    sqlite3_stmt *stmt = store_start(
        store, err,
        "SELECT EXISTS (SELECT 1 FROM operations WHERE finished_at = 0 AND checkpoint_id = ?1)"
        " OR EXISTS (SELECT 1 FROM sandboxes WHERE state = 'creating' AND deleted_at = 0"
        " AND instr(pending_body, ?1) > 0)",
        "t", id);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        r = sqlite3_column_int(stmt, 0);
        (void)sqlite3_reset(stmt);
    }
    return r;
}

static int walk(struct store *store,
                sqlite3_stmt *stmt,
                checkpoint_visit_fn visit,
                void *arg,
                struct error *err)
{
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        _cleanup_checkpoint_ struct checkpoint c = {0};

        r = read_row(stmt, &c, err);
        if (r == 0) {
            r = visit(arg, &c);
        }
        if (r != 0) {
            (void)sqlite3_reset(stmt);
            return r;
        }
        r = 1;
    }
    return r;
}

int store_checkpoint_list(struct store *store,
                          const struct checkpoint_filter *f,
                          checkpoint_visit_fn visit,
                          void *arg,
                          struct error *err)
{
    /* Two statements, since one with "?1 IS NULL OR" reads the others' records too. */
    static const char *const of_all =
        "SELECT " COLUMNS " FROM checkpoints WHERE state = 'ready' AND ?1 IS NULL"
        " AND (?2 IS NULL OR name = ?2) AND seq < ?3 ORDER BY seq DESC LIMIT ?4";
    static const char *const of_sandbox =
        "SELECT " COLUMNS " FROM checkpoints WHERE state = 'ready' AND sandbox_id = ?1"
        " AND (?2 IS NULL OR name = ?2) AND seq < ?3 ORDER BY seq DESC LIMIT ?4";

    return walk(store,
                store_start(store, err, f->sandbox_id == NULL ? of_all : of_sandbox, "ttii",
                            f->sandbox_id, f->name, f->before_seq == 0 ? INT64_MAX : f->before_seq,
                            f->limit),
                visit, arg, err);
}

int store_checkpoint_each_deleting(struct store *store,
                                   checkpoint_visit_fn visit,
                                   void *arg,
                                   struct error *err)
{
    return walk(
        store,
        store_start(store, err, "SELECT " COLUMNS " FROM checkpoints WHERE state = 'deleting'", ""),
        visit, arg, err);
}
