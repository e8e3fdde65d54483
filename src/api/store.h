/* The store: one SQLite file with the records that space-api owns.
 *
 * WAL with synchronous=NORMAL: a commit is a write to the page cache, never an fsync, so that it
 * costs tens of microseconds on the request path. A killed process loses nothing; a power cut may
 * lose the last moments but never the file's consistency, and the node's feed then corrects the
 * records. Checkpoints, which do fsync, run on a worker thread with a connection of their own.
 * All other calls are the loop thread's. Failures are storage_full, service_unavailable (locked)
 * or internal. */
#pragma once

#include <stdint.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/span.h"

struct loop;
struct store;

struct store_migration {
    int version; /* 1, 2, … in order */
    const char *sql;
};

/* Opens or makes the file and migrates it. A newer schema is refused (-EPROTO). */
int store_open(const char *path, struct store **ret_store, struct error *err) _must_check_;
void store_close(struct store *store);
/* From now on checkpoints run on this loop's workers; before, SQLite does them inline. */
int store_use_loop(struct store *store, struct loop *loop, struct error *err) _must_check_;

/* Brings the file to the last of these migrations, each in a transaction of its own. */
int store_migrate(struct store *store,
                  const struct store_migration *migrations,
                  size_t count,
                  struct error *err) _must_check_;
/* Space that is set aside in a file beside the store, so that deletes can be written down when the
 * disk is full: taken when there is room for it, given back when a delete needs it. The latter
 * returns whether there was any. */
void store_reserve_take(const struct store *store);
bool store_reserve_give_back(const struct store *store);
/* Where the reserve is, a store was: without its file, what the machine has would be unknown to an
 * empty one, and deleted. 0, or -EIO before anything is opened. */
int store_reserve_check(const struct store *store, struct error *err) _must_check_;

/* The schema that this program speaks. */
const struct store_migration *store_migrations(size_t *ret_count);

int store_begin(struct store *store, struct error *err) _must_check_;
/* On failure the transaction is rolled back. */
int store_commit(struct store *store, struct error *err) _must_check_;
void store_rollback(struct store *store);

/* A cached statement with its values bound: one letter of `types` per value: t text (NULL allowed),
 * i int64_t, b struct span as a blob (p NULL: null). `sql` must be a literal, its address is the
 * cache's key. NULL with err filled on failure. */
sqlite3_stmt *
store_start(struct store *store, struct error *err, const char *sql, const char *types, ...);
/* 1 for a row, 0 at the end, -errno; the last two reset the statement. */
int store_step(struct store *store, sqlite3_stmt *stmt, struct error *err) _must_check_;
/* Runs a statement without rows. Returns the number of rows it changed, or -errno. */
int store_exec(struct store *store, struct error *err, const char *sql, const char *types, ...)
    _must_check_;
/* Fills err from SQLite's last error. Returns -errno. */
int store_fail(struct store *store, struct error *err, const char *what);
sqlite3 *store_handle(struct store *store);
const char *store_path(const struct store *store);

/* Reads the row that a statement has at most (stmt NULL: store_start failed) into ret, which
 * belongs to the caller when it was read. 1, 0 when there is none, -errno. */
typedef int (*store_read_fn)(sqlite3_stmt *stmt, void *ret, struct error *err);
int store_read_one(struct store *store,
                   sqlite3_stmt *stmt,
                   store_read_fn read,
                   void *ret,
                   struct error *err) _must_check_;

/* Column readers: "" or 0 for NULL. */
void store_column_copy(sqlite3_stmt *stmt, int column, char *out, size_t out_size);
/* Sets *failed when there is no memory; NULL for NULL. */
char *store_column_dup(sqlite3_stmt *stmt, int column, bool *failed);

/* 32 random bytes under this name, made when they are first asked for. */
int store_secret(struct store *store, const char *name, uint8_t ret_secret[32], struct error *err)
    _must_check_;
