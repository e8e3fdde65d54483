/* Pause, suspend, wake, auto_wake, the order of verbs, and the rules of lifecycle, against a fake
 * node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/store_operation.h"
#include "api/store_sandbox.h"
#include "api/test_rig.h"
#include "base/clock.h"

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

static void create(struct rig *rig, const char *body, char id[21])
{
    rig_control(rig, "");
    rig_create(rig, body, id);
}

static void ask_verb(struct rig *rig, const char *id, const char *verb, struct answer *ret)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/%s", id, verb);
    rig_ask(rig, "POST", path, NULL, ret);
}

static void assert_state(struct rig *rig, const char *id, const char *want)
{
    _cleanup_answer_ struct answer a = {0};
    char path[160];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "state"), want);
}

static void wait_state(struct rig *rig, const char *id, const char *want, int64_t limit_ms)
{
    int64_t until = clock_monotonic_ms() + limit_ms;
    bool is_so = false;

    while (!is_so && clock_monotonic_ms() < until) {
        _cleanup_answer_ struct answer a = {0};
        char path[160];

        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
        rig_ask(rig, "GET", path, NULL, &a);
        is_so = a.status == 200 ? strcmp(answer_text(&a, "state"), want) == 0
                                : strcmp(want, "gone") == 0;
        rig_sleep_ms(20);
    }
    assert_true(is_so);
}

static void test_pause_and_wake(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer woken = {0};
    char id[21];

    create(rig, "{\"template\": \"base\"}", id);
    ask_verb(rig, id, "pause", &paused);
    assert_int_equal(paused.status, 200);
    assert_string_equal(answer_text(&paused, "sandbox.state"), "paused");
    assert_string_equal(answer_text(&paused, "operation.kind"), "pause");
    assert_string_equal(answer_text(&paused, "operation.state"), "succeeded");
    ask_verb(rig, id, "pause", &again);
    assert_int_equal(again.status, 200);
    ask_verb(rig, id, "wake", &woken);
    assert_int_equal(woken.status, 200);
    assert_string_equal(answer_text(&woken, "sandbox.state"), "running");
}

static void test_order(void **state)
{
    static const char *const verbs[] = {"pause?wait=0", "wake?wait=0", "pause?wait=0"};
    struct rig *rig = *state;
    char operations[3][21];
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 2500\n");
    for (size_t i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};

        ask_verb(rig, id, verbs[i], &a);
        assert_int_equal(a.status, 202);
        assert_string_equal(answer_text(&a, "operation.state"), i == 0 ? "running" : "pending");
        (void)snprintf(operations[i], sizeof(operations[i]), "%s", answer_text(&a, "operation.id"));
    }
    rig_control(rig, ""); /* the others take no time */
    for (size_t i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};

        (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10", operations[i]);
        rig_ask(rig, "GET", path, NULL, &a);
        assert_string_equal(answer_text(&a, "state"), "succeeded");
    }
    assert_state(rig, id, "paused");
}

static void test_delete_overtakes(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer ended = {0};
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 3000\n");
    ask_verb(rig, id, "pause?wait=0", &a);
    ask_verb(rig, id, "wake?wait=0", &b);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_expect(rig, 200, "DELETE", path, NULL);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s", answer_text(&b, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &ended);
    assert_string_equal(answer_text(&ended, "state"), "failed");
    assert_string_equal(answer_text(&ended, "error.code"), "conflict");
}

static void check_auto_wake(struct rig *rig, const char *verb, const char *asleep)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer refused = {0};
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    ask_verb(rig, id, verb, &a);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", id);
    rig_expect(rig, 200, "POST", path, "{\"argv\": [\"true\"]}");
    assert_state(rig, id, "running");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_expect(rig, 200, "PATCH", path, "{\"lifecycle\": {\"auto_wake\": false}}");
    ask_verb(rig, id, verb, &b);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", id);
    rig_ask(rig, "POST", path, "{\"argv\": [\"true\"]}", &refused);
    assert_int_equal(refused.status, 409);
    assert_string_equal(answer_text(&refused, "error.code"), "failed_precondition");
    assert_string_equal(answer_text(&refused, "error.details.state"), asleep);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes", id);
    rig_expect(rig, 200, "GET", path, NULL);
    assert_state(rig, id, asleep);
}

