/* The agent against real processes of this machine, over a socket. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "guest/agent_rig.h"

static int set_up(void **state)
{
    struct rig *r = malloc(sizeof(*r));

    if (r == NULL) {
        return -1;
    }
    rig_start(r);
    *state = r;
    return 0;
}

static int tear_down(void **state)
{
    rig_stop(*state);
    free(*state);
    return 0;
}

static void assert_output(const struct rig *r, uint32_t channel, const char *text)
{
    assert_string_equal(buf_str(&r->channels[channel].output[0]), text);
}

static bool is_alive(uint32_t pid)
{
    return kill((pid_t)pid, 0) == 0;
}

static void wait_until_gone(uint32_t pid)
{
    for (int i = 0; i < 5000 && is_alive(pid); i++) {
        (void)usleep(1000);
    }
    assert_false(is_alive(pid));
}

static void test_output_and_exit_code(void **state)
{
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];

    rig_begin(r);
    rig_shell(r, 1, "echo out; echo err >&2; echo $FROM_IDENTITY; exit 7", 0, 0);
    rig_wait_end(r, 1);
    assert_output(r, 1, "out\nyes\n");
    assert_string_equal(buf_str(&c->output[1]), "err\n");
    assert_int_equal(c->exit.kind, AGENT_EXIT_CODE);
    assert_int_equal(c->exit.status, 7);
    assert_int_equal(c->exit.flags, 0);
    rig_shell(r, 2, "kill -TERM $$", 0, 0);
    rig_wait_end(r, 2);
    assert_int_equal(r->channels[2].exit.kind, AGENT_EXIT_SIGNAL);
    assert_int_equal(r->channels[2].exit.status, SIGTERM);
}

static void test_nothing_starts_before_the_identity(void **state)
{
    struct rig *r = *state;

    rig_hello(r, false);
    rig_program(r, 1, "true", "", "");
    rig_until(r, &r->channels[1].failed);
    assert_int_equal(r->channels[1].failure.errnum, EAGAIN);
    rig_identity(r, 5);
    rig_program(r, 1, "true", "", "");
    rig_wait_end(r, 1);
    rig_identity(r, 4);
    assert_int_equal(r->identity_ok.done, 0);
    assert_int_equal(r->identity_ok.errnum, ESTALE);
}

static void test_start_failures_say_why(void **state)
{
    static const struct {
        const char *program;
        const char *cwd;
        const char *user;
        uint32_t errnum;
        uint8_t what;
    } cases[] = {
        {"/no/such/program", "/", "", ENOENT, AGENT_WHAT_EXEC},
        {"no-such-program", "/", "", ENOENT, AGENT_WHAT_EXEC},
        {"", "/", "", ENOENT, AGENT_WHAT_EXEC},
        {"/etc/passwd", "/", "", EACCES, AGENT_WHAT_EXEC},
        {"/etc", "/", "", EACCES, AGENT_WHAT_EXEC},
        {"true", "/no/such/directory", "", ENOENT, AGENT_WHAT_CWD},
        {"true", "/etc/passwd", "", ENOTDIR, AGENT_WHAT_CWD},
        {"true", "/", "no-such-user", ENOENT, AGENT_WHAT_USER},
    };
    struct rig *r = *state;

    rig_begin(r);
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct rig_channel *c = &r->channels[1 + i];

        rig_program(r, 1 + i, cases[i].program, cases[i].cwd, cases[i].user);
        rig_until(r, &c->failed);
        assert_int_equal(c->failure.errnum, cases[i].errnum);
        assert_int_equal(c->failure.what, cases[i].what);
    }
    rig_shell(r, 20, "sleep 10", 0, 0);
    rig_until(r, &r->channels[20].started);
    rig_shell(r, 20, "true", 0, 0);
    rig_until(r, &r->channels[20].failed);
    assert_int_equal(r->channels[20].failure.errnum, EEXIST);
}

static void test_started_says_where(void **state)
{
    struct rig *r = *state;

    rig_begin(r);
    rig_program(r, 1, "true", "", "");
    rig_until(r, &r->channels[1].started);
    assert_int_equal(r->channels[1].cwd[0], '/');
    rig_program(r, 2, "true", "/tmp", "");
    rig_until(r, &r->channels[2].started);
    assert_string_equal(r->channels[2].cwd, "");
}

static void test_long_start_comes_in_parts(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start m = {.flags = 0};
    char argument[101];
    struct rig *r = *state;

    memset(argument, 'a', 100);
    argument[100] = '\0';
    buf_put_block(&argv, span_of_str("/bin/sh"));
    buf_put_block(&argv, span_of_str("-c"));
    buf_put_block(&argv, span_of_str("echo $# ${#2000}"));
    for (int i = 0; i < 2500; i++) {
        buf_put_block(&argv, span_of_str(argument));
    }
    m.argv = (struct agent_strings){2503, buf_span(&argv)};
    rig_begin(r);
    agent_start_format(&b, 1, &m);
    assert_true(b.n > 2U * AGENT_PAYLOAD_MAX);
    rig_send(r, &b);
    rig_wait_end(r, 1);
    assert_output(r, 1, "2499 100\n");
}

/* Acknowledges at random, so that the window closes and opens. */
static void test_random_acknowledgements_lose_nothing(void **state)
{
    struct rig *r = *state;
    struct rig_channel *c = &r->channels[1];
    _cleanup_buf_ struct buf expected = buf_make(0);

    rig_begin(r);
    r->ack = false;
    rig_shell(r, 1, "seq 1 200000; seq 1 100 >&2", 0, 0);
    while (!c->ended) {
        bool came = rig_step(r, 20);

        for (uint8_t s = 0; s < 2; s++) {
            uint64_t unacked = c->output[s].n - c->acked[s];

            if (unacked > 0 && (!came || rig_random(r, 4) == 0)) {
                rig_acknowledge(r, 1, (uint8_t)(s + 1),
                                c->acked[s] + 1 + rig_random(r, (uint32_t)unacked));
            }
        }
    }
    for (int i = 1; i <= 200000; i++) {
        buf_printf(&expected, "%d\n", i);
    }
    assert_true(span_equals(buf_span(&c->output[0]), buf_span(&expected)));
    assert_int_equal(c->output[1].n, 292);
}

