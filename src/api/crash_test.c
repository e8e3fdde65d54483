/* space-api and its node are killed at the worst moments: every operation ends in a definite state,
 * nothing is made twice, nothing is orphaned. And what Idempotency-Key promises. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/wait.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#define HEAD "Idempotency-Key: "

static int setup(void **state)
{
    *state = rig_new("");
    return 0;
}

static int teardown(void **state)
{
    rig_free(*state);
    return 0;
}

static void sandbox_path(char out[160], const char *id, const char *rest)
{
    (void)snprintf(out, 160, "/v1/sandboxes/%s%s", id, rest);
}

static void ask_with(struct rig *rig,
                     const char *method,
                     const char *path,
                     const char *body,
                     const char *headers,
                     struct answer *ret_answer)
{
    struct call call = {method, path, body, rig->key, headers};

    client_ask(rig->port, &call, ret_answer);
}

static void expect_state(struct rig *rig, const char *id, const char *state, const char *reason)
{
    int64_t end = clock_monotonic_ms() + 10000;
    char path[160];

    sandbox_path(path, id, "");
    for (;;) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, "GET", path, NULL, &a);
        if (strcmp(answer_text(&a, "state"), state) == 0 &&
            strcmp(answer_text(&a, "state_reason.code"), reason) == 0) {
            return;
        }
        if (clock_monotonic_ms() > end) {
            fail_msg("sandbox %s is not %s: %s", id, state, buf_str(&a.body));
        }
        rig_sleep_ms(20);
    }
}

static void restart_api(struct rig *rig)
{
    rig_start_api(rig);
    rig_wait_ready(rig);
}

/* ---- a create that is cut off ---- */

static void create_and_kill(struct rig *rig, int after_ms)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer op = {0};
    char path[160];

    rig_control(rig, "delay_ms 300\n");
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", "{\"template\": \"base\"}", &a);
    assert_int_equal(a.status, 202);
    rig_sleep_ms(after_ms);
    (void)rig_stop_api(rig, SIGKILL);
    restart_api(rig);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=20",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &op);
    assert_int_equal(op.status, 200);
    assert_string_equal(answer_text(&op, "state"), "succeeded");
    expect_state(rig, answer_text(&a, "sandbox.id"), "running", "");
    sandbox_path(path, answer_text(&a, "sandbox.id"), "");
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_control(rig, "");
}

static void test_kill_in_create(void **state)
{
    static const int moments[] = {0, 1, 5, 100, 290, 310, 400};

    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
        create_and_kill(*state, moments[i]);
    }
}

static void test_kill_while_a_client_waits(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer cut = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer list = {0};
    static const char body[] = "{\"template\": \"base\", \"metadata\": {\"of\": \"waiting\"}}";
    int fd = client_connect(rig->port);

    rig_control(rig, "delay_ms 400\n");
    client_send(fd, &(struct call){"POST", "/v1/sandboxes", body, rig->key, HEAD "w\r\n"});
    rig_sleep_ms(150);
    (void)rig_stop_api(rig, SIGKILL);
    client_read(fd, &cut);
    assert_int_equal(cut.status, 0);
    (void)close(fd);
    restart_api(rig);
    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "w\r\n", &again);
    assert_int_equal(again.status, 201);
    rig_ask(rig, "GET", "/v1/sandboxes?metadata.of=waiting", NULL, &list);
    assert_int_equal(json_array_size(answer_find(&list, "items")), 1);
    assert_string_equal(answer_text(&list, "items.0.id"), answer_text(&again, "sandbox.id"));
    rig_control(rig, "");
}

static void test_kill_in_delete(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer op = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "delete_delay_ms 500\n");
    sandbox_path(path, id, "?wait=0");
    rig_ask(rig, "DELETE", path, NULL, &a);
    assert_int_equal(a.status, 202);
    (void)rig_stop_api(rig, SIGKILL);
    restart_api(rig);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=20",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &op);
    assert_string_equal(answer_text(&op, "state"), "succeeded");
    sandbox_path(path, id, "");
    rig_expect(rig, 404, "GET", path, NULL);
    rig_control(rig, "");
}

