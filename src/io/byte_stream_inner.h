/* Inside of src/io: how a byte_stream is born and who else may touch it. What others see is in
 * byte_stream.h. */
#pragma once

#include <event2/event_struct.h>

#include "base/buf.h"
#include "base/list.h"
#include "io/byte_stream.h"
#include "io/http_output.h"
#include "io/http_transport.h"

struct loop;
struct loop_timer;

#define STREAM_HIGH_BYTES  262144U /* queued, above which writers should wait */
#define STREAM_FLUSH_BYTES 65536U  /* queued, which are written without waiting for the turn */
#define STREAM_DIRECT_BYTES                                                                        \
    4096U                     /* in one piece, which are not queued if the socket takes them       \
                               */
#define STREAM_PROBE_MS 15000 /* between looks at a peer of whom nothing is read */
#define STREAM_BREAK_MS 10000 /* for a broken stream's last bytes, without progress */

struct byte_stream {
    struct loop *loop;
    struct byte_stream_callbacks callbacks;
    void *arg;
    struct http_transport transport;
    struct event event_read;
    struct event event_write;
    struct buf in; /* received and not yet delivered */
    struct http_output out;
    struct byte_stream **holder; /* the giver's pointer to it, until it was begun */
    struct list owner_link;
    void (*on_gone)(void *owner);
    void *owner;
    struct loop_timer *timer; /* made when it is needed */
    int64_t idle_ms;
    int64_t moved_ms; /* when a byte moved, or the wait for one began */
    int64_t timer_ms; /* when the timer fires; 0: it does not run */
    int errnum;       /* why it is to be closed */
    int write_error;  /* our direction is broken; input may still come */
    bool idle_reads;
    bool reads;  /* event_read is added */
    bool writes; /* event_write is added */
    bool write_blocked;
    bool is_held; /* its first bytes are still with the giver */
    bool is_paused;
    bool is_blocked; /* a write returned 0, and no drain was seen since */
    bool tls_more;   /* TLS may hold bytes that the socket does not signal */
    bool got_end;
    bool ends;    /* our direction is to end after what is queued */
    bool is_shut; /* it has */
    bool aborts;  /* to be cut after what is queued */
    bool waits;   /* for the peer, within a limit */
    bool turn_pending;
    bool is_busy; /* one of its handlers is on the stack */
    bool is_gone; /* closed; only the memory is left */
};

/* Without a connection yet; NULL without memory. */
struct byte_stream *byte_stream_new(struct loop *loop);
/* Takes over a connection and what is queued for it. It reads nothing before byte_stream_begin.
 * *holder points at it until then, or until it is freed (NULL). */
void byte_stream_adopt(struct byte_stream *stream,
                       struct http_transport *transport,
                       struct http_output *out,
                       struct byte_stream **holder);
/* Gives it the bytes that were received before it existed (taken out of `in`). */
void byte_stream_begin(struct byte_stream *stream, struct buf *in);
/* on_gone(owner) comes when it is closed, before on_closed; it is in `list` until then. */
void byte_stream_set_owner(struct byte_stream *stream,
                           struct list *list,
                           void (*on_gone)(void *owner),
                           void *owner);
/* Closes it now with this error: on_closed comes from inside. */
void byte_stream_cut(struct byte_stream *stream, int errnum);
/* byte_stream_write of two pieces. */
int byte_stream_write_two(struct byte_stream *stream, struct span a, struct span b);
/* From inside on_data: the end of its bytes, which was not wanted yet. It is delivered again when
 * the stream, paused by then, is resumed. 0 or -ENOMEM. */
int byte_stream_unread(struct byte_stream *stream, struct span bytes) _must_check_;