/* Cuts the conversation at random places, seen and unseen by the agent, and resumes from any
 * offset that was received: every byte arrives exactly once. */
static void test_reconnecting_anywhere_loses_nothing(void **state)
{
    struct rig *r = *state;
    struct rig_channel *c = &r->channels[1];
    _cleanup_buf_ struct buf expected = buf_make(0);
    int cuts = 0;

    rig_begin(r);
    rig_shell(r, 1, "seq 1 150000; sleep 0.2; seq 1 50000; echo done >&2", 0, 0);
    while (!c->ended || cuts < 5) {
        if (rig_random(r, 12) == 0 || c->ended) {
            bool seen = rig_random(r, 2) == 0;

            cuts++;
            r->ack = rig_random(r, 3) != 0;
            if (seen) {
                rig_disconnect(r);
                rig_connect(r);
            }
            rig_hello(r, !seen);
            assert_true(c->reported);
            rig_resume(r);
        }
        if (!rig_step(r, 20) && !r->ack) {
            rig_acknowledge(r, 1, AGENT_STDOUT, c->output[0].n);
        }
    }
    for (int i = 1; i <= 150000; i++) {
        buf_printf(&expected, "%d\n", i);
    }
    for (int i = 1; i <= 50000; i++) {
        buf_printf(&expected, "%d\n", i);
    }
    assert_true(span_equals(buf_span(&c->output[0]), buf_span(&expected)));
    assert_string_equal(buf_str(&c->output[1]), "done\n");
}

