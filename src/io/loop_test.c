#include "io/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <event2/event.h>

#include "base/clock.h"

struct fixture {
    struct loop *loop;
    struct loop_timer *timer;
    struct loop_watch *watch;
    int fired;
    int deferred;
    int order[8];
    int order_count;
    pthread_t worker;
    pid_t pid;
    int status;
    int pipe_fds[2];
};

static struct fixture fixture_make(unsigned int workers)
{
    struct fixture f = {.loop = loop_new(workers), .pipe_fds = {-1, -1}};

    assert_non_null(f.loop);
    return f;
}

static void stop(void *arg)
{
    struct fixture *f = arg;

    f->fired++;
    loop_stop(f->loop);
}

static void test_timer_waits_and_restarts(void **state)
{
    struct fixture f = fixture_make(0);
    int64_t start_ns = clock_monotonic_ns();

    (void)state;
    f.timer = loop_timer_new(f.loop, stop, &f);
    assert_non_null(f.timer);
    loop_timer_start(f.timer, 60000);
    loop_timer_start(f.timer, 20);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 1);
    assert_true(clock_monotonic_ns() - start_ns >= 20 * 1000000);
    loop_timer_start(f.timer, 0);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 2);
    loop_timer_free(f.timer);
    loop_free(f.loop);
}

static void free_own_timer(void *arg)
{
    struct fixture *f = arg;

    loop_timer_free(f->timer);
    f->timer = NULL;
    loop_stop(f->loop);
}

static void test_timer_may_free_itself(void **state)
{
    struct fixture f = fixture_make(0);

    (void)state;
    f.timer = loop_timer_new(f.loop, free_own_timer, &f);
    loop_timer_start(f.timer, 1);
    assert_int_equal(loop_run(f.loop), 0);
    assert_null(f.timer);
    loop_timer_free(NULL);
    loop_free(f.loop);
}

static void never(void *arg)
{
    (void)arg;
    fail_msg("a stopped timer fired");
}

static void test_stopped_timer_stays_silent(void **state)
{
    struct fixture f = fixture_make(0);
    struct loop_timer *other;

    (void)state;
    other = loop_timer_new(f.loop, never, NULL);
    f.timer = loop_timer_new(f.loop, stop, &f);
    loop_timer_start(other, 1);
    loop_timer_stop(other);
    loop_timer_start(f.timer, 10);
    assert_int_equal(loop_run(f.loop), 0);
    loop_timer_free(other);
    loop_timer_free(f.timer);
    loop_free(f.loop);
}

static void second_deferred(void *arg)
{
    struct fixture *f = arg;

    f->order[f->order_count++] = 3;
    loop_stop(f->loop);
}

static void first_deferred(void *arg)
{
    struct fixture *f = arg;

    f->order[f->order_count++] = 2;
    assert_int_equal(loop_defer(f->loop, second_deferred, f), 0);
}

static void defer_from_timer(void *arg)
{
    struct fixture *f = arg;

    assert_int_equal(loop_defer(f->loop, first_deferred, f), 0);
    f->order[f->order_count++] = 1;
}

static void test_deferred_calls_run_after_the_handlers(void **state)
{
    struct fixture f = fixture_make(0);

    (void)state;
    f.timer = loop_timer_new(f.loop, defer_from_timer, &f);
    loop_timer_start(f.timer, 0);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.order_count, 3);
    assert_int_equal(f.order[0], 1);
    assert_int_equal(f.order[1], 2);
    assert_int_equal(f.order[2], 3);
    loop_timer_free(f.timer);
    loop_free(f.loop);
}

static void on_readable(void *arg, int fd, short events)
{
    struct fixture *f = arg;
    char byte;

    assert_int_equal(events, EV_READ);
    assert_int_equal(read(fd, &byte, 1), 1);
    f->fired++;
    if (f->fired == 2) {
        loop_watch_free(f->watch); /* from inside its own callback */
        loop_stop(f->loop);
    }
}

