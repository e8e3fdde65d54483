/* The event loop of a host program: timers, descriptors, signals, deferred calls, and a bounded
 * pool of worker threads for blocking work. One loop thread per process; everything here but the
 * `work` callback of loop_submit runs on it. Stands on libevent. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"

#define LOOP_SCRATCH_BYTES 65536U

struct event_base;
struct loop;
struct loop_timer;
struct loop_watch;

typedef void (*loop_fn)(void *arg);
typedef void (*loop_fd_fn)(void *arg, int fd, short events); /* EV_READ, EV_WRITE of libevent */
typedef void (*loop_exit_fn)(void *arg, pid_t pid, int wait_status);

/* `workers` threads (0 to 64) run blocking work; without any, jobs run on the loop thread at the
 * end of a turn. Ignores SIGPIPE for the process. NULL on failure. */
struct loop *loop_new(unsigned int workers);
/* Finishes the work first (loop_finish_work). Free servers and clients before it. */
void loop_free(struct loop *loop);
/* Waits for all submitted jobs and runs their `done` and what is deferred: call it before freeing
 * what they use. */
void loop_finish_work(struct loop *loop);
struct event_base *loop_event_base(struct loop *loop);
/* LOOP_SCRATCH_BYTES to read into within one callback, shared by all that read on this loop. */
uint8_t *loop_scratch(struct loop *loop);
/* Runs until loop_stop, or SIGTERM or SIGINT. 0 or -errno. A stop before it ends it after one turn
 * or none; it may be run again. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);
/* Called once when SIGTERM or SIGINT arrives, instead of stopping at once (which a second signal
 * does). */
void loop_on_terminate(struct loop *loop, loop_fn fn, void *arg);

/* A one-shot timer; NULL on failure. It stays allocated until loop_timer_free. */
struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg);
void loop_timer_start(struct loop_timer *timer, int64_t delay_ms); /* restarts a running one */
void loop_timer_stop(struct loop_timer *timer);
void loop_timer_free(struct loop_timer *timer); /* NULL is fine */

/* Watches a descriptor (the caller keeps owning it) until loop_watch_free. `events`: EV_READ,
 * EV_WRITE; level-triggered. */
struct loop_watch *
loop_watch_new(struct loop *loop, int fd, short events, loop_fd_fn fn, void *arg);
void loop_watch_set_events(struct loop_watch *watch, short events);
void loop_watch_free(struct loop_watch *watch); /* NULL is fine */

/* Runs fn at the end of this loop turn: the place to free what handlers marked. 0 or -ENOMEM. */
int loop_defer(struct loop *loop, loop_fn fn, void *arg);

/* Runs work(arg) on a worker thread, then done(arg) on the loop thread, exactly once each, in no
 * particular order among jobs. `background` jobs run only when no other job waits. -EAGAIN when
 * 65,536 jobs are queued. Safe only from the loop thread. */
int loop_submit(struct loop *loop, loop_fn work, loop_fn done, void *arg, bool background);

/* Calls fn once when the child behind pidfd (owned by the loop from here) has ended; reaps it with
 * waitid(P_PIDFD) if it is our child (wait_status as from waitpid, -1 when it was not ours). The
 * descriptor is closed on failure too. 0 or -errno. */
int loop_watch_exit(struct loop *loop, int pidfd, loop_exit_fn fn, void *arg);
