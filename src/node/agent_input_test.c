/* Input of many channels at once into a real agent that takes none of it for a while: what waits
 * has a bound, commands can be started beside it, and everything arrives. */
#include "node/agent_input.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/buf.h"
#include "io/loop.h"
#include "node/agent_private.h"

/* Their windows together are more than 16 MiB, and more than a start ever waited behind. */
#define WRITERS     96U
#define INPUT_BYTES (AGENT_STDIN_WINDOW + 50000U)
#define LIMIT_MS    60000
/* Heads of frames are in the queue, too. */
#define BOUND (AGENT_INPUT_QUEUE_MAX + WRITERS * 2U * AGENT_INPUT_SMALL + 65536U)

struct bench;

struct writer {
    struct bench *bench;
    struct agent_channel *channel;
    size_t sent;
    struct buf output;
    bool exited;
};

struct bench {
    struct loop *loop;
    struct agent *agent;
    struct loop_timer *limit;
    pid_t pid;
    char dir[64];
    char socket[96];
    unsigned int started;
    unsigned int exited;
    unsigned int stop_at; /* exits */
    size_t most;          /* that ever waited */
    bool paused;          /* input begins only later */
    struct writer writers[WRITERS + 1];
};

static void pump(struct writer *w)
{
    static const uint8_t zeros[INPUT_BYTES];
    size_t rest = INPUT_BYTES - w->sent;
    size_t room = agent_channel_stdin_room(w->channel, rest);

    if (room > 0 && agent_channel_send_stdin(w->channel, span_make(zeros, room), room == rest)) {
        w->sent += room;
    }
    if (agent_queued(w->bench->agent) > w->bench->most) {
        w->bench->most = agent_queued(w->bench->agent);
    }
}

static void on_begun(void *arg, int result)
{
    (void)arg;
    assert_int_equal(result, 0);
}

static void on_identified(void *arg, int result, const struct agent_identity_ok *answer)
{
    (void)arg;
    (void)answer;
    assert_int_equal(result, 0);
}

static void on_started(void *arg, uint32_t pid, uint64_t offset)
{
    struct writer *w = arg;

    (void)pid;
    (void)offset;
    w->bench->started++;
    if (w->bench->paused && w->bench->started == WRITERS) {
        loop_stop(w->bench->loop);
    }
}

static void on_start_failed(void *arg, const struct agent_start_failed *failure)
{
    (void)arg;
    fail_msg("errno %u", failure->errnum);
}

static void on_output(void *arg, unsigned int stream, uint64_t offset, struct span bytes)
{
    struct writer *w = arg;

    buf_put(&w->output, bytes);
    agent_channel_ack(w->channel, stream, offset + bytes.n);
}

static void on_stdin_ack(void *arg, uint64_t offset, bool closed)
{
    struct writer *w = arg;

    (void)offset;
    (void)closed;
    if (!w->bench->paused && w->sent < INPUT_BYTES && w != &w->bench->writers[WRITERS]) {
        pump(w);
    }
}

static void on_exited(void *arg, const struct agent_exited *exited)
{
    struct writer *w = arg;

    assert_int_equal(exited->status, 0);
    w->exited = true;
    if (++w->bench->exited == w->bench->stop_at) {
        loop_stop(w->bench->loop);
    }
}

static void on_gone(void *arg)
{
    struct writer *w = arg;

    w->channel = NULL;
}

static const struct agent_channel_ops ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_gone,
    .on_detached = on_gone,
};

static void start(struct bench *b, unsigned int index, const char *program, bool has_input)
{
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start start = {.flags = has_input ? AGENT_START_STDIN : 0};
    struct writer *w = &b->writers[index];
    struct error err = {0};

    buf_put_block(&argv, span_of_str("/bin/sh"));
    buf_put_block(&argv, span_of_str("-c"));
    buf_put_block(&argv, span_of_str(program));
    start.argv.count = 3;
    start.argv.raw = buf_span(&argv);
    w->bench = b;
    w->output = buf_make(0);
    w->channel = agent_channel_start(b->agent, &start, &ops, w, &err);
    if (w->channel == NULL) {
        fail_msg("start %u: %s", index, err.message);
    }
}

