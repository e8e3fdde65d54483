/* A channel: one process that the host started, its streams and its end.
 *
 * state          main process   kept until
 * running        alive          it ends
 * draining       reaped         its pipes are at their end or the drain rule says stop
 * exited         reaped         FORGET; bytes that still come are read and thrown away
 * forgotten      any            the process is reaped, its pipes closed and its group empty
 *
 * Channels are freed only by channels_sweep, at the end of a turn of the loop. */
#pragma once

#include "base/list.h"
#include "guest/cgroup.h"
#include "guest/input.h"
#include "guest/stream.h"
#include "wire/agent_process.h"

struct agent;
struct connection;

#define CHANNEL_HASH 128U

/* The wait status of what the agent itself did and could not finish: exit code 1. */
#define CHANNEL_CUT_OFF (1 << 8)

struct channel {
    struct list in_all;
    struct list in_numbers;
    struct list in_pids; /* while the main process is not reaped */
    struct list in_dead; /* to be looked at by channels_sweep */
    struct agent *agent;
    uint32_t number;
    pid_t pid;
    int tty_fd; /* of the resize; owned by the stdout stream */
    char *cwd;  /* where it began, when the host does not know; or NULL */
    struct stream streams[2];
    struct input input;
    struct cgroup cgroup;
    bool is_service; /* of the agent itself: ends with the conversation (service_start.h) */
    struct connection *connection; /* of the service `connect` */
    bool reaped;
    bool ended; /* `exit` is complete */
    bool end_sent;
    bool forgotten;
    bool timeout_killed; /* when its time was up, which it may have escaped by an end of its own */
    bool out_of_memory;  /* the kernel ended something of it (killed.h) */
    bool in_use;         /* forgotten, but its group was not empty at the last look */
    bool flowing;        /* the host asked for its output in this conversation */
    int64_t started_ns;
    int64_t timeout_at_ms; /* 0: none; likewise below */
    int64_t quiet_at_ms;
    int64_t drained_at_ms;
    struct agent_exited exit;
};

struct channels {
    struct list all;
    struct list dead;
    struct list numbers[CHANNEL_HASH];
    struct list pids[CHANNEL_HASH];
    size_t count;
};

void channels_init(struct channels *t);
struct channel *channels_find(const struct channels *t, uint32_t number);
struct channel *channels_find_pid(const struct channels *t, pid_t pid);
/* A new channel without a process, in the table. NULL without memory or room. */
struct channel *channels_add(struct agent *a, uint32_t number);
/* The process exists now. */
void channels_set_pid(struct channel *c, pid_t pid);
/* Frees the channels that are done with. */
void channels_sweep(struct agent *a);
/* Frees everything, whatever its state (RESET). */
void channels_clear(struct agent *a);

/* The main process ended, or what the agent itself did; status as of wait. */
void channel_on_exit(struct channel *c, int status);
/* FORGET. */
void channel_forget(struct channel *c);
/* Sends EXITED when all is known and sent. */
void channel_send_end(struct channel *c);
/* Its deadlines: acts on those that passed. */
void channel_on_time(struct channel *c, int64_t now_ms);
/* The nearest of its deadlines, INT64_MAX when it has none. */
int64_t channel_next_deadline(const struct channel *c);
void channel_describe(const struct channel *c, struct agent_process *ret);
/* 0 or -errno; -ESRCH when nobody is there to get it. */
int channel_signal(struct channel *c, int signal, enum agent_scope scope) _must_check_;

/* ---- for its streams ---- */

/* Bytes were read, and s->owed is up to date. */
void channel_on_stream_bytes(struct channel *c);
/* s was closed at its end. */
void channel_on_stream_end(struct channel *c, const struct stream *s);
