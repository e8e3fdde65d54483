/* The pieces that need no server: queries, cursors, routes, keys and their limits, reports. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "api/cursor.h"
#include "api/key_table.h"
#include "api/key_text.h"
#include "api/report.h"
#include "api/route.h"
#include "io/json_request.h"

static void test_query(void **state)
{
    struct query q = {0};
    struct error err;

    (void)state;
    assert_int_equal(query_parse("a=1&b=x%20y+z&state=p&state=q&c&metadata.k=v", false, &q, &err),
                     0);
    assert_int_equal(q.count, 6);
    assert_string_equal(query_find(&q, "b"), "x y z");
    assert_string_equal(query_find(&q, "c"), "");
    assert_null(query_find(&q, "d"));
    assert_int_equal(query_check(&q, "a b c state* metadata.*", &err), 0);
    assert_true(query_check(&q, "a b c state metadata.*", &err) < 0);
    assert_string_equal(err.field, "state");
    assert_true(query_check(&q, "a b c state*", &err) < 0);
    assert_string_equal(err.field, "metadata.k");
    query_done(&q);
    assert_int_equal(query_parse("=1", false, &q, &err), 0);
    assert_true(query_check(&q, "a", &err) < 0);
    assert_string_equal(err.field, "query");
    query_done(&q);
}

static void test_bad_queries(void **state)
{
    static const char *const bad[] = {"a=%",    "a=%4",          "a=%zz",    "a=%00",
                                      "a=%0a",  "%ff=1",         "a=%c0%80", "a=%ed%a0%80",
                                      "a=\x01", "a=%f5%80%80%80"};
    struct query q = {0};
    struct error err;
    char many[1024] = "";

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(query_parse(bad[i], false, &q, &err) < 0);
        assert_int_equal(err.code, ERROR_INVALID_REQUEST);
    }
    for (int i = 0; i < QUERY_ITEMS_MAX + 1; i++) {
        memcpy(&many[4 * i], "a=1&", 5);
    }
    assert_true(query_parse(many, false, &q, &err) < 0);
}

static void test_query_values(void **state)
{
    static const struct {
        const char *text;
        int64_t ms; /* -1: refused */
    } cases[] = {
        {"w=0", 0},
        {"w=1.5", 1500},
        {"w=0.001", 1},
        {"w=300", 300000},
        {"w=300.0009", 300000},
        {"w=", -1},
        {"w=-1", -1},
        {"w=301", -1},
        {"w=1e3", -1},
        {"w=nan", -1},
        {"w=1.", -1},
        {"w=.5", -1},
        {"w=1.x", -1},
        {"w=99999999999999999999", -1},
        {"w=300.001", -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct query q = {0};
        struct error err;
        int64_t value = -1;

        assert_int_equal(query_parse(cases[i].text, false, &q, &err), 0);
        if (query_duration_ms(&q, "w", 300000, &value, &err) < 0) {
            value = -1;
            assert_string_equal(err.field, "w");
        }
        if (value != cases[i].ms) {
            fail_msg("%s gave %d", cases[i].text, (int)value);
        }
        query_done(&q);
    }
}

static void test_cursor(void **state)
{
    uint8_t secret[32] = {1};
    uint8_t other[32] = {2};
    struct query q = {0};
    struct query filtered = {0};
    struct error err;
    char text[CURSOR_SIZE];
    int64_t seq = 0;
    uint64_t scope;

    (void)state;
    assert_int_equal(query_parse("limit=5&cursor=x", false, &q, &err), 0);
    assert_int_equal(query_parse("limit=5&name=a", false, &filtered, &err), 0);
    scope = cursor_scope("sandboxes", &q);
    cursor_format(secret, scope, 4711, text);
    assert_int_equal(cursor_parse(secret, scope, text, &seq), 0);
    assert_int_equal(seq, 4711);
    assert_int_equal(cursor_parse(other, scope, text, &seq), -EBADMSG);
    assert_int_equal(cursor_parse(secret, cursor_scope("keys", &q), text, &seq), -EBADMSG);
    assert_int_equal(cursor_parse(secret, cursor_scope("sandboxes", &filtered), text, &seq),
                     -EBADMSG);
    for (size_t i = 0; i < CURSOR_LENGTH; i++) {
        char before = text[i];

        text[i] = before == '0' ? '1' : '0';
        assert_int_equal(cursor_parse(secret, scope, text, &seq), -EBADMSG);
        text[i] = before;
    }
    assert_int_equal(cursor_parse(secret, scope, "", &seq), -EBADMSG);
    assert_int_equal(cursor_parse(secret, scope, "zz", &seq), -EBADMSG);
    query_done(&q);
    query_done(&filtered);
}

