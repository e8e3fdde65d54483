/* Store, migrations and records, each on a fresh file. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "api/store_checkpoint.h"
#include "api/store_idempotency.h"
#include "api/store_key.h"
#include "api/store_operation.h"
#include "api/store_port.h"
#include "api/store_sandbox.h"
#include "base/clock.h"
#include "base/fd.h"

struct fixture {
    char dir[64];
    char path[96];
    struct store *store;
    struct key_record key;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct error err;

    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/space-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof(f->path), "%s/space.db", f->dir);
    assert_int_equal(store_open(f->path, &f->store, &err), 0);
    assert_int_equal(id_make("ky", f->key.id), 0);
    (void)snprintf(f->key.name, sizeof(f->key.name), "first");
    f->key.role = KEY_ROLE_ADMIN;
    f->key.created_at = 1;
    memset(f->key.hash, 7, sizeof(f->key.hash));
    assert_int_equal(store_key_insert(f->store, &f->key, &err), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    store_close(f->store);
    assert_int_equal(dir_remove_tree(-100, f->dir), 0);
    free(f);
    return 0;
}

/* An empty store would have every sandbox of the machine deleted. */
static void test_a_lost_store_is_not_begun_anew(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct stat st;
    char path[120];

    (void)snprintf(path, sizeof(path), "%s-reserve", f->path);
    store_reserve_take(f->store);
    assert_int_equal(stat(path, &st), 0);
    store_close(f->store);
    f->store = NULL;
    assert_int_equal(store_open(f->path, &f->store, &err), 0); /* it is whole */
    store_close(f->store);
    f->store = NULL;
    assert_int_equal(truncate(f->path, 0), 0);
    assert_int_equal(store_open(f->path, &f->store, &err), -EIO);
    assert_non_null(strstr(err.message, "restore it from a backup"));
    assert_non_null(strstr(err.message, path));
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(store_open(f->path, &f->store, &err), -EIO);
    assert_int_equal(stat(f->path, &st), -1); /* nothing was made in its place */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(store_open(f->path, &f->store, &err), 0);
}

static struct sandbox make_sandbox(const struct fixture *f, const char *name)
{
    struct sandbox s = {0};

    assert_int_equal(id_make("sb", s.id), 0);
    memcpy(s.key_id, f->key.id, sizeof(s.key_id));
    (void)snprintf(s.name, sizeof(s.name), "%s", name);
    (void)snprintf(s.template_name, sizeof(s.template_name), "base");
    s.vcpus = 1;
    s.memory_mib = 512;
    s.disk_mib = 4096;
    s.metadata = strdup("{\"team\":\"a\"}");
    s.env_names = strdup("[\"LANG\"]");
    (void)snprintf(s.node, sizeof(s.node), "local");
    s.created_at = 1000;
    return s;
}

static void test_sandbox_record(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    _cleanup_sandbox_ struct sandbox s = make_sandbox(f, "one");
    _cleanup_sandbox_ struct sandbox got = {0};
    char id[ID_SIZE];
    char session[ID_SIZE];

    assert_int_equal(store_sandbox_insert(f->store, &s, "{\"x\":1}", &err), 0);
    assert_int_equal(store_sandbox_insert(f->store, &s, NULL, &err), -EEXIST);
    assert_int_equal(store_sandbox_get(f->store, s.id, &got, &err), 1);
    assert_string_equal(got.name, "one");
    assert_string_equal(got.metadata, "{\"team\":\"a\"}");
    assert_int_equal(got.state, SANDBOX_CREATING);
    sandbox_done(&got);
    assert_int_equal(id_make_within("se", s.id, session), 0);
    assert_int_equal(store_sandbox_get_shard(f->store, session, &got, &err), 1);
    assert_string_equal(got.id, s.id);
    assert_int_equal(store_sandbox_find_name(f->store, "one", id, &err), 1);
    assert_string_equal(id, s.id);
    {
        _cleanup_free_ char *body = store_sandbox_pending_body(f->store, s.id, &err);

        assert_string_equal(body, "{\"x\":1}");
    }
    assert_int_equal(store_sandbox_drop_pending(f->store, s.id, &err), 0);
    err.code = ERROR_NONE;
    assert_null(store_sandbox_pending_body(f->store, s.id, &err));
    assert_int_equal(err.code, ERROR_NONE);
    got.state = SANDBOX_RUNNING;
    got.expires_at = 5000;
    assert_int_equal(store_sandbox_update(f->store, &got, &err), 0);
    sandbox_done(&got);
    assert_int_equal(store_sandbox_get(f->store, s.id, &got, &err), 1);
    assert_int_equal(got.state, SANDBOX_RUNNING);
    assert_int_equal(
        store_sandbox_find_expired(f->store, 4999, &id, (struct id_range){.max = 1}, &err), 0);
    assert_int_equal(
        store_sandbox_find_expired(f->store, 5000, &id, (struct id_range){.max = 1}, &err), 1);
    assert_int_equal(store_sandbox_bury(f->store, s.id, 6000, &err), 0);
    assert_int_equal(store_sandbox_find_name(f->store, "one", id, &err), 0);
    sandbox_done(&got);
    assert_int_equal(store_sandbox_get(f->store, s.id, &got, &err), 1);
    assert_int_equal(got.deleted_at, 6000);
    assert_int_equal(store_sandbox_prune(f->store, 6001, 0, &err), 1);
    sandbox_done(&got);
    assert_int_equal(store_sandbox_get(f->store, s.id, &got, &err), 0);
}