static void test_kill_in_run(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer list = {0};
    int fd = client_connect(rig->port);

    rig_control(rig, "delay_ms 1000\n");
    client_send(fd, &(struct call){"POST", "/v1/run",
                                   "{\"template\": \"base\", \"argv\": [\"true\"],"
                                   " \"metadata\": {\"of\": \"run\"}}",
                                   rig->key, NULL});
    rig_sleep_ms(200);
    (void)rig_stop_api(rig, SIGKILL);
    (void)close(fd);
    restart_api(rig);
    rig_sleep_ms(500);
    rig_ask(rig, "GET", "/v1/sandboxes?metadata.of=run", NULL, &list);
    assert_int_equal(json_array_size(answer_find(&list, "items")), 0);
    rig_control(rig, "");
}

/* ---- the node dies ---- */

static void test_node_dies_in_create(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    int fd = client_connect(rig->port);

    rig_control(rig, "die_in_put 1\n");
    client_send(
        fd, &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"base\"}", rig->key, NULL});
    rig_wait_node(rig);
    rig_control(rig, "");
    rig_start_node(rig);
    client_read(fd, &a);
    assert_int_equal(a.status, 201);
    assert_string_equal(answer_text(&a, "sandbox.state"), "running");
    (void)close(fd);
}

static void test_node_loses_its_sandboxes(void **state)
{
    struct rig *rig = *state;
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_stop_node(rig);
    rig_start_node(rig);
    expect_state(rig, id, "error", "host_restarted");
    sandbox_path(path, id, "");
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_expect(rig, 404, "GET", path, NULL);
}

static void test_requests_wait_for_the_node(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer none = {0};
    _cleanup_answer_ struct answer ready = {0};
    _cleanup_answer_ struct answer late = {0};
    char value[256];
    int fd;

    rig_stop_node(rig);
    rig_sleep_ms(50);
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0.1", "{\"template\": \"base\"}", &none);
    assert_int_equal(none.status, 503);
    assert_string_equal(answer_text(&none, "error.code"), "service_unavailable");
    assert_string_equal(answer_text(&none, "error.details.waiting_for.0"), "node");
    answer_header(&none, "Retry-After", value);
    assert_string_equal(value, "1");
    rig_ask(rig, "GET", "/readyz", NULL, &ready);
    assert_int_equal(ready.status, 503);
    rig_expect(rig, 200, "GET", "/v1/sandboxes", NULL);
    fd = client_connect(rig->port);
    client_send(
        fd, &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"base\"}", rig->key, NULL});
    rig_control(rig, "not_ready 1\n");
    rig_start_node(rig);
    rig_sleep_ms(300);
    rig_control(rig, "");
    client_read(fd, &late);
    assert_int_equal(late.status, 201);
    (void)close(fd);
}

static void test_delete_without_a_node(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer op = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 100}}", id);
    rig_stop_node(rig);
    sandbox_path(path, id, "?wait=0.1");
    rig_ask(rig, "DELETE", path, NULL, &a);
    assert_int_equal(a.status, 202);
    rig_start_node(rig);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=20",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &op);
    assert_string_equal(answer_text(&op, "state"), "succeeded");
}

static void test_node_dies_in_answer(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "die_in_answer 1\n");
    sandbox_path(path, id, "/run");
    rig_ask(rig, "POST", path, "{\"argv\": [\"true\"]}", &a);
    /* The answer was half sent: the client must see that it is no whole one. */
    assert_true(a.cut);
    rig_wait_node(rig);
    rig_control(rig, "");
    rig_start_node(rig);
    rig_wait_ready(rig);
}

static void test_expiry_survives_a_restart(void **state)
{
    struct rig *rig = *state;
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 1}}", id);
    (void)rig_stop_api(rig, SIGKILL);
    rig_sleep_ms(1100);
    restart_api(rig);
    rig_sleep_ms(900);
    sandbox_path(path, id, "");
    rig_expect(rig, 404, "GET", path, NULL);
}

/* ---- Idempotency-Key ---- */

static void test_replay(void **state)
{
    struct rig *rig = *state;
    static const char body[] = "{\"template\": \"base\"}";
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer waited = {0};
    _cleanup_answer_ struct answer other = {0};
    char value[256];

    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "a b\r\n", &first);
    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "a b\r\n", &again);
    ask_with(rig, "POST", "/v1/sandboxes?wait=5", body, HEAD "a b\r\n", &waited);
    assert_int_equal(first.status, 201);
    assert_int_equal(again.status, 201);
    assert_int_equal(waited.status, 201);
    answer_header(&first, "Idempotency-Replayed", value);
    assert_string_equal(value, "");
    answer_header(&again, "Idempotency-Replayed", value);
    assert_string_equal(value, "true");
    assert_string_equal(buf_str(&first.body), buf_str(&again.body));
    assert_string_equal(buf_str(&first.body), buf_str(&waited.body));
    ask_with(rig, "POST", "/v1/sandboxes", "{\"template\":\"base\"}", HEAD "a b\r\n", &other);
    assert_int_equal(other.status, 409);
    assert_string_equal(answer_text(&other, "error.code"), "idempotency_conflict");
    (void)rig_stop_api(rig, SIGKILL);
    restart_api(rig);
    answer_done(&again);
    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "a b\r\n", &again);
    assert_string_equal(buf_str(&first.body), buf_str(&again.body));
}

