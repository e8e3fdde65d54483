/* Forks: the children's records, what becomes of each, their limits, deaths of space-api, deletes,
 * against a fake node. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#define PATH_SIZE 200
#define KEY       "Idempotency-Key: the-fork\r\n"

static int set_up(void **state)
{
    *state = rig_new("");
    return 0;
}

static int tear_down(void **state)
{
    rig_free(*state);
    return 0;
}

static void keep(char id[21], const struct answer *a, const char *where)
{
    (void)snprintf(id, 21, "%s", answer_text(a, where));
    assert_int_equal(strlen(id), 20);
}

static void ask(struct rig *rig,
                const char *method,
                const char *id,
                const char *end,
                const char *body,
                struct answer *ret)
{
    const char *start = strncmp(id, "op", 2) == 0   ? "/v1/operations/"
                        : strncmp(id, "ck", 2) == 0 ? "/v1/checkpoints/"
                                                    : "/v1/sandboxes/";
    char path[PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s%s%s", start, id, end);
    rig_ask(rig, method, path, body, ret);
}

static size_t count_children(const struct answer *a, const char *where)
{
    return json_array_size(answer_find(a, where));
}

static void child_id(const struct answer *a, const char *children, int i, char ret_id[21])
{
    char where[80];

    (void)snprintf(where, sizeof(where), "%s.%d.sandbox_id", children, i);
    keep(ret_id, a, where);
}

static const char *child_text(const struct answer *a, const char *children, int i, const char *what)
{
    char where[120];

    (void)snprintf(where, sizeof(where), "%s.%d.%s", children, i, what);
    return answer_text(a, where);
}

static bool has_heard(const struct rig *rig, const char *line)
{
    _cleanup_buf_ struct buf log = buf_make(0);
    char file[96];

    (void)snprintf(file, sizeof(file), "%s/node.log", rig->dir);
    return file_read(AT_FDCWD, file, 1U << 24, &log) == 0 && strstr(buf_str(&log), line) != NULL;
}

static void await_node(const struct rig *rig, const char *call, const char *id)
{
    int64_t until = clock_monotonic_ms() + 10000;
    char line[80];

    (void)snprintf(line, sizeof(line), "%.40s%.20s", call, id);
    while (!has_heard(rig, line)) {
        assert_true(clock_monotonic_ms() < until);
        rig_sleep_ms(2);
    }
}

static void end_of(struct rig *rig, const char *operation, struct answer *ret)
{
    ask(rig, "GET", operation, "?wait=20", NULL, ret);
    assert_int_equal(ret->status, 200);
}

static void count_all(struct rig *rig, int expected)
{
    _cleanup_answer_ struct answer a = {0};

    rig_ask(rig, "GET", "/v1/sandboxes?limit=1000", NULL, &a);
    assert_int_equal(count_children(&a, "items"), expected);
}

/* ---- what it makes ---- */

static void test_children(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    const char *at = "operation.result.children";
    char sandbox[21];
    char first[21];
    char second[21];

    rig_create(rig,
               "{\"template\": \"base\", \"memory_mib\": 1024, \"metadata\": {\"team\": \"a\"},"
               " \"env\": {\"A\": \"1\"}, \"lifecycle\": {\"idle_timeout_seconds\": 60}}",
               sandbox);
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 2, \"env\": {\"B\": \"2\"}}", &a);
    assert_int_equal(a.status, 201);
    assert_string_equal(answer_text(&a, "operation.kind"), "fork");
    assert_string_equal(answer_text(&a, "operation.state"), "succeeded");
    assert_string_equal(answer_text(&a, "sandbox.id"), sandbox);
    assert_string_equal(answer_text(&a, "sandbox.state"), "running");
    assert_int_equal(count_children(&a, at), 2);
    child_id(&a, at, 0, first);
    child_id(&a, at, 1, second);
    assert_string_not_equal(first, second);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(child_text(&a, at, i, "sandbox.id"), i == 0 ? first : second);
        assert_string_equal(child_text(&a, at, i, "sandbox.parent_id"), sandbox);
        assert_string_equal(child_text(&a, at, i, "sandbox.state"), "running");
        assert_string_equal(child_text(&a, at, i, "sandbox.template"), "base");
        assert_string_equal(child_text(&a, at, i, "sandbox.metadata.team"), "a");
        assert_string_equal(child_text(&a, at, i, "error"), "");
    }
    assert_non_null(strstr(buf_str(&a.body), "\"env_names\":[\"B\",\"A\"]"));
    assert_non_null(strstr(buf_str(&a.body), "\"memory_mib\":1024"));
    assert_null(strstr(buf_str(&a.body), "\"idle_timeout_seconds\":21600"));
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
    ask(rig, "GET", sandbox, "/checkpoints", NULL, &list);
    assert_int_equal(list.status, 200);
    assert_int_equal(count_children(&list, "items"), 0);
    count_all(rig, 3);
}