static void test_watch_is_level_triggered(void **state)
{
    struct fixture f = fixture_make(0);

    (void)state;
    assert_int_equal(pipe2(f.pipe_fds, O_CLOEXEC | O_NONBLOCK), 0);
    f.watch = loop_watch_new(f.loop, f.pipe_fds[0], 0, on_readable, &f);
    assert_non_null(f.watch);
    assert_int_equal(write(f.pipe_fds[1], "ab", 2), 2);
    loop_watch_set_events(f.watch, EV_READ);
    loop_watch_set_events(f.watch, EV_READ);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 2);
    loop_watch_free(NULL);
    loop_free(f.loop);
    (void)close(f.pipe_fds[0]);
    (void)close(f.pipe_fds[1]);
}

static void work(void *arg)
{
    struct fixture *f = arg;

    f->worker = pthread_self();
    f->deferred++;
}

static void test_work_runs_elsewhere_and_reports_here(void **state)
{
    struct fixture f = fixture_make(2);

    (void)state;
    f.worker = pthread_self();
    assert_int_equal(loop_submit(f.loop, work, stop, &f, false), 0);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 1);
    assert_false(pthread_equal(f.worker, pthread_self()));
    loop_free(f.loop);
}

static void test_work_without_workers_runs_inline(void **state)
{
    struct fixture f = fixture_make(0);

    (void)state;
    assert_int_equal(loop_submit(f.loop, work, stop, &f, true), 0);
    assert_int_equal(f.deferred, 0);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 1);
    assert_true(pthread_equal(f.worker, pthread_self()));
    loop_free(f.loop);
}

struct counter {
    struct loop *loop;
    unsigned int done;
    unsigned int want;
};

static void no_work(void *arg)
{
    (void)arg;
}

static void count_done(void *arg)
{
    struct counter *c = arg;

    c->done++;
    if (c->done == c->want) {
        loop_stop(c->loop);
    }
}

static void test_many_jobs_each_end_once(void **state)
{
    struct counter c = {.loop = loop_new(4), .want = 20000};

    (void)state;
    for (unsigned int i = 0; i < c.want; i++) {
        assert_int_equal(loop_submit(c.loop, no_work, count_done, &c, i % 3 == 0), 0);
    }
    assert_int_equal(loop_run(c.loop), 0);
    assert_int_equal(c.done, c.want);
    loop_free(c.loop);
}

/* Holds the only worker until the pipe is closed, so that the queue's order can be seen. */
static void wait_for_pipe(void *arg)
{
    struct fixture *f = arg;
    char byte;

    (void)!read(f->pipe_fds[0], &byte, 1);
}

static void note_background(void *arg)
{
    struct fixture *f = arg;

    f->order[f->order_count++] = 2;
}

static void note_foreground(void *arg)
{
    struct fixture *f = arg;

    f->order[f->order_count++] = 1;
}

static void ignore_done(void *arg)
{
    (void)arg;
}