struct walk {
    int count;
    int64_t seqs[64];
};

static int count_visit(void *arg, const struct sandbox *s)
{
    struct walk *w = arg;

    w->seqs[w->count++] = s->seq;
    return 0;
}

static void test_sandbox_list(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct walk w = {0};
    const char *pairs[] = {"team", "a", "n", "3"};
    struct sandbox_filter filter = {.limit = 4};
    struct sandbox_usage usage;

    for (int i = 0; i < 10; i++) {
        _cleanup_sandbox_ struct sandbox s = make_sandbox(f, "");
        char text[64];

        free(s.metadata);
        (void)snprintf(text, sizeof(text), "{\"team\":\"%s\",\"n\":\"%d\"}", i % 2 ? "a" : "b", i);
        s.metadata = strdup(text);
        s.created_at = 1000 + i;
        s.state = i < 5 ? SANDBOX_RUNNING : SANDBOX_ERROR;
        assert_int_equal(store_sandbox_insert(f->store, &s, NULL, &err), 0);
    }
    assert_int_equal(store_sandbox_list(f->store, &filter, count_visit, &w, &err), 0);
    assert_int_equal(w.count, 4);
    assert_true(w.seqs[0] > w.seqs[3]);
    filter.before_seq = w.seqs[3];
    filter.limit = 100;
    w.count = 0;
    assert_int_equal(store_sandbox_list(f->store, &filter, count_visit, &w, &err), 0);
    assert_int_equal(w.count, 6);
    filter.before_seq = 0;
    filter.metadata = pairs;
    filter.metadata_count = 1;
    w.count = 0;
    assert_int_equal(store_sandbox_list(f->store, &filter, count_visit, &w, &err), 0);
    assert_int_equal(w.count, 5);
    filter.metadata_count = 2;
    w.count = 0;
    assert_int_equal(store_sandbox_list(f->store, &filter, count_visit, &w, &err), 0);
    assert_int_equal(w.count, 1);
    filter.metadata_count = 0;
    filter.states = 1U << SANDBOX_ERROR;
    filter.created_after = 1006;
    filter.created_before = 1009;
    w.count = 0;
    assert_int_equal(store_sandbox_list(f->store, &filter, count_visit, &w, &err), 0);
    assert_int_equal(w.count, 2);
    assert_int_equal(store_sandbox_usage(f->store, f->key.id, &usage, &err), 0);
    assert_int_equal(usage.sandboxes, 10);
    assert_int_equal(usage.memory_mib, 5120);
}

static int first_operation(void *arg, const struct operation *o)
{
    memcpy(arg, o->id, ID_SIZE);
    return 1;
}