static void test_one_with_a_name_and_without_a_body(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    const char *at = "operation.result.children";
    char sandbox[21];
    char child[21];

    rig_create(rig, "{\"template\": \"base\", \"metadata\": {\"team\": \"a\"}}", sandbox);
    ask(rig, "POST", sandbox, "/fork", NULL, &a);
    assert_int_equal(a.status, 201);
    assert_int_equal(count_children(&a, at), 1);
    ask(rig, "POST", sandbox, "/fork",
        "{\"name\": \"twin\", \"metadata\": {}, \"lifecycle\": {\"timeout_seconds\": 3600}}", &b);
    assert_int_equal(b.status, 201);
    child_id(&b, at, 0, child);
    assert_string_equal(child_text(&b, at, 0, "sandbox.name"), "twin");
    assert_string_equal(child_text(&b, at, 0, "sandbox.metadata.team"), "");
    assert_int_equal(strlen(child_text(&b, at, 0, "sandbox.expires_at")), 24);
    ask(rig, "POST", sandbox, "/fork", "{\"name\": \"twin\"}", &c);
    assert_int_equal(c.status, 409);
    assert_string_equal(answer_text(&c, "error.code"), "conflict");
    assert_string_equal(answer_text(&c, "error.details.sandbox_id"), child);
}

static void test_bad_input(void **state)
{
    static const char *const bodies[] = {
        "{\"count\": 0}",       "{\"count\": 101}",
        "{\"count\": \"two\"}", "{\"count\": 2, \"name\": \"twin\"}",
        "{\"name\": \"A\"}",    "{\"env\": {\"1\": \"x\"}}",
        "{\"more\": 1}",        "{\"metadata\": {\"a\": 1}}",
        "{\"vcpus\": 1}",       "{\"lifecycle\": {\"timeout_seconds\": -1}}"};
    struct rig *rig = *state;
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        _cleanup_answer_ struct answer a = {0};

        ask(rig, "POST", sandbox, "/fork", bodies[i], &a);
        assert_int_equal(a.status, 400);
    }
    rig_expect(rig, 404, "POST", "/v1/sandboxes/sb000000000000000000/fork", "{}");
    count_all(rig, 1);
}

static void test_quotas(void **state)
{
    struct rig *rig = rig_new("quota.sandboxes = 4\nquota.memory_mib = 2048\n");
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char sandbox[21];

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 4}", &a);
    assert_int_equal(a.status, 409);
    assert_string_equal(answer_text(&a, "error.code"), "limit_exceeded");
    assert_string_equal(answer_text(&a, "error.details.limit"), "sandboxes");
    rig_create(rig, "{\"template\": \"base\", \"memory_mib\": 1024}", sandbox);
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 1}", &b);
    assert_int_equal(b.status, 409);
    assert_string_equal(answer_text(&b, "error.details.limit"), "memory_mib");
    count_all(rig, 2);
    rig_free(rig);
}

/* ---- failures ---- */

static void test_failures_of_each_child(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    const char *at = "operation.result.children";
    char sandbox[21];
    int failed = 0;

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "fail capacity_unavailable\nfail_each 2\n");
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 4}", &a);
    rig_control(rig, "");
    assert_int_equal(a.status, 201);
    assert_int_equal(count_children(&a, at), 4);
    for (int i = 0; i < 4; i++) {
        _cleanup_answer_ struct answer one = {0};
        char child[21];

        child_id(&a, at, i, child);
        ask(rig, "GET", child, "", NULL, &one);
        if (child_text(&a, at, i, "error.code")[0] == '\0') {
            assert_string_equal(child_text(&a, at, i, "sandbox.state"), "running");
            assert_int_equal(one.status, 200);
            continue;
        }
        failed++;
        assert_string_equal(child_text(&a, at, i, "error.code"), "capacity_unavailable");
        assert_string_equal(child_text(&a, at, i, "sandbox.id"), "");
        assert_int_equal(one.status, 404);
    }
    assert_int_equal(failed, 2);
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
}

static void test_all_of_them_fail(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];
    char operation[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "fail capacity_unavailable\n");
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 2}", &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_text(&a, "error.code"), "capacity_unavailable");
    assert_string_equal(answer_text(&a, "error.details.sandbox_id"), sandbox);
    keep(operation, &a, "error.details.operation_id");
    end_of(rig, operation, &end);
    assert_string_equal(answer_text(&end, "state"), "failed");
    assert_int_equal(count_children(&end, "result.children"), 2);
    count_all(rig, 1);
    /* One that was tried and failed stays to be seen. */
    rig_control(rig, "fail internal\n");
    ask(rig, "POST", sandbox, "/fork", NULL, &b);
    assert_int_equal(b.status, 500);
    rig_control(rig, "");
    count_all(rig, 2);
}

