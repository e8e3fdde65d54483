/* HTTP/1.1 client for the node protocol: a pool of keep-alive connections to one unix socket,
 * streamed bodies both ways with back-pressure, deadlines.
 *
 * A call's handle is valid until its on_done callback returns, which comes exactly once. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"
#include "io/http_server.h" /* struct http_header */

struct byte_stream;
struct loop;
struct http_client;
struct http_call;

struct http_call_callbacks {
    /* Status and headers arrived (may be NULL). */
    void (*on_head)(void *arg, struct http_call *call, int status);
    /* A piece of the body (may be NULL: the body is collected, at most max_body bytes, and found
     * with http_call_body in on_done). */
    void (*on_data)(void *arg, struct http_call *call, struct span piece);
    /* err NULL: the answer is complete. Otherwise service_unavailable (no connection; `errnum`
     * tells), deadline_exceeded, or bad_gateway (a broken or cut answer). */
    void (*on_done)(void *arg, struct http_call *call, const struct error *err);
};

struct http_call_request {
    const char *method;
    const char *target; /* path and query */
    const struct http_header *headers;
    size_t header_count;
    struct span body;       /* copied; empty for none */
    bool stream_body;       /* the body comes by http_call_write and http_call_end instead */
    uint64_t stream_length; /* its length, declared by Content-Length; 0: not known, chunked */
    int64_t timeout_ms;     /* for the whole call; 0: none */
    size_t max_body;        /* cap of a collected body; 0: 16 MiB */
    /* Asks for an upgrade to this protocol (or to one of a list "a, b"). An answer of 101 comes by
     * on_head: call http_call_take_stream there. Any other answer is one as usual. */
    const char *upgrade;
    /* Speaks to what is behind another upgrade: on a new connection first `GET tunnel` with
     * `Upgrade: space-tcp` and tunnel_headers is sent, and this request then goes through the raw
     * stream. A tunnel that is refused ends the call: on_done has the error that the node answered
     * (its envelope's code and message). Never reused, never repeated. NULL: none. */
    const char *tunnel;
    const struct http_header *tunnel_headers;
    size_t tunnel_header_count;
    const char *host; /* of a tunnelled request; NULL: "localhost" */
    /* Of a tunnelled request: Connection, Keep-Alive, Proxy-Connection, TE, Trailer, Upgrade and
     * Expect among the headers are sent as they are. Without it they are EINVAL. A tunnelled
     * request without an upgrade or a Connection of the caller's says `Connection: close`.
     * Content-Length and Transfer-Encoding are never the caller's (EINVAL). */
    bool allow_any_headers;
};

struct http_client *
http_client_new(struct loop *loop, const char *unix_path, unsigned int max_idle);
/* Open calls end with service_unavailable. */
void http_client_free(struct http_client *client);

/* Starts a call. The result is NULL (and err filled) only for lack of memory; connection failures
 * come by on_done, never from inside this function. A request on a reused connection that died
 * before any byte of an answer is sent again once on a new one. */
struct http_call *http_client_start(struct http_client *client,
                                    const struct http_call_request *request,
                                    const struct http_call_callbacks *callbacks,
                                    void *arg,
                                    struct error *err);
int http_call_status(const struct http_call *call);
const char *http_call_header(const struct http_call *call, const char *name);
struct span http_call_body(const struct http_call *call);
/* Stops and resumes reading: back-pressure for streamed bodies. */
void http_call_pause(struct http_call *call, bool paused);
/* Streamed request bodies; as in http_server.h. */
int http_call_write(struct http_call *call, struct span bytes);
void http_call_on_drain(struct http_call *call, void (*fn)(void *arg), void *arg);
void http_call_end(struct http_call *call);
/* Drops the call; on_done does not come. */
void http_call_cancel(struct http_call *call);
/* Calls fn(arg, name, value) for each header of the answer, in order. */
void http_call_each_header(const struct http_call *call,
                           void (*fn)(void *arg, const char *name, const char *value),
                           void *arg);
/* Inside on_head of a 101: the connection becomes a stream, born paused, and the call ends without
 * on_done. NULL without memory. */
struct byte_stream *http_call_take_stream(struct http_call *call);