static void test_operations(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct operation o = {.kind = "create", .created_at = 5, .boots = true};
    _cleanup_operation_ struct operation got = {0};
    struct operation_filter filter = {.limit = 10, .states = 1U << OPERATION_FAILED};
    char id[ID_SIZE] = "";

    assert_int_equal(id_make("op", o.id), 0);
    assert_int_equal(id_make("sb", o.sandbox_id), 0);
    memcpy(o.key_id, f->key.id, ID_SIZE);
    assert_int_equal(store_operation_insert(f->store, &o, &err), 0);
    assert_int_equal(store_operation_each_open(f->store, first_operation, id, &err), 1);
    assert_string_equal(id, o.id);
    assert_int_equal(store_operation_find(f->store, o.sandbox_id, "delete", &got, &err), 0);
    assert_int_equal(store_operation_find(f->store, o.sandbox_id, NULL, &got, &err), 1);
    assert_int_equal(store_operation_list(f->store, &filter, first_operation, id, &err), 0);
    assert_int_equal(store_operation_finish(f->store, o.id, "{}", 9, &err), 1);
    assert_int_equal(store_operation_finish(f->store, o.id, NULL, 10, &err), 0);
    assert_int_equal(store_operation_list(f->store, &filter, first_operation, id, &err), 1);
    operation_done(&got);
    assert_int_equal(store_operation_get(f->store, o.id, &got, &err), 1);
    assert_int_equal(got.state, OPERATION_FAILED);
    assert_int_equal(got.finished_at, 9);
    assert_true(got.boots);
    assert_int_equal(store_operation_prune(f->store, 10, &err), 1);
}

static void test_keys(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct key_record got;

    assert_int_equal(store_key_find_hash(f->store, f->key.hash, &got, &err), 1);
    assert_string_equal(got.id, f->key.id);
    assert_int_equal(got.role, KEY_ROLE_ADMIN);
    assert_int_equal(store_key_count_admins(f->store, 5, &err), 1);
    assert_int_equal(store_key_revoke(f->store, f->key.id, 10, &err), 1);
    assert_int_equal(store_key_revoke(f->store, f->key.id, 10, &err), 0);
    assert_int_equal(store_key_find_hash(f->store, f->key.hash, &got, &err), 0);
    assert_int_equal(store_key_get(f->store, f->key.id, &got, &err), 0);
}

static void test_idempotency(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct idempotency_use use = {"ky", "k"};
    struct idempotency_record fresh = {.status = 0};
    struct idempotency_record got = {.status = 0};
    _cleanup_buf_ struct buf body = buf_make(0);

    memset(fresh.hash, 1, sizeof(fresh.hash));
    memset(fresh.seed, 2, sizeof(fresh.seed));
    assert_int_equal(store_idempotency_start(f->store, &use, &fresh, &got, &body, &err), 1);
    fresh.seed[0] = 9;
    assert_int_equal(store_idempotency_start(f->store, &use, &fresh, &got, &body, &err), 0);
    assert_int_equal(got.seed[0], 2);
    assert_int_equal(got.status, 0);
    assert_int_equal(store_idempotency_finish(f->store, &use, 201, span_of_str("{\"a\":1}"), &err),
                     0);
    assert_int_equal(store_idempotency_start(f->store, &use, &fresh, &got, &body, &err), 0);
    assert_int_equal(got.status, 201);
    assert_string_equal(buf_str(&body), "{\"a\":1}");
    assert_int_equal(store_idempotency_forget(f->store, &use, &err), 0);
    assert_int_equal(store_idempotency_start(f->store, &use, &fresh, &got, &body, &err), 1);
    assert_int_equal(store_idempotency_prune(f->store, INT64_MAX, &err), 1);
}

/* A key is kept for IDEMPOTENCY_KEEP_MS to the millisecond. */
static void test_idempotency_age(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct idempotency_use use = {"ky", "k"};
    struct idempotency_record fresh = {.status = 0};
    struct idempotency_record got = {.status = 0};
    _cleanup_buf_ struct buf body = buf_make(0);
    int64_t before = clock_real_ms();
    int64_t after;

    assert_int_equal(store_idempotency_start(f->store, &use, &fresh, &got, &body, &err), 1);
    after = clock_real_ms();
    assert_int_equal(IDEMPOTENCY_KEEP_MS, 24LL * 3600 * 1000);
    assert_int_equal(store_idempotency_prune(f->store, before, &err), 0);
    assert_int_equal(store_idempotency_prune(f->store, after + 1, &err), 1);
}

static int count_rows(struct store *store, const char *sql)
{
    struct error err = {0};
    sqlite3_stmt *stmt = store_start(store, &err, sql, "");
    int n;

    if (stmt == NULL) {
        return -1;
    }
    assert_int_equal(store_step(store, stmt, &err), 1);
    n = sqlite3_column_int(stmt, 0);
    (void)sqlite3_reset(stmt);
    return n;
}

