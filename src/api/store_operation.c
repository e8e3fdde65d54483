#include "api/store_operation.h"

#include <assert.h>
#include <errno.h>

#define COLUMNS                                                                                    \
    "seq, id, kind, sandbox_id, key_id, state, created_at, finished_at, error, result,"            \
    " checkpoint_id, template, boots"

static const char *const state_names[] = {
    [OPERATION_PENDING] = "pending",
    [OPERATION_RUNNING] = "running",
    [OPERATION_SUCCEEDED] = "succeeded",
    [OPERATION_FAILED] = "failed",
};
static_assert(sizeof(state_names) / sizeof(state_names[0]) == OPERATION_STATE_COUNT,
              "a name for every state");

const char *operation_state_name(enum operation_state state)
{
    return state_names[state];
}

int operation_state_find(const char *name, enum operation_state *ret_state)
{
    for (int i = 0; i < OPERATION_STATE_COUNT; i++) {
        if (strcmp(state_names[i], name) == 0) {
            *ret_state = (enum operation_state)i;
            return 0;
        }
    }
    return -EINVAL;
}

void operation_done(struct operation *operation)
{
    free(operation->error);
    free(operation->result);
    operation->error = NULL;
    operation->result = NULL;
}

int store_operation_insert(struct store *store, const struct operation *o, struct error *err)
{
    int r = store_exec(store, err,
                       "INSERT INTO operations (id, kind, sandbox_id, key_id, state, created_at,"
                       " checkpoint_id, template, boots)"
                       " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                       "tttttitti", o->id, o->kind, o->sandbox_id, o->key_id, state_names[o->state],
                       o->created_at, o->checkpoint_id[0] == '\0' ? NULL : o->checkpoint_id,
                       o->template_made[0] == '\0' ? NULL : o->template_made, (int64_t)o->boots);

    return r < 0 ? r : 0;
}

static int read_row(sqlite3_stmt *stmt, void *ret, struct error *err)
{
    struct operation *o = ret;
    char state[16];
    bool failed = false;

    memset(o, 0, sizeof(*o));
    o->seq = sqlite3_column_int64(stmt, 0);
    store_column_copy(stmt, 1, o->id, sizeof(o->id));
    store_column_copy(stmt, 2, o->kind, sizeof(o->kind));
    store_column_copy(stmt, 3, o->sandbox_id, sizeof(o->sandbox_id));
    store_column_copy(stmt, 4, o->key_id, sizeof(o->key_id));
    store_column_copy(stmt, 5, state, sizeof(state));
    o->created_at = sqlite3_column_int64(stmt, 6);
    o->finished_at = sqlite3_column_int64(stmt, 7);
    o->error = store_column_dup(stmt, 8, &failed);
    o->result = store_column_dup(stmt, 9, &failed);
    store_column_copy(stmt, 10, o->checkpoint_id, sizeof(o->checkpoint_id));
    store_column_copy(stmt, 11, o->template_made, sizeof(o->template_made));
    o->boots = sqlite3_column_int(stmt, 12) != 0;
    if (failed) {
        operation_done(o);
        return error_set(err, ENOMEM, "no memory");
    }
    if (operation_state_find(state, &o->state) < 0) {
        operation_done(o);
        return error_set(err, EIO, "the store holds an unknown operation state");
    }
    return 0;
}

int store_operation_get(struct store *store,
                        const char *id,
                        struct operation *ret_operation,
                        struct error *err)
{
    return store_read_one(
        store, store_start(store, err, "SELECT " COLUMNS " FROM operations WHERE id = ?1", "t", id),
        read_row, ret_operation, err);
}

int store_operation_find(struct store *store,
                         const char *sandbox_id,
                         const char *kind,
                         struct operation *ret_operation,
                         struct error *err)
{
    return store_read_one(store,
                          store_start(store, err,
                                      "SELECT " COLUMNS " FROM operations WHERE sandbox_id = ?1"
                                      " AND (?2 IS NULL OR kind = ?2) ORDER BY seq DESC LIMIT 1",
                                      "tt", sandbox_id, kind),
                          read_row, ret_operation, err);
}

int store_operation_run(struct store *store, const char *id, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE operations SET state = 'running' WHERE id = ?1 AND finished_at = 0",
                       "t", id);

    return r < 0 ? r : 0;
}

int store_operation_set_result(struct store *store,
                               const char *id,
                               const char *result,
                               struct error *err)
{
    int r =
        store_exec(store, err, "UPDATE operations SET result = ?2 WHERE id = ?1", "tt", id, result);

    return r < 0 ? r : 0;
}

int store_operation_finish(
    struct store *store, const char *id, const char *error, int64_t now, struct error *err)
{
    return store_exec(store, err,
                      "UPDATE operations SET state = ?2, error = ?3, finished_at = ?4"
                      " WHERE id = ?1 AND finished_at = 0",
                      "ttti", id, error == NULL ? "succeeded" : "failed", error, now);
}

static int walk(
    struct store *store, sqlite3_stmt *stmt, operation_visit_fn visit, void *arg, struct error *err)
{
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        _cleanup_operation_ struct operation o = {0};

        r = read_row(stmt, &o, err);
        if (r == 0) {
            r = visit(arg, &o);
        }
        if (r != 0) {
            (void)sqlite3_reset(stmt);
            return r;
        }
        r = 1;
    }
    return r;
}

int store_operation_list(struct store *store,
                         const struct operation_filter *f,
                         operation_visit_fn visit,
                         void *arg,
                         struct error *err)
{
#define OTHERS                                                                                     \
    " AND seq < ?1 AND (?3 IS NULL OR kind = ?3)"                                                  \
    " AND (?4 = 0 OR (?4 >> CASE state WHEN 'pending' THEN 0 WHEN 'running' THEN 1"                \
    " WHEN 'succeeded' THEN 2 ELSE 3 END) & 1) ORDER BY seq DESC LIMIT ?5"
    /* Two statements, since one with "?2 IS NULL OR" reads the others' records too. */
    static const char *const of_all = "SELECT " COLUMNS " FROM operations WHERE ?2 IS NULL" OTHERS;
    static const char *const of_sandbox =
        "SELECT " COLUMNS " FROM operations WHERE sandbox_id = ?2" OTHERS;
#undef OTHERS
    sqlite3_stmt *stmt = store_start(store, err, f->sandbox_id == NULL ? of_all : of_sandbox,
                                     "ittii", f->before_seq == 0 ? INT64_MAX : f->before_seq,
                                     f->sandbox_id, f->kind, (int64_t)f->states, f->limit);

    return walk(store, stmt, visit, arg, err);
}

int store_operation_each_open(struct store *store,
                              operation_visit_fn visit,
                              void *arg,
                              struct error *err)
{
    return walk(store,
                store_start(store, err,
                            "SELECT " COLUMNS " FROM operations WHERE finished_at = 0 ORDER BY seq",
                            ""),
                visit, arg, err);
}

int store_operation_prune(struct store *store, int64_t before, struct error *err)
{
    return store_exec(store, err,
                      "DELETE FROM operations WHERE seq IN (SELECT seq FROM operations"
                      " WHERE finished_at > 0 AND finished_at < ?1 LIMIT 500)",
                      "i", before);
}
