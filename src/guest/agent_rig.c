#include "guest/agent_rig.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/agent.h"

#define STEP_MS  100
#define UNTIL_MS 10000

static void run_agent(const char *path)
{
    struct agent agent;
    sigset_t all;
    int r;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    r = agent_init(&agent, false);
    if (r == 0) {
        r = port_open_path(&agent.port, agent.epoll_fd, path);
    }
    if (r == 0) {
        agent_run(&agent);
    }
    agent_done(&agent);
    exit(r == 0 ? 0 : 1);
}

void rig_start(struct rig *r)
{
    *r = (struct rig){.fd = -1, .ack = true, .seed = 1};
    (void)snprintf(r->path, sizeof(r->path), "/tmp/space-agent-test.%d", (int)getpid());
    for (size_t i = 0; i < RIG_CHANNELS; i++) {
        r->channels[i].output[0] = buf_make(0);
        r->channels[i].output[1] = buf_make(0);
    }
    (void)unlink(r->path);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0) {
        run_agent(r->path);
    }
    assert_int_equal(agent_reader_init(&r->reader, AGENT_WELCOME, false), 0);
    rig_connect(r);
}

void rig_stop(struct rig *r)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    int status = 0;

    if (r->fd < 0) {
        rig_connect(r);
    }
    rig_hello(r, true);
    agent_id_format(&b, AGENT_POWEROFF, 0, 1);
    rig_send(r, &b);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    assert_int_equal(status, 0);
    rig_disconnect(r);
    for (size_t i = 0; i < RIG_CHANNELS; i++) {
        buf_done(&r->channels[i].output[0]);
        buf_done(&r->channels[i].output[1]);
    }
    agent_reader_done(&r->reader);
    (void)unlink(r->path);
}

uint32_t rig_random(struct rig *r, uint32_t limit)
{
    r->seed = r->seed * 1664525U + 1013904223U;
    return (uint32_t)(((uint64_t)r->seed * limit) >> 32U);
}

void rig_connect(struct rig *r)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int64_t until = clock_monotonic_ms() + UNTIL_MS;

    assert_int_equal(span_copy_str(span_of_str(r->path), address.sun_path, 100), 0);
    for (;;) {
        r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(r->fd >= 0);
        if (connect(r->fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
            break;
        }
        assert_true(clock_monotonic_ms() < until);
        (void)close(r->fd);
        (void)usleep(1000);
    }
    agent_reader_desynchronise(&r->reader, true);
}

void rig_disconnect(struct rig *r)
{
    if (r->fd >= 0) {
        (void)close(r->fd);
        r->fd = -1;
    }
}

void rig_send(struct rig *r, const struct buf *b)
{
    assert_int_equal(buf_error(b), 0);
    assert_int_equal(fd_write_all(r->fd, buf_span(b)), 0);
}

static void note_output(struct rig *r, struct rig_channel *c, const struct agent_frame *f)
{
    struct agent_output m;
    struct buf *output;

    assert_int_equal(agent_output_parse(f, &m), 0);
    output = &c->output[m.stream - 1];
    assert_int_equal(m.offset, output->n); /* every byte once, in order */
    assert_false(c->output_ended);
    c->output_ended = m.end;
    buf_put(output, m.bytes);
    assert_int_equal(buf_error(output), 0);
    assert_true(output->n - c->acked[m.stream - 1] <= AGENT_WINDOW);
    assert_false(c->ended);
    if (r->ack) {
        rig_acknowledge(r, f->channel, m.stream, output->n);
    }
}

static void note_end(struct rig_channel *c, const struct agent_frame *f)
{
    assert_false(c->ended);
    assert_int_equal(agent_exited_parse(f, &c->exit), 0);
    assert_int_equal(c->exit.stdout_end, c->output[0].n);
    assert_int_equal(c->exit.stderr_end, c->output[1].n);
    c->ended = true;
}

