/* The bytes under an HTTP connection: a non-blocking socket, plain or under TLS. */
#pragma once

#include <stdint.h>

#include <sys/types.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/span.h"

struct ssl_st;
struct ssl_ctx_st;

struct http_transport {
    int fd;
    struct ssl_st *ssl;    /* NULL: plain */
    bool read_wants_write; /* TLS must write before it can read on */
};

/* Takes fd; context NULL for plain. 0 or -ENOMEM (fd stays the caller's). */
int http_transport_init(struct http_transport *t, int fd, struct ssl_ctx_st *context) _must_check_;
/* Moves it out; what is left in t is closed. */
struct http_transport http_transport_take(struct http_transport *t);
/* Says goodbye if TLS, and closes. */
void http_transport_done(struct http_transport *t);
/* Closes so that the peer sees a cut, never a proper end: TCP is reset, TLS says no goodbye. */
void http_transport_reset(struct http_transport *t);
/* One step of the server's handshake: 1 done (at once when plain), 0 wait for the socket
 * (`read_wants_write` tells for which side), or -errno. */
int http_transport_accept(struct http_transport *t) _must_check_;
/* Bytes read, 0 at the end of the stream, -EAGAIN, or another -errno. */
ssize_t http_transport_read(struct http_transport *t, void *to, size_t n) _must_check_;
/* Whether TLS holds bytes that the socket no longer signals. */
bool http_transport_has_pending(const struct http_transport *t);
/* Bytes written (maybe fewer than given), -EAGAIN, or another -errno. After -EAGAIN under TLS the
 * next call must begin with the same bytes. `more`: further bytes follow at once. */
ssize_t
http_transport_writev(struct http_transport *t, const struct iovec *iov, size_t count, bool more)
    _must_check_;
/* The same for at most n bytes of a file; 0 at the file's end. */
ssize_t http_transport_send_file(struct http_transport *t, int file, off_t offset, size_t n)
    _must_check_;
/* Ends our side; the peer can still be read. 0, or -EAGAIN: TLS could not yet say goodbye; call it
 * again when the socket takes bytes. */
int http_transport_shutdown(struct http_transport *t);
/* Whether the peer is gone in both directions. */
bool http_transport_is_cut(const struct http_transport *t);
/* Whether the peer has ended its direction, or is gone. */
bool http_transport_is_left(const struct http_transport *t);

/* A server's TLS context (1.2 at least) from PEM files. */
int tls_context_new(const char *certificate,
                    const char *key,
                    struct ssl_ctx_st **ret_context,
                    struct error *err) _must_check_;
void tls_context_free(struct ssl_ctx_st *context);
