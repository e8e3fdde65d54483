#include "api/store_sandbox.h"

#include <assert.h>
#include <errno.h>

#define COLUMNS                                                                                    \
    "seq, id, key_id, name, template, template_version, state, reason_code, reason_message,"       \
    " vcpus, memory_mib, disk_mib, metadata, env_names, identity, transient, timeout_ms, node,"    \
    " created_at, running_at, active_at, expires_at, deleted_at, timeout_action,"                  \
    " idle_timeout_ms, idle_action, auto_wake, keep_suspended_ms, suspended_at,"                   \
    " parent_id, manifest"

static const char *const state_names[] = {
    [SANDBOX_CREATING] = "creating",     [SANDBOX_RUNNING] = "running",
    [SANDBOX_PAUSING] = "pausing",       [SANDBOX_PAUSED] = "paused",
    [SANDBOX_SUSPENDING] = "suspending", [SANDBOX_SUSPENDED] = "suspended",
    [SANDBOX_WAKING] = "waking",         [SANDBOX_DELETING] = "deleting",
    [SANDBOX_ERROR] = "error",
};
static const char *const action_names[] = {
    [LIFECYCLE_NONE] = NULL,
    [LIFECYCLE_DELETE] = "delete",
    [LIFECYCLE_PAUSE] = "pause",
    [LIFECYCLE_SUSPEND] = "suspend",
};

static_assert(sizeof(state_names) / sizeof(state_names[0]) == SANDBOX_STATE_COUNT,
              "a name for every state");

const char *lifecycle_action_name(enum lifecycle_action action)
{
    return action_names[action];
}

static enum lifecycle_action read_action(sqlite3_stmt *stmt, int column)
{
    const char *name = (const char *)sqlite3_column_text(stmt, column);

    for (int i = LIFECYCLE_DELETE; name != NULL && i <= LIFECYCLE_SUSPEND; i++) {
        if (strcmp(action_names[i], name) == 0) {
            return (enum lifecycle_action)i;
        }
    }
    return LIFECYCLE_NONE;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return state_names[state];
}

int sandbox_state_find(const char *name, enum sandbox_state *ret_state)
{
    for (int i = 0; i < SANDBOX_STATE_COUNT; i++) {
        if (strcmp(state_names[i], name) == 0) {
            *ret_state = (enum sandbox_state)i;
            return 0;
        }
    }
    return -EINVAL;
}

void sandbox_done(struct sandbox *sandbox)
{
    free(sandbox->metadata);
    free(sandbox->env_names);
    free(sandbox->identity);
    sandbox->metadata = NULL;
    sandbox->env_names = NULL;
    sandbox->identity = NULL;
}

static const char *or_null(const char *text)
{
    return text == NULL || text[0] == '\0' ? NULL : text;
}

/* There is always one. */
static const char *timeout_action_of(const struct sandbox *s)
{
    return action_names[s->rules.timeout_action == LIFECYCLE_NONE ? LIFECYCLE_DELETE
                                                                  : s->rules.timeout_action];
}

/* The bounds of all ids with the same shard: process and session ids share it with the sandbox. */
static void shard_bounds(const char *id, char low[ID_SIZE], char high[ID_SIZE])
{
    (void)snprintf(low, ID_SIZE, "sb%.*s", ID_SHARD_CHARS, &id[2]);
    (void)snprintf(high, ID_SIZE, "sb%.*s~", ID_SHARD_CHARS, &id[2]);
}

int store_sandbox_insert(struct store *store,
                         const struct sandbox *s,
                         const char *pending_body,
                         struct error *err)
{
    char low[ID_SIZE];
    char high[ID_SIZE];
    int r;

    shard_bounds(s->id, low, high);
    r = store_exec(
        store, err,
        "INSERT INTO sandboxes (id, key_id, name, template, template_version, state, vcpus,"
        " memory_mib, disk_mib, metadata, env_names, pending_body, transient, timeout_ms, node,"
        " created_at, expires_at, active_at, timeout_action, idle_timeout_ms, idle_action,"
        " auto_wake, keep_suspended_ms, parent_id)"
        " SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?16,"
        " ?20, ?21, ?22, ?23, ?24, ?25"
        " WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE id BETWEEN ?18 AND ?19)",
        "ttttttiiitttiitiitttitiit", s->id, s->key_id, or_null(s->name), s->template_name,
        or_null(s->template_version), state_names[s->state], s->vcpus, s->memory_mib, s->disk_mib,
        s->metadata, s->env_names, pending_body, (int64_t)s->transient, s->rules.timeout_ms,
        s->node, s->created_at, s->expires_at, low, high, timeout_action_of(s),
        s->rules.idle_timeout_ms, action_names[s->rules.idle_action], (int64_t)s->rules.auto_wake,
        s->rules.keep_suspended_ms, or_null(s->parent_id));
    if (r == 0) {
        return -EEXIST;
    }
    return r < 0 ? r : 0;
}

