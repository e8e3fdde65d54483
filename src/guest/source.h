/* Event sources of the guest's epoll loop.
 *
 * A source is embedded in its owner, which outlives the turn of the loop in which it is closed
 * (owners are freed at the end of a turn), so a pending event of a closed source is harmless. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <sys/epoll.h>

#include "base/cleanup.h"

struct source {
    int fd; /* owned; -1 when closed */
    void (*on_ready)(struct source *s, uint32_t events);
};

/* Takes fd and watches it for these EPOLL events. 0, or -errno (fd is then closed). */
int source_open(struct source *s, int epoll_fd, int fd, uint32_t events) _must_check_;
void source_close(struct source *s);
/* Stops watching without closing, and watches again. False when that failed: nothing changed. */
bool source_pause(struct source *s, int epoll_fd);
bool source_resume(struct source *s, int epoll_fd, uint32_t events);
/* Changes the events that are watched. */
void source_watch(struct source *s, int epoll_fd, uint32_t events);
/* Waits at most timeout_ns (-1: for ever) and runs the handlers of what is ready. */
void source_dispatch(int epoll_fd, int64_t timeout_ns);

#define source_owner(s, type, member)                                                              \
    ((type *)(void *)((char *)(s) - __builtin_offsetof(type, member)))
