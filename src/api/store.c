#include "api/store.h"

#include <errno.h>
#include <stdarg.h>

#include "api/store_step.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "io/loop.h"

#define STORE_STATEMENTS_MAX  96
#define STORE_BUSY_MS         2000
#define STORE_WAL_PAGES       1000 /* a checkpoint is started beyond this */
#define STORE_WAL_LONG        4000
#define STORE_WAL_LIMIT_BYTES "33554432"
#define STORE_CACHE_KIB       "-4096"

struct store_cached {
    const char *sql;
    sqlite3_stmt *stmt;
};

struct store {
    sqlite3 *db;
    sqlite3 *checkpoint_db; /* the worker thread's */
    struct loop *loop;
    bool checkpointing;
    bool closing;
    struct store_step step;
    char path[512];
    struct store_cached cached[STORE_STATEMENTS_MAX];
    size_t cached_count;
};

int store_fail(struct store *store, struct error *err, const char *what)
{
    int code = sqlite3_errcode(store->db) & 0xff;
    int system = sqlite3_system_errno(store->db);

    if (code == SQLITE_FULL || (code == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT))) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "the store's disk is full");
    }
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "the store is locked");
    }
    if (code == SQLITE_NOMEM) {
        return error_set(err, ENOMEM, "no memory for the store");
    }
    log_error("store", "what=%s code=%d error=%s", what, sqlite3_extended_errcode(store->db),
              LOG_STR(sqlite3_errmsg(store->db)));
    return error_set(err, EIO, "the store failed: %s", what);
}

sqlite3 *store_handle(struct store *store)
{
    return store->db;
}

const char *store_path(const struct store *store)
{
    return store->path;
}

static int run_pragmas(sqlite3 *db)
{
    static const char pragmas[] = "PRAGMA journal_mode=WAL;"
                                  "PRAGMA synchronous=NORMAL;"
                                  "PRAGMA foreign_keys=ON;"
                                  "PRAGMA secure_delete=FAST;"
                                  "PRAGMA temp_store=MEMORY;"
                                  "PRAGMA cache_size=" STORE_CACHE_KIB ";"
                                  "PRAGMA journal_size_limit=" STORE_WAL_LIMIT_BYTES ";";

    return sqlite3_exec(db, pragmas, NULL, NULL, NULL);
}

static int open_handle(const char *path, sqlite3 **ret_db)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int r = sqlite3_open_v2(path, ret_db, flags, NULL);

    if (r == SQLITE_OK) {
        (void)sqlite3_extended_result_codes(*ret_db, 1);
        (void)sqlite3_busy_timeout(*ret_db, STORE_BUSY_MS);
        r = run_pragmas(*ret_db);
    }
    return r;
}

int store_open(const char *path, struct store **ret_store, struct error *err)
{
    struct store *store = calloc(1, sizeof(*store));
    const struct store_migration *migrations;
    size_t count;
    int r;

    if (store == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    (void)snprintf(store->path, sizeof(store->path), "%s", path);
    r = store_reserve_check(store, err);
    if (r < 0) {
        store_close(store);
        return r;
    }
    if (open_handle(path, &store->db) != SQLITE_OK) {
        r = store->db == NULL ? error_set(err, ENOMEM, "no memory")
                              : store_fail(store, err, "open");
        (void)error_wrap(err, "cannot open %.150s: %s", path,
                         store->db == NULL ? "" : sqlite3_errmsg(store->db));
        store_close(store);
        return r;
    }
    migrations = store_migrations(&count);
    r = store_migrate(store, migrations, count, err);
    if (r < 0) {
        (void)error_wrap(err, "%.150s", path);
        store_close(store);
        return r;
    }
    *ret_store = store;
    return 0;
}

void store_close(struct store *store)
{
    if (store == NULL) {
        return;
    }
    store->closing = true;
    for (size_t i = 0; i < store->cached_count; i++) {
        (void)sqlite3_finalize(store->cached[i].stmt);
    }
    (void)sqlite3_close(store->checkpoint_db);
    (void)sqlite3_close(store->db);
    free(store);
}

/* ---- checkpoints ---- */

/* Under load a passive checkpoint never catches up with the writer, and the log is never begun
 * anew. Once it is long, a second pass over the little that is left holds the writer for a moment.
 */
static void checkpoint_work(void *arg)
{
    struct store *store = arg;
    sqlite3 *db = store->checkpoint_db;
    int pages = 0;
    int done = 0;

    (void)sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, &pages, &done);
    if (pages > STORE_WAL_LONG) {
        (void)sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    }
}

static void checkpoint_done(void *arg)
{
    struct store *store = arg;

    store->checkpointing = false;
}

static int on_wal(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct store *store = arg;

    (void)db;
    (void)name;
    store_step_committed(&store->step);
    if (pages >= STORE_WAL_PAGES && !store->checkpointing && !store->closing &&
        loop_submit(store->loop, checkpoint_work, checkpoint_done, store, false) == 0) {
        store->checkpointing = true;
    }
    return SQLITE_OK;
}

int store_use_loop(struct store *store, struct loop *loop, struct error *err)
{
    if (open_handle(store->path, &store->checkpoint_db) != SQLITE_OK) {
        return error_set(err, EIO, "cannot open %.150s a second time", store->path);
    }
    store->loop = loop;
    (void)sqlite3_wal_hook(store->db, on_wal, store);
    store_step_watch(store->db, &store->step);
    return 0;
}

/* ---- statements ---- */

