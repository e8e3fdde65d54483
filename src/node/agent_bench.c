#include "node/agent_bench.h"

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

struct bench *bench_new(const char *program, const char *first)
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

void bench_free(struct bench *b)
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

void bench_reconnect(struct bench *b)
{
    agent_disconnect(b->agent);
    assert_int_equal(agent_connect(b->agent, b->socket), 0);
}

void bench_on_begun(void *arg, int result)
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

static void on_skipped(void *arg, unsigned int stream, uint64_t bytes)
{
    struct bench *b = arg;

    assert_int_equal(stream, AGENT_STDOUT);
    b->skipped += bytes;
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

const struct agent_channel_ops bench_ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_skipped = on_skipped,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_lost,
    .on_detached = on_detached,
};

void bench_queue_start(struct bench *b, const char *shell)
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

void bench_queue_all(struct bench *b, const char *shell, bool known_silent)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct agent_identity identity = {
        .epoch = 7,
        .entropy = span_make(entropy, sizeof(entropy)),
        .hostname = span_of_str("test"),
    };

    agent_begin(b->agent, known_silent, SHORT_MS, bench_on_begun, b);
    agent_identify(b->agent, &identity, 2 * SHORT_MS, on_identified, b);
    bench_queue_start(b, shell);
}

void bench_run(struct bench *b)
{
    loop_timer_start(b->limit, LIMIT_MS);
    assert_int_equal(loop_run(b->loop), 0);
}

void bench_on_result(void *arg, int result)
{
    struct bench *b = arg;

    b->start_errnum = result;
    loop_stop(b->loop);
}
