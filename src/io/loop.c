#include "io/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <sys/wait.h>

#include <event2/event.h>
#include <event2/event_struct.h>

#include "base/list.h"
#include "base/span.h"
#include "io/work_pool.h"

struct deferred {
    loop_fn fn;
    void *arg;
};

/* Calls for the end of the turn. Two of these are swapped, so that what runs may defer more. */
struct deferred_list {
    struct deferred *calls;
    size_t count;
    size_t room;
};

struct loop {
    struct event_base *base;
    struct event *terminate_events[2];
    struct event *pool_event;
    struct work_pool *pool; /* NULL without workers */
    struct deferred_list deferred;
    struct deferred_list running;
    struct list exits;
    loop_fn terminate_fn;
    void *terminate_arg;
    uint8_t *scratch;
    bool stopped;
};

struct loop_timer {
    struct event event;
    loop_fn fn;
    void *arg;
};

struct loop_watch {
    struct event event;
    loop_fd_fn fn;
    void *arg;
    short events; /* as set now; 0: not added */
};

struct exit_watch {
    struct list link;
    struct event event;
    int pidfd;
    pid_t pid;
    loop_exit_fn fn;
    void *arg;
};

/* A job of a loop that has no worker threads. */
struct inline_job {
    loop_fn work;
    loop_fn done;
    void *arg;
};

static void on_terminate_signal(evutil_socket_t signal_number, short events, void *arg)
{
    struct loop *loop = arg;
    loop_fn fn = loop->terminate_fn;

    (void)signal_number;
    (void)events;
    if (fn == NULL) {
        loop_stop(loop);
        return;
    }
    /* A second signal stops at once. */
    loop->terminate_fn = NULL;
    fn(loop->terminate_arg);
}

static void on_pool_ready(evutil_socket_t fd, short events, void *arg)
{
    struct loop *loop = arg;

    (void)fd;
    (void)events;
    work_pool_finish(loop->pool);
}

static struct event_base *base_new(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;

    if (config == NULL) {
        return NULL;
    }
    /* Precise: the default is the coarse clock, 4 ms wide, and timers would fire early by it. */
    if (event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER |
                                          EVENT_BASE_FLAG_IGNORE_ENV) == 0) {
        base = event_base_new_with_config(config);
    }
    event_config_free(config);
    return base;
}

static int loop_add_signal(struct loop *loop, int index, int signal_number)
{
    struct event *event = evsignal_new(loop->base, signal_number, on_terminate_signal, loop);

    if (event == NULL) {
        return -ENOMEM;
    }
    loop->terminate_events[index] = event;
    return event_add(event, NULL) < 0 ? -EIO : 0;
}

static int loop_add_pool(struct loop *loop, unsigned int workers)
{
    int r = work_pool_new(workers, &loop->pool);

    if (r < 0) {
        return r;
    }
    loop->pool_event =
        event_new(loop->base, work_pool_fd(loop->pool), EV_READ | EV_PERSIST, on_pool_ready, loop);
    if (loop->pool_event == NULL) {
        return -ENOMEM;
    }
    return event_add(loop->pool_event, NULL) < 0 ? -EIO : 0;
}

struct loop *loop_new(unsigned int workers)
{
    struct loop *loop = calloc(1, sizeof(*loop));

    if (loop == NULL) {
        return NULL;
    }
    list_init(&loop->exits);
    /* sendfile and OpenSSL have no MSG_NOSIGNAL. */
    (void)signal(SIGPIPE, SIG_IGN);
    loop->base = base_new();
    loop->scratch = malloc(LOOP_SCRATCH_BYTES);
    if (loop->base == NULL || loop->scratch == NULL || loop_add_signal(loop, 0, SIGTERM) < 0 ||
        loop_add_signal(loop, 1, SIGINT) < 0 || (workers > 0 && loop_add_pool(loop, workers) < 0)) {
        loop_free(loop);
        return NULL;
    }
    return loop;
}

static void exit_watch_free(struct exit_watch *watch)
{
    list_remove(&watch->link);
    (void)event_del(&watch->event);
    (void)close(watch->pidfd);
    free(watch);
}