/* Fills *s from the row that stmt stands on. */
static int read_row(sqlite3_stmt *stmt, void *ret, struct error *err)
{
    struct sandbox *s = ret;
    char state[16];
    bool failed = false;

    memset(s, 0, sizeof(*s));
    s->seq = sqlite3_column_int64(stmt, 0);
    store_column_copy(stmt, 1, s->id, sizeof(s->id));
    store_column_copy(stmt, 2, s->key_id, sizeof(s->key_id));
    store_column_copy(stmt, 3, s->name, sizeof(s->name));
    store_column_copy(stmt, 4, s->template_name, sizeof(s->template_name));
    store_column_copy(stmt, 5, s->template_version, sizeof(s->template_version));
    store_column_copy(stmt, 6, state, sizeof(state));
    store_column_copy(stmt, 7, s->reason_code, sizeof(s->reason_code));
    store_column_copy(stmt, 8, s->reason_message, sizeof(s->reason_message));
    s->vcpus = sqlite3_column_int64(stmt, 9);
    s->memory_mib = sqlite3_column_int64(stmt, 10);
    s->disk_mib = sqlite3_column_int64(stmt, 11);
    s->metadata = store_column_dup(stmt, 12, &failed);
    s->env_names = store_column_dup(stmt, 13, &failed);
    s->identity = store_column_dup(stmt, 14, &failed);
    s->transient = sqlite3_column_int(stmt, 15) != 0;
    s->rules.timeout_ms = sqlite3_column_int64(stmt, 16);
    store_column_copy(stmt, 17, s->node, sizeof(s->node));
    s->created_at = sqlite3_column_int64(stmt, 18);
    s->running_at = sqlite3_column_int64(stmt, 19);
    s->active_at = sqlite3_column_int64(stmt, 20);
    s->expires_at = sqlite3_column_int64(stmt, 21);
    s->deleted_at = sqlite3_column_int64(stmt, 22);
    s->rules.timeout_action = read_action(stmt, 23);
    s->rules.idle_timeout_ms = sqlite3_column_int64(stmt, 24);
    s->rules.idle_action = read_action(stmt, 25);
    s->rules.auto_wake = sqlite3_column_int(stmt, 26) != 0;
    s->rules.keep_suspended_ms = sqlite3_column_int64(stmt, 27);
    s->suspended_at = sqlite3_column_int64(stmt, 28);
    store_column_copy(stmt, 29, s->parent_id, sizeof(s->parent_id));
    store_column_copy(stmt, 30, s->manifest, sizeof(s->manifest));
    if (failed) {
        sandbox_done(s);
        return error_set(err, ENOMEM, "no memory");
    }
    if (sandbox_state_find(state, &s->state) < 0) {
        sandbox_done(s);
        return error_set(err, EIO, "the store holds an unknown sandbox state");
    }
    return 0;
}

int store_sandbox_get(struct store *store,
                      const char *id,
                      struct sandbox *ret_sandbox,
                      struct error *err)
{
    return store_read_one(
        store, store_start(store, err, "SELECT " COLUMNS " FROM sandboxes WHERE id = ?1", "t", id),
        read_row, ret_sandbox, err);
}

int store_sandbox_get_shard(struct store *store,
                            const char *any_id,
                            struct sandbox *ret_sandbox,
                            struct error *err)
{
    char low[ID_SIZE];
    char high[ID_SIZE];

    shard_bounds(any_id, low, high);
    return store_read_one(
        store,
        store_start(store, err, "SELECT " COLUMNS " FROM sandboxes WHERE id BETWEEN ?1 AND ?2",
                    "tt", low, high),
        read_row, ret_sandbox, err);
}

