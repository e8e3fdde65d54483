/* A connection to the API that was upgraded from HTTP/1.1: bytes in both directions.
 *
 * Theory of operation. libcurl connects (names, proxies, TLS and its trust as for every call); the
 * request and its answer are sent and read here; after 101 the connection is the caller's. Nothing
 * blocks: the caller runs rest_poll with the tunnel's descriptor and calls tunnel_step, tunnel_read
 * and tunnel_write when something is ready. With TLS a record may hold more than was asked for, so
 * tunnel_read is to be called until it returns -EAGAIN before the descriptor is waited for. */
#pragma once

#include <sys/types.h>

#include "base/error.h"
#include "base/span.h"

struct rest;
struct tunnel;

#define TUNNEL_HEADER_SIZE 128

struct tunnel_request {
    const char *path;    /* path and query */
    const char *upgrade; /* "websocket", "space-tcp" */
    const char *fields;  /* further lines, each ended by CRLF; NULL for none */
};

/* Begins to connect. `path` and the rest are copied. */
int tunnel_new(struct rest *rest,
               const struct tunnel_request *request,
               struct tunnel **ret,
               struct error *err) _must_check_;
/* Closes it at once. NULL is fine. */
void tunnel_free(struct tunnel *t);
/* Goes on: 1 when it is open, 0 to be called again, negative with err as rest_result when it was
 * refused or cannot be reached. */
int tunnel_step(struct tunnel *t, struct error *err) _must_check_;
/* What to wait for until it is open: POLLIN or POLLOUT, 0 while libcurl connects (rest_poll does
 * it). */
short tunnel_wants(const struct tunnel *t);
/* -1 while libcurl connects. */
int tunnel_fd(const struct tunnel *t);
/* Bytes read (> 0), 0 at the end of the peer's direction, -EAGAIN, or another -errno. */
ssize_t tunnel_read(struct tunnel *t, void *to, size_t room) _must_check_;
/* Bytes taken (> 0), -EAGAIN, or another -errno. */
ssize_t tunnel_write(struct tunnel *t, struct span bytes) _must_check_;
/* Ends our direction; the peer's stays open. */
void tunnel_end(struct tunnel *t);
/* A field of the answer (of the one to come after 101), "" when there was none. */
void tunnel_header(const struct tunnel *t, const char *name, char ret[TUNNEL_HEADER_SIZE]);
