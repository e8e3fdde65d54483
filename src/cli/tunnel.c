#include "cli/tunnel.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include <sys/socket.h>

#include <openssl/ssl.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/rest_private.h"
#include "wire/http1.h"

#define ANSWER_TIMEOUT_MS 60000 /* a sandbox may have to wake first */
#define HEAD_LIMIT        16384U
#define BODY_LIMIT        65536U
#define FIELD_LIMIT       64U
#define READ_STEP         16384U

enum tunnel_state {
    TUNNEL_CONNECTING, /* libcurl's work */
    TUNNEL_SENDING,    /* our request */
    TUNNEL_HEAD,       /* the answer's head */
    TUNNEL_BODY,       /* the body of a refusal */
    TUNNEL_OPEN
};

struct tunnel {
    struct rest *rest;
    struct rest_transfer transfer;
    enum tunnel_state state;
    curl_socket_t fd;
    int64_t deadline_ms;
    struct buf out; /* the request */
    struct buf in;  /* the answer's head, and what came behind it */
    struct http1_head head;
    struct http1_field fields[FIELD_LIMIT];
    size_t head_bytes; /* after which the stream begins */
    size_t taken;      /* of `in`, head included */
};

/* "host:port" of the API, for the Host field. */
static void put_host(struct buf *out, const char *url)
{
    const char *host = strstr(url, "://");
    struct span rest = span_of_str(host != NULL ? host + 3 : url);
    struct span authority = span_head(rest, span_find(rest, 0, '/'));
    size_t at = span_find(authority, 0, '@');

    buf_put(out, at < authority.n ? span_skip(authority, at + 1) : authority);
}

/* The path that an API behind a prefix has ("https://host/prefix"). */
static void put_prefix(struct buf *out, const char *url)
{
    const char *host = strstr(url, "://");
    const char *slash = host != NULL ? strchr(host + 3, '/') : NULL;

    buf_put_str(out, slash != NULL ? slash : "");
}

static int put_request(struct tunnel *t, const struct tunnel_request *q)
{
    struct buf *out = &t->out;

    buf_put_str(out, "GET ");
    put_prefix(out, t->rest->url);
    buf_printf(out, "%s HTTP/1.1\r\nHost: ", q->path);
    put_host(out, t->rest->url);
    buf_printf(out,
               "\r\nUser-Agent: space/" SPACE_VERSION "\r\nConnection: Upgrade\r\nUpgrade: %s\r\n",
               q->upgrade);
    if (t->rest->key[0] != '\0') {
        buf_printf(out, "Authorization: Bearer %s\r\n", t->rest->key);
    }
    buf_printf(out, "%s\r\n", q->fields != NULL ? q->fields : "");
    return buf_error(out);
}

static int start_connecting(struct tunnel *t)
{
    struct rest_transfer *transfer = &t->transfer;

    transfer->body = buf_make(BODY_LIMIT);
    transfer->easy = curl_easy_init();
    if (transfer->easy == NULL) {
        return -ENOMEM;
    }
    rest_set_connection(t->rest, transfer);
    (void)curl_easy_setopt(transfer->easy, CURLOPT_URL, t->rest->url);
    (void)curl_easy_setopt(transfer->easy, CURLOPT_CONNECT_ONLY, 1L);
    (void)curl_easy_setopt(transfer->easy, CURLOPT_HTTPPROXYTUNNEL, 1L);
    if (curl_multi_add_handle(t->rest->multi, transfer->easy) != CURLM_OK) {
        return -ENOMEM;
    }
    transfer->active = true;
    return 0;
}

int tunnel_new(struct rest *rest,
               const struct tunnel_request *request,
               struct tunnel **ret,
               struct error *err)
{
    struct tunnel *t = calloc(1, sizeof(*t));

