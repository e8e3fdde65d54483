/* The host end of the agent protocol against the real agent and against agents that lie. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "io/loop.h"
#include "node/agent_hold.h"
#include "node/agent_private.h"

#define SHORT_MS 700
#define LIMIT_MS 20000

struct bench {
    struct loop *loop;
    struct agent *agent;
    struct agent_channel *channel;
    struct loop_timer *limit;
    pid_t pid;
    char dir[64];
    char socket[96];
    bool acknowledging;
    bool silence_after; /* ask for silence once the process has ended */
    /* what was seen */
    bool begun;
    bool identified;
    int identity_result;
    bool started;
    int start_errnum;
    bool exited;
    struct agent_exited exit;
    struct buf output;
    bool silenced;
    bool failed;
    enum agent_failure failure;
    char message[200];
};

static void program_path(const char *name, char out[512])
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    assert_true(n > 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    (void)snprintf(out, 512, "%s/src/guest/%s", self, name);
}

static void start_program(struct bench *b, const char *program, const char *first)
{
    char path[512];

    program_path(program, path);
    b->pid = fork();
    assert_true(b->pid >= 0);
    if (b->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(path, path, first, b->socket, (char *)NULL);
        _exit(127);
    }
}

static void
on_failed(void *arg, struct agent *agent, enum agent_failure failure, const char *message)
{
    struct bench *b = arg;

    (void)agent;
    b->failed = true;
    b->failure = failure;
    (void)snprintf(b->message, sizeof(b->message), "%s", message);
    loop_stop(b->loop);
}

static void on_limit(void *arg)
{
    struct bench *b = arg;

    loop_stop(b->loop);
}

static struct bench *bench_new(const char *program, const char *first)
{
    static const struct agent_callbacks callbacks = {on_failed};
    struct bench *b = calloc(1, sizeof(*b));
    int r = -1;

    assert_non_null(b);
    b->output = buf_make(0);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/node-agent-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->socket, sizeof(b->socket), "%s/agent", b->dir);
    b->loop = loop_new(0);
    assert_non_null(b->loop);
    b->limit = loop_timer_new(b->loop, on_limit, b);
    b->agent = agent_new(b->loop, &callbacks, b);
    assert_non_null(b->agent);
    b->agent->start_wait_ms = SHORT_MS;
    start_program(b, program, first);
    for (int i = 0; i < 500 && r < 0; i++) {
        r = agent_connect(b->agent, b->socket);
        if (r < 0) {
            (void)usleep(10000);
        }
    }
    assert_int_equal(r, 0);
    return b;
}

static void bench_free(struct bench *b)
{
    agent_free(b->agent);
    loop_timer_free(b->limit);
    loop_free(b->loop);
    (void)kill(b->pid, SIGKILL);
    (void)waitpid(b->pid, NULL, 0);
    (void)unlink(b->socket);
    (void)rmdir(b->dir);
    buf_done(&b->output);
    free(b);
}

static void reconnect(struct bench *b)
{
    agent_disconnect(b->agent);
    assert_int_equal(agent_connect(b->agent, b->socket), 0);
}

static void on_begun(void *arg, int result)
{
    struct bench *b = arg;

    b->begun = result == 0;
}

static void on_identified(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct bench *b = arg;

    (void)answer;
    b->identified = true;
    b->identity_result = result;
    if (result > 0) {
        loop_stop(b->loop);
    }
}

static void on_started(void *arg, uint32_t pid, uint64_t stdin_offset)
{
    struct bench *b = arg;

    (void)pid;
    (void)stdin_offset;
    b->started = true;
}

static void on_start_failed(void *arg, const struct agent_start_failed *failure)
{
    struct bench *b = arg;

    b->start_errnum = (int)failure->errnum;
    b->channel = NULL;
    loop_stop(b->loop);
}

static void on_output(void *arg, unsigned int stream, uint64_t offset, struct span bytes)
{
    struct bench *b = arg;

    buf_put(&b->output, bytes);
    if (b->acknowledging) {
        agent_channel_ack(b->channel, stream, offset + bytes.n);
    }
}