/* One step of the next test: sends what the window takes. */
static uint64_t feed_input(struct rig *r, uint64_t sent, struct span all)
{
    const struct rig_channel *c = &r->channels[1];
    uint64_t room = c->stdin_acked + AGENT_STDIN_WINDOW - sent;
    struct span part = span_skip(all, (size_t)sent);

    part = span_head(part, 1 + rig_random(r, 30000));
    part = span_head(part, (size_t)room);
    if (part.n > 0 || sent == all.n) {
        rig_stdin(r, 1, sent, part, sent + part.n == all.n);
    }
    return sent + part.n;
}

static void test_input_arrives_once_over_reconnections(void **state)
{
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];
    _cleanup_buf_ struct buf input = buf_make(0);
    const uint8_t half[] = {0x00, 0x10, 0, 0, AGENT_STDIN, 0, 0x51, 0x4b, 1, 0, 0, 0, 1, 2, 3};
    uint64_t sent = 0;

    for (int i = 0; i < 500000; i++) {
        buf_put_u8(&input, (uint8_t)rig_random(r, 256));
    }
    rig_begin(r);
    rig_shell(r, 1, "cat", AGENT_START_STDIN, 0);
    rig_until(r, &r->channels[1].started);
    for (int turn = 0; !c->ended; turn++) {
        if (turn % 25 == 24) {
            /* The connection breaks in the middle of a frame, unseen. */
            assert_int_equal(write(r->fd, half, sizeof(half)), sizeof(half));
            rig_hello(r, true);
            rig_resume(r);
            sent = c->process.stdin_offset;
        }
        if (!c->stdin_closed) {
            sent = feed_input(r, sent, buf_span(&input));
        }
        (void)rig_step(r, 20);
    }
    assert_true(span_equals(buf_span(&c->output[0]), buf_span(&input)));
}

static void test_input_over_the_window_is_refused(void **state)
{
    static const uint8_t zeros[AGENT_STDIN_DATA_MAX];
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];
    uint64_t sent = 0;

    rig_begin(r);
    rig_shell(r, 1, "sleep 0.3; wc -c", AGENT_START_STDIN, 0);
    /* The pipe takes the first 64 KiB, the window the next 256, and the rest is too much. */
    for (int i = 0; i < 5; i++) {
        rig_stdin(r, 1, sent, span_make(zeros, 65528), false);
        sent += 65528;
    }
    rig_stdin(r, 1, sent, span_make(zeros, 65528), false);
    rig_stdin(r, 1, 9999999, span_make(zeros, 1), false);
    while (c->stdin_acked < sent) {
        (void)rig_step(r, 100);
    }
    rig_stdin(r, 1, sent, span_make(zeros, 4), true);
    rig_wait_end(r, 1);
    assert_output(r, 1, "327644\n");
    assert_true(c->stdin_closed);
}

static void test_signals_reach_their_scope(void **state)
{
    struct rig *r = *state;

    rig_begin(r);
    rig_shell(r, 1, "trap '' TERM; sh -c 'echo $$; exec sleep 30' & wait; echo over", 0, 0);
    while (r->channels[1].output[0].n == 0) {
        (void)rig_step(r, 100);
    }
    assert_int_equal(rig_signal(r, 1, SIGTERM, AGENT_SCOPE_PROCESS), 0);
    assert_false(r->channels[1].ended);
    assert_int_equal(rig_signal(r, 1, SIGINT, AGENT_SCOPE_GROUP), 0);
    rig_wait_end(r, 1);
    assert_int_equal(rig_signal(r, 1, SIGTERM, AGENT_SCOPE_PROCESS), ESRCH);
    assert_int_equal(rig_signal(r, 99, SIGTERM, AGENT_SCOPE_PROCESS), ESRCH);
    rig_shell(r, 2, "sleep 30 & sleep 30", 0, 0);
    rig_until(r, &r->channels[2].started);
    assert_int_equal(rig_signal(r, 2, SIGKILL, AGENT_SCOPE_TREE), 0);
    rig_wait_end(r, 2);
    assert_int_equal(r->channels[2].exit.status, SIGKILL);
    assert_int_equal(r->channels[2].exit.flags, 0); /* nobody was left to hold the pipes */
}