/* The first column of the only row as an id: 1, 0 or -errno. */
static int read_id(struct store *store, sqlite3_stmt *stmt, char ret_id[ID_SIZE], struct error *err)
{
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        store_column_copy(stmt, 0, ret_id, ID_SIZE);
        (void)sqlite3_reset(stmt);
    }
    return r;
}

int store_sandbox_find_name(struct store *store,
                            const char *name,
                            char ret_id[ID_SIZE],
                            struct error *err)
{
    return read_id(store,
                   store_start(store, err,
                               "SELECT id FROM sandboxes WHERE name = ?1 AND deleted_at = 0", "t",
                               name),
                   ret_id, err);
}

int store_sandbox_update(struct store *store, const struct sandbox *s, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE sandboxes SET name = ?2, template_version = ?3, state = ?4,"
                       " reason_code = ?5, reason_message = ?6, vcpus = ?7, memory_mib = ?8,"
                       " disk_mib = ?9, metadata = ?10, env_names = ?11, identity = ?12,"
                       " timeout_ms = ?13, running_at = ?14, active_at = ?15, expires_at = ?16,"
                       " timeout_action = ?17, idle_timeout_ms = ?18, idle_action = ?19,"
                       " auto_wake = ?20, keep_suspended_ms = ?21, suspended_at = ?22,"
                       " manifest = ?23 WHERE id = ?1",
                       "ttttttiiitttiiiititiiit", s->id, or_null(s->name),
                       or_null(s->template_version), state_names[s->state], or_null(s->reason_code),
                       or_null(s->reason_message), s->vcpus, s->memory_mib, s->disk_mib,
                       s->metadata, s->env_names, s->identity, s->rules.timeout_ms, s->running_at,
                       s->active_at, s->expires_at, timeout_action_of(s), s->rules.idle_timeout_ms,
                       action_names[s->rules.idle_action], (int64_t)s->rules.auto_wake,
                       s->rules.keep_suspended_ms, s->suspended_at, or_null(s->manifest));

    return r < 0 ? r : 0;
}

int store_sandbox_set_state(struct store *store,
                            const char *id,
                            enum sandbox_state state,
                            const char *reason_code,
                            const char *reason_message,
                            struct error *err)
{
    int r =
        store_exec(store, err,
                   "UPDATE sandboxes SET state = ?2, reason_code = ?3, reason_message = ?4"
                   " WHERE id = ?1 AND deleted_at = 0",
                   "tttt", id, state_names[state], or_null(reason_code), or_null(reason_message));

    return r < 0 ? r : 0;
}

int store_sandbox_bury(struct store *store, const char *id, int64_t now, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE sandboxes SET deleted_at = ?2, state = 'deleting',"
                       " pending_body = NULL, metadata = '{}', env_names = '[]'"
                       " WHERE id = ?1 AND deleted_at = 0",
                       "ti", id, now);

    return r < 0 ? r : 0;
}

int store_sandbox_touch(struct store *store, const char *id, int64_t now, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE sandboxes SET active_at = ?2 WHERE id = ?1 AND active_at < ?2", "ti",
                       id, now);

    return r < 0 ? r : 0;
}

char *store_sandbox_pending_body(struct store *store, const char *id, struct error *err)
{
    bool failed = false;
    char *body = NULL;
    sqlite3_stmt *stmt =
        store_start(store, err, "SELECT pending_body FROM sandboxes WHERE id = ?1", "t", id);

    if (stmt == NULL || store_step(store, stmt, err) <= 0) {
        return NULL;
    }
    body = store_column_dup(stmt, 0, &failed);
    (void)sqlite3_reset(stmt);
    if (failed) {
        (void)error_set(err, ENOMEM, "no memory");
    }
    return body;
}

int store_sandbox_drop_pending(struct store *store, const char *id, struct error *err)
{
    int r = store_exec(store, err,
                       "UPDATE sandboxes SET pending_body = NULL"
                       " WHERE id = ?1 AND pending_body IS NOT NULL",
                       "t", id);

    return r < 0 ? r : 0;
}

static int
walk(struct store *store, sqlite3_stmt *stmt, sandbox_visit_fn visit, void *arg, struct error *err)
{
    int r;

    while ((r = store_step(store, stmt, err)) > 0) {
        _cleanup_sandbox_ struct sandbox s = {0};

        r = read_row(stmt, &s, err);
        if (r == 0) {
            r = visit(arg, &s);
        }
        if (r != 0) {
            (void)sqlite3_reset(stmt);
            return r;
        }
    }
    return r;
}

