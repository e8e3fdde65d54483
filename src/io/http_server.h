/* HTTP/1.1 server: keep-alive, pipelining one at a time, chunked bodies both ways, Expect:
 * 100-continue, HEAD, TLS by OpenSSL. Used by the public API and by the node protocol.
 *
 * Requests that the parser refuses are answered by `on_refused` (the caller's error envelope) and
 * the connection closes. A client that sends slowly, stalls or never reads costs one bounded
 * buffer and is closed by its timers; it never blocks another.
 * An exchange is one request and its answer. Its handle stays valid until its on_close callback,
 * which comes exactly once, answered or not; nothing is called after it. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

struct byte_stream;
struct loop;
struct http_server;
struct http_exchange;

struct http_server_limits {
    size_t max_head_bytes;        /* request line and headers; default 65536 when 0 */
    unsigned int max_headers;     /* default 100 when 0 */
    unsigned int max_connections; /* beyond it the longest idle one makes room, else 503 */
    int64_t header_timeout_ms;    /* until the head is complete */
    int64_t idle_timeout_ms;      /* between requests, and for a stalled body or reader */
    int64_t probe_ms;             /* default 15000 when 0: between looks at a client of which
                                     nothing is read, because its body is not wanted yet */
    size_t write_high_bytes;      /* default 262144: http_exchange_write returns 0 above it */
    size_t max_collected_bytes;   /* memory of all bodies being collected; beyond it that request
                                     is answered 503. When 0: 256 MiB, or more where the
                                     largest body needs more */
    size_t max_body_bytes;        /* of the largest; 0: of no matter */
};

struct http_server_callbacks {
    /* The head is complete. Call one of http_exchange_collect_body and http_exchange_stream_body
     * if the body matters (otherwise it is read and dropped within limits), and answer now or
     * later. */
    void (*on_request)(void *ctx, struct http_exchange *exchange);
    /* The request cannot be served: answer with http_exchange_respond and a body (JSON) for this
     * error. The exchange may have no method, path or header ("", NULL); the connection closes
     * after it. Without an answer here the bare status is sent. */
    void (*on_refused)(void *ctx, const struct error *err, struct http_exchange *exchange);
};

struct http_header {
    const char *name;
    const char *value;
};

/* ret_server listens nowhere yet. */
int http_server_new(struct loop *loop,
                    const struct http_server_limits *limits,
                    const struct http_server_callbacks *callbacks,
                    void *ctx,
                    struct http_server **ret_server,
                    struct error *err) _must_check_;
/* ADDRESS:PORT or [V6]:PORT; a taken port is an error that names it. */
int http_server_listen_tcp(struct http_server *server,
                           const char *address,
                           const char *tls_certificate,
                           const char *tls_key,
                           struct error *err) _must_check_; /* certificate and key NULL: plain */
/* The same on what listen_tcp gave. Takes fd, also when it fails. */
int http_server_listen_fd(struct http_server *server,
                          int fd,
                          const char *tls_certificate,
                          const char *tls_key,
                          struct error *err) _must_check_;
/* A unix socket; a stale one is replaced, one that answers is -EADDRINUSE. group -1: unchanged. */
int http_server_listen_unix(struct http_server *server,
                            const char *path,
                            mode_t mode,
                            gid_t group,
                            struct error *err) _must_check_;
/* The port bound by the first TCP listener (for port 0). */
int http_server_port(const struct http_server *server);
/* Stops accepting: idle connections close, open exchanges go on and close theirs. */
void http_server_stop_accepting(struct http_server *server);
/* Number of open connections. */
unsigned int http_server_connections(const struct http_server *server);
/* Closes everything (each exchange gets its on_close). Not from inside a callback of this server.
 */
void http_server_free(struct http_server *server);

/* ---- the request ---- */
const char *http_exchange_method(const struct http_exchange *exchange); /* "GET" */
/* Decoded? No: the raw path without the query, beginning with '/'. */
const char *http_exchange_path(const struct http_exchange *exchange);
const char *http_exchange_query(const struct http_exchange *exchange); /* without '?', "" if none */
/* First header with this name (any case), or NULL. */
const char *http_exchange_header(const struct http_exchange *exchange, const char *name);
/* Number of headers with this name. */
unsigned int http_exchange_header_count(const struct http_exchange *exchange, const char *name);
/* The header at this place, in the order they came; false past the last one. */
bool http_exchange_header_at(const struct http_exchange *exchange,
                             unsigned int index,
                             struct http_header *ret_header);