static void test_retryable_is_not_stored(void **state)
{
    struct rig *rig = *state;
    static const char body[] = "{\"template\": \"base\"}";
    _cleanup_answer_ struct answer full = {0};
    _cleanup_answer_ struct answer good = {0};
    _cleanup_answer_ struct answer missing = {0};
    _cleanup_answer_ struct answer again = {0};
    char value[256];

    rig_control(rig, "fail capacity_unavailable\n");
    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "r\r\n", &full);
    assert_int_equal(full.status, 503);
    rig_control(rig, "");
    ask_with(rig, "POST", "/v1/sandboxes", body, HEAD "r\r\n", &good);
    assert_int_equal(good.status, 201);
    ask_with(rig, "POST", "/v1/sandboxes", "{\"template\": \"no\"}", HEAD "n\r\n", &missing);
    ask_with(rig, "POST", "/v1/sandboxes", "{\"template\": \"no\"}", HEAD "n\r\n", &again);
    assert_int_equal(missing.status, 404);
    assert_int_equal(again.status, 404);
    answer_header(&again, "Idempotency-Replayed", value);
    assert_string_equal(value, "true");
}

static int count_heard(const struct rig *rig, const char *call)
{
    _cleanup_buf_ struct buf log = buf_make(0);
    const char *at;
    char path[160];
    int count = 0;

    (void)snprintf(path, sizeof(path), "%s/node.log", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    for (at = strstr(buf_str(&log), call); at != NULL; at = strstr(at + 1, call)) {
        count++;
    }
    return count;
}

/* The node finds out which accelerator works, and starts nothing meanwhile. Who waits is not kept
 * waiting after that: the feed says it, and the next attempt would have been seconds away. */
static void test_what_the_node_refused_comes_again_when_it_has_started(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer waits = {0};
    _cleanup_answer_ struct answer op = {0};
    int64_t end = clock_monotonic_ms() + 20000;
    int64_t said_ms;
    char other[21];
    char call[80];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", other);
    rig_control(rig, "fail service_unavailable\n");
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", "{\"template\": \"base\"}", &waits);
    assert_int_equal(waits.status, 202);
    (void)snprintf(call, sizeof(call), "PUT /n1/sandboxes/%s?", answer_text(&waits, "sandbox.id"));
    while (count_heard(rig, call) < 5) { /* the next one is 3.2 s away */
        assert_true(clock_monotonic_ms() < end);
        rig_sleep_ms(10);
    }
    rig_control(rig, "started 1\n");
    said_ms = clock_monotonic_ms();
    sandbox_path(path, other, "/console");
    rig_expect(rig, 200, "GET", path, NULL);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=20",
                   answer_text(&waits, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &op);
    assert_string_equal(answer_text(&op, "state"), "succeeded");
    assert_true(clock_monotonic_ms() - said_ms < 2000);
    assert_int_equal(count_heard(rig, call), 6);
    rig_control(rig, "");
}

static void test_at_once(void **state)
{
    struct rig *rig = *state;
    struct call call = {"POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}",
                        rig->key, HEAD "once\r\n"};
    char process[64] = "";
    int fds[10];
    int replayed = 0;

    rig_control(rig, "delay_ms 300\n");
    for (int i = 0; i < 10; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], &call);
    }
    for (int i = 0; i < 10; i++) {
        _cleanup_answer_ struct answer a = {0};
        char value[256];

        client_read(fds[i], &a);
        (void)close(fds[i]);
        assert_int_equal(a.status, 200);
        if (process[0] == '\0') {
            (void)snprintf(process, sizeof(process), "%s", answer_text(&a, "process_id"));
        }
        assert_string_equal(answer_text(&a, "process_id"), process);
        answer_header(&a, "Idempotency-Replayed", value);
        replayed += strcmp(value, "true") == 0;
    }
    assert_int_equal(replayed, 9);
    rig_control(rig, "");
}