    if (t == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    t->rest = rest;
    t->fd = CURL_SOCKET_BAD;
    t->out = buf_make(0);
    t->in = buf_make(0);
    t->deadline_ms = clock_monotonic_ms() + ANSWER_TIMEOUT_MS;
    http1_head_init(&t->head, HTTP1_RESPONSE, t->fields, FIELD_LIMIT, HEAD_LIMIT);
    if (put_request(t, request) < 0 || start_connecting(t) < 0) {
        tunnel_free(t);
        return error_set(err, ENOMEM, "cannot start a request");
    }
    *ret = t;
    return 0;
}

void tunnel_free(struct tunnel *t)
{
    if (t == NULL) {
        return;
    }
    explicit_bzero(t->out.p, t->out.n);
    buf_done(&t->out);
    buf_done(&t->in);
    rest_finish(t->rest, &t->transfer);
    free(t);
}

int tunnel_fd(const struct tunnel *t)
{
    return t->state == TUNNEL_CONNECTING ? -1 : t->fd;
}

short tunnel_wants(const struct tunnel *t)
{
    if (t->state == TUNNEL_CONNECTING) {
        return 0;
    }
    return t->state == TUNNEL_SENDING ? (short)POLLOUT : (short)POLLIN;
}

static int from_curl(CURLcode code)
{
    return code == CURLE_OK ? 0 : code == CURLE_AGAIN ? -EAGAIN : -ECONNRESET;
}

static ssize_t receive(struct tunnel *t, void *to, size_t room)
{
    size_t n = 0;
    int r = from_curl(curl_easy_recv(t->transfer.easy, to, room, &n));

    return r < 0 ? r : (ssize_t)n;
}

static ssize_t transmit(struct tunnel *t, struct span bytes)
{
    size_t n = 0;
    int r = from_curl(curl_easy_send(t->transfer.easy, bytes.p, bytes.n, &n));

    return r < 0 ? r : n == 0 ? -EAGAIN : (ssize_t)n;
}

static int broke(const struct tunnel *t, struct error *err)
{
    return error_set(err, ENOTCONN, "the connection to %.120s broke", t->rest->url);
}

static int step_connecting(struct tunnel *t, struct error *err)
{
    if (!t->transfer.done) {
        return 0;
    }
    if (t->transfer.result != CURLE_OK) {
        return rest_result(t->rest, &t->transfer, err);
    }
    if (curl_easy_getinfo(t->transfer.easy, CURLINFO_ACTIVESOCKET, &t->fd) != CURLE_OK ||
        t->fd == CURL_SOCKET_BAD) {
        return broke(t, err);
    }
    t->state = TUNNEL_SENDING;
    return 1;
}

static int step_sending(struct tunnel *t, struct error *err)
{
    while (t->out.n > 0) {
        ssize_t n = transmit(t, buf_span(&t->out));

        if (n == -EAGAIN) {
            return 0;
        }
        if (n < 0) {
            return broke(t, err);
        }
        buf_consume(&t->out, (size_t)n);
    }
    t->state = TUNNEL_HEAD;
    return 1;
}

/* 1 when bytes came, 0 at the end, -EAGAIN, or another -errno. */
static int read_more(struct tunnel *t, struct buf *to)
{
    uint8_t *room = buf_reserve(to, READ_STEP);
    ssize_t n = room != NULL ? receive(t, room, READ_STEP) : buf_error(to);

    if (n > 0) {
        buf_commit(to, (size_t)n);
    }
    return n > 0 ? 1 : (int)n;
}

/* The head is whole: an upgraded connection, or a refusal whose body is read on. */
static void take_head(struct tunnel *t)
{
    t->transfer.status = t->head.status;
    t->taken = t->head_bytes;
    if (t->head.status == 101) {
        t->state = TUNNEL_OPEN;
        return;
    }
    t->state = TUNNEL_BODY;
    buf_put(&t->transfer.body, span_skip(buf_span(&t->in), t->head_bytes));
}

static int step_head(struct tunnel *t, struct error *err)
{
    for (;;) {
        int used = http1_head_parse(&t->head, buf_span(&t->in));
        int r;

        if (used < 0) {
            return error_set(err, EBADMSG, "%.120s gave an answer that is not HTTP/1.1",
                             t->rest->url);
        }
        if (used > 0) {
            t->head_bytes = (size_t)used;
            take_head(t);
            return 1;
        }
        r = read_more(t, &t->in);
        if (r == -EAGAIN) {
            return 0;
        }
        if (r <= 0) {
            return broke(t, err);
        }
    }
}

/* The envelope of a refusal: until its length is there, or the connection ends. */
static int step_body(struct tunnel *t, struct error *err)
{
    for (;;) {
        int64_t length = t->head.content_length;
        int r;

        if (length >= 0 && t->transfer.body.n >= (size_t)length) {
            return rest_refuse(t->rest, &t->transfer, err);
        }
        r = read_more(t, &t->transfer.body);
        if (r == -EAGAIN) {
            return 0;
        }
        if (r <= 0) {
            return rest_refuse(t->rest, &t->transfer, err);
        }
    }
}

int tunnel_step(struct tunnel *t, struct error *err)
{
    int r = 1;

    while (r > 0 && t->state != TUNNEL_OPEN) {
        switch (t->state) {
        case TUNNEL_CONNECTING:
            r = step_connecting(t, err);
            break;
        case TUNNEL_SENDING:
            r = step_sending(t, err);
            break;
        case TUNNEL_HEAD:
            r = step_head(t, err);
            break;
        case TUNNEL_BODY:
            r = step_body(t, err);
            break;
        case TUNNEL_OPEN:
            break;
        }
    }
    if (r == 0 && clock_monotonic_ms() > t->deadline_ms) {
        return error_set(err, ENOTCONN, "%.120s does not answer", t->rest->url);
    }
    return r;
}

ssize_t tunnel_read(struct tunnel *t, void *to, size_t room)
{
    struct span early = span_skip(buf_span(&t->in), t->taken);

    if (early.n > 0) {
        early = span_head(early, room);
        memcpy(to, early.p, early.n);
        t->taken += early.n;
        return (ssize_t)early.n;
    }
    return receive(t, to, room);
}

ssize_t tunnel_write(struct tunnel *t, struct span bytes)
{
    return transmit(t, bytes);
}

void tunnel_end(struct tunnel *t)
{
    struct curl_tlssessioninfo *tls = NULL;

    if (curl_easy_getinfo(t->transfer.easy, CURLINFO_TLS_SSL_PTR, &tls) == CURLE_OK &&
        tls != NULL && tls->backend == CURLSSLBACKEND_OPENSSL && tls->internals != NULL) {
        (void)SSL_shutdown(tls->internals); /* a close_notify; the peer's direction stays */
        return;
    }
    (void)shutdown(t->fd, SHUT_WR);
}

void tunnel_header(const struct tunnel *t, const char *name, char ret[TUNNEL_HEADER_SIZE])
{
    struct span bytes = buf_span(&t->in);

    ret[0] = '\0';
    for (unsigned int i = 0; i < t->head.field_count; i++) {
        if (span_equals_nocase(http1_slice_span(bytes, t->fields[i].name), name)) {
            (void)span_copy_str(http1_slice_span(bytes, t->fields[i].value), ret,
                                TUNNEL_HEADER_SIZE);
        }
    }
}
