/* The host end of the agent protocol against the real agent and against agents that lie. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/agent_bench.h"

/* ---- lies ---- */

struct lie {
    const char *mode;
    bool fails;
    enum agent_failure failure;
};

static const struct lie lies[] = {
    {"good", false, AGENT_FAILURE_CLOSED},
    {"no-welcome", true, AGENT_FAILURE_TIMEOUT},
    {"wrong-nonce", true, AGENT_FAILURE_TIMEOUT},
    {"close", true, AGENT_FAILURE_CLOSED},
    {"garbage", true, AGENT_FAILURE_TIMEOUT},
    {"long-head", true, AGENT_FAILURE_PROTOCOL},
    {"endless-frame", true, AGENT_FAILURE_TIMEOUT},
    {"slow-frame", true, AGENT_FAILURE_TIMEOUT},
    {"bad-check", true, AGENT_FAILURE_PROTOCOL},
    {"bad-tail", true, AGENT_FAILURE_PROTOCOL},
    {"host-type", true, AGENT_FAILURE_PROTOCOL},
    {"flood-control", true, AGENT_FAILURE_PROTOCOL},
    {"no-identity", true, AGENT_FAILURE_TIMEOUT},
    {"wrong-epoch", true, AGENT_FAILURE_PROTOCOL},
    {"no-started", true, AGENT_FAILURE_TIMEOUT},
    {"short-payload", true, AGENT_FAILURE_PROTOCOL},
    {"unknown-channel", true, AGENT_FAILURE_PROTOCOL},
    {"over-window", true, AGENT_FAILURE_PROTOCOL},
    {"gap", true, AGENT_FAILURE_PROTOCOL},
    {"backwards", true, AGENT_FAILURE_PROTOCOL},
    {"early-end", true, AGENT_FAILURE_PROTOCOL},
    {"exited-first", true, AGENT_FAILURE_PROTOCOL},
    {"two-ends", true, AGENT_FAILURE_PROTOCOL},
    {"two-starts", true, AGENT_FAILURE_PROTOCOL},
    {"late-output", true, AGENT_FAILURE_PROTOCOL},
    {"stdin-beyond", true, AGENT_FAILURE_PROTOCOL},
    {"flood-output", true, AGENT_FAILURE_PROTOCOL},
    {"unasked-result", true, AGENT_FAILURE_PROTOCOL},
    {"speak-in-silence", true, AGENT_FAILURE_PROTOCOL},
};

static void try_lie(const struct lie *lie, bool known_silent)
{
    struct bench *b = bench_new("fake-agent", lie->mode);

    b->silence_after = true;
    bench_queue_all(b, "true", known_silent);
    bench_run(b);
    if (b->failed != lie->fails || (b->failed && b->failure != lie->failure)) {
        fail_msg("%s (silent %d): failed %d as %s: %s", lie->mode, known_silent, b->failed,
                 agent_failure_code(b->failure), b->message);
    }
    if (!lie->fails) {
        assert_true(b->exited);
        assert_string_equal(buf_str(&b->output), "fake\n");
    }
    bench_free(b);
}

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        try_lie(&lies[i], i % 2 == 0);
    }
}

static void test_identity_in_part_fails_closed(void **state)
{
    struct bench *b = bench_new("fake-agent", "part-identity");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->identified);
    assert_int_not_equal(b->identity_result, 0);
    bench_free(b);
}

static void test_unknown_process_is_forgotten_or_refused(void **state)
{
    struct bench *b = bench_new("fake-agent", "unknown-process");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_false(b->failed); /* of an earlier run of this program: told to be forgotten */
    b->failed = false;
    bench_reconnect(b);
    agent_begin(b->agent, false, SHORT_MS, bench_on_begun, b);
    bench_run(b);
    assert_true(b->failed); /* now it cannot be */
    assert_int_equal(b->failure, AGENT_FAILURE_PROTOCOL);
    bench_free(b);
}

/* ---- the real agent ---- */

static void test_real_agent_in_one_write(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    bench_queue_all(b, "echo out; echo err >&2; exit 4", true);
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->begun && b->identified && b->started && b->exited);
    assert_int_equal(b->exit.status, 4);
    assert_int_equal(b->output.n, 8);
    agent_channel_close(b->channel);
    bench_free(b);
}

static void test_real_agent_resumes(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    b->acknowledging = true;
    bench_queue_all(b, "i=0; while [ $i -lt 3000 ]; do echo line$i; i=$((i+1)); done", false);
    for (int i = 0; i < 40 && !b->exited; i++) {
        loop_timer_start(b->limit, 20 + i % 7);
        assert_int_equal(loop_run(b->loop), 0);
        if (b->exited) {
            break;
        }
        assert_false(b->failed);
        bench_reconnect(b);
        agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    }
    if (!b->exited) {
        bench_run(b);
    }
    assert_false(b->failed);
    assert_true(b->exited);
    assert_int_equal(b->exit.stdout_end, 25890);
    assert_int_equal(b->output.n, 25890);
    agent_channel_close(b->channel);
    bench_free(b);
}