static void test_routes(void **state)
{
    struct route_match m;

    (void)state;
    assert_int_equal(route_find(route_table(), "GET", "/v1/sandboxes", &m), 1);
    assert_int_equal(route_find(route_table(), "HEAD", "/v1/sandboxes", &m), 1);
    assert_int_equal(route_find(route_table(), "GET", "/v1/sandboxes/a%20b/processes/c", &m), 1);
    assert_string_equal(m.params[0], "a b");
    assert_string_equal(m.params[1], "c");
    assert_int_equal(route_find(route_table(), "PUT", "/v1/sandboxes/x", &m), -ENOTSUP);
    assert_string_equal(m.allow, "GET, PATCH, DELETE");
    assert_int_equal(route_find(route_table(), "GET", "/v1/sandboxes/", &m), 0);
    assert_int_equal(route_find(route_table(), "GET", "/v1/sandboxes//run", &m), 0);
    assert_int_equal(route_find(route_table(), "GET", "/v1/sandboxes/%zz", &m), 0);
    assert_int_equal(route_find(route_table(), "GET", "", &m), 0);
    assert_int_equal(route_find(route_table(), "GET", "/", &m), 0);
}

/* Every route that changes something is closed to read keys, and none is public. */
static void test_route_rights(void **state)
{
    (void)state;
    for (const struct route *r = route_table(); r->method != NULL; r++) {
        if (strcmp(r->method, "GET") != 0 && (r->flags & ROUTE_TOKEN_BODY) == 0) {
            assert_true(r->role >= KEY_ROLE_MEMBER);
        }
        /* What a token opens is named by the path, and none of it is for administrators. */
        if ((r->flags & ROUTE_TOKEN) != 0) {
            assert_int_equal(
                strncmp(r->path,
                        (r->flags & ROUTE_SESSION) != 0 ? "/v1/sessions/{}" : "/v1/sandboxes/{}",
                        15),
                0);
            assert_true(r->role < KEY_ROLE_ADMIN);
        }
        if (strncmp(r->path, "/v1/", 4) == 0) {
            assert_int_equal(r->flags & ROUTE_PUBLIC, 0);
        }
        if (strncmp(r->path, "/v1/keys", 8) == 0 || strncmp(r->path, "/v1/nodes", 9) == 0) {
            assert_int_equal(r->role, KEY_ROLE_ADMIN);
        }
    }
}

/* "/v1/keys/{key_id}" as the table has it. */
static void without_names(const char *path, char out[160])
{
    size_t n = 0;
    bool inside = false;

    for (; *path != '\0' && n < 159; path++) {
        inside = inside && *path != '}';
        if (!inside) {
            out[n++] = *path;
        }
        inside = inside || *path == '{';
    }
    out[n] = '\0';
}

static bool has_route(const char *method, const char *path)
{
    for (const struct route *r = route_table(); r->method != NULL; r++) {
        if (strcasecmp(r->method, method) == 0 && strcmp(r->path, path) == 0) {
            return true;
        }
    }
    return false;
}

/* Taken before the table is asked: any method, any path below it. */
#define PROXY_PATH "/v1/sandboxes/{}/ports/{}/proxy/{}"

/* The document describes the routes of the table, the proxy, and no other. */
static void test_document(void **state)
{
    _cleanup_json_ json_t *document = json_load_file(API_DOCUMENT, 0, NULL);
    const char *path;
    json_t *item;
    size_t described = 0;
    size_t rows = 0;

    (void)state;
    assert_non_null(document);
    json_object_foreach(json_object_get(document, "paths"), path, item) {
        const char *method;
        json_t *operation;
        char plain[160];

        without_names(path, plain);
        if (strcmp(plain, PROXY_PATH) == 0) {
            continue;
        }
        json_object_foreach(item, method, operation) {
            bool is_head = strcmp(method, "head") == 0; /* a GET's answer without its body */

            if (!has_route(is_head ? "GET" : method, plain)) {
                fail_msg("the document has %s %s, the table has not", method, path);
            }
            if (is_head) {
                continue;
            }
            described += json_is_object(operation) ? 1 : 0;
        }
    }
    for (const struct route *r = route_table(); r->method != NULL; r++) {
        rows++;
    }
    assert_int_equal(described, rows);
}

static void test_key_text(void **state)
{
    char one[KEY_TEXT_SIZE];
    char two[KEY_TEXT_SIZE];

    (void)state;
    assert_int_equal(key_text_make(one), 0);
    assert_int_equal(key_text_make(two), 0);
    assert_string_not_equal(one, two);
    assert_true(key_text_is_valid(one));
    assert_false(key_text_is_valid("space_"));
    assert_false(key_text_is_valid(""));
    one[10] = 'U';
    assert_false(key_text_is_valid(one));
}

