/* Output of a process: from its pipe or terminal into what is kept, and on to the port.
 *
 * A quiet stream waits in the epoll set, edge-triggered. One with much output, or many writes, in
 * little time is bulk: were the agent woken by each write to an empty pipe, it would take the
 * processor away from the process every few bytes, and switching costs more than copying. So a bulk
 * stream leaves the epoll set, its pipe is made larger when it fills, and it is looked at after a
 * short rest, which adapts to how full the pipe was found. After rests that brought nothing it
 * waits in the epoll set again. */
#pragma once

#include <stdbool.h>

#include "base/list.h"
#include "guest/kept.h"
#include "guest/source.h"

struct agent;
struct channel;

struct stream {
    struct source source; /* the read end */
    struct list in_active;
    struct list in_resting;
    struct channel *channel;
    struct kept kept;
    uint8_t number; /* AGENT_STDOUT or AGENT_STDERR */
    bool is_tty;
    bool readable;  /* an edge was seen and not read off yet, or a rest is over */
    bool hung_up;   /* no writer is left: read on to the end of file */
    bool failed;    /* it ended by an error */
    bool tells_end; /* the host is to hear of its end, once all is sent */
    bool starved;   /* readable, but memory or window was short at the last try */
    bool is_bulk;
    bool has_large_pipe;
    unsigned int misses; /* rests in a row that brought nothing */
    size_t burst;        /* bytes since the last rest, or since counted_from_ns */
    unsigned int reads;  /* since counted_from_ns */
    int64_t counted_from_ns;
    int64_t rest_ns;
    int64_t rested_at_ns;
    uint64_t owed; /* after the exit: bytes that were in the pipe then and must be read */
};

void stream_init(struct stream *s, struct channel *c, uint8_t number);
/* Closes it and frees what it keeps. */
void stream_done(struct stream *s);
/* Takes the read end of a pipe or a terminal. 0 or -errno. */
int stream_open(struct stream *s, int fd, bool is_tty) _must_check_;
/* Puts bytes into a stream that has no read end yet. 0, or -ENOMEM after a part of them. */
int stream_put(struct stream *s, struct span bytes) _must_check_;
/* Puts it in the agent's list of active ones. */
void stream_activate(struct stream *s);
/* Reads once and sends one frame, as far as each is possible. True while more can be done now. */
bool stream_step(struct stream *s);
/* Whether nobody is left who could write: then it is read on to its end of file, which closes it.
 */
bool stream_is_ending(struct stream *s);
/* Notes what is in the pipe at the exit of the process. */
void stream_note_owed(struct stream *s);
/* Activates the streams whose rest is over. Returns when the next one is, INT64_MAX for none. */
int64_t streams_end_rests(struct agent *a);