static void test_timeout_kills(void **state)
{
    struct rig *r = *state;
    int64_t start = clock_monotonic_ms();

    rig_begin(r);
    rig_shell(r, 1, "echo begun; sleep 30", 0, 200);
    rig_wait_end(r, 1);
    assert_output(r, 1, "begun\n");
    assert_int_equal(r->channels[1].exit.kind, AGENT_EXIT_SIGNAL);
    assert_int_equal(r->channels[1].exit.flags, AGENT_EXITED_TIMED_OUT);
    assert_in_range(clock_monotonic_ms() - start, 200, 5000);
}

static void test_held_pipe_ends_after_quiet(void **state)
{
    struct rig *r = *state;
    int64_t start = clock_monotonic_ms();

    rig_begin(r);
    rig_shell(r, 1, "sleep 5 & echo x", 0, 0);
    rig_wait_end(r, 1);
    assert_output(r, 1, "x\n");
    assert_int_equal(r->channels[1].exit.flags, AGENT_EXITED_PIPE_HELD);
    assert_in_range(clock_monotonic_ms() - start, AGENT_DRAIN_QUIET_MS - 20, 4000);
}

static void test_chatty_background_ends_after_the_total(void **state)
{
    struct rig *r = *state;
    int64_t start = clock_monotonic_ms();

    rig_begin(r);
    rig_shell(r, 1, "(for i in $(seq 60); do echo y; sleep 0.05; done) & echo x", 0, 0);
    rig_wait_end(r, 1);
    assert_int_equal(r->channels[1].exit.flags, AGENT_EXITED_PIPE_HELD);
    assert_in_range(clock_monotonic_ms() - start, AGENT_DRAIN_TOTAL_MS - 20, 4500);
    assert_true(r->channels[1].output[0].n >= 8);
}

/* The host takes nothing for longer than the drain rule: the process' own bytes are still sent. */
static void test_slow_host_loses_nothing_at_the_end(void **state)
{
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];

    rig_begin(r);
    r->ack = false;
    rig_shell(r, 1, "sleep 9 & head -c 300000 /dev/zero", 0, 0);
    while (c->output[0].n < AGENT_WINDOW) {
        (void)rig_step(r, 100);
    }
    (void)usleep((AGENT_DRAIN_TOTAL_MS + 300) * 1000);
    assert_false(c->ended);
    r->ack = true;
    rig_acknowledge(r, 1, AGENT_STDOUT, c->output[0].n);
    rig_wait_end(r, 1);
    assert_int_equal(c->output[0].n, 300000);
    assert_int_equal(c->exit.flags, AGENT_EXITED_PIPE_HELD);
}

/* An end that came late is the end, and no pipe that is held. */
static void test_slow_host_sees_the_true_end(void **state)
{
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];

    rig_begin(r);
    r->ack = false;
    rig_shell(r, 1, "head -c 300000 /dev/zero; exit 3", 0, 0);
    while (c->output[0].n < AGENT_WINDOW) {
        (void)rig_step(r, 100);
    }
    (void)usleep((AGENT_DRAIN_TOTAL_MS + 300) * 1000);
    assert_false(c->ended);
    r->ack = true;
    rig_acknowledge(r, 1, AGENT_STDOUT, c->output[0].n);
    rig_wait_end(r, 1);
    assert_int_equal(c->output[0].n, 300000);
    assert_int_equal(c->exit.status, 3);
    assert_int_equal(c->exit.flags, 0);
    rig_forget(r, 1);
    rig_shell(r, 2, "echo on", 0, 0);
    rig_wait_end(r, 2);
    assert_output(r, 2, "on\n");
}