/* ?1 to ?6 are fixed; every metadata pair adds a condition and two parameters. */
static char *list_sql(const struct sandbox_filter *filter)
{
    static const char head[] = "SELECT " COLUMNS " FROM sandboxes WHERE deleted_at = 0"
                               " AND seq < ?1 AND (?2 IS NULL OR template = ?2)"
                               " AND (?3 IS NULL OR name = ?3) AND (?4 = 0 OR created_at > ?4)"
                               " AND (?5 = 0 OR created_at < ?5)";
    sqlite3_str *sql = sqlite3_str_new(NULL);

    sqlite3_str_appendall(sql, head);
    if (filter->states != 0) {
        const char *comma = "";

        sqlite3_str_appendall(sql, " AND state IN (");
        for (int i = 0; i < SANDBOX_STATE_COUNT; i++) {
            if ((filter->states & (1U << i)) != 0) {
                sqlite3_str_appendf(sql, "%s'%s'", comma, state_names[i]);
                comma = ", ";
            }
        }
        sqlite3_str_appendall(sql, ")");
    }
    for (size_t i = 0; i < filter->metadata_count; i++) {
        sqlite3_str_appendf(sql,
                            " AND EXISTS (SELECT 1 FROM json_each(sandboxes.metadata)"
                            " WHERE key = ?%d AND value = ?%d)",
                            (int)(7 + 2 * i), (int)(8 + 2 * i));
    }
    sqlite3_str_appendall(sql, " ORDER BY seq DESC LIMIT ?6");
    return sqlite3_str_finish(sql);
}

static int bind_list(sqlite3_stmt *stmt, const struct sandbox_filter *f)
{
    int r = sqlite3_bind_int64(stmt, 1, f->before_seq == 0 ? INT64_MAX : f->before_seq);

    r |= sqlite3_bind_text(stmt, 2, f->template_name, -1, SQLITE_STATIC);
    r |= sqlite3_bind_text(stmt, 3, f->name, -1, SQLITE_STATIC);
    r |= sqlite3_bind_int64(stmt, 4, f->created_after);
    r |= sqlite3_bind_int64(stmt, 5, f->created_before);
    r |= sqlite3_bind_int(stmt, 6, f->limit);
    for (size_t i = 0; i < 2 * f->metadata_count; i++) {
        r |= sqlite3_bind_text(stmt, (int)(7 + i), f->metadata[i], -1, SQLITE_STATIC);
    }
    return r == SQLITE_OK ? 0 : -EIO;
}

int store_sandbox_list(struct store *store,
                       const struct sandbox_filter *filter,
                       sandbox_visit_fn visit,
                       void *arg,
                       struct error *err)
{
    char *sql = list_sql(filter);
    sqlite3_stmt *stmt = NULL;
    int r;

    if (sql == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    if (sqlite3_prepare_v2(store_handle(store), sql, -1, &stmt, NULL) != SQLITE_OK ||
        bind_list(stmt, filter) < 0) {
        r = store_fail(store, err, "list of sandboxes");
    } else {
        r = walk(store, stmt, visit, arg, err);
    }
    (void)sqlite3_finalize(stmt);
    sqlite3_free(sql);
    return r;
}

int store_sandbox_each_living(struct store *store,
                              sandbox_visit_fn visit,
                              void *arg,
                              struct error *err)
{
    sqlite3_stmt *stmt =
        store_start(store, err, "SELECT " COLUMNS " FROM sandboxes WHERE deleted_at = 0", "");

    return stmt == NULL ? -EIO : walk(store, stmt, visit, arg, err);
}

int store_sandbox_usage(struct store *store,
                        const char *key_id,
                        struct sandbox_usage *ret_usage,
                        struct error *err)
{
    sqlite3_stmt *stmt = store_start(store, err,
                                     "SELECT count(*), total(vcpus), total(memory_mib)"
                                     " FROM sandboxes WHERE key_id = ?1 AND deleted_at = 0",
                                     "t", key_id);
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r < 0) {
        return r;
    }
    *ret_usage =
        (struct sandbox_usage){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1),
                               sqlite3_column_int64(stmt, 2)};
    (void)sqlite3_reset(stmt);
    return 0;
}

