/* Schema versions. A change of the schema is a new entry at the end of the table; entries that a
 * release has shipped never change. Times are milliseconds since 1970 UTC, 0 or NULL for none. */
#include <errno.h>

#include "api/store.h"
#include "base/clock.h"
#include "base/log.h"

static const struct store_migration migrations_table[] = {
    {1, "CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE keys ("
        "  seq INTEGER PRIMARY KEY,"
        "  id TEXT NOT NULL UNIQUE,"
        "  name TEXT NOT NULL,"
        "  role TEXT NOT NULL CHECK (role IN ('admin', 'member', 'read')),"
        "  hash BLOB NOT NULL UNIQUE,"
        "  created_at INTEGER NOT NULL,"
        "  expires_at INTEGER NOT NULL DEFAULT 0,"
        "  revoked_at INTEGER NOT NULL DEFAULT 0);"
        "CREATE TABLE sandboxes ("
        "  seq INTEGER PRIMARY KEY,"
        "  id TEXT NOT NULL UNIQUE,"
        "  key_id TEXT NOT NULL REFERENCES keys (id),"
        "  name TEXT,"
        "  template TEXT NOT NULL,"
        "  template_version TEXT,"
        "  state TEXT NOT NULL,"
        "  reason_code TEXT,"
        "  reason_message TEXT,"
        "  vcpus INTEGER NOT NULL,"
        "  memory_mib INTEGER NOT NULL,"
        "  disk_mib INTEGER NOT NULL,"
        "  metadata TEXT NOT NULL DEFAULT '{}',"
        "  env_names TEXT NOT NULL DEFAULT '[]',"
        "  identity TEXT,"
        "  pending_body TEXT,"
        "  transient INTEGER NOT NULL DEFAULT 0,"
        "  timeout_ms INTEGER NOT NULL DEFAULT 0,"
        "  node TEXT NOT NULL,"
        "  created_at INTEGER NOT NULL,"
        "  running_at INTEGER NOT NULL DEFAULT 0,"
        "  active_at INTEGER NOT NULL DEFAULT 0,"
        "  expires_at INTEGER NOT NULL DEFAULT 0,"
        "  deleted_at INTEGER NOT NULL DEFAULT 0);"
        "CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name)"
        "  WHERE deleted_at = 0 AND name IS NOT NULL;"
        "CREATE INDEX sandboxes_living ON sandboxes (seq) WHERE deleted_at = 0;"
        "CREATE INDEX sandboxes_expiry ON sandboxes (expires_at)"
        "  WHERE deleted_at = 0 AND expires_at > 0;"
        "CREATE INDEX sandboxes_deleted ON sandboxes (deleted_at) WHERE deleted_at > 0;"
        "CREATE TABLE operations ("
        "  seq INTEGER PRIMARY KEY,"
        "  id TEXT NOT NULL UNIQUE,"
        "  kind TEXT NOT NULL,"
        "  sandbox_id TEXT NOT NULL,"
        "  key_id TEXT NOT NULL,"
        "  state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'succeeded', 'failed')),"
        "  created_at INTEGER NOT NULL,"
        "  finished_at INTEGER NOT NULL DEFAULT 0,"
        "  error TEXT,"
        "  result TEXT);"
        "CREATE INDEX operations_sandbox ON operations (sandbox_id);"
        "CREATE INDEX operations_open ON operations (seq) WHERE finished_at = 0;"
        "CREATE INDEX operations_finished ON operations (finished_at) WHERE finished_at > 0;"
        "CREATE TABLE idempotency ("
        "  key_id TEXT NOT NULL,"
        "  idempotency_key TEXT NOT NULL,"
        "  request_hash BLOB NOT NULL,"
        "  seed BLOB NOT NULL,"
        "  created_at INTEGER NOT NULL,"
        "  status INTEGER NOT NULL DEFAULT 0,"
        "  body BLOB,"
        "  PRIMARY KEY (key_id, idempotency_key)) WITHOUT ROWID;"
        "CREATE INDEX idempotency_age ON idempotency (created_at);"},
    {2, "CREATE TABLE public_ports ("
        "  sandbox_id TEXT NOT NULL,"
        "  port INTEGER NOT NULL,"
        "  PRIMARY KEY (sandbox_id, port)) WITHOUT ROWID;"
        "CREATE TRIGGER public_ports_end AFTER UPDATE OF deleted_at ON sandboxes"
        "  WHEN NEW.deleted_at > 0"
        "  BEGIN DELETE FROM public_ports WHERE sandbox_id = NEW.id; END;"},
    {3, "ALTER TABLE sandboxes ADD COLUMN timeout_action TEXT NOT NULL DEFAULT 'delete';"
        "ALTER TABLE sandboxes ADD COLUMN idle_timeout_ms INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE sandboxes ADD COLUMN idle_action TEXT;"
        "ALTER TABLE sandboxes ADD COLUMN auto_wake INTEGER NOT NULL DEFAULT 1;"
        "CREATE INDEX sandboxes_idle ON sandboxes (active_at + idle_timeout_ms)"
        "  WHERE deleted_at = 0 AND idle_timeout_ms > 0 AND state = 'running';"},
    {4, "ALTER TABLE sandboxes ADD COLUMN keep_suspended_ms INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE sandboxes ADD COLUMN suspended_at INTEGER NOT NULL DEFAULT 0;"
        "CREATE INDEX sandboxes_kept ON sandboxes (suspended_at + keep_suspended_ms)"
        "  WHERE deleted_at = 0 AND keep_suspended_ms > 0 AND state = 'suspended';"},
    {5, "CREATE TABLE nodes ("
        "  name TEXT PRIMARY KEY,"
        "  drain_at INTEGER NOT NULL DEFAULT 0,"
        "  drained_at INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;"},
    {6, "CREATE TABLE checkpoints ("
        "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
        "  id TEXT NOT NULL UNIQUE,"
        "  name TEXT,"
        "  sandbox_id TEXT NOT NULL,"
        "  key_id TEXT NOT NULL,"
        "  state TEXT NOT NULL,"
        "  memory INTEGER NOT NULL,"
        "  size_bytes INTEGER NOT NULL DEFAULT 0,"
        "  template TEXT NOT NULL,"
        "  template_version TEXT,"
        "  vcpus INTEGER NOT NULL,"
        "  memory_mib INTEGER NOT NULL,"
        "  disk_mib INTEGER NOT NULL,"
        "  env_names TEXT NOT NULL,"
        "  created_at INTEGER NOT NULL);"
        "CREATE INDEX checkpoints_sandbox ON checkpoints (sandbox_id, seq);"
        "CREATE INDEX checkpoints_deleting ON checkpoints (state) WHERE state = 'deleting';"
        "ALTER TABLE operations ADD COLUMN checkpoint_id TEXT;"
        "ALTER TABLE sandboxes ADD COLUMN parent_id TEXT;"},
    {7, "CREATE TABLE fork_children ("
        "  operation_id TEXT NOT NULL,"
        "  position INTEGER NOT NULL,"
        "  sandbox_id TEXT NOT NULL UNIQUE,"
        "  ended INTEGER NOT NULL DEFAULT 0,"
        "  error TEXT,"
        "  PRIMARY KEY (operation_id, position)) WITHOUT ROWID;"},
    {8, "ALTER TABLE operations ADD COLUMN template TEXT;"},
    {9, "ALTER TABLE sandboxes ADD COLUMN manifest TEXT;"
        "ALTER TABLE checkpoints ADD COLUMN manifest TEXT;"},
    {10, "ALTER TABLE operations ADD COLUMN boots INTEGER NOT NULL DEFAULT 0;"
         "UPDATE operations SET boots = 1"
         "  WHERE finished_at = 0 AND kind = 'wake' AND state = 'running'"
         "  AND sandbox_id IN (SELECT id FROM sandboxes"
         "    WHERE state = 'waking' AND reason_code <> '');"},
};