static int64_t used_cpu_ms(const struct rig *r)
{
    struct timespec used = {0};
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(r->pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &used), 0);
    return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* The read that takes the last of what the process wrote is full, so that there may be more, and
 * ends the process at once. */
static void test_full_read_at_the_end_leaves_nothing_behind(void **state)
{
    struct rig *r = *state;
    const struct rig_channel *c = &r->channels[1];
    char command[64];
    int64_t used_ms;

    (void)snprintf(command, sizeof(command), "sleep 4 & head -c %u /dev/zero",
                   AGENT_WINDOW + AGENT_OUTPUT_DATA_MAX);
    rig_begin(r);
    r->ack = false;
    rig_shell(r, 1, command, 0, 0);
    while (c->output[0].n < AGENT_WINDOW) {
        (void)rig_step(r, 100);
    }
    (void)usleep((AGENT_DRAIN_TOTAL_MS + 300) * 1000);
    r->ack = true;
    rig_acknowledge(r, 1, AGENT_STDOUT, c->output[0].n);
    rig_wait_end(r, 1);
    assert_int_equal(c->output[0].n, AGENT_WINDOW + AGENT_OUTPUT_DATA_MAX);
    assert_int_equal(c->exit.flags, AGENT_EXITED_PIPE_HELD);
    used_ms = used_cpu_ms(r);
    (void)usleep(500000);
    assert_in_range(used_cpu_ms(r) - used_ms, 0, 30); /* nothing is left to do */
    rig_forget(r, 1);
    wait_until_gone(c->pid);
    assert_true(rig_is_answering(r, 1000));
}

static void test_forgotten_process_lives_on(void **state)
{
    struct rig *r = *state;
    uint32_t pid;

    rig_begin(r);
    rig_shell(r, 1, "head -c 1000000 /dev/zero; exec sleep 30", 0, 0);
    rig_until(r, &r->channels[1].started);
    pid = r->channels[1].pid;
    rig_forget(r, 1);
    (void)usleep(300000);
    assert_true(rig_is_answering(r, 1000));
    assert_true(is_alive(pid));
    rig_hello(r, false);
    assert_false(r->channels[1].reported);
    assert_int_equal(rig_signal(r, 1, SIGTERM, AGENT_SCOPE_PROCESS), ESRCH);
    assert_true(is_alive(pid));
    assert_int_equal(rig_signal(r, 1, SIGKILL, AGENT_SCOPE_TREE), 0);
    wait_until_gone(pid);
}

static void test_terminal(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct rig *r = *state;

    rig_begin(r);
    rig_shell(r, 1, "stty size; read x; stty size; cat", AGENT_START_TTY, 0);
    while (r->channels[1].output[0].n < 7) {
        (void)rig_step(r, 100);
    }
    agent_resize_format(&b, 1, &(struct agent_resize){100, 30});
    rig_send(r, &b);
    rig_stdin(r, 1, 0, span_of_str("go\n"), false);
    rig_stdin(r, 1, 3, span_of_str("end\n"), true);
    rig_wait_end(r, 1);
    assert_non_null(strstr(buf_str(&r->channels[1].output[0]), "24 80\r\n"));
    assert_non_null(strstr(buf_str(&r->channels[1].output[0]), "30 100\r\n"));
    assert_int_equal(r->channels[1].exit.status, 0);
}

/* Many programs close what they have open before they exit: that must not hang them up. */
static void test_terminal_closed_before_the_exit(void **state)
{
    struct rig *r = *state;

    rig_begin(r);
    rig_shell(r, 1, "echo last; exec 0<&- 1>&- 2>&-; sleep 0.3; exit 7", AGENT_START_TTY, 0);
    rig_shell(r, 2, "exec 0<&- 1>&- 2>&-; sleep 0.2; exec >/dev/tty; echo again; exit 8",
              AGENT_START_TTY, 0);
    rig_wait_end(r, 1);
    rig_wait_end(r, 2);
    assert_int_equal(r->channels[1].exit.kind, AGENT_EXIT_CODE);
    assert_int_equal(r->channels[1].exit.status, 7);
    assert_string_equal(buf_str(&r->channels[1].output[0]), "last\r\n");
    assert_int_equal(r->channels[2].exit.kind, AGENT_EXIT_CODE);
    assert_int_equal(r->channels[2].exit.status, 8);
    assert_string_equal(buf_str(&r->channels[2].output[0]), "again\r\n");
}