/* The only number of the only row, 0 without one. */
static int read_time(struct store *store, sqlite3_stmt *stmt, int64_t *ret_at, struct error *err)
{
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r < 0) {
        return r;
    }
    *ret_at = r == 0 ? 0 : sqlite3_column_int64(stmt, 0);
    (void)sqlite3_reset(stmt);
    return 0;
}

/* Returns how many rows the statement has; it has a limit. */
static int
read_ids(struct store *store, sqlite3_stmt *stmt, char (*ret_ids)[ID_SIZE], struct error *err)
{
    int count = 0;
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        store_column_copy(stmt, 0, ret_ids[count++], ID_SIZE);
    }
    return r < 0 ? r : count;
}

/* Each rule: which sandboxes it is of, and when it is due, as its index has them. */
#define EXPIRES         "deleted_at = 0 AND expires_at > 0 AND state != 'deleting'"
#define EXPIRES_DUE     "expires_at"
#define IS_KEPT         "deleted_at = 0 AND keep_suspended_ms > 0 AND state = 'suspended'"
#define IS_KEPT_DUE     "suspended_at + keep_suspended_ms"
#define IDLE_RULE       "deleted_at = 0 AND idle_timeout_ms > 0 AND state = 'running'"
#define IDLE_RULE_DUE   "active_at + idle_timeout_ms"
#define NEXT(rule, due) "SELECT " due " FROM sandboxes WHERE " rule " ORDER BY " due " LIMIT 1"
#define FIND(rule, due)                                                                            \
    "SELECT id FROM sandboxes WHERE " rule " AND " due " <= ?1 ORDER BY " due " LIMIT ?2 OFFSET "  \
    "?3"

int store_sandbox_next_expiry(struct store *store, int64_t *ret_at, struct error *err)
{
    return read_time(store, store_start(store, err, NEXT(EXPIRES, EXPIRES_DUE), ""), ret_at, err);
}

int store_sandbox_find_expired(struct store *store,
                               int64_t now,
                               char (*ret_ids)[ID_SIZE],
                               struct id_range range,
                               struct error *err)
{
    return read_ids(store,
                    store_start(store, err, FIND(EXPIRES, EXPIRES_DUE), "iii", now,
                                (int64_t)range.max, (int64_t)range.skip),
                    ret_ids, err);
}

int store_sandbox_next_retention(struct store *store, int64_t *ret_at, struct error *err)
{
    return read_time(store, store_start(store, err, NEXT(IS_KEPT, IS_KEPT_DUE), ""), ret_at, err);
}

int store_sandbox_find_kept(struct store *store,
                            int64_t now,
                            char (*ret_ids)[ID_SIZE],
                            struct id_range range,
                            struct error *err)
{
    return read_ids(store,
                    store_start(store, err, FIND(IS_KEPT, IS_KEPT_DUE), "iii", now,
                                (int64_t)range.max, (int64_t)range.skip),
                    ret_ids, err);
}

int store_sandbox_next_idle(struct store *store, int64_t *ret_at, struct error *err)
{
    return read_time(store, store_start(store, err, NEXT(IDLE_RULE, IDLE_RULE_DUE), ""), ret_at,
                     err);
}

int store_sandbox_find_idle(struct store *store,
                            int64_t now,
                            char (*ret_ids)[ID_SIZE],
                            struct id_range range,
                            struct error *err)
{
    return read_ids(store,
                    store_start(store, err, FIND(IDLE_RULE, IDLE_RULE_DUE), "iii", now,
                                (int64_t)range.max, (int64_t)range.skip),
                    ret_ids, err);
}

int store_sandbox_spend_timeout(struct store *store, const char *id, struct error *err)
{
    int r = store_exec(store, err, "UPDATE sandboxes SET expires_at = 0 WHERE id = ?1", "t", id);

    return r < 0 ? r : 0;
}

int store_sandbox_prune(struct store *store,
                        int64_t before,
                        int64_t transient_before,
                        struct error *err)
{
    return store_exec(store, err,
                      "DELETE FROM sandboxes WHERE seq IN (SELECT seq FROM sandboxes"
                      " WHERE deleted_at > 0 AND deleted_at < max(?1, ?2)"
                      " AND deleted_at < CASE transient WHEN 1 THEN ?2 ELSE ?1 END"
                      " ORDER BY deleted_at LIMIT 500)",
                      "ii", before, transient_before);
}