static void test_no_checkpoint_no_children(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_fail storage_full\n");
    ask(rig, "POST", sandbox, "/fork", "{\"count\": 3, \"metadata\": {}}", &a);
    rig_control(rig, "");
    assert_int_equal(a.status, 507);
    assert_string_equal(answer_text(&a, "error.code"), "storage_full");
    count_all(rig, 1);
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
    assert_false(has_heard(rig, "DELETE /n1/sandboxes/"));
}

/* ---- order ---- */

static void test_waits_for_its_turn(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer child = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];
    char operation[21];
    char id[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_delay_ms 700\n");
    ask(rig, "POST", sandbox, "/pause?wait=0", NULL, &paused);
    assert_int_equal(paused.status, 202);
    ask(rig, "POST", sandbox, "/fork?wait=0", "{\"count\": 2}", &a);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "operation.state"), "pending");
    keep(operation, &a, "operation.id");
    rig_ask(rig, "GET", "/v1/sandboxes?state=creating", NULL, &list);
    assert_int_equal(count_children(&list, "items"), 2);
    keep(id, &list, "items.0.id");
    rig_control(rig, "");
    ask(rig, "POST", id, "/pause?wait=20", NULL, &child); /* waits until it is there */
    assert_int_equal(child.status, 200);
    assert_string_equal(answer_text(&child, "sandbox.state"), "paused");
    end_of(rig, operation, &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    assert_int_equal(count_children(&end, "result.children"), 2);
    count_all(rig, 3);
}

static void test_source_is_free_while_children_are_made(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer p = {0};
    _cleanup_answer_ struct answer d = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];
    char operation[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "delay_ms 1500\n");
    ask(rig, "POST", sandbox, "/fork?wait=0", "{\"count\": 2}", &a);
    keep(operation, &a, "operation.id");
    await_node(rig, "PUT /n1/checkpoints/", "ck");
    ask(rig, "POST", sandbox, "/pause", NULL, &p);
    assert_int_equal(p.status, 200);
    ask(rig, "DELETE", sandbox, "", NULL, &d);
    assert_int_equal(d.status, 200);
    ask(rig, "GET", operation, "", NULL, &end);
    assert_string_equal(answer_text(&end, "state"), "running");
    answer_done(&end);
    end = (struct answer){0};
    end_of(rig, operation, &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    assert_string_equal(child_text(&end, "result.children", 1, "sandbox.parent_id"), sandbox);
    count_all(rig, 2);
}

static void test_deletes(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer end = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer late = {0};
    _cleanup_answer_ struct answer d = {0};
    char sandbox[21];
    char operation[21];
    char child[21];

    /* Of a child that is being made. */
    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "delay_ms 1000\n");
    ask(rig, "POST", sandbox, "/fork?wait=0", "{\"count\": 2}", &a);
    keep(operation, &a, "operation.id");
    rig_ask(rig, "GET", "/v1/sandboxes?state=creating", NULL, &list);
    keep(child, &list, "items.0.id");
    await_node(rig, "PUT /n1/sandboxes/", child);
    ask(rig, "DELETE", child, "", NULL, &d);
    assert_int_equal(d.status, 200);
    end_of(rig, operation, &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    assert_string_equal(child_text(&end, "result.children", 1, "sandbox_id"), child);
    assert_string_equal(child_text(&end, "result.children", 1, "error.code"), "conflict");
    assert_string_equal(child_text(&end, "result.children", 0, "sandbox.state"), "running");
    /* Of the source while it is captured: no children. */
    rig_control(rig, "change_delay_ms 2000\n");
    ask(rig, "POST", sandbox, "/fork?wait=0", "{\"count\": 2}", &b);
    keep(operation, &b, "operation.id");
    answer_done(&d);
    d = (struct answer){0};
    ask(rig, "DELETE", sandbox, "", NULL, &d);
    assert_int_equal(d.status, 200);
    end_of(rig, operation, &late);
    assert_string_equal(answer_text(&late, "state"), "failed");
    assert_string_equal(answer_text(&late, "error.code"), "conflict");
    rig_control(rig, "");
    count_all(rig, 1);
}

/* All children are deleted before there is a checkpoint: it comes to its end all the same. */
static void test_nothing_is_left_to_make(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer d = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];
    char operation[21];
    char child[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_delay_ms 700\n");
    ask(rig, "POST", sandbox, "/fork?wait=0", NULL, &a);
    keep(operation, &a, "operation.id");
    rig_ask(rig, "GET", "/v1/sandboxes?state=creating", NULL, &list);
    keep(child, &list, "items.0.id");
    ask(rig, "DELETE", child, "", NULL, &d);
    assert_int_equal(d.status, 200);
    end_of(rig, operation, &end);
    assert_string_equal(answer_text(&end, "state"), "failed");
    assert_string_equal(answer_text(&end, "error.code"), "conflict");
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
    count_all(rig, 1);
}

