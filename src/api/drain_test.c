/* Drain and undrain of the node, against a fake node. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#define NODE    "/v1/nodes/local"
#define DRAIN   NODE "/drain"
#define UNDRAIN NODE "/undrain"
#define ANY     "{\"template\": \"base\"}"

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

static void ask_sandbox(
    struct rig *rig, const char *method, const char *id, const char *what, struct answer *ret)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s%s", id, what);
    rig_ask(rig, method, path, NULL, ret);
}

static void assert_state(struct rig *rig, const char *id, const char *state, const char *reason)
{
    _cleanup_answer_ struct answer a = {0};

    ask_sandbox(rig, "GET", id, "", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "state"), state);
    assert_string_equal(answer_text(&a, "state_reason.code"), reason);
}

static void assert_refused(const struct answer *a, const char *code)
{
    char after[256];

    assert_int_equal(a->status, 503);
    assert_string_equal(answer_text(a, "error.code"), code);
    assert_true(json_is_true(answer_find(a, "error.retryable")));
    assert_non_null(strstr(answer_text(a, "error.message"), "until it is undrained"));
    assert_string_equal(answer_text(a, "error.details.reason"), "node_drained");
    answer_header(a, "Retry-After", after);
    assert_string_not_equal(after, "");
}

static int64_t count(const struct answer *a, const char *state)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "sandboxes.%s", state);
    return json_integer_value(answer_find(a, path));
}

/* Waits until the drain has come to its end. */
static void wait_drained(struct rig *rig)
{
    _cleanup_answer_ struct answer a = {0};

    rig_ask(rig, "GET", NODE "?wait=20", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "state"), "drained");
    assert_int_equal(json_array_size(answer_find(&a, "problems")), 0);
}

static void test_rights(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    _cleanup_buf_ struct buf key = buf_make(128);
    char path[128];
    struct call call = {.method = "POST", .path = DRAIN, .body = "{}"};

    assert_int_equal(rig_make_key(rig, "m", "member", "member.key"), 0);
    (void)snprintf(path, sizeof(path), "%s/member.key", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 128, &key), 0);
    key.p[38] = '\0';
    call.key = (const char *)key.p;
    client_ask(rig->port, &call, &a);
    assert_int_equal(a.status, 403);
    call = (struct call){.method = "GET", .path = "/v1/nodes", .key = (const char *)key.p};
    client_ask(rig->port, &call, &list);
    assert_int_equal(list.status, 403);
    rig_expect(rig, 404, "POST", "/v1/nodes/other/drain", NULL);
    rig_expect(rig, 404, "GET", "/v1/nodes/other", NULL);
    rig_expect(rig, 400, "POST", DRAIN, "{\"force\": true}");
    rig_expect(rig, 400, "POST", UNDRAIN "?wait=x", NULL);
    rig_expect(rig, 400, "GET", "/v1/nodes?fields=colour", NULL);
    rig_expect(rig, 201, "POST", "/v1/sandboxes", ANY); /* none of that drained anything */
}

static void test_the_record(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer away = {0};
    char id[21];

    rig_create(rig, ANY, id);
    rig_ask(rig, "GET", "/v1/nodes", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_array_size(answer_find(&a, "items")), 1);
    assert_string_equal(answer_text(&a, "items.0.name"), "local");
    assert_string_equal(answer_text(&a, "items.0.state"), "ready");
    assert_true(json_is_true(answer_find(&a, "items.0.connected")));
    assert_true(json_is_null(answer_find(&a, "items.0.drain_requested_at")));
    assert_int_equal(json_integer_value(answer_find(&a, "items.0.sandboxes.running")), 1);
    assert_int_equal(json_integer_value(answer_find(&a, "items.0.memory.total_mib")), 4096);
    assert_int_equal(json_integer_value(answer_find(&a, "items.0.vcpus.host")), 2);

    rig_stop_node(rig);
    for (int64_t end = clock_monotonic_ms() + 8000; clock_monotonic_ms() < end;) {
        answer_done(&away);
        rig_ask(rig, "GET", NODE, NULL, &away);
        if (strcmp(answer_text(&away, "state"), "away") == 0) {
            break;
        }
        rig_sleep_ms(20);
    }
    assert_string_equal(answer_text(&away, "state"), "away");
    assert_true(json_is_null(answer_find(&away, "memory")));
    assert_int_equal(count(&away, "running"), 1);
}