static void note_channel(struct rig *r, const struct agent_frame *f)
{
    struct rig_channel *c;
    struct agent_stdin_ack ack;
    struct agent_started started;

    if (r->ignore_others && f->channel >= RIG_CHANNELS) {
        return;
    }
    assert_true(f->channel > 0 && f->channel < RIG_CHANNELS);
    c = &r->channels[f->channel];
    if (f->type == AGENT_OUTPUT) {
        note_output(r, c, f);
    } else if (f->type == AGENT_STARTED) {
        assert_int_equal(agent_started_parse(f, &started), 0);
        c->pid = started.pid;
        assert_int_equal(span_copy_str(started.cwd, c->cwd, sizeof(c->cwd)), 0);
        c->started = true;
    } else if (f->type == AGENT_START_FAILED) {
        assert_int_equal(agent_start_failed_parse(f, &c->failure), 0);
        c->failed = true;
    } else if (f->type == AGENT_EXITED) {
        note_end(c, f);
    } else if (f->type == AGENT_STDIN_ACK) {
        assert_int_equal(agent_stdin_ack_parse(f, &ack), 0);
        c->stdin_acked = ack.offset;
        c->stdin_closed = ack.closed;
    } else if (f->type == AGENT_PROCESS) {
        assert_int_equal(agent_process_parse(f, &c->process), 0);
        c->reported = true;
    } else {
        fail_msg("unexpected %s", agent_type_name(f->type));
    }
}

static void note_frame(struct rig *r, const struct agent_frame *f)
{
    uint32_t number;

    if (f->type == AGENT_RESULT) {
        assert_int_equal(agent_result_parse(f, &r->last_result), 0);
        r->results++;
    } else if (f->type == AGENT_PONG) {
        assert_int_equal(agent_id_parse(f, &number), 0);
        r->pongs++;
    } else if (f->type == AGENT_IDENTITY_OK) {
        assert_int_equal(agent_identity_ok_parse(f, &r->identity_ok), 0);
    } else if (f->type == AGENT_WELCOME) {
        assert_int_equal(agent_welcome_parse(f, &r->welcome), 0);
    } else if (f->type == AGENT_PROCESS_END) {
        assert_int_equal(agent_process_end_parse(f, &number), 0);
        r->results++;
    } else {
        note_channel(r, f);
    }
}

bool rig_step(struct rig *r, int timeout_ms)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    struct agent_frame f;
    size_t room;
    uint8_t *to;
    ssize_t n;
    int more;

    if (poll(&p, 1, timeout_ms) <= 0) {
        return false;
    }
    to = agent_reader_space(&r->reader, &room);
    n = read(r->fd, to, room);
    assert_true(n > 0);
    r->bytes += (uint64_t)n;
    agent_reader_commit(&r->reader, (size_t)n);
    while ((more = agent_reader_next(&r->reader, &f)) > 0) {
        note_frame(r, &f);
    }
    assert_int_equal(more, 0);
    return true;
}

void rig_until(struct rig *r, const bool *flag)
{
    int64_t until = clock_monotonic_ms() + UNTIL_MS;

    while (!*flag) {
        (void)rig_step(r, STEP_MS);
        assert_true(clock_monotonic_ms() < until);
    }
}

static void wait_results(struct rig *r, uint32_t before)
{
    int64_t until = clock_monotonic_ms() + UNTIL_MS;

    while (r->results == before) {
        (void)rig_step(r, STEP_MS);
        assert_true(clock_monotonic_ms() < until);
    }
}

void rig_put_hello(struct rig *r, struct buf *b)
{
    struct agent_hello hello = {.version = AGENT_VERSION};

    for (size_t i = 0; i < sizeof(hello.nonce); i++) {
        hello.nonce[i] = (uint8_t)rig_random(r, 256);
    }
    agent_hello_format(b, &hello);
    agent_reader_desynchronise(&r->reader, false);
    agent_reader_set_nonce(&r->reader, hello.nonce);
}

void rig_hello(struct rig *r, bool flush)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint32_t before = r->results;

    if (flush) {
        uint8_t *zeros = buf_reserve(&b, AGENT_FLUSH_BYTES);

        assert_non_null(zeros);
        memset(zeros, 0, AGENT_FLUSH_BYTES);
        buf_commit(&b, AGENT_FLUSH_BYTES);
    }
    rig_put_hello(r, &b);
    for (size_t i = 0; i < RIG_CHANNELS; i++) {
        r->channels[i].reported = false;
    }
    rig_send(r, &b);
    wait_results(r, before);
}

void rig_resume(struct rig *r)
{
    for (uint32_t i = 1; i < RIG_CHANNELS; i++) {
        struct rig_channel *c = &r->channels[i];
        _cleanup_buf_ struct buf b = buf_make(0);
        struct agent_resume_from m = {c->output[0].n, c->output[1].n};

        if (!c->reported) {
            continue;
        }
        assert_true(c->process.stdout_start <= m.stdout_offset);
        c->ended = false;
        c->acked[0] = m.stdout_offset;
        c->acked[1] = m.stderr_offset;
        c->stdin_acked = c->process.stdin_offset;
        agent_resume_from_format(&b, i, &m);
        rig_send(r, &b);
    }
}