static void test_auto_wake(void **state)
{
    struct rig *rig = *state;

    check_auto_wake(rig, "pause", "paused");
    check_auto_wake(rig, "suspend", "suspended");
}

static void test_restart_in_the_middle(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 400\n");
    ask_verb(rig, id, "pause?wait=0", &a);
    assert_int_equal(a.status, 202);
    (void)rig_stop_api(rig, 9);
    rig_start_api(rig);
    rig_wait_ready(rig);
    wait_state(rig, id, "paused", 8000);
}

/* It is the operation that says so, not what else the record has. */
static void test_restart_in_a_boot(void **state)
{
    struct rig *rig = *state;
    struct operation waiting = {
        .kind = "wake", .state = OPERATION_PENDING, .boots = true, .created_at = clock_real_ms()};
    _cleanup_answer_ struct answer woken = {0};
    struct store *store = NULL;
    struct error err = {0};
    char path[160];
    char ids[2][21];

    rig_control(rig, "lose 1\n");
    for (size_t i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer made = {0};

        rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\"}", &made);
        (void)snprintf(ids[i], sizeof(ids[i]), "%.20s", answer_text(&made, "sandbox.id"));
        wait_state(rig, ids[i], "error", 8000);
    }
    rig_control(rig, "change_delay_ms 3000\n");
    ask_verb(rig, ids[0], "wake?wait=0", &woken);
    assert_string_equal(answer_text(&woken, "sandbox.state"), "waking");
    (void)rig_stop_api(rig, 9);
    rig_control(rig, "");
    (void)snprintf(path, sizeof(path), "%s/store/space.db", rig->dir);
    assert_int_equal(store_open(path, &store, &err), 0);
    assert_int_equal(store_sandbox_set_state(store, ids[0], SANDBOX_WAKING, "", "", &err), 0);
    memcpy(waiting.sandbox_id, ids[1], sizeof(waiting.sandbox_id));
    assert_int_equal(id_make("op", waiting.id), 0);
    assert_int_equal(store_operation_insert(store, &waiting, &err), 0);
    store_close(store);
    rig_start_api(rig);
    rig_wait_ready(rig);
    wait_state(rig, ids[0], "running", 8000);
    wait_state(rig, ids[1], "running", 8000);
}

static int64_t time_of(const struct answer *a, const char *where)
{
    int64_t ms = 0;

    assert_int_equal(clock_parse(answer_text(a, where), &ms), 0);
    return ms;
}

/* Of the store: no record says it. */
static int64_t suspended_at(const struct rig *rig, const char *id)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct store *store = NULL;
    struct error err = {0};
    char path[96];

    (void)snprintf(path, sizeof(path), "%s/store/space.db", rig->dir);
    assert_int_equal(store_open(path, &store, &err), 0);
    assert_int_equal(store_sandbox_get(store, id, &s, &err), 1);
    store_close(store);
    return s.suspended_at;
}

/* The one operation of a kind, which a rule made, was begun when that was due: never early, and at
 * most a second late. By the times of space-api. */
static void assert_due(struct rig *rig, const char *id, const char *kind, int64_t due)
{
    _cleanup_answer_ struct answer a = {0};
    char path[160];

    (void)snprintf(path, sizeof(path), "/v1/operations?sandbox_id=%s&kind=%s", id, kind);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_int_equal(json_array_size(answer_find(&a, "items")), 1);
    assert_in_range(time_of(&a, "items.0.created_at"), due, due + 1000);
}

static void test_idle_rules(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char paused[21];
    char deleted[21];
    char path[160];

    create(rig,
           "{\"template\": \"base\", \"lifecycle\": {\"idle_timeout_seconds\": 1.5,"
           " \"idle_action\": \"pause\"}}",
           paused);
    create(rig,
           "{\"template\": \"base\", \"lifecycle\": {\"idle_timeout_seconds\": 1.5,"
           " \"idle_action\": \"delete\"}}",
           deleted);
    wait_state(rig, paused, "paused", 8000);
    wait_state(rig, deleted, "gone", 8000);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", paused);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_due(rig, paused, "pause", time_of(&a, "active_at") + 1500);
    assert_string_equal(answer_text(&a, "lifecycle.idle_action"), "pause");
}

