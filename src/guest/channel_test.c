/* The end of a command's time against its own end, with real processes of this machine. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/wait.h>

#include <cmocka.h>

#include "guest/agent.h"

struct rig {
    struct agent agent;
    struct channel *c;
};

static int set_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));

    if (r == NULL || agent_init(&r->agent, false) < 0) {
        return -1;
    }
    r->c = channels_add(&r->agent, 1);
    *state = r;
    return r->c == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;

    agent_done(&r->agent);
    free(r);
    return 0;
}

/* A process with a group of its own that waits, or ends at once: by its code, or by a signal. */
static void start(struct rig *r, bool waits, int code, int by_signal)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setpgid(0, 0);
        while (waits) {
            (void)pause();
        }
        if (by_signal != 0) {
            (void)raise(by_signal);
        }
        _exit(code);
    }
    (void)setpgid(pid, pid);
    channels_set_pid(r->c, pid);
    if (!waits) {
        siginfo_t info = {0};

        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    }
}

/* Its time is up, and then its end is seen. */
static const struct agent_exited *end(struct rig *r)
{
    int status = 0;

    r->c->timeout_at_ms = 1;
    channel_on_time(r->c, 2);
    assert_int_equal(r->c->timeout_at_ms, 0);
    assert_int_equal(waitpid(r->c->pid, &status, 0), r->c->pid);
    channel_on_exit(r->c, status);
    return &r->c->exit;
}

static void test_one_that_runs_is_timed_out(void **state)
{
    struct rig *r = *state;
    const struct agent_exited *e;

    start(r, true, 0, 0);
    e = end(r);
    assert_int_equal(e->kind, AGENT_EXIT_SIGNAL);
    assert_int_equal(e->status, SIGKILL);
    assert_int_equal(e->flags, AGENT_EXITED_TIMED_OUT);
}

static void test_one_that_has_ended_is_not(void **state)
{
    struct rig *r = *state;
    const struct agent_exited *e;

    start(r, false, 3, 0);
    e = end(r);
    assert_int_equal(e->kind, AGENT_EXIT_CODE);
    assert_int_equal(e->status, 3);
    assert_int_equal(e->flags, 0);
}

static void test_one_that_was_killed_before_is_not(void **state)
{
    struct rig *r = *state;
    const struct agent_exited *e;

    start(r, false, 0, SIGKILL);
    e = end(r);
    assert_int_equal(e->kind, AGENT_EXIT_SIGNAL);
    assert_int_equal(e->status, SIGKILL);
    assert_int_equal(e->flags, 0);
}

/* Its end comes between the look and the kill. */
static void test_one_that_the_kill_misses_is_not(void **state)
{
    struct rig *r = *state;
    int status = 0;

    start(r, true, 0, 0);
    r->c->timeout_at_ms = 1;
    channel_on_time(r->c, 2);
    assert_int_equal(waitpid(r->c->pid, &status, 0), r->c->pid);
    channel_on_exit(r->c, 3 << 8);
    assert_int_equal(r->c->exit.status, 3);
    assert_int_equal(r->c->exit.flags, 0);
}

#define CHANNEL_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CHANNEL_TEST(test_one_that_runs_is_timed_out),
        CHANNEL_TEST(test_one_that_has_ended_is_not),
        CHANNEL_TEST(test_one_that_was_killed_before_is_not),
        CHANNEL_TEST(test_one_that_the_kill_misses_is_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
