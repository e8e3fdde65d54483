/* The agent: one conversation with the host, many processes (docs/agent-protocol.md).
 *
 * One epoll loop, one turn at a time: events set flags, then the port's frames are executed, then
 * the active streams are served in turn, one frame each, then what is done with is freed. All
 * state is in struct agent; there are no globals.
 *
 * Memory is bounded: kept output by its pool's budget, input by its window, what is to be sent by
 * not reading more requests, channels by AGENT_CHANNELS_MAX. Where an allocation fails, that one
 * request is refused, or that stream waits. */
#pragma once

#include "guest/cgroup.h"
#include "guest/channel.h"
#include "guest/identity.h"
#include "guest/killed.h"
#include "guest/port.h"
#include "guest/pressure.h"
#include "guest/spawn.h"
#include "guest/users.h"

#define AGENT_ASSEMBLIES 4 /* STARTs of several frames that may be under way at once */

enum agent_voice {
    AGENT_SPEAKING,
    AGENT_FALLING_SILENT, /* waits for the freeze */
    AGENT_FROZEN_SILENT,  /* sends nothing */
};

struct assembly {
    uint32_t channel; /* 0: free */
    struct buf joined;
};

struct agent {
    int epoll_fd;
    bool is_guest; /* false in a host's tests: nothing outside the processes is touched */
    struct port port;
    struct agent_reader reader;
    struct buf tx; /* goes out before anything else; whole frames, or the rest of one */
    bool conversing;
    struct channels channels;
    size_t n_services;   /* channels that are one */
    struct list active;  /* streams that something can be done for */
    struct list resting; /* bulk streams (stream.h) */
    struct kept_pool pool;
    struct cgroups cgroups;
    struct users users;
    struct identity identity;
    struct spawner spawner;
    struct assembly assemblies[AGENT_ASSEMBLIES];
    enum agent_voice voice;
    bool thaw_pending; /* frozen processes wait for an identity or a WAKE */
    uint32_t silence_id;
    uint8_t silence_flags;
    int64_t silence_until_ms;
    struct source freezer; /* cgroup.events, while the freeze is awaited */
    struct source services_freezer;
    struct source children; /* signalfd */
    struct pressure pressure;
    struct source killed; /* the kernel's messages (killed.h) */
    bool reap_again;
    bool memory_short; /* some stream waits for memory: look again soon */
    bool process_ended;
    bool key_taken;    /* a terminal got input, and has not had the time to echo it */
    bool child_reaped; /* groups that were in use may be empty now */
    bool deadlines_changed;
    int64_t next_deadline_ms;
    bool stop;
};

/* Prepares everything but the port. SIGCHLD must be blocked. 0 or -errno. */
int agent_init(struct agent *a, bool is_guest) _must_check_;
void agent_done(struct agent *a);
/* Serves until `stop` is set or the port is gone for good. */
void agent_run(struct agent *a);
/* One turn; tests and agent_run. */
void agent_turn(struct agent *a);

/* ---- for the modules of the agent ---- */

/* Executes one frame. -EBADMSG: the conversation cannot go on. */
int agent_execute(struct agent *a, const struct agent_frame *f) _must_check_;
/* START's joined payload. */
void agent_start_process(struct agent *a, uint32_t channel, struct span joined);
void agent_result(struct agent *a, uint32_t channel, uint32_t id, int r);
/* Whether frames may be sent now. */
bool agent_may_speak(const struct agent *a);
/* Sends what must go out first. True when nothing is left. */
bool agent_flush(struct agent *a);
/* Writes a frame, now or as soon as it fits. */
void agent_send(struct agent *a, struct span frame);
/* After the port was blocked or the silence ended: goes on with what waits. */
void agent_speak_again(struct agent *a);
/* Sends STDIN_ACK when there is something to tell. */
void agent_tell_input(struct channel *c);
/* Reaps ended processes, a bounded number of them. */
void agent_reap(struct agent *a);
int agent_watch_children(struct agent *a) _must_check_;
/* SILENCE, WAKE, and the steps of falling silent. */
void agent_begin_silence(struct agent *a, uint32_t id, uint8_t flags);
void agent_continue_silence(struct agent *a, int64_t now_ms);
void agent_wake(struct agent *a, const struct agent_wake *m);
/* HELLO: speaks again; what a completed silence froze stays frozen. */
void agent_break_silence(struct agent *a);
/* After an identity was confirmed, or WAKE. */
void agent_thaw(struct agent *a);
/* RESET: 0 or -errno. */
int agent_reset(struct agent *a) _must_check_;
/* POWEROFF: does not return in a guest. */
void agent_power_off(struct agent *a);