static void test_public_ports(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    _cleanup_sandbox_ struct sandbox one = make_sandbox(f, "one");
    _cleanup_sandbox_ struct sandbox two = make_sandbox(f, "two");

    assert_int_equal(store_sandbox_insert(f->store, &one, NULL, &err), 0);
    assert_int_equal(store_sandbox_insert(f->store, &two, NULL, &err), 0);
    assert_int_equal(store_port_is_public(f->store, one.id, 80, &err), 0);
    assert_int_equal(store_port_set_public(f->store, one.id, 80, true, &err), 0);
    assert_int_equal(store_port_set_public(f->store, one.id, 80, true, &err), 0);
    assert_int_equal(store_port_is_public(f->store, one.id, 80, &err), 1);
    assert_int_equal(store_port_is_public(f->store, one.id, 81, &err), 0);
    assert_int_equal(store_port_is_public(f->store, two.id, 80, &err), 0);
    assert_int_equal(store_port_set_public(f->store, one.id, 80, false, &err), 0);
    assert_int_equal(store_port_set_public(f->store, one.id, 80, false, &err), 0);
    assert_int_equal(store_port_is_public(f->store, one.id, 80, &err), 0);
    for (uint16_t i = 1; i <= STORE_PORTS_PUBLIC_MAX; i++) {
        assert_int_equal(store_port_set_public(f->store, one.id, i, true, &err), 0);
    }
    assert_true(store_port_set_public(f->store, one.id, 65535, true, &err) < 0);
    assert_int_equal(err.code, ERROR_LIMIT_EXCEEDED);
    assert_int_equal(store_port_set_public(f->store, one.id, 1, true, &err), 0);
    assert_int_equal(store_port_set_public(f->store, two.id, 65535, true, &err), 0);
    assert_int_equal(store_sandbox_bury(f->store, one.id, 6000, &err), 0);
    assert_int_equal(count_rows(f->store, "SELECT count(*) FROM public_ports"), 1);
}

static void test_migrations(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    size_t count;
    const struct store_migration *real = store_migrations(&count);
    struct store_migration plan[16];
    struct store *again = NULL;
    int next = (int)count + 1;

    assert_in_range(count, 1, 14);
    memcpy(plan, real, count * sizeof(plan[0]));
    plan[count] = (struct store_migration){next, "ALTER TABLE keys ADD COLUMN note TEXT;"
                                                 "UPDATE keys SET note = 'x';"};
    plan[count + 1] = (struct store_migration){
        next + 1, "CREATE TABLE half (a); INSERT INTO nowhere VALUES (1);"};
    /* Data survives an upgrade. */
    assert_int_equal(store_migrate(f->store, plan, count + 1, &err), 0);
    assert_int_equal(count_rows(f->store, "SELECT count(*) FROM keys WHERE note = 'x'"), 1);
    assert_int_equal(store_migrate(f->store, plan, count + 1, &err), 0);
    /* A failing step leaves nothing of itself and keeps the version. */
    assert_true(store_migrate(f->store, plan, count + 2, &err) < 0);
    assert_int_equal(count_rows(f->store, "SELECT count(*) FROM sqlite_master WHERE name = 'half'"),
                     0);
    assert_int_equal(count_rows(f->store, "SELECT max(version) FROM migrations"), next);
    store_close(f->store);
    f->store = NULL;
    /* The program of today refuses the schema of tomorrow and says so. */
    assert_int_equal(store_open(f->path, &again, &err), -EPROTO);
    assert_non_null(strstr(err.message, "newer release"));
    assert_null(again);
}

