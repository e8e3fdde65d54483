/* A reader's way through a session: what comes next for it, in order. Events and attach send what
 * they get here. A reader holds no output; it reads the spool when its connection has room, so a
 * slow one costs one bounded buffer and at worst a gap. */
#pragma once

#include <sys/types.h>

#include "node/process_stream.h"

struct buf;

enum session_phase {
    SESSION_PHASE_NEW,     /* process_started is to be sent */
    SESSION_PHASE_STARTED, /* output */
    SESSION_PHASE_DONE     /* the last event was sent */
};

struct session_reader {
    struct process *process; /* NULL once its record is gone */
    struct process_reader attached;
    struct order_position at;     /* on the path of the output: what comes next */
    struct order_position wanted; /* bytes of a stream before it are passed over */
    enum session_phase phase;
    bool unreadable; /* the spool is gone: what is left becomes a gap */
};

enum session_item_kind {
    SESSION_ITEM_NONE,    /* nothing now */
    SESSION_ITEM_STARTED, /* once, when the process runs */
    SESSION_ITEM_GAP,
    SESSION_ITEM_OUTPUT,
    SESSION_ITEM_END /* exited or lost: nothing comes after it */
};

struct session_item {
    enum session_item_kind kind;
    unsigned int stream; /* GAP and OUTPUT: index */
    uint64_t offset;
    uint64_t bytes;
};

/* "stdout" and "stderr". */
const char *session_stream_name(unsigned int stream);

/* Sets it to the begin of the output, attached to nothing. */
void session_reader_init(struct session_reader *reader, struct process *p);
/* Attaches it where `at` is. limit_exceeded. Detaching is fine at any time. */
int session_reader_attach(struct session_reader *reader, struct error *err) _must_check_;
void session_reader_detach(struct session_reader *reader);
/* Sets `at` and `wanted` for a reader that has each stream up to an offset of its own.
 * invalid_request when one is beyond the end. */
int session_reader_seek(struct session_reader *reader,
                        const struct order_position *offsets,
                        struct error *err) _must_check_;
/* Takes the next item; the bytes of an OUTPUT, at most max, are appended to `bytes`. 0 or -errno.
 */
int session_reader_next(struct session_reader *reader,
                        size_t max,
                        struct buf *bytes,
                        struct session_item *ret_item) _must_check_;
/* Whether the next item is better sent later, with more (process_gathers). */
bool session_reader_gathers(const struct session_reader *reader);
/* The connection has room again for what was taken: it counts as read. */
void session_reader_settle(struct session_reader *reader);
/* The fields of an item's event but for OUTPUT. NULL without memory. */
json_t *session_item_fields(const struct session_reader *reader, const struct session_item *item);
/* The name of its event. */
const char *session_item_name(const struct session_reader *reader, const struct session_item *item);