static void
on_failed(void *arg, struct agent *agent, enum agent_failure failure, const char *message)
{
    (void)arg;
    (void)agent;
    fail_msg("%s: %s", agent_failure_code(failure), message);
}

static void on_limit(void *arg)
{
    struct bench *b = arg;

    fail_msg("%u started, %u ended after %d s", b->started, b->exited, LIMIT_MS / 1000);
}

static void start_agent(struct bench *b)
{
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, 400);

    assert_true(n > 0);
    path[n] = '\0';
    (void)snprintf(strrchr(path, '/'), 100, "/src/guest/space-init-host");
    b->pid = fork();
    assert_true(b->pid >= 0);
    if (b->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(path, path, "--agent", b->socket, (char *)NULL);
        _exit(127);
    }
}

static int set_up(void **state)
{
    static const struct agent_callbacks callbacks = {on_failed};
    struct bench *b = calloc(1, sizeof(*b));
    int r = -1;

    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/agent-input-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->socket, sizeof(b->socket), "%s/agent", b->dir);
    b->loop = loop_new(0);
    assert_non_null(b->loop);
    b->limit = loop_timer_new(b->loop, on_limit, b);
    b->agent = agent_new(b->loop, &callbacks, b);
    assert_non_null(b->agent);
    start_agent(b);
    for (int i = 0; i < 1000 && r < 0; i++) {
        r = agent_connect(b->agent, b->socket);
        if (r < 0) {
            (void)usleep(10000);
        }
    }
    assert_int_equal(r, 0);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;

    agent_free(b->agent);
    loop_timer_free(b->limit);
    loop_free(b->loop);
    (void)kill(b->pid, SIGKILL);
    (void)waitpid(b->pid, NULL, 0);
    for (unsigned int i = 0; i <= WRITERS; i++) {
        buf_done(&b->writers[i].output);
    }
    (void)unlink(b->socket);
    (void)rmdir(b->dir);
    free(b);
    return 0;
}

static void run(struct bench *b)
{
    loop_timer_start(b->limit, LIMIT_MS);
    assert_int_equal(loop_run(b->loop), 0);
}

static void greet(struct bench *b)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    const struct agent_identity identity = {
        .epoch = 1,
        .entropy = span_make(entropy, sizeof(entropy)),
        .hostname = span_of_str("test"),
    };

    agent_begin(b->agent, false, LIMIT_MS, on_begun, b);
    agent_identify(b->agent, &identity, LIMIT_MS, on_identified, b);
}

static void test_many_windows(void **state)
{
    struct bench *b = *state;
    char want[32];

    greet(b);
    b->paused = true;
    for (unsigned int i = 0; i < WRITERS; i++) {
        start(b, i, "exec wc -c", true);
    }
    run(b);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->paused = false;
    for (unsigned int i = 0; i < WRITERS; i++) {
        pump(&b->writers[i]);
    }
    for (unsigned int i = 0; i < WRITERS; i++) {
        assert_true(b->writers[i].sent >= AGENT_INPUT_SMALL); /* a keystroke is not held up */
    }
    start(b, WRITERS, "echo beside", false);
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    b->stop_at = WRITERS + 1;
    run(b);
    assert_in_range(b->most, AGENT_INPUT_QUEUE_MAX, BOUND);
    assert_string_equal(buf_str(&b->writers[WRITERS].output), "beside\n");
    (void)snprintf(want, sizeof(want), "%u\n", INPUT_BYTES);
    for (unsigned int i = 0; i < WRITERS; i++) {
        assert_string_equal(buf_str(&b->writers[i].output), want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_windows, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