static void event_drop(struct event *event)
{
    if (event != NULL) {
        event_free(event);
    }
}

/* Runs what was deferred before this call; what these calls defer waits for the next one. */
static void loop_run_deferred(struct loop *loop)
{
    struct deferred_list list = loop->deferred;

    loop->deferred = loop->running;
    loop->running = list;
    for (size_t i = 0; i < loop->running.count; i++) {
        loop->running.calls[i].fn(loop->running.calls[i].arg);
    }
    loop->running.count = 0;
}

void loop_finish_work(struct loop *loop)
{
    do {
        while (loop->deferred.count > 0) {
            loop_run_deferred(loop);
        }
        if (loop->pool != NULL) {
            work_pool_drain(loop->pool);
        }
    } while (loop->deferred.count > 0);
}

void loop_free(struct loop *loop)
{
    struct list *it;
    struct list *following;

    if (loop == NULL) {
        return;
    }
    loop_finish_work(loop);
    list_foreach(it, following, &loop->exits)
    {
        exit_watch_free(list_entry(it, struct exit_watch, link));
    }
    event_drop(loop->pool_event);
    work_pool_free(loop->pool);
    event_drop(loop->terminate_events[0]);
    event_drop(loop->terminate_events[1]);
    if (loop->base != NULL) {
        event_base_free(loop->base);
    }
    free(loop->deferred.calls);
    free(loop->running.calls);
    free(loop->scratch);
    free(loop);
}

struct event_base *loop_event_base(struct loop *loop)
{
    return loop->base;
}

uint8_t *loop_scratch(struct loop *loop)
{
    return loop->scratch;
}

int loop_run(struct loop *loop)
{
    int r = 0;

    while (!loop->stopped && r >= 0) {
        /* One turn: wait, dispatch all that is ready, then the deferred calls. */
        r = event_base_loop(loop->base,
                            loop->deferred.count > 0 ? EVLOOP_ONCE | EVLOOP_NONBLOCK : EVLOOP_ONCE);
        loop_run_deferred(loop);
    }
    loop->stopped = false;
    return r < 0 ? -EIO : 0;
}

void loop_stop(struct loop *loop)
{
    loop->stopped = true;
}

void loop_on_terminate(struct loop *loop, loop_fn fn, void *arg)
{
    loop->terminate_fn = fn;
    loop->terminate_arg = arg;
}

static void on_timer(evutil_socket_t fd, short events, void *arg)
{
    struct loop_timer *timer = arg;

    (void)fd;
    (void)events;
    timer->fn(timer->arg); /* may free the timer */
}

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct loop_timer *timer = calloc(1, sizeof(*timer));

    if (timer == NULL) {
        return NULL;
    }
    timer->fn = fn;
    timer->arg = arg;
    if (evtimer_assign(&timer->event, loop->base, on_timer, timer) < 0) {
        free(timer);
        return NULL;
    }
    return timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    struct timeval delay = {0};

    if (delay_ms > 0) {
        delay.tv_sec = delay_ms / 1000;
        delay.tv_usec = (delay_ms % 1000) * 1000;
    }
    (void)event_add(&timer->event, &delay);
}

void loop_timer_stop(struct loop_timer *timer)
{
    (void)event_del(&timer->event);
}

void loop_timer_free(struct loop_timer *timer)
{
    if (timer != NULL) {
        (void)event_del(&timer->event);
        free(timer);
    }
}

static void on_watch(evutil_socket_t fd, short events, void *arg)
{
    struct loop_watch *watch = arg;

    watch->fn(watch->arg, fd, events); /* may free the watch */
}

struct loop_watch *loop_watch_new(struct loop *loop, int fd, short events, loop_fd_fn fn, void *arg)
{
    struct loop_watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL) {
        return NULL;
    }
    watch->fn = fn;
    watch->arg = arg;
    if (event_assign(&watch->event, loop->base, fd, EV_PERSIST, on_watch, watch) < 0) {
        free(watch);
        return NULL;
    }
    loop_watch_set_events(watch, events);
    if (watch->events != events) {
        free(watch);
        return NULL;
    }
    return watch;
}

