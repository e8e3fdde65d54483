/* A stream of bytes in both directions with back-pressure: what is left of an HTTP connection after
 * `101 Switching Protocols`, on the server's side (http_exchange_upgrade) or the client's
 * (http_call_take_stream).
 *
 * Each direction ends on its own. The handle is valid until on_closed returns, which comes exactly
 * once unless the owner called byte_stream_free; nothing is called after it, and nothing is called
 * from inside a function of this header. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

struct byte_stream;

struct byte_stream_callbacks {
    /* Bytes of the peer, all of them to be taken now; pause to get no more. */
    void (*on_data)(void *arg, struct byte_stream *stream, struct span bytes);
    /* The peer sends no more; it may still read. May be NULL. */
    void (*on_end)(void *arg, struct byte_stream *stream);
    /* The queue has emptied to half after a write that returned 0. May be NULL. */
    void (*on_drain)(void *arg, struct byte_stream *stream);
    /* It is over: err NULL when both directions ended properly, else what broke it. */
    void (*on_closed)(void *arg, struct byte_stream *stream, const struct error *err);
};

/* Sets who is called. A stream is born paused: nothing is delivered before byte_stream_pause(s,
 * false). */
void byte_stream_set_callbacks(struct byte_stream *stream,
                               const struct byte_stream_callbacks *callbacks,
                               void *arg);
/* Queues bytes. Returns 1 when more may come at once, 0 when the caller should wait for on_drain
 * (the bytes were taken all the same). When our direction has ended or broken they are dropped and
 * the result is 0. */
int byte_stream_write(struct byte_stream *stream, struct span bytes);
/* Ends our direction after what is queued. */
void byte_stream_end(struct byte_stream *stream);
/* Breaks it off after what is queued (within 10 s without progress): the peer sees a cut (TCP is
 * reset, TLS says no goodbye), never a proper end. on_closed comes, with an error. */
void byte_stream_abort(struct byte_stream *stream);
void byte_stream_pause(struct byte_stream *stream, bool paused);
/* Closes it without a delay if no byte moved for so long while we wait for the peer to read or,
 * with `reads`, to write; 0: never (the start). */
void byte_stream_set_idle(struct byte_stream *stream, int64_t timeout_ms, bool reads);
/* Closes at once and frees it; on_closed does not come. What is queued is lost, and a peer to whom
 * our direction had not ended sees a cut. NULL is fine. */
void byte_stream_free(struct byte_stream *stream);
/* Bytes queued and not yet taken by the socket. */
size_t byte_stream_queued(const struct byte_stream *stream);

/* Joins two streams: what one sends the other gets, each direction with its own end, neither read
 * faster than the other takes it. Owns both from here on. `on_closed` (may be NULL) comes once,
 * when both are gone. Where one breaks, the other is cut after what is queued for it. NULL without
 * memory; both are freed then. */
struct byte_relay;
typedef void (*byte_relay_fn)(void *arg);
struct byte_relay *
byte_relay_new(struct byte_stream *a, struct byte_stream *b, byte_relay_fn on_closed, void *arg);
/* Cuts both; on_closed does not come. NULL is fine. */
void byte_relay_free(struct byte_relay *relay);
