/* The node protocol's pause and wake, with a real agent and no virtual machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/routes_rig.h"

static void
ask(const struct fixture *f, const char *verb, const char *body, struct answer *ret_answer)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/%s", f->sandbox, verb);
    rig_ask(f->rig, "POST", path, body, ret_answer);
}

static void expect_state(const struct fixture *f,
                         const char *verb,
                         const char *body,
                         const char *state,
                         const char *reason)
{
    _cleanup_answer_ struct answer a = {0};

    ask(f, verb, body, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "id"), f->sandbox);
    assert_string_equal(answer_text(&a, "state"), state);
    assert_string_equal(answer_text(&a, "reason.code"), reason);
}

static void test_answers_and_reason(void **state)
{
    const struct fixture *f = *state;

    expect_state(f, "pause", "{\"reason\": {\"code\": \"idle_timeout\", \"message\": \"so long\"}}",
                 "paused", "idle_timeout");
    expect_state(f, "pause", NULL, "paused", "idle_timeout");
    expect_state(f, "wake", NULL, "running", "");
    expect_state(f, "wake", "{}", "running", "");
    expect_state(f, "pause", "{\"reason\": null}", "paused", "");
    expect_state(f, "wake", NULL, "running", "");
}

static void test_bad_bodies_change_nothing(void **state)
{
    static const char *const cases[][2] = {
        {"{\"x\": 1}", "x"},
        {"{\"reason\": \"so\"}", "reason"},
        {"{\"reason\": {\"code\": \"a\"}}", "reason.message"},
        {"{\"reason\": {\"message\": \"a\"}}", "reason.code"},
        {"{\"reason\": {\"code\": \"\", \"message\": \"a\"}}", "reason.code"},
        {"{\"reason\": {\"code\": \"a23456789012345678901234567890123\", \"message\": \"a\"}}",
         "reason.code"},
        {"{\"reason\": {\"code\": \"a\", \"message\": 1}}", "reason.message"},
        {"{\"reason\": {\"code\": \"a\", \"message\": \"a\", \"b\": \"\"}}", "reason"},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer a = {0};

        ask(f, "pause", cases[i][0], &a);
        assert_int_equal(a.status, 400);
        assert_string_equal(answer_text(&a, "error.code"), "invalid_request");
        assert_string_equal(answer_text(&a, "error.details.field"), cases[i][1]);
    }
    expect_state(f, "wake", NULL, "running", "");
}

static void test_unknown_and_failed_sandboxes(void **state)
{
    static const char *const verbs[] = {"pause", "wake"};
    const struct fixture *f = *state;
    struct started p;

    for (size_t i = 0; i < 2; i++) {
        char path[160];

        (void)snprintf(path, sizeof(path), "/n1/sandboxes/sb222222222222222222/%s", verbs[i]);
        rig_expect(f->rig, "POST", path, NULL, 404);
        (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/%s", f->sandbox, verbs[i]);
        rig_expect(f->rig, "GET", path, NULL, 405);
    }
    fixture_start(f, "\"shell\": \"kill -9 $PPID; sleep 60\"", &p);
    rig_wait_state(f->rig, f->sandbox, "error");
    for (size_t i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer a = {0};

        ask(f, verbs[i], NULL, &a);
        assert_int_equal(a.status, 409);
        assert_string_equal(answer_text(&a, "error.code"), "failed_precondition");
        assert_string_equal(answer_text(&a, "error.details.state"), "error");
        assert_string_equal(answer_text(&a, "sandbox.id"), f->sandbox);
        assert_string_equal(answer_text(&a, "sandbox.state"), "error");
    }
}

/* Only where it is asked for; what ran before is lost, and has no result ever. */
static void test_a_boot_from_error(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"kill -9 $PPID; sleep 60\"", &p);
    rig_wait_state(f->rig, f->sandbox, "error");
    ask(f, "wake", "{\"boot\": false}", &a);
    assert_int_equal(a.status, 409);
    ask(f, "wake", "{\"boot\": 1}", &c);
    assert_int_equal(c.status, 400);
    assert_string_equal(answer_text(&c, "error.details.field"), "boot");
    expect_state(f, "wake", "{\"boot\": true}", "running", "");
    expect_state(f, "wake", "{\"boot\": true}", "running", "");
    fixture_ask(f, &p, "GET", "", NULL, &b);
    assert_int_equal(b.status, 200);
    assert_string_equal(answer_text(&b, "state"), "lost");
}

static bool is_timed_out(const struct fixture *f, const struct started *p)
{
    _cleanup_answer_ struct answer a = {0};

    fixture_ask(f, p, "GET", "", NULL, &a);
    assert_int_equal(a.status, 200);
    return json_is_true(json_object_get(a.json, "timed_out"));
}

/* What cannot answer is not late: its limits are looked at again when it runs. */
static void test_limits_of_time_wait_for_the_wake(void **state)
{
    const struct fixture *f = *state;
    struct started p;
    int64_t until;

    fixture_start(f, "\"shell\": \"sleep 60\", \"timeout_seconds\": 0.3, \"on_timeout\": \"leave\"",
                  &p);
    expect_state(f, "pause", NULL, "paused", "");
    until = clock_monotonic_ms() + 600;
    while (clock_monotonic_ms() < until) {
        assert_false(is_timed_out(f, &p));
    }
    expect_state(f, "wake", NULL, "running", "");
    until = clock_monotonic_ms() + 30000;
    while (!is_timed_out(f, &p)) {
        assert_true(clock_monotonic_ms() < until);
    }
}

/* The agent says that it has begun, and never that it has ended: neither by itself when the time is
 * over, nor within the guard. */
static void test_an_agent_that_never_ends_a_command(void **state)
{
    static const char fields[] = "\"argv\": [\"true\"], \"timeout_seconds\": 0.2";
    const int64_t begun = clock_monotonic_ms();
    struct fixture f = {.rig = rig_new_lying("never-ends", "timeout_guard_ms=200")};
    _cleanup_answer_ struct answer run = {0};
    _cleanup_answer_ struct answer now = {0};
    char path[64];

    (void)state;
    rig_make_sandbox(f.rig, f.sandbox);
    rig_command(f.rig, f.sandbox, "run", fields, &run);
    assert_int_equal(run.status, 409);
    assert_string_equal(answer_text(&run, "error.code"), "failed_precondition");
    assert_string_equal(answer_text(&run, "error.details.state"), "lost");
    assert_true(clock_monotonic_ms() - begun >= 400);
    rig_wait_state(f.rig, f.sandbox, "error");
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f.sandbox);
    rig_ask(f.rig, "GET", path, NULL, &now);
    assert_string_equal(answer_text(&now, "reason.code"), "agent_timeout");
    rig_free(f.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_agent_that_never_ends_a_command),
        cmocka_unit_test_setup_teardown(test_answers_and_reason, fixture_set_up, fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_bad_bodies_change_nothing, fixture_set_up,
                                        fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_limits_of_time_wait_for_the_wake, fixture_set_up,
                                        fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_unknown_and_failed_sandboxes, fixture_set_up,
                                        fixture_tear_down),
        cmocka_unit_test_setup_teardown(test_a_boot_from_error, fixture_set_up, fixture_tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