void loop_watch_set_events(struct loop_watch *watch, short events)
{
    struct event_base *base = event_get_base(&watch->event);
    int fd = event_get_fd(&watch->event);

    if (watch->events == events) {
        return;
    }
    (void)event_del(&watch->event);
    watch->events = 0;
    if (events != 0 &&
        event_assign(&watch->event, base, fd, (short)(events | EV_PERSIST), on_watch, watch) == 0 &&
        event_add(&watch->event, NULL) == 0) {
        watch->events = events;
    }
}

void loop_watch_free(struct loop_watch *watch)
{
    if (watch != NULL) {
        (void)event_del(&watch->event);
        free(watch);
    }
}

int loop_defer(struct loop *loop, loop_fn fn, void *arg)
{
    struct deferred_list *list = &loop->deferred;

    if (list->count == list->room) {
        size_t room = list->room == 0 ? 64 : list->room * 2;
        struct deferred *calls = reallocarray(list->calls, room, sizeof(*calls));

        if (calls == NULL) {
            return -ENOMEM;
        }
        list->calls = calls;
        list->room = room;
    }
    list->calls[list->count++] = (struct deferred){fn, arg};
    return 0;
}

static void run_inline_job(void *arg)
{
    _cleanup_free_ struct inline_job *job = arg;

    job->work(job->arg);
    job->done(job->arg);
}

static int submit_inline(struct loop *loop, loop_fn work, loop_fn done, void *arg)
{
    struct inline_job *job = calloc(1, sizeof(*job));
    int r;

    if (job == NULL) {
        return -ENOMEM;
    }
    *job = (struct inline_job){work, done, arg};
    r = loop_defer(loop, run_inline_job, job);
    if (r < 0) {
        free(job);
    }
    return r;
}

int loop_submit(struct loop *loop, loop_fn work, loop_fn done, void *arg, bool background)
{
    if (loop->pool == NULL) {
        return submit_inline(loop, work, done, arg);
    }
    return work_pool_submit(loop->pool, work, done, arg, background);
}

/* The pid behind a pidfd, from fdinfo, or -1. */
static pid_t pidfd_pid(int pidfd)
{
    char path[64];
    char line[128];
    _cleanup_fclose_ FILE *f = NULL;

    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        struct span text = span_of_str(line);
        uint64_t pid;

        if (strncmp(line, "Pid:\t", 5) != 0) {
            continue;
        }
        text = span_skip(span_head(text, span_find(text, 0, '\n')), 5);
        return span_parse_u64(text, INT32_MAX, &pid) == 0 ? (pid_t)pid : -1;
    }
    return -1;
}

static int wait_status_of(const siginfo_t *info)
{
    if (info->si_code == CLD_EXITED) {
        return (info->si_status & 0xff) << 8;
    }
    return (info->si_status & 0x7f) | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

static void on_child_exit(evutil_socket_t fd, short events, void *arg)
{
    struct exit_watch *watch = arg;
    loop_exit_fn fn = watch->fn;
    void *fn_arg = watch->arg;
    pid_t pid = watch->pid;
    siginfo_t info = {0};
    int status = -1;

    (void)events;
    while (waitid(P_PIDFD, (id_t)fd, &info, WEXITED) < 0) {
        if (errno != EINTR) {
            info.si_pid = 0; /* ECHILD: adopted, somebody else reaps it */
            break;
        }
    }
    if (info.si_pid != 0) {
        pid = info.si_pid;
        status = wait_status_of(&info);
    }
    exit_watch_free(watch);
    fn(fn_arg, pid, status);
}

int loop_watch_exit(struct loop *loop, int pidfd, loop_exit_fn fn, void *arg)
{
    struct exit_watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL) {
        (void)close(pidfd);
        return -ENOMEM;
    }
    list_init(&watch->link);
    watch->pidfd = pidfd;
    watch->pid = pidfd_pid(pidfd);
    watch->fn = fn;
    watch->arg = arg;
    if (event_assign(&watch->event, loop->base, pidfd, EV_READ, on_child_exit, watch) < 0 ||
        event_add(&watch->event, NULL) < 0) {
        exit_watch_free(watch);
        return -EIO;
    }
    list_append(&loop->exits, &watch->link);
    return 0;
}