static void test_suspend_and_wake(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer suspended = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer refused = {0};
    _cleanup_answer_ struct answer woken = {0};
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer deeper = {0};
    char id[21];

    create(rig, "{\"template\": \"base\"}", id);
    ask_verb(rig, id, "suspend", &suspended);
    assert_int_equal(suspended.status, 200);
    assert_string_equal(answer_text(&suspended, "sandbox.state"), "suspended");
    assert_string_equal(answer_text(&suspended, "sandbox.durability"), "local");
    assert_string_equal(answer_text(&suspended, "operation.kind"), "suspend");
    ask_verb(rig, id, "suspend", &again);
    assert_int_equal(again.status, 200);
    ask_verb(rig, id, "pause", &refused);
    assert_int_equal(refused.status, 409);
    assert_string_equal(answer_text(&refused, "error.details.state"), "suspended");
    ask_verb(rig, id, "wake", &woken);
    assert_int_equal(woken.status, 200);
    assert_string_equal(answer_text(&woken, "sandbox.state"), "running");
    assert_true(json_is_null(answer_find(&woken, "sandbox.durability")));
    ask_verb(rig, id, "pause", &paused);
    assert_int_equal(paused.status, 200);
    ask_verb(rig, id, "suspend", &deeper);
    assert_int_equal(deeper.status, 200);
    assert_string_equal(answer_text(&deeper, "sandbox.state"), "suspended");
}

static void test_kill_in_a_suspend(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 3000\n");
    ask_verb(rig, id, "suspend?wait=0", &a);
    assert_string_equal(answer_text(&a, "sandbox.state"), "suspending");
    (void)rig_stop_api(rig, 9);
    rig_control(rig, "");
    rig_start_api(rig);
    rig_wait_ready(rig);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &b);
    assert_string_equal(answer_text(&b, "state"), "succeeded");
    assert_state(rig, id, "suspended");
}

static void test_suspended_ones_are_kept_for_a_while(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    char kept[21];
    char gone[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", kept);
    create(rig, "{\"template\": \"base\", \"lifecycle\": {\"keep_suspended_seconds\": 1.5}}", gone);
    ask_verb(rig, kept, "suspend", &a);
    ask_verb(rig, gone, "suspend", &b);
    wait_state(rig, gone, "gone", 8000);
    assert_due(rig, gone, "delete", suspended_at(rig, gone) + 1500);
    assert_state(rig, kept, "suspended");

    /* By a later rule it has been kept for long enough already. */
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", kept);
    rig_expect(rig, 200, "PATCH", path, "{\"lifecycle\": {\"keep_suspended_seconds\": 1}}");
    wait_state(rig, kept, "gone", 8000);
    (void)snprintf(path, sizeof(path), "/v1/operations?sandbox_id=%s&kind=delete", kept);
    rig_ask(rig, "GET", path, NULL, &c);
    assert_int_equal(json_array_size(answer_find(&c, "items")), 1);
}

static void test_rules_that_suspend(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char fresh[21];
    char idle[21];
    char timed[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", fresh);
    create(rig, "{\"template\": \"base\", \"lifecycle\": {\"idle_timeout_seconds\": 0.5}}", idle);
    create(rig,
           "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 0.5,"
           " \"timeout_action\": \"suspend\"}}",
           timed);
    wait_state(rig, idle, "suspended", 8000);
    wait_state(rig, timed, "suspended", 8000);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", timed);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_string_equal(answer_text(&a, "state_reason.code"), "timeout");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", fresh);
    rig_ask(rig, "GET", path, NULL, &b);
    assert_string_equal(answer_text(&b, "state"), "running");
    assert_string_equal(answer_text(&b, "lifecycle.idle_action"), "suspend");
    assert_int_equal(json_integer_value(answer_find(&b, "lifecycle.idle_timeout_seconds")), 21600);
}

/* More than one batch of them are due, and cannot be carried out: the next one's turn comes. */
static void test_rules_that_cannot_be_carried_out_hold_nothing_up(void **state)
{
    struct rig *rig = *state;
    char id[21];
    int stuck = 0;

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "delay_ms 20000\n");
    while (stuck < 130) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, "POST", "/v1/sandboxes?wait=0",
                "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 0.2,"
                " \"timeout_action\": \"pause\"}}",
                &a);
        assert_int_equal(a.status, 202);
        stuck++;
    }
    rig_control(rig, "");
    {
        _cleanup_answer_ struct answer a = {0};
        char path[80];

        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
        rig_ask(rig, "PATCH", path,
                "{\"lifecycle\": {\"timeout_seconds\": 0.3, \"timeout_action\": \"pause\"}}", &a);
        assert_int_equal(a.status, 200);
    }
    wait_state(rig, id, "paused", 8000);
}