void rig_put_identity(struct buf *b, uint64_t epoch)
{
    _cleanup_buf_ struct buf env = buf_make(0);
    const uint8_t entropy[AGENT_ENTROPY_BYTES] = {1};
    struct agent_identity m = {.id = 1, .epoch = epoch, .hostname = span_of_str("box")};

    m.entropy = span_make(entropy, sizeof(entropy));
    buf_put_block(&env, span_of_str("FROM_IDENTITY=yes"));
    m.env = (struct agent_strings){1, buf_span(&env)};
    agent_identity_format(b, &m);
}

void rig_identity(struct rig *r, uint64_t epoch)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    int64_t until = clock_monotonic_ms() + UNTIL_MS;

    r->identity_ok = (struct agent_identity_ok){.id = 0};
    rig_put_identity(&b, epoch);
    rig_send(r, &b);
    while (r->identity_ok.id == 0) {
        (void)rig_step(r, STEP_MS);
        assert_true(clock_monotonic_ms() < until);
    }
}

void rig_begin(struct rig *r)
{
    rig_hello(r, false);
    rig_identity(r, 1);
    assert_int_equal(r->identity_ok.done, AGENT_IDENTITY_ALL);
}

void rig_shell(
    struct rig *r, uint32_t channel, const char *command, uint32_t flags, uint64_t timeout_ms)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start m = {.flags = flags, .timeout_ms = timeout_ms, .cols = 80, .rows = 24};

    buf_put_block(&argv, span_of_str("/bin/sh"));
    buf_put_block(&argv, span_of_str("-c"));
    buf_put_block(&argv, span_of_str(command));
    m.argv = (struct agent_strings){3, buf_span(&argv)};
    agent_start_format(&b, channel, &m);
    rig_send(r, &b);
}

void rig_program(
    struct rig *r, uint32_t channel, const char *program, const char *cwd, const char *user)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start m = {.cwd = span_of_str(cwd), .user = span_of_str(user)};

    buf_put_block(&argv, span_of_str(program));
    m.argv = (struct agent_strings){1, buf_span(&argv)};
    agent_start_format(&b, channel, &m);
    rig_send(r, &b);
}

void rig_wait_end(struct rig *r, uint32_t channel)
{
    rig_until(r, &r->channels[channel].ended);
}

void rig_forget(struct rig *r, uint32_t channel)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    agent_forget_format(&b, channel);
    rig_send(r, &b);
}

void rig_acknowledge(struct rig *r, uint32_t channel, uint8_t stream, uint64_t offset)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_output_ack m = {stream, offset};

    r->channels[channel].acked[stream - 1] = offset;
    agent_output_ack_format(&b, channel, &m);
    rig_send(r, &b);
}

void rig_stdin(struct rig *r, uint32_t channel, uint64_t offset, struct span bytes, bool end)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_stdin m = {offset, bytes, end};

    agent_stdin_format(&b, channel, &m);
    rig_send(r, &b);
}

int rig_signal(struct rig *r, uint32_t channel, int signal, enum agent_scope scope)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_signal m = {7, (uint8_t)signal, (uint8_t)scope};
    uint32_t before = r->results;

    agent_signal_format(&b, channel, &m);
    rig_send(r, &b);
    wait_results(r, before);
    return (int)r->last_result.errnum;
}

int rig_request(struct rig *r, uint8_t type, uint8_t flags)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint32_t before = r->results;

    if (type == AGENT_WAKE) {
        agent_wake_format(&b, &(struct agent_wake){9, (uint64_t)clock_real_ns()});
    } else {
        agent_id_format(&b, type, flags, 9);
    }
    rig_send(r, &b);
    wait_results(r, before);
    assert_int_equal(r->last_result.id, 9);
    return (int)r->last_result.errnum;
}

bool rig_is_answering(struct rig *r, int timeout_ms)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    int64_t until = clock_monotonic_ms() + timeout_ms;
    uint32_t before = r->pongs;

    agent_id_format(&b, AGENT_PING, 0, 3);
    rig_send(r, &b);
    while (r->pongs == before && clock_monotonic_ms() < until) {
        (void)rig_step(r, timeout_ms);
    }
    return r->pongs != before;
}