static void test_drained(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer s = {0};
    _cleanup_answer_ struct answer a = {0};
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_ask(rig, "POST", "/v1/nodes/local/drain?wait=20", NULL, &s);
    assert_int_equal(s.status, 200);
    ask(rig, "POST", sandbox, "/fork", NULL, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_text(&a, "error.code"), "capacity_unavailable");
    count_all(rig, 1);
}

/* ---- deaths ---- */

/* Killed while the node captures, and while it makes children: all come, none twice. */
static void test_survives_the_death_of_the_api(void **state)
{
    static const char *const holds[] = {"change_delay_ms 1500\n", "delay_ms 1500\n"};
    static const char *const heard[] = {"PUT /n1/checkpoints/", "PUT /n1/sandboxes/"};
    struct rig *rig = *state;
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    for (int i = 0; i < 2; i++) {
        struct call call = {"POST", NULL, "{\"count\": 3}", rig->key, KEY};
        _cleanup_answer_ struct answer a = {0};
        _cleanup_answer_ struct answer b = {0};
        _cleanup_answer_ struct answer list = {0};
        char child[21] = "ck";
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/fork?wait=0", sandbox);
        call.path = path;
        call.headers = i == 0 ? "Idempotency-Key: one\r\n" : "Idempotency-Key: two\r\n";
        rig_control(rig, holds[i]);
        client_ask(rig->port, &call, &a);
        assert_int_equal(a.status, 202);
        rig_ask(rig, "GET", "/v1/sandboxes?state=creating", NULL, &list);
        assert_int_equal(count_children(&list, "items"), 3);
        if (i > 0) {
            keep(child, &list, "items.0.id");
        }
        await_node(rig, heard[i], child);
        (void)rig_stop_api(rig, SIGKILL);
        rig_control(rig, "");
        rig_start_api(rig);
        rig_wait_ready(rig);
        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/fork?wait=20", sandbox);
        client_ask(rig->port, &call, &b);
        assert_in_range(b.status, 200, 202);
        {
            _cleanup_answer_ struct answer end = {0};

            end_of(rig, answer_text(&a, "operation.id"), &end);
            assert_string_equal(answer_text(&end, "state"), "succeeded");
            assert_int_equal(count_children(&end, "result.children"), 3);
            for (int k = 0; k < 3; k++) {
                assert_string_equal(child_text(&end, "result.children", k, "sandbox.state"),
                                    "running");
            }
        }
        assert_string_equal(answer_text(&b, "operation.id"), answer_text(&a, "operation.id"));
        count_all(rig, 1 + 3 * (i + 1));
    }
}

/* The node dies under a child: it is sent again. */
static void test_survives_the_death_of_the_node(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "die_in_put 1\n");
    ask(rig, "POST", sandbox, "/fork?wait=0", "{\"count\": 2}", &a);
    rig_wait_node(rig);
    rig_control(rig, "");
    rig_start_node(rig);
    rig_wait_ready(rig);
    end_of(rig, answer_text(&a, "operation.id"), &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    assert_string_equal(child_text(&end, "result.children", 0, "sandbox.state"), "running");
    assert_string_equal(child_text(&end, "result.children", 1, "sandbox.state"), "running");
    count_all(rig, 3);
}

static void test_the_same_key_is_the_same_fork(void **state)
{
    struct rig *rig = *state;
    struct call call = {"POST", NULL, "{\"count\": 2}", rig->key, KEY};
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char path[PATH_SIZE];
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/fork", sandbox);
    call.path = path;
    client_ask(rig->port, &call, &a);
    client_ask(rig->port, &call, &b);
    assert_int_equal(a.status, 201);
    assert_int_equal(b.status, 201);
    assert_string_equal(buf_str(&a.body), buf_str(&b.body));
    count_all(rig, 3);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_children),
        TEST(test_one_with_a_name_and_without_a_body),
        TEST(test_bad_input),
        cmocka_unit_test(test_quotas),
        TEST(test_failures_of_each_child),
        TEST(test_all_of_them_fail),
        TEST(test_no_checkpoint_no_children),
        TEST(test_waits_for_its_turn),
        TEST(test_source_is_free_while_children_are_made),
        TEST(test_deletes),
        TEST(test_nothing_is_left_to_make),
        TEST(test_drained),
        TEST(test_survives_the_death_of_the_api),
        TEST(test_survives_the_death_of_the_node),
        TEST(test_the_same_key_is_the_same_fork),
    };
    int r = rig_main(argc, argv);

    return r >= 0 ? r : cmocka_run_group_tests(tests, NULL, NULL);
}
