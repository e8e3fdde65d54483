/* WebSocket (RFC 6455) over a byte stream, server's end: messages in, frames out, pings, the
 * closing handshake. Frames are parsed by wire/websocket.h, strictly: what is malformed, unmasked
 * or too long closes with 1002 or 1009, text that is not UTF-8 with 1007.
 *
 * The handle is valid until on_closed returns, which comes exactly once unless the owner called
 * websocket_free. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "base/span.h"

struct byte_stream;
struct http_exchange;
struct loop;
struct websocket;

struct websocket_callbacks {
    /* A whole message, at most max_message bytes. */
    void (*on_message)(void *arg, struct websocket *ws, bool is_text, struct span message);
    /* As of byte_stream.h. */
    void (*on_drain)(void *arg, struct websocket *ws);
    /* It is over; code is the one of the peer's close frame (1005: it had none), the one we closed
     * with when the peer broke the protocol, 1006 when the connection broke. */
    void (*on_closed)(void *arg, struct websocket *ws, unsigned int code);
};

struct websocket_options {
    struct loop *loop;
    const char *subprotocol; /* NULL: none */
    size_t max_message;      /* longer ones close with 1009 */
    const struct websocket_callbacks *callbacks;
    void *arg;
};

/* Checks the handshake of a request (Upgrade, Sec-WebSocket-Version 13, Sec-WebSocket-Key) and
 * answers 101. invalid_request on a bad one: nothing was answered then. The exchange is over. A
 * quiet peer is pinged every 15 s and dropped after 45 s without a frame. */
int websocket_accept(struct http_exchange *exchange,
                     const struct websocket_options *options,
                     struct websocket **ret_ws,
                     struct error *err) _must_check_;
/* Queues one frame (a whole message of any length). 1: more may come, 0: wait for on_drain. */
int websocket_send(struct websocket *ws, bool is_text, struct span head, struct span body);
/* Stops and resumes the delivery of messages. A paused peer is called quiet only when it takes
 * nothing of what is queued for it. */
void websocket_pause(struct websocket *ws, bool paused);
/* Begins the closing handshake: nothing is sent after it. on_closed comes within 2 s of the time
 * when the peer has taken what was queued (it is cut when it takes nothing for 45 s). */
void websocket_close(struct websocket *ws, unsigned int code, const char *reason);
/* Cuts and frees at once; on_closed does not come. NULL is fine. */
void websocket_free(struct websocket *ws);