/* The rule's time is over before there is anything to carry it out on. */
static void test_a_slow_create_keeps_its_idle_rule(void **state)
{
    struct rig *rig = *state;
    char id[21];

    rig_control(rig, "delay_ms 900\n");
    rig_create(rig,
               "{\"template\": \"base\", \"lifecycle\": {\"idle_timeout_seconds\": 0.3,"
               " \"idle_action\": \"pause\"}}",
               id);
    rig_control(rig, "");
    wait_state(rig, id, "paused", 8000);
}

static void test_timeout_pauses_once(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer woken = {0};
    char id[21];

    create(rig,
           "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 0.5,"
           " \"timeout_action\": \"pause\"}}",
           id);
    wait_state(rig, id, "paused", 8000);
    ask_verb(rig, id, "wake", &woken);
    assert_int_equal(woken.status, 200);
    assert_true(json_is_null(answer_find(&woken, "sandbox.expires_at")));
    rig_sleep_ms(700);
    assert_state(rig, id, "running");
}

static void test_kill_in_a_timeouts_pause(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];
    char path[160];

    create(rig,
           "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 0.5,"
           " \"timeout_action\": \"pause\"}}",
           id);
    rig_control(rig, "change_delay_ms 1500\n");
    wait_state(rig, id, "pausing", 8000);
    (void)rig_stop_api(rig, 9);
    rig_control(rig, "");
    rig_start_api(rig);
    rig_wait_ready(rig);
    wait_state(rig, id, "paused", 8000);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_string_equal(answer_text(&a, "state_reason.code"), "timeout");
    assert_true(json_is_null(answer_find(&a, "expires_at")));
}

/* The node takes back what a restart cut off: until then it refuses, which is not the end. */
static void test_node_that_settles(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "settling 1\n");
    ask_verb(rig, id, "pause?wait=0.5", &a);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "operation.state"), "running");
    rig_control(rig, "");
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &b);
    assert_string_equal(answer_text(&b, "state"), "succeeded");
    assert_state(rig, id, "paused");
    (void)snprintf(path, sizeof(path), "/v1/operations?sandbox_id=%s&kind=pause", id);
    rig_ask(rig, "GET", path, NULL, &c);
    assert_int_equal(json_array_size(answer_find(&c, "items")), 1);
}

static void test_deleting_refuses(void **state)
{
    static const char *const verbs[] = {"pause", "suspend", "wake"};
    struct rig *rig = *state;
    char id[21];
    char path[160];

    create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "delete_delay_ms 3000\n");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s?wait=0", id);
    rig_expect(rig, 202, "DELETE", path, NULL);
    for (size_t i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};

        ask_verb(rig, id, verbs[i], &a);
        assert_int_equal(a.status, 409);
        assert_string_equal(answer_text(&a, "error.code"), "failed_precondition");
        assert_string_equal(answer_text(&a, "error.details.state"), "deleting");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        /* While no other rule is due. */
        cmocka_unit_test(test_a_slow_create_keeps_its_idle_rule),
        cmocka_unit_test(test_pause_and_wake),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_delete_overtakes),
        cmocka_unit_test(test_auto_wake),
        cmocka_unit_test(test_restart_in_the_middle),
        cmocka_unit_test(test_restart_in_a_boot),
        cmocka_unit_test(test_idle_rules),
        cmocka_unit_test(test_timeout_pauses_once),
        cmocka_unit_test(test_node_that_settles),
        cmocka_unit_test(test_deleting_refuses),
        cmocka_unit_test(test_kill_in_a_timeouts_pause),
        cmocka_unit_test(test_suspend_and_wake),
        cmocka_unit_test(test_kill_in_a_suspend),
        cmocka_unit_test(test_suspended_ones_are_kept_for_a_while),
        cmocka_unit_test(test_rules_that_suspend),
        cmocka_unit_test(test_rules_that_cannot_be_carried_out_hold_nothing_up),
    };
    int r = rig_main(argc, argv);

    return r >= 0 ? r : cmocka_run_group_tests(tests, set_up, tear_down);
}