static void test_the_first_client_goes(void **state)
{
    struct rig *rig = *state;
    struct call call = {"POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}",
                        rig->key, HEAD "gone\r\n"};
    _cleanup_answer_ struct answer a = {0};
    char value[256];
    int first = client_connect(rig->port);

    rig_control(rig, "delay_ms 500\n");
    client_send(first, &call);
    rig_sleep_ms(100);
    (void)close(first);
    rig_sleep_ms(100);
    client_ask(rig->port, &call, &a);
    assert_int_equal(a.status, 200);
    answer_header(&a, "Idempotency-Replayed", value);
    assert_string_equal(value, "true");
    assert_string_equal(answer_text(&a, "stdout"), "true 0\n");
    rig_control(rig, "");
}

static void test_a_command_runs_once(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char id[21];
    char path[160];
    struct call call = {"POST", path, "{\"argv\": [\"sleep\"], \"timeout_seconds\": 0.3}", rig->key,
                        HEAD "cmd\r\n"};
    int first;

    rig_create(rig, "{\"template\": \"base\"}", id);
    sandbox_path(path, id, "/run");
    first = client_connect(rig->port);
    client_send(first, &call);
    rig_sleep_ms(100);
    (void)close(first);
    /* The same process is asked for again. */
    client_ask(rig->port, &call, &a);
    assert_int_equal(a.status, 200);
    client_ask(rig->port, &call, &b);
    assert_string_equal(answer_text(&a, "process_id"), answer_text(&b, "process_id"));
    assert_string_equal(answer_text(&b, "stdout"), "sleep 0\n");
}

/* Nobody knows whether the command of a retryable answer ran: the next attempt asks for the same.
 */
static void check_lost_answer(struct rig *rig, const char *verb, int status)
{
    _cleanup_answer_ struct answer lost = {0};
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer next = {0};
    char id[21];
    char path[160];
    char head[64];

    rig_create(rig, "{\"template\": \"base\"}", id);
    sandbox_path(path, id, verb);
    (void)snprintf(head, sizeof(head), HEAD "lost %s\r\n", verb);
    rig_control(rig, "lose_answer 1\n");
    ask_with(rig, "POST", path, "{\"argv\": [\"true\"]}", head, &lost);
    assert_int_equal(lost.status, 503);
    rig_control(rig, "");
    ask_with(rig, "POST", path, "{\"argv\": [\"true\"]}", head, &a);
    assert_int_equal(a.status, status);
    sandbox_path(path, id, "/run");
    ask_with(rig, "POST", path, "{\"argv\": [\"next\"]}", "", &next);
    assert_string_equal(answer_text(&next, "stdout"), "next 1\n"); /* behind one command */
}

static void test_a_command_whose_answer_was_lost_runs_once(void **state)
{
    check_lost_answer(*state, "/run", 200);
    check_lost_answer(*state, "/commands", 201);
}

/* Its answer is lost with the process, and the sandbox comes up. */
static void keep_and_lose(struct rig *rig, const char *body, const char *head, char ret_id[21])
{
    int64_t end = clock_monotonic_ms() + 10000;
    int fd = client_connect(rig->port);

    rig_control(rig, "delay_ms 60000\n");
    client_send(fd, &(struct call){"POST", "/v1/run", body, rig->key, head});
    for (bool is_there = false; !is_there; rig_sleep_ms(20)) {
        _cleanup_answer_ struct answer list = {0};

        rig_ask(rig, "GET", "/v1/sandboxes?metadata.of=keep", NULL, &list);
        is_there = json_array_size(answer_find(&list, "items")) == 1;
        (void)snprintf(ret_id, 21, "%s", is_there ? answer_text(&list, "items.0.id") : "");
        assert_true(clock_monotonic_ms() < end);
    }
    (void)rig_stop_api(rig, SIGKILL);
    (void)close(fd);
    rig_control(rig, "");
    restart_api(rig);
    expect_state(rig, ret_id, "running", "");
}