/* The client's address as text ("127.0.0.1", "::1"), "unix:UID" with its user on a unix socket. */
const char *http_exchange_peer(const struct http_exchange *exchange);
/* Memory that lives as long as the exchange; NULL on failure. */
void *http_exchange_alloc(struct http_exchange *exchange, size_t size);
/* Content-Length, -1 when chunked, 0 when there is no body. */
int64_t http_exchange_content_length(const struct http_exchange *exchange);

/* Before it is collected: whose it is, by a name of the caller's. The bodies of one payer take a
 * quarter of max_collected_bytes together, so that no one client of many holds up the others. */
void http_exchange_set_payer(struct http_exchange *exchange, const void *payer);
/* Collects the body, at most max bytes, then calls fn once: with err NULL and the body, or with
 * the error (payload_too_large, service_unavailable beyond max_collected_bytes, a broken body) to
 * answer. The body is valid during the call only. Not called when the client goes away. */
typedef void (*http_body_fn)(void *arg,
                             struct http_exchange *exchange,
                             struct span body,
                             const struct error *err);
void http_exchange_collect_body(struct http_exchange *exchange,
                                size_t max,
                                http_body_fn fn,
                                void *arg);
/* Streams the body: fn gets pieces, at last one with last=true (maybe empty). Reading pauses while
 * http_exchange_pause_body is in force. */
typedef void (*http_piece_fn)(void *arg,
                              struct http_exchange *exchange,
                              struct span piece,
                              bool last,
                              const struct error *err);
void http_exchange_stream_body(struct http_exchange *exchange, http_piece_fn fn, void *arg);
void http_exchange_pause_body(struct http_exchange *exchange, bool paused);

/* Called once when the exchange ends: answered in full, or the client went away (`complete`
 * false). */
typedef void (*http_close_fn)(void *arg, struct http_exchange *exchange, bool complete);
void http_exchange_on_close(struct http_exchange *exchange, http_close_fn fn, void *arg);

/* ---- the answer ---- */
/* A whole answer. Content-Length and Connection are the server's, and so is Date unless it is
 * among the headers. headers may be NULL. */
void http_exchange_respond(struct http_exchange *exchange,
                           int status,
                           const struct http_header *headers,
                           size_t header_count,
                           struct span body);
/* Begins a streamed answer; content_length -1 means chunked (HTTP/1.0: until close). */
void http_exchange_start(struct http_exchange *exchange,
                         int status,
                         const struct http_header *headers,
                         size_t header_count,
                         int64_t content_length);
/* Queues bytes. Returns 1 when more may come at once, 0 when the caller should wait for on_drain
 * (the bytes were taken all the same). */
int http_exchange_write(struct http_exchange *exchange, struct span bytes);
/* Queues `count` bytes of a file from `offset` without a copy; the descriptor is duplicated.
 * Returns 0, and on_drain follows once there is room for the next piece, at the next turn at the
 * earliest; or -errno with nothing queued. A file that turns out shorter breaks the connection. */
int http_exchange_write_file(struct http_exchange *exchange, int fd, int64_t offset, int64_t count)
    _must_check_;
/* fn is called each time the queue has emptied to half after a write that returned 0. */
void http_exchange_on_drain(struct http_exchange *exchange, void (*fn)(void *arg), void *arg);
/* Ends a streamed answer properly. */
void http_exchange_end(struct http_exchange *exchange);
/* Breaks the connection: the client sees a cut stream, never a proper end. */
void http_exchange_abort(struct http_exchange *exchange);
/* Whether the answer has been begun. */
bool http_exchange_is_started(const struct http_exchange *exchange);
/* Whether the request asks for an upgrade to `protocol` (any case). One with a body, or of
 * HTTP/1.0, does not: it is a plain request. */
bool http_exchange_wants_upgrade(const struct http_exchange *exchange, const char *protocol);
/* Answers 101 with these headers (Upgrade and Connection are the server's) and takes the connection
 * out of HTTP: the exchange ends (its on_close comes, complete), and the stream, born paused,
 * begins with the bytes that the client sent behind its head. The connection still counts among the
 * server's, and http_server_free closes it. NULL without memory, or when the request does not ask
 * for an upgrade; nothing was answered then. */
struct byte_stream *http_exchange_upgrade(struct http_exchange *exchange,
                                          const char *protocol,
                                          const struct http_header *headers,
                                          size_t header_count);