/* Nothing is made or woken, and what does not need the guest goes on. */
static void check_closed(struct rig *rig, const char *asleep)
{
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer once = {0};
    _cleanup_answer_ struct answer woken = {0};
    _cleanup_answer_ struct answer run = {0};
    _cleanup_answer_ struct answer listed = {0};
    char path[160];

    rig_ask(rig, "POST", "/v1/sandboxes", ANY, &made);
    assert_refused(&made, "capacity_unavailable");
    rig_ask(rig, "POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}", &once);
    assert_refused(&once, "capacity_unavailable");
    ask_sandbox(rig, "POST", asleep, "/wake", &woken);
    assert_refused(&woken, "service_unavailable");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", asleep);
    rig_ask(rig, "POST", path, "{\"argv\": [\"true\"]}", &run);
    assert_refused(&run, "service_unavailable");
    ask_sandbox(rig, "GET", asleep, "/processes", &listed);
    assert_int_equal(listed.status, 200);
}

static void test_drain_and_undrain(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer suspended = {0};
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer deleted = {0};
    _cleanup_answer_ struct answer back = {0};
    char ids[4][21];
    char path[160];

    for (size_t i = 0; i < 4; i++) {
        rig_create(rig, ANY, ids[i]);
    }
    ask_sandbox(rig, "POST", ids[2], "/pause", &paused);
    ask_sandbox(rig, "POST", ids[3], "/suspend", &suspended);
    rig_ask(rig, "POST", DRAIN, NULL, &first);
    assert_int_equal(first.status, 200);
    assert_string_equal(answer_text(&first, "state"), "drained");
    assert_int_equal(count(&first, "suspended"), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_state(rig, ids[i], "suspended", i < 3 ? "node_drain" : "");
    }
    check_closed(rig, ids[0]);

    rig_ask(rig, "POST", DRAIN, NULL, &again);
    assert_int_equal(again.status, 200);
    assert_string_equal(answer_text(&again, "drain_requested_at"),
                        answer_text(&first, "drain_requested_at"));
    ask_sandbox(rig, "DELETE", ids[3], "", &deleted);
    assert_int_equal(deleted.status, 200);

    rig_ask(rig, "POST", UNDRAIN, NULL, &back);
    assert_int_equal(back.status, 200);
    assert_string_equal(answer_text(&back, "state"), "ready");
    assert_true(json_is_null(answer_find(&back, "drained_at")));
    rig_expect(rig, 200, "POST", UNDRAIN, NULL);
    assert_state(rig, ids[0], "suspended", "node_drain");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", ids[0]);
    rig_expect(rig, 200, "POST", path, "{\"argv\": [\"true\"]}");
    assert_state(rig, ids[0], "running", "");
    rig_expect(rig, 201, "POST", "/v1/sandboxes", ANY);
}

/* The most changes that were on their way at once, as the fake node tells. */
static int most_at_once(const struct rig *rig)
{
    _cleanup_buf_ struct buf log = buf_make(0);
    const char *at;
    char path[160];
    int most = 0;

    (void)snprintf(path, sizeof(path), "%s/node.log", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    at = buf_str(&log);
    while ((at = strstr(at, "changes=")) != NULL) {
        long n = strtol(&at[8], NULL, 10);

        most = n > most ? (int)n : most;
        at++;
    }
    return most;
}

static void test_a_few_at_once(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];

    for (int i = 0; i < 14; i++) {
        rig_create(rig, ANY, id);
    }
    rig_control(rig, "change_delay_ms 60\n");
    rig_ask(rig, "POST", DRAIN, NULL, &a);
    assert_string_equal(answer_text(&a, "state"), "drained");
    assert_int_equal(count(&a, "suspended"), 14);
    assert_int_equal(most_at_once(rig), 4);
}

static void test_problems_are_shown_and_tried_again(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    const json_t *problem = NULL;
    char id[21];
    int64_t end = clock_monotonic_ms() + 8000;

    rig_create(rig, ANY, id);
    rig_control(rig, "change_fail storage_full\n");
    rig_expect(rig, 202, "POST", DRAIN "?wait=0", NULL);
    while (json_integer_value(json_object_get(problem, "attempts")) < 2 &&
           clock_monotonic_ms() < end) {
        answer_done(&a);
        rig_ask(rig, "GET", NODE, NULL, &a);
        problem = json_array_get(answer_find(&a, "problems"), 0);
        rig_sleep_ms(20);
    }
    assert_string_equal(answer_text(&a, "state"), "draining");
    assert_true(json_integer_value(json_object_get(problem, "attempts")) >= 2);
    assert_string_equal(json_string_value(json_object_get(problem, "sandbox_id")), id);
    assert_string_equal(json_string_value(json_object_get(problem, "code")), "storage_full");
    assert_state(rig, id, "running", "");
    rig_control(rig, "");
    wait_drained(rig);
    assert_state(rig, id, "suspended", "node_drain");
}