/* A store as the first schema had it, with a key and a sandbox in it. */
static void make_first_store(const char *path, const char *sandbox_id, const char *key_id)
{
    sqlite3 *db = NULL;
    char sql[2048];
    size_t count;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, store_migrations(&count)[0].sql, NULL, NULL, NULL),
                     SQLITE_OK);
    (void)snprintf(sql, sizeof(sql),
                   "CREATE TABLE migrations (version INTEGER PRIMARY KEY,"
                   " applied_at INTEGER NOT NULL, program TEXT NOT NULL);"
                   "INSERT INTO migrations VALUES (1, 1, '0.0.1');"
                   "INSERT INTO keys (id, name, role, hash, created_at)"
                   " VALUES ('%s', 'old', 'member', zeroblob(32), 1);"
                   "INSERT INTO sandboxes (id, key_id, name, template, state, vcpus, memory_mib,"
                   " disk_mib, node, created_at)"
                   " VALUES ('%s', '%s', 'old', 'base', 'running', 1, 512, 4096, 'local', 1);"
                   "INSERT INTO sandboxes (id, key_id, template, state, reason_code, vcpus,"
                   " memory_mib, disk_mib, node, created_at) VALUES"
                   " ('sb1', '%s', 'base', 'waking', 'vmm_crashed', 1, 512, 4096, 'local', 1),"
                   " ('sb2', '%s', 'base', 'waking', '', 1, 512, 4096, 'local', 1);"
                   "INSERT INTO operations (id, kind, sandbox_id, key_id, state, created_at)"
                   " VALUES ('op1', 'wake', 'sb1', 'k', 'running', 1),"
                   " ('op2', 'wake', 'sb2', 'k', 'running', 1);",
                   key_id, sandbox_id, key_id, key_id, key_id);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* Opening it is all that an upgrade needs: its records are there, and what came since works. */
static void test_the_first_schema(void **state)
{
    struct fixture *f = *state;
    _cleanup_sandbox_ struct sandbox expected = make_sandbox(f, "old");
    _cleanup_sandbox_ struct sandbox found = {0};
    const uint8_t hash[32] = {0};
    struct key_record key = {0};
    struct error err = {0};
    char path[128];
    size_t count;

    (void)snprintf(path, sizeof(path), "%s/old.db", f->dir);
    make_first_store(path, expected.id, f->key.id);
    store_close(f->store);
    assert_int_equal(store_open(path, &f->store, &err), 0);
    (void)store_migrations(&count);
    assert_int_equal(count_rows(f->store, "SELECT max(version) FROM migrations"), count);
    assert_int_equal(store_key_find_hash(f->store, hash, &key, &err), 1);
    assert_string_equal(key.name, "old");
    assert_int_equal(store_sandbox_get(f->store, expected.id, &found, &err), 1);
    assert_string_equal(found.name, "old");
    assert_int_equal(found.memory_mib, 512);
    assert_int_equal(count_rows(f->store, "SELECT count(*) FROM operations WHERE boots = 1"), 1);
    assert_int_equal(count_rows(f->store, "SELECT boots FROM operations WHERE id = 'op1'"), 1);
    assert_int_equal(store_port_set_public(f->store, found.id, 80, true, &err), 0);
    assert_int_equal(store_sandbox_bury(f->store, found.id, 6000, &err), 0);
    assert_int_equal(count_rows(f->store, "SELECT count(*) FROM public_ports"), 0);
}

static void test_foreign_file(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    struct store *other = NULL;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/text", f->dir);
    assert_int_equal(
        file_write_atomic(-100, path,
                          span_of_str("this is no database but a text of sufficient length, "
                                      "at least as long as a header of one hundred bytes."),
                          0600, false),
        0);
    assert_true(store_open(path, &other, &err) < 0);
    assert_null(other);
    (void)snprintf(path, sizeof(path), "%s/missing/space.db", f->dir);
    assert_true(store_open(path, &other, &err) < 0);
}