static void test_background_waits_for_foreground(void **state)
{
    struct fixture f = fixture_make(1);

    (void)state;
    assert_int_equal(pipe2(f.pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(loop_submit(f.loop, wait_for_pipe, ignore_done, &f, false), 0);
    assert_int_equal(loop_submit(f.loop, note_background, ignore_done, &f, true), 0);
    assert_int_equal(loop_submit(f.loop, note_foreground, ignore_done, &f, false), 0);
    (void)close(f.pipe_fds[1]);
    loop_finish_work(f.loop);
    assert_int_equal(f.order_count, 2);
    assert_int_equal(f.order[0], 1);
    assert_int_equal(f.order[1], 2);
    loop_free(f.loop);
    (void)close(f.pipe_fds[0]);
}

static void test_full_queue_is_refused(void **state)
{
    struct fixture f = fixture_make(1);
    struct counter c = {.loop = f.loop, .want = 0};
    int r = 0;

    (void)state;
    assert_int_equal(pipe2(f.pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(loop_submit(f.loop, wait_for_pipe, ignore_done, &f, false), 0);
    while (r == 0) {
        r = loop_submit(f.loop, no_work, count_done, &c, false);
        c.want += r == 0 ? 1 : 0;
    }
    assert_int_equal(r, -EAGAIN);
    assert_int_equal(c.want, 65535);
    (void)close(f.pipe_fds[1]);
    loop_finish_work(f.loop);
    assert_int_equal(c.done, c.want);
    loop_free(f.loop);
    (void)close(f.pipe_fds[0]);
}

static void on_exit_of_child(void *arg, pid_t pid, int wait_status)
{
    struct fixture *f = arg;

    f->pid = pid;
    f->status = wait_status;
    loop_stop(f->loop);
}

static int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void test_child_exit_is_reported_and_reaped(void **state)
{
    struct fixture f = fixture_make(0);
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        _exit(7);
    }
    assert_int_equal(loop_watch_exit(f.loop, pidfd_of(child), on_exit_of_child, &f), 0);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.pid, child);
    assert_true(WIFEXITED(f.status));
    assert_int_equal(WEXITSTATUS(f.status), 7);
    assert_int_equal(waitpid(child, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);

    child = fork();
    if (child == 0) {
        (void)pause();
    }
    assert_int_equal(loop_watch_exit(f.loop, pidfd_of(child), on_exit_of_child, &f), 0);
    (void)kill(child, SIGKILL);
    assert_int_equal(loop_run(f.loop), 0);
    assert_true(WIFSIGNALED(f.status));
    assert_int_equal(WTERMSIG(f.status), SIGKILL);
    loop_free(f.loop);
}

/* A grandchild that this process never could wait for. */
static void test_foreign_exit_has_no_status(void **state)
{
    struct fixture f = fixture_make(0);
    pid_t child;
    pid_t grandchild;
    int hold[2];

    (void)state;
    assert_int_equal(pipe2(f.pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    child = fork();
    if (child == 0) {
        char byte;

        grandchild = fork();
        if (grandchild == 0) {
            (void)close(hold[1]);
            (void)!read(hold[0], &byte, 1);
            _exit(0);
        }
        (void)!write(f.pipe_fds[1], &grandchild, sizeof(grandchild));
        _exit(0);
    }
    assert_int_equal(read(f.pipe_fds[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(loop_watch_exit(f.loop, pidfd_of(grandchild), on_exit_of_child, &f), 0);
    (void)close(hold[1]);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.pid, grandchild);
    assert_int_equal(f.status, -1);
    loop_free(f.loop);
    (void)close(hold[0]);
    (void)close(f.pipe_fds[0]);
    (void)close(f.pipe_fds[1]);
}

static void on_first_signal(void *arg)
{
    struct fixture *f = arg;

    f->fired++;
    (void)raise(SIGTERM);
}

static void test_signals_stop_the_loop(void **state)
{
    struct fixture f = fixture_make(0);

    (void)state;
    (void)raise(SIGINT);
    assert_int_equal(loop_run(f.loop), 0);
    loop_on_terminate(f.loop, on_first_signal, &f);
    (void)raise(SIGTERM);
    assert_int_equal(loop_run(f.loop), 0);
    assert_int_equal(f.fired, 1);
    loop_free(f.loop);
}

static void test_bad_worker_count(void **state)
{
    (void)state;
    assert_null(loop_new(65));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timer_waits_and_restarts),
        cmocka_unit_test(test_timer_may_free_itself),
        cmocka_unit_test(test_stopped_timer_stays_silent),
        cmocka_unit_test(test_deferred_calls_run_after_the_handlers),
        cmocka_unit_test(test_watch_is_level_triggered),
        cmocka_unit_test(test_work_runs_elsewhere_and_reports_here),
        cmocka_unit_test(test_work_without_workers_runs_inline),
        cmocka_unit_test(test_many_jobs_each_end_once),
        cmocka_unit_test(test_background_waits_for_foreground),
        cmocka_unit_test(test_full_queue_is_refused),
        cmocka_unit_test(test_child_exit_is_reported_and_reaped),
        cmocka_unit_test(test_foreign_exit_has_no_status),
        cmocka_unit_test(test_signals_stop_the_loop),
        cmocka_unit_test(test_bad_worker_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