static void on_stdin_ack(void *arg, uint64_t offset, bool closed)
{
    (void)arg;
    (void)offset;
    (void)closed;
}

static void on_silenced(void *arg, int result)
{
    struct bench *b = arg;

    b->silenced = result == 0;
}

/* Waits a little more, for what may come after the end. */
static void on_exited(void *arg, const struct agent_exited *exited)
{
    struct bench *b = arg;

    b->exited = true;
    b->exit = *exited;
    if (b->silence_after) {
        agent_silence(b->agent, 0, SHORT_MS, on_silenced, b);
    }
    loop_timer_start(b->limit, b->identified ? 300 : 4 * SHORT_MS);
}

static void on_lost(void *arg)
{
    struct bench *b = arg;

    b->channel = NULL;
    loop_stop(b->loop);
}

static void on_detached(void *arg)
{
    struct bench *b = arg;

    b->channel = NULL;
}

static const struct agent_channel_ops bench_ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_lost,
    .on_detached = on_detached,
};

static void queue_start(struct bench *b, const char *shell)
{
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start start = {0};
    struct error err = {0};

    buf_put_block(&argv, span_of_str("/bin/sh"));
    buf_put_block(&argv, span_of_str("-c"));
    buf_put_block(&argv, span_of_str(shell));
    start.argv.count = 3;
    start.argv.raw = buf_span(&argv);
    b->channel = agent_channel_start(b->agent, &start, &bench_ops, b, &err);
    assert_non_null(b->channel);
}

static void queue_all(struct bench *b, const char *shell, bool known_silent)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct agent_identity identity = {
        .epoch = 7,
        .entropy = span_make(entropy, sizeof(entropy)),
        .hostname = span_of_str("test"),
    };

    agent_begin(b->agent, known_silent, SHORT_MS, on_begun, b);
    agent_identify(b->agent, &identity, 2 * SHORT_MS, on_identified, b);
    queue_start(b, shell);
}

static void run(struct bench *b)
{
    loop_timer_start(b->limit, LIMIT_MS);
    assert_int_equal(loop_run(b->loop), 0);
}

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
    queue_all(b, "true", known_silent);
    run(b);
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
    queue_all(b, "true", false);
    run(b);
    assert_true(b->identified);
    assert_int_not_equal(b->identity_result, 0);
    bench_free(b);
}

static void test_unknown_process_is_forgotten_or_refused(void **state)
{
    struct bench *b = bench_new("fake-agent", "unknown-process");

    (void)state;
    queue_all(b, "true", false);
    run(b);
    assert_false(b->failed); /* of an earlier run of this program: told to be forgotten */
    b->failed = false;
    reconnect(b);
    agent_begin(b->agent, false, SHORT_MS, on_begun, b);
    run(b);
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
    queue_all(b, "echo out; echo err >&2; exit 4", true);
    run(b);
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
    queue_all(b, "i=0; while [ $i -lt 3000 ]; do echo line$i; i=$((i+1)); done", false);
    for (int i = 0; i < 40 && !b->exited; i++) {
        loop_timer_start(b->limit, 20 + i % 7);
        assert_int_equal(loop_run(b->loop), 0);
        if (b->exited) {
            break;
        }
        assert_false(b->failed);
        reconnect(b);
        agent_begin(b->agent, false, LIMIT_MS, on_begun, b);
    }
    if (!b->exited) {
        run(b);
    }
    assert_false(b->failed);
    assert_true(b->exited);
    assert_int_equal(b->exit.stdout_end, 25890);
    assert_int_equal(b->output.n, 25890);
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

static void on_rehearsed(void *arg, int result);

static void test_a_socket_without_room_is_tried_again(void **state)
{
    struct stall s = {.b = bench_new("space-init-host", "--agent")};
    struct loop_timer *timer = loop_timer_new(s.b->loop, go_on, &s);

    (void)state;
    assert_non_null(timer);
    agent_disconnect(s.b->agent);
    stall(&s);
    assert_int_equal(agent_connect(s.b->agent, s.b->socket), 0);
    agent_begin(s.b->agent, false, LIMIT_MS, on_rehearsed, s.b);
    s.b->start_errnum = -1;
    loop_timer_start(timer, 200);
    run(s.b);
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
    queue_all(b, "true", false);
    buf_put_block(&argv, span_of_str("/no/such/program"));
    start.argv.count = 1;
    start.argv.raw = buf_span(&argv);
    assert_non_null(agent_channel_start(b->agent, &start, &bench_ops, b, &err));
    run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ENOENT);
    bench_free(b);
}