static void test_full_disk(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    int failed = 0;

    /* SQLite's own page limit stands in for a full disk: the same code path, SQLITE_FULL. */
    assert_int_equal(
        sqlite3_exec(store_handle(f->store), "PRAGMA max_page_count=40", NULL, NULL, NULL), 0);
    for (int i = 0; i < 4000 && failed == 0; i++) {
        _cleanup_sandbox_ struct sandbox s = make_sandbox(f, "");

        assert_int_equal(store_begin(f->store, &err), 0);
        failed = store_sandbox_insert(f->store, &s, NULL, &err);
        if (failed == 0) {
            failed = store_commit(f->store, &err);
        } else {
            store_rollback(f->store);
        }
    }
    assert_true(failed < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    /* Reading goes on, and so does writing once there is room. */
    assert_true(count_rows(f->store, "SELECT count(*) FROM sandboxes") > 0);
    assert_int_equal(
        sqlite3_exec(store_handle(f->store), "PRAGMA max_page_count=100000", NULL, NULL, NULL), 0);
    {
        _cleanup_sandbox_ struct sandbox s = make_sandbox(f, "");

        assert_int_equal(store_sandbox_insert(f->store, &s, NULL, &err), 0);
    }
}

static void test_secret(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    uint8_t one[32];
    uint8_t two[32];

    assert_int_equal(store_secret(f->store, "secret", one, &err), 0);
    assert_int_equal(store_secret(f->store, "secret", two, &err), 0);
    assert_memory_equal(one, two, 32);
}

/* ---- what a page costs ---- */

static int count_step(void *arg)
{
    (*(int *)arg)++;
    return 0;
}

static int see_checkpoint(void *arg, const struct checkpoint *c)
{
    (void)c;
    (*(int *)arg)++;
    return 0;
}

static int see_operation(void *arg, const struct operation *o)
{
    (void)o;
    (*(int *)arg)++;
    return 0;
}

/* `rows` of each, of which `mine` are this sandbox's, the oldest. */
static void fill_lists(const struct fixture *f, const char *mine_id, int rows, int mine)
{
    struct error err = {0};

    assert_int_equal(store_begin(f->store, &err), 0);
    for (int i = 0; i < rows; i++) {
        char env_names[] = "[]";
        struct checkpoint c = {.state = CHECKPOINT_READY, .env_names = env_names};
        struct operation o = {.kind = "checkpoint", .state = OPERATION_SUCCEEDED};

        assert_int_equal(id_make("ck", c.id), 0);
        assert_int_equal(id_make("op", o.id), 0);
        (void)snprintf(c.sandbox_id, sizeof(c.sandbox_id), "%s", i < mine ? mine_id : "sb");
        memcpy(o.sandbox_id, c.sandbox_id, sizeof(o.sandbox_id));
        assert_int_equal(store_checkpoint_insert(f->store, &c, &err), 0);
        assert_int_equal(store_operation_insert(f->store, &o, &err), 0);
    }
    assert_int_equal(store_commit(f->store, &err), 0);
}

struct page_costs {
    int checkpoints;
    int operations;
    int behind; /* of all checkpoints, a page far behind the newest */
};

static void take_costs(const struct fixture *f, const char *mine_id, struct page_costs *ret)
{
    struct checkpoint_filter checkpoints = {.sandbox_id = mine_id, .limit = 10};
    struct operation_filter operations = {.sandbox_id = mine_id, .limit = 10};
    struct checkpoint_filter behind = {.before_seq = 11, .limit = 10};
    struct error err = {0};
    int seen = 0;

    *ret = (struct page_costs){0};
    sqlite3_progress_handler(store_handle(f->store), 1, count_step, &ret->checkpoints);
    assert_int_equal(store_checkpoint_list(f->store, &checkpoints, see_checkpoint, &seen, &err), 0);
    sqlite3_progress_handler(store_handle(f->store), 1, count_step, &ret->operations);
    assert_int_equal(store_operation_list(f->store, &operations, see_operation, &seen, &err), 0);
    sqlite3_progress_handler(store_handle(f->store), 1, count_step, &ret->behind);
    assert_int_equal(store_checkpoint_list(f->store, &behind, see_checkpoint, &seen, &err), 0);
    sqlite3_progress_handler(store_handle(f->store), 0, NULL, NULL);
    assert_int_equal(seen, 30);
}

/* Not by the clock: by the steps that SQLite takes. */
static void test_page_costs_the_same(void **state)
{
    struct fixture *f = *state;
    struct page_costs few;
    struct page_costs many;
    char id[ID_SIZE];

    assert_int_equal(id_make("sb", id), 0);
    fill_lists(f, id, 20, 12);
    take_costs(f, id, &few);
    assert_true(few.checkpoints > 100 && few.operations > 100 && few.behind > 100);
    fill_lists(f, id, 1000, 0);
    take_costs(f, id, &many);
    assert_true(many.checkpoints < few.checkpoints + few.checkpoints / 10);
    assert_true(many.operations < few.operations + few.operations / 10);
    assert_true(many.behind < few.behind + few.behind / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_lost_store_is_not_begun_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sandbox_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sandbox_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_costs_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_operations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idempotency, setup, teardown),
        cmocka_unit_test_setup_teardown(test_idempotency_age, setup, teardown),
        cmocka_unit_test_setup_teardown(test_public_ports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_migrations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_first_schema, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_secret, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