/* What an earlier run acknowledged and could not write down is no lie of the guest's. */
static void test_real_agent_whose_output_was_lost(void **state)
{
    const uint64_t size = 4U << 20; /* more than may be under way unacknowledged */
    struct bench *b = bench_new("space-init-host", "--agent");
    struct agent_channel_state known = {0};

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    b->acknowledging = true;
    bench_queue_all(b, "head -c 4194304 /dev/zero", false);
    bench_run(b);
    assert_true(b->exited);
    assert_int_equal(b->output.n, size);
    known.channel = b->channel->number;
    agent_channel_abandon(b->channel);
    b->exited = false;
    b->output.n = 0;
    bench_reconnect(b);
    b->channel = agent_channel_adopt(b->agent, &known, &bench_ops, b);
    assert_non_null(b->channel);
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    assert_true(b->skipped > 0);
    assert_int_equal(b->skipped + b->output.n, size);
    agent_channel_close(b->channel);
    bench_free(b);
}

struct stall {
    struct bench *b;
    int fds[16];
    size_t n;
};

/* The agent stands still, and its socket has no room left. */
static void stall(struct stall *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    assert_int_equal(kill(s->b->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(s->b->pid, NULL, WUNTRACED), s->b->pid);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", s->b->socket);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(fd >= 0 && s->n < sizeof(s->fds) / sizeof(s->fds[0]));
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
            assert_int_equal(errno, EAGAIN);
            (void)close(fd);
            return;
        }
        s->fds[s->n++] = fd;
    }
}

static void go_on(void *arg)
{
    struct stall *s = arg;

    assert_int_equal(s->b->agent->fd, -1);
    for (size_t i = 0; i < s->n; i++) {
        (void)close(s->fds[i]);
    }
    (void)kill(s->b->pid, SIGCONT);
}

static void test_a_socket_without_room_is_tried_again(void **state)
{
    struct stall s = {.b = bench_new("space-init-host", "--agent")};
    struct loop_timer *timer = loop_timer_new(s.b->loop, go_on, &s);

    (void)state;
    assert_non_null(timer);
    agent_disconnect(s.b->agent);
    stall(&s);
    assert_int_equal(agent_connect(s.b->agent, s.b->socket), 0);
    agent_begin(s.b->agent, false, LIMIT_MS, bench_on_result, s.b);
    s.b->start_errnum = -1;
    loop_timer_start(timer, 200);
    bench_run(s.b);
    assert_false(s.b->failed);
    assert_int_equal(s.b->start_errnum, 0);
    loop_timer_free(timer);
    bench_free(s.b);
}

static void test_real_agent_cannot_execute(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start start = {0};
    struct error err = {0};

    (void)state;
    bench_queue_all(b, "true", false);
    buf_put_block(&argv, span_of_str("/no/such/program"));
    start.argv.count = 1;
    start.argv.raw = buf_span(&argv);
    assert_non_null(agent_channel_start(b->agent, &start, &bench_ops, b, &err));
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ENOENT);
    bench_free(b);
}

static void test_rehearsal_silence_and_first_command(void **state)
{
    static const char *const argv[] = {"/bin/sh", "-c", "echo nobody sees this", NULL};
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    agent_rehearse(b->agent, argv, NULL, 10000, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_reset(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    bench_queue_all(b, "echo mine", true);
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    assert_string_equal(buf_str(&b->output), "mine\n");
    agent_channel_close(b->channel);
    bench_free(b);
}

static void on_file(void *arg, int result)
{
    (void)arg;
    assert_int_equal(result, -ECANCELED);
}

/* It reads nothing any more while megabytes wait for it: that ends, though nothing that was asked
 * is overdue. */
static void test_a_guest_that_takes_nothing(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");
    const struct agent_file file = {
        .path = "/tmp/never", .mode = 0600, .content = span_make(calloc(1, 1048576), 1048576)};

    (void)state;
    assert_non_null(file.content.p);
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->agent->stuck_wait_ms = 100;
    for (int i = 0; i < 6; i++) {
        agent_put_file(b->agent, &file, 10L * LIMIT_MS, on_file, b);
    }
    bench_run(b);
    assert_true(b->failed);
    assert_int_equal(b->failure, AGENT_FAILURE_TIMEOUT);
    assert_string_equal(b->message, "the guest takes nothing of what is sent to it");
    bench_free(b);
    free((void *)(uintptr_t)file.content.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_identity_in_part_fails_closed),
        cmocka_unit_test(test_unknown_process_is_forgotten_or_refused),
        cmocka_unit_test(test_real_agent_in_one_write),
        cmocka_unit_test(test_real_agent_resumes),
        cmocka_unit_test(test_real_agent_whose_output_was_lost),
        cmocka_unit_test(test_a_socket_without_room_is_tried_again),
        cmocka_unit_test(test_real_agent_cannot_execute),
        cmocka_unit_test(test_rehearsal_silence_and_first_command),
        cmocka_unit_test(test_a_guest_that_takes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