static void test_garbage_then_hello(void **state)
{
    struct rig *r = *state;

    for (int i = 0; i < 10; i++) {
        _cleanup_buf_ struct buf b = buf_make(0);
        uint32_t n = rig_random(r, 100000);

        for (uint32_t k = 0; k < n; k++) {
            buf_put_u8(&b, (uint8_t)rig_random(r, 256));
        }
        rig_send(r, &b);
        rig_hello(r, true);
        assert_true(rig_is_answering(r, 2000));
    }
}

static void test_nothing_is_executed_without_hello(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct rig *r = *state;

    assert_false(rig_is_answering(r, 100));
    rig_begin(r);
    rig_shell(r, 1, "echo x; sleep 30", 0, 0);
    rig_until(r, &r->channels[1].started);
    /* An acknowledgement of what was never sent ends the conversation, and nothing else. */
    agent_output_ack_format(&b, 1, &(struct agent_output_ack){AGENT_STDOUT, 1000});
    rig_send(r, &b);
    assert_false(rig_is_answering(r, 100));
    rig_hello(r, false);
    assert_true(r->channels[1].reported);
    assert_true(rig_is_answering(r, 2000));
}

/* As after a restore: the first command comes in the same write as the handshake. */
static void test_handshake_and_command_in_one_write(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf argv = buf_make(0);
    struct agent_start m = {.flags = 0};
    struct rig *r = *state;

    rig_hello(r, false);
    assert_int_equal(rig_request(r, AGENT_SILENCE, AGENT_SILENCE_FREEZE | AGENT_SILENCE_SYNC), 0);
    rig_put_hello(r, &b);
    rig_put_identity(&b, 3);
    buf_put_block(&argv, span_of_str("hostname"));
    m.argv = (struct agent_strings){1, buf_span(&argv)};
    agent_start_format(&b, 1, &m);
    rig_send(r, &b);
    rig_wait_end(r, 1);
    assert_int_equal(r->identity_ok.done, AGENT_IDENTITY_ALL);
    assert_int_equal(r->channels[1].exit.status, 0);
}

/* Frames with good heads and random payloads: refused or ignored, never fatal. */
static void test_random_frames_do_no_harm(void **state)
{
    struct rig *r = *state;

    for (int round = 0; round < 300; round++) {
        _cleanup_buf_ struct buf b = buf_make(0);
        uint8_t payload[64];

        rig_put_hello(r, &b);
        for (int i = 0; i < 10; i++) {
            struct agent_frame f = {.channel = rig_random(r, 3), .flags = (uint8_t)(round % 3)};

            do {
                f.type = (uint8_t)(1 + rig_random(r, AGENT_TYPE_COUNT - 1));
            } while (f.type == AGENT_POWEROFF || f.type == AGENT_WRITE_FILE);
            for (size_t k = 0; k < sizeof(payload); k++) {
                payload[k] = (uint8_t)rig_random(r, 4);
            }
            f.payload = span_make(payload, rig_random(r, sizeof(payload) + 1));
            agent_frame_format(&b, &f);
        }
        rig_send(r, &b);
    }
    rig_hello(r, true);
    assert_true(rig_is_answering(r, 5000));
}