static void test_token_bucket(void **state)
{
    struct key_table table = {.limits = {.requests = 2, .streams = 1, .rate = 10, .burst = 3}};
    struct key_entry key = {.tokens = 3};
    struct error err;
    unsigned int wait;
    int64_t now = 1000000000;

    (void)state;
    assert_int_equal(key_take(&table, &key, false, now, &wait, &err), 0);
    assert_int_equal(key_take(&table, &key, false, now, &wait, &err), 0);
    assert_true(key_take(&table, &key, false, now, &wait, &err) < 0);
    assert_string_equal(err.field, "concurrency");
    key_give_back(&key, false);
    assert_int_equal(key_take(&table, &key, true, now, &wait, &err), 0);
    assert_true(key_take(&table, &key, true, now, &wait, &err) < 0);
    assert_string_equal(err.field, "requests"); /* the bucket is empty */
    assert_int_equal(wait, 1);
    assert_int_equal(key_budget_get(&table, &key).remaining, 0);
    now += 100000000; /* one token in 100 ms */
    assert_true(key_take(&table, &key, true, now, &wait, &err) < 0);
    assert_string_equal(err.field, "streams");
    assert_int_equal(key_take(&table, &key, false, now, &wait, &err), 0);
    now += 10LL * 1000000000;
    key_give_back(&key, false);
    assert_int_equal(key_take(&table, &key, false, now, &wait, &err), 0);
    assert_int_equal(key_budget_get(&table, &key).remaining, 2); /* never above the burst */
    now -= 5LL * 1000000000; /* a clock that goes back gives nothing */
    key_give_back(&key, false);
    assert_int_equal(key_take(&table, &key, false, now, &wait, &err), 0);
}

static void test_report(void **state)
{
    static const char good[] =
        "{\"id\": \"sb000000000000000000\", \"state\": \"running\", \"reason\": null,"
        " \"template_version\": \"tm000000000000000000\", \"vcpus\": 1, \"memory_mib\": 512,"
        " \"disk_mib\": 4096, \"running_at\": \"2026-01-01T00:00:00.000Z\", \"active_at\": null,"
        " \"identity\": {\"epoch\": 1}}";
    static const char *const bad[] = {
        "{}",
        "{\"id\": \"x\", \"state\": \"running\"}",
        "{\"id\": \"sb000000000000000000\", \"state\": \"flying\"}",
        "{\"id\": \"sb000000000000000000\", \"state\": \"running\", \"vcpus\": \"1\"}",
        ("{\"id\": \"sb000000000000000000\", \"state\": \"running\", \"vcpus\": -1,"
         " \"memory_mib\": 1, \"disk_mib\": 1}"),
    };
    _cleanup_json_ json_t *record = json_loads(good, 0, NULL);
    _cleanup_json_ json_t *gone =
        json_loads("{\"id\": \"sb000000000000000000\", \"state\": \"deleted\"}", 0, NULL);
    _cleanup_sandbox_ struct sandbox s = {.state = SANDBOX_CREATING};
    struct sandbox_report report;

    (void)state;
    assert_int_equal(report_read(record, &report), 0);
    assert_int_equal(report_apply(&report, &s), 1);
    assert_int_equal(s.state, SANDBOX_RUNNING);
    assert_string_equal(s.identity, "{\"epoch\":1}");
    assert_int_equal(report_apply(&report, &s), 0);
    assert_int_equal(report_read(gone, &report), 0);
    assert_true(report.deleted);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_json_ json_t *wrong = json_loads(bad[i], 0, NULL);

        assert_int_equal(report_read(wrong, &report), -EBADMSG);
    }
}

/* What the object store has of a sandbox is known until it runs, or is suspended anew. */
static void test_manifest(void **state)
{
    static const struct {
        enum sandbox_state to;
        bool stays;
    } steps[] = {{SANDBOX_WAKING, true},    {SANDBOX_CREATING, true}, {SANDBOX_DELETING, true},
                 {SANDBOX_ERROR, true},     {SANDBOX_RUNNING, false}, {SANDBOX_PAUSED, false},
                 {SANDBOX_SUSPENDED, false}};

    (void)state;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        _cleanup_sandbox_ struct sandbox s = {.state = SANDBOX_SUSPENDED, .manifest = "ab"};
        const struct sandbox_report report = {.state = steps[i].to};

        assert_true(report_apply(&report, &s) >= 0);
        assert_string_equal(s.manifest, steps[i].stays ? "ab" : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query),        cmocka_unit_test(test_bad_queries),
        cmocka_unit_test(test_query_values), cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_routes),       cmocka_unit_test(test_route_rights),
        cmocka_unit_test(test_key_text),     cmocka_unit_test(test_token_bucket),
        cmocka_unit_test(test_report),       cmocka_unit_test(test_document),
        cmocka_unit_test(test_manifest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