/* The node cannot say the result of a kept sandbox's command: the sandbox stays what it is. */
static void check_kept(struct rig *rig, const char *fail, int status, bool is_final)
{
    static const char body[] = "{\"template\": \"base\", \"argv\": [\"once\"], \"keep\": true,"
                               " \"metadata\": {\"of\": \"keep\"}}";
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer again = {0};
    char control[64];
    char head[64];
    char path[160];
    char id[21];

    (void)snprintf(head, sizeof(head), HEAD "kept %s\r\n", fail);
    (void)snprintf(control, sizeof(control), "fail %s\n", fail);
    keep_and_lose(rig, body, head, id);
    rig_control(rig, control);
    ask_with(rig, "POST", "/v1/run", body, head, &a);
    assert_int_equal(a.status, status);
    rig_control(rig, "");
    expect_state(rig, id, "running", "");
    ask_with(rig, "POST", "/v1/run", body, head, &again);
    if (is_final) {
        assert_int_equal(again.status, status);
    } else {
        assert_int_equal(again.status, 200);
        assert_string_equal(answer_text(&again, "sandbox_id"), id);
        assert_string_equal(answer_text(&again, "stdout"), "once 0\n"); /* it ran once */
    }
    expect_state(rig, id, "running", "");
    sandbox_path(path, id, "/run");
    rig_expect(rig, 200, "POST", path, "{\"argv\": [\"true\"]}");
    sandbox_path(path, id, "");
    rig_expect(rig, 200, "DELETE", path, NULL);
}

/* However long the answer is that was lost. */
static void test_a_kept_run_with_a_huge_answer(void **state)
{
    static const char body[] = "{\"template\": \"base\", \"argv\": [\"huge\"], \"keep\": true,"
                               " \"metadata\": {\"of\": \"keep\"}}";
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char path[160];
    char id[21];

    keep_and_lose(rig, body, HEAD "kept huge\r\n", id);
    ask_with(rig, "POST", "/v1/run", body, HEAD "kept huge\r\n", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "sandbox_id"), id);
    assert_true(json_string_length(answer_find(&a, "stdout")) > 10000000);
    sandbox_path(path, id, "");
    rig_expect(rig, 200, "DELETE", path, NULL);
}

/* The node dies when a result has begun: its client hears of a cut, and who repeats it runs it
 * again, since nothing is left of the first. */
static void test_node_dies_in_a_result(void **state)
{
    static const char body[] = "{\"template\": \"base\", \"argv\": [\"true\"],"
                               " \"metadata\": {\"of\": \"cut\"}}";
    struct rig *rig = *state;
    _cleanup_answer_ struct answer cut = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer list = {0};

    rig_control(rig, "die_in_answer 1\n");
    ask_with(rig, "POST", "/v1/run", body, HEAD "cut\r\n", &cut);
    assert_true(cut.cut);
    rig_wait_node(rig);
    rig_control(rig, "");
    rig_start_node(rig);
    rig_wait_ready(rig);
    ask_with(rig, "POST", "/v1/run", body, HEAD "cut\r\n", &again);
    assert_int_equal(again.status, 200);
    assert_string_equal(answer_text(&again, "stdout"), "true 0\n");
    rig_ask(rig, "GET", "/v1/sandboxes?metadata.of=cut", NULL, &list);
    assert_int_equal(json_array_size(answer_find(&list, "items")), 0);
}

static void test_a_repetition_takes_no_kept_sandbox_away(void **state)
{
    check_kept(*state, "service_unavailable", 503, false);
    check_kept(*state, "capacity_unavailable", 503, false);
    check_kept(*state, "gone", 410, true);
    check_kept(*state, "failed_precondition", 409, true);
}

/* An attempt that does not reach the node leaves the one before to the next: its key still stands
 * for that command, and for no other. */
static void test_a_command_is_not_forgotten_without_the_node(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer lost = {0};
    _cleanup_answer_ struct answer none = {0};
    _cleanup_answer_ struct answer other = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    sandbox_path(path, id, "/run");
    rig_control(rig, "lose_answer 1\n");
    ask_with(rig, "POST", path, "{\"argv\": [\"true\"]}", HEAD "apart\r\n", &lost);
    assert_int_equal(lost.status, 503);
    rig_control(rig, "");
    rig_stop_node(rig);
    ask_with(rig, "POST", path, "{\"argv\": [\"true\"]}", HEAD "apart\r\n", &none);
    assert_int_equal(none.status, 503);
    ask_with(rig, "POST", path, "{\"argv\": [\"false\"]}", HEAD "apart\r\n", &other);
    assert_int_equal(other.status, 409);
    assert_string_equal(answer_text(&other, "error.code"), "idempotency_conflict");
    rig_start_node(rig);
    rig_wait_ready(rig);
}