static void test_silence_is_silent(void **state)
{
    struct rig *r = *state;
    uint64_t before;

    rig_begin(r);
    rig_shell(r, 1, "sleep 0.1; echo x", 0, 0);
    rig_until(r, &r->channels[1].started);
    assert_int_equal(rig_request(r, AGENT_SILENCE, 0), 0);
    before = r->bytes;
    assert_false(rig_step(r, 300));
    assert_int_equal(r->bytes, before);
    assert_int_equal(rig_request(r, AGENT_WAKE, 0), 0);
    rig_wait_end(r, 1);
    assert_output(r, 1, "x\n");
    rig_program(r, 2, "true", "", ""); /* the identity is valid again */
    rig_wait_end(r, 2);
    assert_int_equal(rig_request(r, AGENT_SILENCE, 0), 0);
    rig_hello(r, false);
    assert_true((r->welcome.flags & AGENT_WELCOME_SILENT) != 0);
    rig_program(r, 3, "true", "", "");
    rig_until(r, &r->channels[3].failed);
    assert_int_equal(r->channels[3].failure.errnum, EAGAIN);
    rig_identity(r, 2);
    rig_program(r, 4, "true", "", "");
    rig_wait_end(r, 4);
}

static void test_rehearsal_and_reset(void **state)
{
    struct rig *r = *state;
    uint32_t pid;

    rig_hello(r, false);
    rig_shell(r, 1, "exec sleep 30", AGENT_START_REHEARSAL, 0);
    rig_until(r, &r->channels[1].started);
    pid = r->channels[1].pid;
    assert_int_equal(rig_request(r, AGENT_RESET, 0), 0);
    assert_false(is_alive(pid));
    rig_hello(r, false);
    assert_false(r->channels[1].reported);
    rig_identity(r, 1);
    assert_int_equal(rig_request(r, AGENT_RESET, 0), EPERM);
    rig_shell(r, 2, "true", AGENT_START_REHEARSAL, 0);
    rig_until(r, &r->channels[2].failed);
    assert_int_equal(r->channels[2].failure.errnum, EPERM);
}

static void test_many_at_once(void **state)
{
    struct rig *r = *state;

    rig_begin(r);
    for (uint32_t i = 1; i < RIG_CHANNELS; i++) {
        rig_shell(r, i, "head -c 100000 /dev/zero; echo e >&2", 0, 0);
    }
    for (uint32_t i = 1; i < RIG_CHANNELS; i++) {
        rig_wait_end(r, i);
        assert_int_equal(r->channels[i].output[0].n, 100000);
        assert_int_equal(r->channels[i].output[1].n, 2);
    }
}

int main(void)
{
#define AGENT_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        AGENT_TEST(test_output_and_exit_code),
        AGENT_TEST(test_nothing_starts_before_the_identity),
        AGENT_TEST(test_start_failures_say_why),
        AGENT_TEST(test_started_says_where),
        AGENT_TEST(test_long_start_comes_in_parts),
        AGENT_TEST(test_random_acknowledgements_lose_nothing),
        AGENT_TEST(test_reconnecting_anywhere_loses_nothing),
        AGENT_TEST(test_input_arrives_once_over_reconnections),
        AGENT_TEST(test_input_over_the_window_is_refused),
        AGENT_TEST(test_signals_reach_their_scope),
        AGENT_TEST(test_timeout_kills),
        AGENT_TEST(test_held_pipe_ends_after_quiet),
        AGENT_TEST(test_chatty_background_ends_after_the_total),
        AGENT_TEST(test_slow_host_loses_nothing_at_the_end),
        AGENT_TEST(test_slow_host_sees_the_true_end),
        AGENT_TEST(test_full_read_at_the_end_leaves_nothing_behind),
        AGENT_TEST(test_forgotten_process_lives_on),
        AGENT_TEST(test_terminal),
        AGENT_TEST(test_terminal_closed_before_the_exit),
        AGENT_TEST(test_garbage_then_hello),
        AGENT_TEST(test_nothing_is_executed_without_hello),
        AGENT_TEST(test_handshake_and_command_in_one_write),
        AGENT_TEST(test_random_frames_do_no_harm),
        AGENT_TEST(test_silence_is_silent),
        AGENT_TEST(test_rehearsal_and_reset),
        AGENT_TEST(test_many_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