static sqlite3_stmt *find_statement(struct store *store, const char *sql, struct error *err)
{
    sqlite3_stmt *stmt = NULL;

    for (size_t i = 0; i < store->cached_count; i++) {
        if (store->cached[i].sql == sql) {
            (void)sqlite3_reset(store->cached[i].stmt);
            return store->cached[i].stmt;
        }
    }
    if (store->cached_count == STORE_STATEMENTS_MAX) {
        (void)error_set(err, ENOBUFS, "too many statements");
        return NULL;
    }
    if (sqlite3_prepare_v3(store->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) !=
        SQLITE_OK) {
        (void)store_fail(store, err, sql);
        return NULL;
    }
    store->cached[store->cached_count++] = (struct store_cached){sql, stmt};
    return stmt;
}

static int bind_all(sqlite3_stmt *stmt, const char *types, va_list args)
{
    int r = SQLITE_OK;

    for (int i = 0; r == SQLITE_OK && types[i] != '\0'; i++) {
        if (types[i] == 't') {
            r = sqlite3_bind_text(stmt, i + 1, va_arg(args, const char *), -1, SQLITE_TRANSIENT);
        } else if (types[i] == 'i') {
            r = sqlite3_bind_int64(stmt, i + 1, va_arg(args, int64_t));
        } else {
            struct span blob = va_arg(args, struct span);

            r = sqlite3_bind_blob64(stmt, i + 1, blob.p, blob.n, SQLITE_TRANSIENT);
        }
    }
    return r;
}

static sqlite3_stmt *bound(struct store *store, sqlite3_stmt *stmt, int code, struct error *err)
{
    if (code == SQLITE_OK) {
        return stmt;
    }
    (void)store_fail(store, err, sqlite3_sql(stmt));
    return NULL;
}

sqlite3_stmt *
store_start(struct store *store, struct error *err, const char *sql, const char *types, ...)
{
    sqlite3_stmt *stmt = find_statement(store, sql, err);
    va_list args;
    int code;

    if (stmt == NULL) {
        return NULL;
    }
    va_start(args, types);
    code = bind_all(stmt, types, args);
    va_end(args);
    return bound(store, stmt, code, err);
}

int store_step(struct store *store, sqlite3_stmt *stmt, struct error *err)
{
    int code = sqlite3_step(stmt);
    int r = 0;

    if (code == SQLITE_ROW) {
        return 1;
    }
    if (code != SQLITE_DONE) {
        r = store_fail(store, err, sqlite3_sql(stmt));
    }
    (void)sqlite3_reset(stmt);
    return r;
}

int store_read_one(
    struct store *store, sqlite3_stmt *stmt, store_read_fn read, void *ret, struct error *err)
{
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r <= 0) {
        return r;
    }
    r = read(stmt, ret, err);
    (void)sqlite3_reset(stmt);
    return r < 0 ? r : 1;
}

int store_exec(struct store *store, struct error *err, const char *sql, const char *types, ...)
{
    sqlite3_stmt *stmt = find_statement(store, sql, err);
    va_list args;
    int code;
    int r;

    if (stmt != NULL) {
        va_start(args, types);
        code = bind_all(stmt, types, args);
        va_end(args);
        stmt = bound(store, stmt, code, err);
    }
    if (stmt == NULL) {
        return err != NULL && err->errnum > 0 ? -err->errnum : -EIO;
    }
    r = store_step(store, stmt, err);
    if (r > 0) {
        (void)sqlite3_reset(stmt);
    }
    return r < 0 ? r : sqlite3_changes(store->db);
}

/* ---- transactions ---- */

int store_begin(struct store *store, struct error *err)
{
    int r = store_exec(store, err, "BEGIN IMMEDIATE", "");

    return r < 0 ? r : 0;
}

int store_commit(struct store *store, struct error *err)
{
    int r = store_exec(store, err, "COMMIT", "");

    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return 0;
}

void store_rollback(struct store *store)
{
    if (sqlite3_get_autocommit(store->db) == 0) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
}

/* ---- columns ---- */

void store_column_copy(sqlite3_stmt *stmt, int column, char *out, size_t out_size)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);

    (void)snprintf(out, out_size, "%s", text == NULL ? "" : (const char *)text);
}

char *store_column_dup(sqlite3_stmt *stmt, int column, bool *failed)
{
    const unsigned char *text = sqlite3_column_text(stmt, column);
    char *copy;

    if (text == NULL) {
        return NULL;
    }
    copy = strdup((const char *)text);
    if (copy == NULL) {
        *failed = true;
    }
    return copy;
}

int store_secret(struct store *store, const char *name, uint8_t ret_secret[32], struct error *err)
{
    sqlite3_stmt *stmt;
    uint8_t fresh[32];
    int r = random_bytes(fresh, sizeof(fresh));

    if (r < 0) {
        return error_set(err, -r, "no random bytes");
    }
    r = store_exec(store, err,
                   "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT DO NOTHING", "tb",
                   name, span_make(fresh, sizeof(fresh)));
    explicit_bzero(fresh, sizeof(fresh));
    if (r < 0) {
        return r;
    }
    stmt = store_start(store, err, "SELECT value FROM facts WHERE name = ?1", "t", name);
    if (stmt == NULL) {
        return -EIO;
    }
    r = store_step(store, stmt, err);
    if (r <= 0 || sqlite3_column_bytes(stmt, 0) != 32) {
        (void)sqlite3_reset(stmt);
        return r < 0 ? r : error_set(err, EIO, "the store's secret is damaged");
    }
    memcpy(ret_secret, sqlite3_column_blob(stmt, 0), 32);
    (void)sqlite3_reset(stmt);
    return 0;
}