static void on_rehearsed(void *arg, int result)
{
    struct bench *b = arg;

    b->start_errnum = result;
    loop_stop(b->loop);
}

static void test_rehearsal_silence_and_first_command(void **state)
{
    static const char *const argv[] = {"/bin/sh", "-c", "echo nobody sees this", NULL};
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    agent_begin(b->agent, false, LIMIT_MS, on_begun, b);
    agent_rehearse(b->agent, argv, NULL, 10000, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_reset(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    queue_all(b, "echo mine", true);
    run(b);
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
    agent_begin(b->agent, false, LIMIT_MS, on_begun, b);
    agent_ping(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->agent->stuck_wait_ms = 100;
    for (int i = 0; i < 6; i++) {
        agent_put_file(b->agent, &file, 10L * LIMIT_MS, on_file, b);
    }
    run(b);
    assert_true(b->failed);
    assert_int_equal(b->failure, AGENT_FAILURE_TIMEOUT);
    assert_string_equal(b->message, "the guest takes nothing of what is sent to it");
    bench_free(b);
    free((void *)(uintptr_t)file.content.p);
}

static void on_signalled(void *arg, int result)
{
    struct bench *b = arg;

    b->identity_result = result;
}

/* A command is under way; what is asked in the silence waits, beyond its deadline too. */
static void test_silence_holds_and_wake_goes_on(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    queue_all(b, "trap 'echo woken' USR1; while :; do sleep 0.05; done", false);
    b->agent->start_wait_ms = LIMIT_MS;
    agent_ping(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_true(b->started);
    agent_silence(b->agent, 0, LIMIT_MS, on_rehearsed, b);
    /* Behind SILENCE nothing may be sent. */
    b->agent->start_wait_ms = SHORT_MS / 2;
    agent_channel_signal(b->channel, SIGUSR1, AGENT_SCOPE_GROUP, on_signalled, b);
    agent_channel_resize(b->channel, 80, 24);
    assert_false(agent_channel_send_stdin(b->channel, span_make(NULL, 0), true));
    run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_false(agent_channel_send_stdin(b->channel, span_make(NULL, 0), true));
    b->identity_result = -1;
    loop_timer_start(b->limit, SHORT_MS);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, -1);
    agent_wake(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_ping(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, 0);
    assert_true(agent_is_ready(b->agent));
    agent_channel_signal(b->channel, SIGKILL, AGENT_SCOPE_GROUP, on_signalled, b);
    run(b); /* it would live on */
    assert_true(b->exited);
    agent_channel_close(b->channel);
    bench_free(b);
}

static void on_begun_wake(void *arg, int result)
{
    struct bench *b = arg;

    on_begun(arg, result);
    agent_wake(b->agent, LIMIT_MS, on_signalled, b);
}

/* Silenced by an earlier run of this program: the guest takes no command before WAKE. */
static void test_held_commands_wait_for_wake(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    queue_all(b, "true", false);
    run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    agent_silence(b->agent, 0, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    b->exited = false;
    b->identity_result = -1;
    reconnect(b);
    agent_expect_wake(b->agent);
    agent_begin(b->agent, false, LIMIT_MS, on_begun_wake, b);
    queue_start(b, "echo held");
    run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_int_equal(b->identity_result, 0);
    assert_true(b->exited);
    assert_string_equal(buf_str(&b->output), "held\n");
    agent_channel_close(b->channel);
    bench_free(b);
}

/* SILENCE is asked for before the greeting has ended, and more behind it. */
static void test_nothing_overtakes_a_queued_silence(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    queue_all(b, "echo first; sleep 60", false);
    agent_ping(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_true(b->started);
    b->identity_result = -1;
    b->start_errnum = -1;
    reconnect(b);
    agent_begin(b->agent, false, LIMIT_MS, on_begun, b);
    agent_silence(b->agent, 0, LIMIT_MS, on_rehearsed, b);
    agent_channel_signal(b->channel, SIGKILL, AGENT_SCOPE_GROUP, on_signalled, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    loop_timer_start(b->limit, SHORT_MS / 2);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, -1);
    agent_wake(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b); /* the wake */
    run(b); /* the end of the process */
    assert_false(b->failed);
    assert_int_equal(b->identity_result, 0);
    assert_true(b->exited);
    bench_free(b);
}

static void on_new_identity(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct bench *b = arg;

    (void)answer;
    b->identity_result = result;
    loop_stop(b->loop);
}

/* After a restore the processes run from the identity on; what they say waits for the release. */
static void check_hold(bool known_silent)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct bench *b = bench_new("space-init-host", "--agent");
    struct agent_identity identity = {
        .epoch = 8,
        .entropy = span_make(entropy, sizeof(entropy)),
        .hostname = span_of_str("test"),
    };
    size_t before;

    b->agent->start_wait_ms = LIMIT_MS;
    b->acknowledging = true;
    queue_all(b, "i=0; while [ $i -lt 60 ]; do echo line; i=$((i+1)); sleep 0.02; done", false);
    agent_ping(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    agent_silence(b->agent, 0, LIMIT_MS, on_rehearsed, b);
    run(b);
    before = b->output.n;
    reconnect(b);
    agent_hold(b->agent);
    b->begun = false;
    agent_begin(b->agent, known_silent, LIMIT_MS, on_begun, b);
    b->identity_result = -1;
    agent_identify(b->agent, &identity, LIMIT_MS, on_new_identity, b);
    run(b);
    assert_int_equal(b->identity_result, 0);
    loop_timer_start(b->limit, SHORT_MS / 2);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_false(b->begun);
    assert_false(agent_is_ready(b->agent));
    assert_int_equal(b->output.n, before);
    assert_int_equal(agent_channel_stdin_room(b->channel), 0);
    agent_release(b->agent);
    assert_true(b->begun);
    run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    assert_int_equal(b->output.n, 60 * 5);
    agent_channel_close(b->channel);
    bench_free(b);
}

static void test_agent_without_the_time(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    queue_all(b, "true", false);
    run(b);
    assert_true(b->exited);
    assert_false(agent_takes_time(b->agent));
    agent_silence(b->agent, 0, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_int_equal(b->start_errnum, 0);
    b->start_errnum = -1;
    agent_wake(b->agent, LIMIT_MS, on_rehearsed, b);
    run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    bench_free(b);
}

static void test_a_held_conversation_takes_nothing(void **state)
{
    (void)state;
    check_hold(true);
    check_hold(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_commands_wait_for_wake),
        cmocka_unit_test(test_nothing_overtakes_a_queued_silence),
        cmocka_unit_test(test_agent_without_the_time),
        cmocka_unit_test(test_silence_holds_and_wake_goes_on),
        cmocka_unit_test(test_a_held_conversation_takes_nothing),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_identity_in_part_fails_closed),
        cmocka_unit_test(test_unknown_process_is_forgotten_or_refused),
        cmocka_unit_test(test_real_agent_in_one_write),
        cmocka_unit_test(test_real_agent_resumes),
        cmocka_unit_test(test_a_socket_without_room_is_tried_again),
        cmocka_unit_test(test_real_agent_cannot_execute),
        cmocka_unit_test(test_rehearsal_silence_and_first_command),
        cmocka_unit_test(test_a_guest_that_takes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