/* Killed before the first suspend has ended, between two of them, and when all is done. */
static void test_kill(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char ids[6][21];
    int64_t end = clock_monotonic_ms() + 8000;

    for (size_t i = 0; i < 6; i++) {
        rig_create(rig, ANY, ids[i]);
    }
    rig_control(rig, "change_delay_ms 300\n");
    rig_expect(rig, 202, "POST", DRAIN "?wait=0", NULL);
    (void)rig_stop_api(rig, 9);
    rig_start_api(rig);
    rig_wait_ready(rig);
    do {
        answer_done(&a);
        rig_ask(rig, "GET", NODE, NULL, &a);
        rig_sleep_ms(5);
    } while (count(&a, "suspended") == 0 && clock_monotonic_ms() < end);
    assert_string_equal(answer_text(&a, "state"), "draining");
    (void)rig_stop_api(rig, 9);
    rig_start_api(rig);
    rig_wait_ready(rig);
    wait_drained(rig);
    (void)rig_stop_api(rig, 9);
    rig_start_api(rig);
    rig_wait_ready(rig);
    wait_drained(rig);
    check_closed(rig, ids[0]);
    for (size_t i = 0; i < 6; i++) {
        assert_state(rig, ids[i], "suspended", "node_drain");
    }
    rig_expect(rig, 200, "POST", UNDRAIN, NULL);
    (void)rig_stop_api(rig, 9);
    rig_start_api(rig);
    rig_wait_ready(rig);
    rig_expect(rig, 201, "POST", "/v1/sandboxes", ANY);
}

static void test_creates_are_waited_for(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer a = {0};

    rig_control(rig, "delay_ms 700\n");
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", ANY, &made);
    assert_int_equal(made.status, 202);
    rig_ask(rig, "POST", DRAIN "?wait=0", NULL, &a);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "state"), "draining");
    assert_int_equal(count(&a, "creating"), 1);
    wait_drained(rig);
    assert_state(rig, answer_text(&made, "sandbox.id"), "suspended", "node_drain");
}

/* A wake that was waiting for its turn when the drain came has it no more. */
static void test_pending_wakes_fail(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer woken = {0};
    _cleanup_answer_ struct answer ended = {0};
    char id[21];
    char path[160];

    rig_create(rig, ANY, id);
    rig_control(rig, "change_delay_ms 500\n");
    ask_sandbox(rig, "POST", id, "/pause?wait=0", &paused);
    ask_sandbox(rig, "POST", id, "/wake?wait=0", &woken);
    assert_string_equal(answer_text(&woken, "operation.state"), "pending");
    rig_expect(rig, 202, "POST", DRAIN "?wait=0", NULL);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&woken, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &ended);
    assert_string_equal(answer_text(&ended, "state"), "failed");
    assert_string_equal(answer_text(&ended, "error.code"), "service_unavailable");
    wait_drained(rig);
    assert_state(rig, id, "suspended", "node_drain");
}

static void test_undrain_ends_a_drain(void **state)
{
    struct rig *rig = *state;
    const struct call call = {.method = "POST", .path = DRAIN "?wait=60", .key = rig->key};
    _cleanup_answer_ struct answer waited = {0};
    _cleanup_answer_ struct answer a = {0};
    int64_t end = clock_monotonic_ms() + 8000;
    char id[21];
    int fd;

    for (int i = 0; i < 6; i++) {
        rig_create(rig, ANY, id);
    }
    rig_control(rig, "change_delay_ms 800\n");
    fd = client_connect(rig->port);
    client_send(fd, &call);
    do {
        answer_done(&a);
        rig_ask(rig, "GET", NODE, NULL, &a);
    } while (count(&a, "suspending") != 4 && clock_monotonic_ms() < end);
    rig_expect(rig, 200, "POST", UNDRAIN, NULL);
    client_read(fd, &waited);
    (void)close(fd);
    assert_int_equal(waited.status, 200);
    assert_string_equal(answer_text(&waited, "state"), "ready");
    do {
        answer_done(&a);
        rig_ask(rig, "GET", NODE, NULL, &a);
        rig_sleep_ms(20);
    } while (count(&a, "suspended") != 4 && clock_monotonic_ms() < end);
    assert_int_equal(count(&a, "suspended"), 4); /* those that were on their way */
    assert_int_equal(count(&a, "running"), 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rights, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_record, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_drain_and_undrain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_few_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_problems_are_shown_and_tried_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kill, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_creates_are_waited_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pending_wakes_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_undrain_ends_a_drain, set_up, tear_down),
    };
    int r = rig_main(argc, argv);

    return r >= 0 ? r : cmocka_run_group_tests(tests, NULL, NULL);
}