/* An answer too long to be kept: who repeats it, or waited for it, gets the same command's. */
static void test_a_command_with_a_huge_answer_runs_once(void **state)
{
    struct rig *rig = *state;
    struct answer a[3] = {0};
    int fds[2];
    char id[21];
    char path[160];
    struct call call = {"POST", path, "{\"argv\": [\"huge\"]}", rig->key, HEAD "huge\r\n"};

    rig_create(rig, "{\"template\": \"base\"}", id);
    sandbox_path(path, id, "/run");
    for (int i = 0; i < 2; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], &call);
    }
    for (int i = 0; i < 2; i++) {
        client_read(fds[i], &a[i]);
        (void)close(fds[i]);
    }
    client_ask(rig->port, &call, &a[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].status, 200);
        assert_int_equal(strlen(answer_text(&a[i], "stdout")),
                         strlen(answer_text(&a[0], "stdout")));
        assert_string_equal(answer_text(&a[i], "process_id"), answer_text(&a[0], "process_id"));
    }
    for (int i = 0; i < 3; i++) {
        answer_done(&a[i]);
    }
}

static void test_a_key_is_never_stored(void **state)
{
    struct rig *rig = *state;
    static const char body[] = "{\"name\": \"k\", \"role\": \"read\"}";
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};

    ask_with(rig, "POST", "/v1/keys", body, HEAD "key\r\n", &a);
    ask_with(rig, "POST", "/v1/keys", body, HEAD "key\r\n", &b);
    assert_int_equal(strlen(answer_text(&a, "key")), 38);
    assert_int_equal(b.status, 201);
    assert_true(json_is_null(answer_find(&b, "key")));
    assert_string_equal(answer_text(&a, "id"), answer_text(&b, "id"));
}

/* The record says what became of its VM, as one that fails later does. */
static void test_a_create_that_fails_says_why(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};

    rig_control(rig, "fail internal\n");
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\"}", &made);
    rig_control(rig, "");
    assert_int_equal(made.status, 500);
    assert_string_equal(answer_text(&made, "error.details.reason"), "vmm_crashed");
    expect_state(rig, answer_text(&made, "error.details.sandbox_id"), "error", "vmm_crashed");
}

/* The feed tells of it before the older answer of the create comes. */
static void test_a_sandbox_that_fails_at_once(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer run = {0};

    rig_control(rig, "lose 1\n");
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\"}", &made);
    assert_int_equal(made.status, 201);
    expect_state(rig, answer_text(&made, "sandbox.id"), "error", "vmm_crashed");
    rig_ask(rig, "POST", "/v1/run",
            "{\"template\": \"base\", \"argv\": [\"true\"], \"keep\": true}", &run);
    assert_int_equal(run.status, 200);
    expect_state(rig, answer_text(&run, "sandbox_id"), "error", "vmm_crashed");
    rig_control(rig, "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_in_create),
        cmocka_unit_test(test_kill_while_a_client_waits),
        cmocka_unit_test(test_kill_in_delete),
        cmocka_unit_test(test_kill_in_run),
        cmocka_unit_test(test_node_dies_in_create),
        cmocka_unit_test(test_node_loses_its_sandboxes),
        cmocka_unit_test(test_requests_wait_for_the_node),
        cmocka_unit_test(test_delete_without_a_node),
        cmocka_unit_test(test_node_dies_in_answer),
        cmocka_unit_test(test_expiry_survives_a_restart),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_retryable_is_not_stored),
        cmocka_unit_test(test_what_the_node_refused_comes_again_when_it_has_started),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_the_first_client_goes),
        cmocka_unit_test(test_a_command_runs_once),
        cmocka_unit_test(test_a_command_whose_answer_was_lost_runs_once),
        cmocka_unit_test(test_a_repetition_takes_no_kept_sandbox_away),
        cmocka_unit_test(test_a_kept_run_with_a_huge_answer),
        cmocka_unit_test(test_node_dies_in_a_result),
        cmocka_unit_test(test_a_command_is_not_forgotten_without_the_node),
        cmocka_unit_test(test_a_command_with_a_huge_answer_runs_once),
        cmocka_unit_test(test_a_key_is_never_stored),
        cmocka_unit_test(test_a_create_that_fails_says_why),
        cmocka_unit_test(test_a_sandbox_that_fails_at_once),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
