/* Follows the events of a session to the end of its process, over broken connections.
 *
 * Theory of operation. The events come from an event_stream, which takes up broken connections, to
 * follow_event, which knows for each stream the offset that must come next: what was seen already
 * is dropped, what is missing is reported as a gap. A lost connection is never taken for an exit.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "base/span.h"
#include "cli/event_stream.h"

enum follow_stream {
    FOLLOW_STDOUT,
    FOLLOW_STDERR
};

enum follow_end {
    FOLLOW_END_NONE,
    FOLLOW_END_EXITED,
    FOLLOW_END_LOST /* no exit status exists */
};

struct follow_sink {
    /* A negative result stops following. */
    int (*on_output)(void *arg, enum follow_stream stream, struct span bytes);
    void (*on_gap)(void *arg, enum follow_stream stream, uint64_t bytes);
};

#define FOLLOW_NOTE_SIZE 200
#define FOLLOW_OUT_OF_MEMORY                                                                       \
    "out of memory: the sandbox had none left, and the kernel ended a process of the command"

struct follow {
    const struct follow_sink *sink;
    void *arg;
    char session_id[ID_SIZE];
    char path[REST_REQUEST_SIZE];
    struct event_stream events;
    bool offset_known[2];
    uint64_t offset[2]; /* expected next */
    enum follow_end end;
    int exit_code; /* -1: ended by a signal */
    int exit_signal;
    bool timed_out;
    bool out_of_memory;
    char lost_reason[32];
};

/* tail_bytes 0: from the beginning. */
void follow_init(struct follow *f,
                 struct rest *rest,
                 const char *session_id,
                 uint64_t tail_bytes,
                 const struct follow_sink *sink,
                 void *arg);
void follow_done(struct follow *f);
/* To be called after every rest_poll: 1 when the process has ended (`end` says how), 0 to go on,
 * negative with err when following failed: the sink's own result, or as rest_result. */
int follow_step(struct follow *f, int64_t now_ms, struct error *err) _must_check_;
/* How long rest_poll may wait before the next follow_step. */
int follow_wait_ms(const struct follow *f, int64_t now_ms);
/* What the process left, as a shell sees it: its code, 128+n, 124; only after FOLLOW_END_EXITED. */
int follow_exit_status(const struct follow *f);
/* What is to be said beside the status, "" for nothing; only after FOLLOW_END_EXITED. `limit_s` is
 * the time that the command was given, 0 when we have not said it. */
void follow_exit_note(const struct follow *f, double limit_s, char ret[FOLLOW_NOTE_SIZE]);

/* One event, apart from the connection: 0, or negative from the sink or for a malformed one. */
int follow_event(struct follow *f, const struct sse_event *event);
/* The same with a parsed event, for connections that are no event stream. */
int follow_message(struct follow *f, const char *name, const json_t *data);
/* Output at the offset that is expected next. */
int follow_output(struct follow *f, enum follow_stream stream, struct span bytes);
/* The number of "SIGTERM", 0 when unknown. */
int signal_number(const char *name);
