#include "io/http_transport.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <sys/sendfile.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#define TLS_PIECE_BYTES 16384U /* one record */

int http_transport_init(struct http_transport *t, int fd, struct ssl_ctx_st *context)
{
    *t = (struct http_transport){.fd = fd};
    if (context == NULL) {
        return 0;
    }
    t->ssl = SSL_new(context);
    if (t->ssl == NULL || SSL_set_fd(t->ssl, fd) != 1) {
        SSL_free(t->ssl);
        t->ssl = NULL;
        ERR_clear_error();
        return -ENOMEM;
    }
    SSL_set_accept_state(t->ssl);
    return 0;
}

struct http_transport http_transport_take(struct http_transport *t)
{
    struct http_transport taken = *t;

    *t = (struct http_transport){.fd = -1};
    return taken;
}

void http_transport_done(struct http_transport *t)
{
    if (t->ssl != NULL) {
        if (SSL_is_init_finished(t->ssl)) {
            ERR_clear_error();
            (void)SSL_shutdown(t->ssl);
        }
        SSL_free(t->ssl);
        t->ssl = NULL;
    }
    if (t->fd >= 0) {
        (void)close(t->fd);
        t->fd = -1;
    }
}

void http_transport_reset(struct http_transport *t)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};

    if (t->ssl != NULL) {
        SSL_set_quiet_shutdown(t->ssl, 1);
    }
    (void)setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    http_transport_done(t);
}

/* The outcome of an SSL call that returned r <= 0. */
static int tls_error(struct http_transport *t, int r)
{
    int saved = errno;
    int error = SSL_get_error(t->ssl, r);

    ERR_clear_error();
    switch (error) {
    case SSL_ERROR_WANT_READ:
        return -EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        t->read_wants_write = true;
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        return saved > 0 ? -saved : -ECONNRESET;
    default:
        return -EPROTO;
    }
}

int http_transport_accept(struct http_transport *t)
{
    int r;

    if (t->ssl == NULL) {
        return 1;
    }
    t->read_wants_write = false;
    ERR_clear_error();
    errno = 0;
    r = SSL_do_handshake(t->ssl);
    if (r == 1) {
        return 1;
    }
    r = tls_error(t, r);
    if (r == -EAGAIN) {
        return 0;
    }
    return r < 0 ? r : -ECONNRESET;
}

ssize_t http_transport_read(struct http_transport *t, void *to, size_t n)
{
    ssize_t got;
    size_t got_tls = 0;

    if (t->ssl != NULL) {
        int r;

        t->read_wants_write = false;
        ERR_clear_error();
        errno = 0;
        r = SSL_read_ex(t->ssl, to, n, &got_tls);
        return r == 1 ? (ssize_t)got_tls : tls_error(t, r);
    }
    do {
        got = recv(t->fd, to, n, 0);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

bool http_transport_has_pending(const struct http_transport *t)
{
    return t->ssl != NULL && SSL_has_pending(t->ssl) == 1;
}

static ssize_t tls_write(struct http_transport *t, const void *p, size_t n)
{
    size_t written = 0;
    bool wanted = t->read_wants_write;
    int r;

    ERR_clear_error();
    errno = 0;
    r = SSL_write_ex(t->ssl, p, n < TLS_PIECE_BYTES ? n : TLS_PIECE_BYTES, &written);
    if (r == 1) {
        return (ssize_t)written;
    }
    r = tls_error(t, r);
    t->read_wants_write = wanted; /* a blocked write is known to our caller by -EAGAIN */
    return r == 0 ? -EPIPE : r;
}

ssize_t
http_transport_writev(struct http_transport *t, const struct iovec *iov, size_t count, bool more)
{
    struct msghdr message = {0};
    ssize_t n;

    if (t->ssl != NULL) {
        return tls_write(t, iov[0].iov_base, iov[0].iov_len);
    }
    message.msg_iov = (struct iovec *)(uintptr_t)iov;
    message.msg_iovlen = count;
    do {
        n = sendmsg(t->fd, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

ssize_t http_transport_send_file(struct http_transport *t, int file, off_t offset, size_t n)
{
    uint8_t piece[TLS_PIECE_BYTES];
    ssize_t got;

    if (t->ssl == NULL) {
        do {
            got = sendfile(t->fd, file, &offset, n);
        } while (got < 0 && errno == EINTR);
        return got < 0 ? -errno : got;
    }
    do {
        got = pread(file, piece, n < sizeof(piece) ? n : sizeof(piece), offset);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        return got < 0 ? -errno : 0;
    }
    return tls_write(t, piece, (size_t)got);
}

int http_transport_shutdown(struct http_transport *t)
{
    if (t->ssl != NULL) {
        int r;

        ERR_clear_error();
        r = SSL_shutdown(t->ssl);
        if (r < 0 && SSL_get_error(t->ssl, r) == SSL_ERROR_WANT_WRITE) {
            ERR_clear_error();
            return -EAGAIN;
        }
        ERR_clear_error();
    }
    (void)shutdown(t->fd, SHUT_WR);
    return 0;
}

bool http_transport_is_cut(const struct http_transport *t)
{
    struct pollfd fd = {.fd = t->fd};

    /* These two are reported without being asked for. */
    return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

bool http_transport_is_left(const struct http_transport *t)
{
    struct pollfd fd = {.fd = t->fd, .events = POLLRDHUP};

    return poll(&fd, 1, 0) > 0 && fd.revents != 0;
}

static int tls_failed(struct error *err, const char *what, const char *path)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = ERR_reason_error_string(code);

    if (eaccess(path, R_OK) < 0) { /* OpenSSL would say "system lib" */
        reason = errno == EACCES ? "the user of this program may not read it" : strerror(errno);
    }
    (void)error_set(err, EINVAL, "cannot use the TLS %s %.150s: %s", what, path,
                    reason != NULL ? reason : "unknown reason");
    ERR_clear_error();
    return -EINVAL;
}

/* Of the protocols that a client offers we speak one. */
static int select_protocol(SSL *ssl,
                           const unsigned char **out,
                           unsigned char *out_length,
                           const unsigned char *in,
                           unsigned int in_length,
                           void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen = NULL;

    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_length, ours, sizeof(ours) - 1, in, in_length) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_NOACK;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

int tls_context_new(const char *certificate,
                    const char *key,
                    struct ssl_ctx_st **ret_context,
                    struct error *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    int r = 0;

    if (context == NULL) {
        return error_set(err, ENOMEM, "cannot set up TLS");
    }
    (void)SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                           SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_alpn_select_cb(context, select_protocol, NULL);
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
        r = error_set(err, EINVAL, "this OpenSSL cannot require TLS 1.2");
    } else if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1) {
        r = tls_failed(err, "certificate", certificate);
    } else if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
               SSL_CTX_check_private_key(context) != 1) {
        r = tls_failed(err, "key", key);
    }
    if (r < 0) {
        SSL_CTX_free(context);
        return r;
    }
    *ret_context = context;
    return 0;
}

void tls_context_free(struct ssl_ctx_st *context)
{
    SSL_CTX_free(context);
}
