#include "guest/source.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include <sys/syscall.h>

#define EVENTS_PER_TURN 64

int source_open(struct source *s, int epoll_fd, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = s}};

    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        int r = -errno;

        (void)close(fd);
        s->fd = -1;
        return r;
    }
    s->fd = fd;
    return 0;
}

void source_close(struct source *s)
{
    if (s->fd >= 0) {
        /* Every watched descriptor has one open file of its own, so closing it ends the watch. */
        (void)close(s->fd);
        s->fd = -1;
    }
}

bool source_pause(struct source *s, int epoll_fd)
{
    return epoll_ctl(epoll_fd, EPOLL_CTL_DEL, s->fd, NULL) == 0;
}

bool source_resume(struct source *s, int epoll_fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = s}};

    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->fd, &event) == 0;
}

void source_watch(struct source *s, int epoll_fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = s}};

    /* A change of a watch that exists needs no memory, so it does not fail. */
    (void)epoll_ctl(epoll_fd, EPOLL_CTL_MOD, s->fd, &event);
}

/* epoll_pwait2 (Linux 5.11) for waits that are no whole milliseconds; libc may not have it. */
static int wait_events(int epoll_fd, struct epoll_event *events, int64_t timeout_ns)
{
    int64_t timeout_ms = timeout_ns / 1000000;

    if (timeout_ns > 0 && timeout_ns % 1000000 != 0) {
        const struct timespec ts = {timeout_ns / 1000000000, timeout_ns % 1000000000};
        long n = syscall(SYS_epoll_pwait2, epoll_fd, events, EVENTS_PER_TURN, &ts, NULL, 0);

        if (n >= 0 || errno != ENOSYS) {
            return (int)n;
        }
        timeout_ms++;
    }
    return epoll_wait(epoll_fd, events, EVENTS_PER_TURN, timeout_ns < 0 ? -1 : (int)timeout_ms);
}

void source_dispatch(int epoll_fd, int64_t timeout_ns)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int n = wait_events(epoll_fd, events, timeout_ns);

    for (int i = 0; i < n; i++) {
        struct source *s = events[i].data.ptr;

        if (s->fd >= 0) {
            s->on_ready(s, events[i].events);
        }
    }
}