const struct store_migration *store_migrations(size_t *ret_count)
{
    *ret_count = sizeof(migrations_table) / sizeof(migrations_table[0]);
    return migrations_table;
}

static int run_script(struct store *store, const char *sql, const char *what, struct error *err)
{
    if (sqlite3_exec(store_handle(store), sql, NULL, NULL, NULL) != SQLITE_OK) {
        return store_fail(store, err, what);
    }
    return 0;
}

static int read_version(struct store *store, int *ret_version, struct error *err)
{
    sqlite3_stmt *stmt;
    int r = run_script(store,
                       "CREATE TABLE IF NOT EXISTS migrations ("
                       "version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL,"
                       "program TEXT NOT NULL)",
                       "migrations table", err);

    if (r < 0) {
        return r;
    }
    stmt = store_start(store, err, "SELECT coalesce(max(version), 0) FROM migrations", "");
    r = stmt == NULL ? -EIO : store_step(store, stmt, err);
    if (r < 0) {
        return r;
    }
    *ret_version = sqlite3_column_int(stmt, 0);
    (void)sqlite3_reset(stmt);
    return 0;
}

static int apply(struct store *store, const struct store_migration *m, struct error *err)
{
    int r = store_begin(store, err);
    int version = 0;

    if (r < 0) {
        return r;
    }
    /* Another process may have been quicker: look again under the write lock. */
    r = read_version(store, &version, err);
    if (r == 0 && version >= m->version) {
        store_rollback(store);
        return 0;
    }
    if (r == 0) {
        r = run_script(store, m->sql, "migration", err);
    }
    if (r == 0) {
        r = store_exec(store, err,
                       "INSERT INTO migrations (version, applied_at, program) VALUES (?1, ?2, ?3)",
                       "iit", (int64_t)m->version, clock_real_ms(), SPACE_VERSION);
    }
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, err);
}

int store_migrate(struct store *store,
                  const struct store_migration *migrations,
                  size_t count,
                  struct error *err)
{
    int newest = migrations[count - 1].version;
    int version;
    int r = read_version(store, &version, err);

    if (r < 0) {
        return r;
    }
    if (version > newest) {
        (void)error_set(err, EPROTO,
                        "the store has schema version %d, this program knows up to %d: "
                        "run a newer release, or restore a backup made by this one",
                        version, newest);
        return -EPROTO;
    }
    for (size_t i = 0; i < count; i++) {
        if (migrations[i].version <= version) {
            continue;
        }
        r = apply(store, &migrations[i], err);
        if (r < 0) {
            (void)error_wrap(err, "schema version %d", migrations[i].version);
            return r;
        }
        log_info("store migrated", "version=%d", migrations[i].version);
    }
    return 0;
}
