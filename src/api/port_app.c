#include "api/port_app.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmocka.h>

#define WAIT_SECONDS    30
#define PIECE           65536
#define CONNECTIONS_MAX 256

struct port_app {
    int listener;
    unsigned int port;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    enum port_app_mode mode;
    struct buf answer;
    uint64_t flood;
    struct buf last;
    bool complete; /* `last` is a whole request that nobody has fetched */
    unsigned int connections;
    unsigned int running;
    int fds[CONNECTIONS_MAX]; /* -1: none */
};

struct visit {
    struct port_app *app;
    int slot;
    int fd;
    enum port_app_mode mode;
    uint64_t flood;
    struct buf answer;
    struct buf in; /* head, and of the body what came */
    size_t head;   /* its length */
};

/* ---- reading and writing ---- */

static bool send_all(int fd, struct span bytes)
{
    while (bytes.n > 0) {
        ssize_t n = send(fd, bytes.p, bytes.n, MSG_NOSIGNAL);

        if (n <= 0) {
            return false;
        }
        bytes = span_skip(bytes, (size_t)n);
    }
    return true;
}

static bool read_more(struct visit *v)
{
    uint8_t *to = buf_reserve(&v->in, PIECE);
    ssize_t n = to == NULL ? -1 : read(v->fd, to, PIECE);

    if (n <= 0) {
        return false;
    }
    buf_commit(&v->in, (size_t)n);
    return true;
}

static size_t find(struct span in, const char *what)
{
    size_t n = strlen(what);

    for (size_t i = 0; i + n <= in.n; i++) {
        if (memcmp(&in.p[i], what, n) == 0) {
            return i;
        }
    }
    return in.n;
}

static bool read_head(struct visit *v)
{
    while (find(buf_span(&v->in), "\r\n\r\n") == v->in.n) {
        if (!read_more(v)) {
            return false;
        }
    }
    v->head = find(buf_span(&v->in), "\r\n\r\n") + 4;
    return true;
}

/* The number after "Content-Length: ", or -1 for a chunked body, 0 for none. */
static int64_t body_length(const struct visit *v)
{
    struct span head = span_head(buf_span(&v->in), v->head);
    struct span at = span_skip(head, find(head, "\r\nContent-Length: ") + 18);
    uint64_t value = 0;

    if (find(head, "\r\nTransfer-Encoding: chunked") < head.n) {
        return -1;
    }
    (void)span_parse_u64(span_head(at, span_find(at, 0, '\r')), INT64_MAX, &value);
    return (int64_t)value;
}

static bool read_body(struct visit *v)
{
    int64_t length = body_length(v);

    if (length < 0) {
        while (v->in.n < 5 || memcmp(&v->in.p[v->in.n - 5], "0\r\n\r\n", 5) != 0) {
            if (!read_more(v)) {
                return false;
            }
        }
        return true;
    }
    while (v->in.n < v->head + (size_t)length) {
        if (!read_more(v)) {
            return false;
        }
    }
    return true;
}

static void publish(struct visit *v)
{
    struct port_app *app = v->app;

    (void)pthread_mutex_lock(&app->lock);
    buf_clear(&app->last);
    buf_put(&app->last, buf_span(&v->in));
    app->complete = true;
    (void)pthread_cond_broadcast(&app->changed);
    (void)pthread_mutex_unlock(&app->lock);
}

/* ---- the modes ---- */

static void echo(struct visit *v)
{
    (void)send_all(v->fd, span_skip(buf_span(&v->in), v->head));
    buf_clear(&v->in);
    while (read_more(v) && send_all(v->fd, buf_span(&v->in))) {
        buf_clear(&v->in);
    }
}

static void flood(struct visit *v)
{
    uint8_t piece[PIECE];
    uint64_t left = v->flood;

    memset(piece, 'f', sizeof(piece));
    while (left > 0) {
        size_t n = left < sizeof(piece) ? (size_t)left : sizeof(piece);

        if (!send_all(v->fd, span_make(piece, n))) {
            return;
        }
        left -= n;
    }
}

/* Counts a body of known length without keeping it. */
static void sink(struct visit *v)
{
    int64_t length = body_length(v);
    uint64_t count = v->in.n - v->head;
    uint64_t sum = 0;
    _cleanup_buf_ struct buf answer = buf_make(0);
    char size[32];

    for (size_t i = v->head; i < v->in.n; i++) {
        sum += v->in.p[i];
    }
    while (count < (uint64_t)length) {
        buf_clear(&v->in);
        if (!read_more(v)) {
            return;
        }
        count += v->in.n;
        for (size_t i = 0; i < v->in.n; i++) {
            sum += v->in.p[i];
        }
    }
    (void)snprintf(size, sizeof(size), "%llu %llu", (unsigned long long)count,
                   (unsigned long long)sum);
    buf_printf(&answer, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(size), size);
    (void)send_all(v->fd, buf_span(&answer));
}

static void serve_request(struct visit *v)
{
    if (!read_head(v)) {
        return;
    }
    if (v->mode == PORT_APP_SINK) {
        sink(v);
        return;
    }
    if (v->mode != PORT_APP_EARLY && v->mode != PORT_APP_ECHO && !read_body(v)) {
        return;
    }
    publish(v);
    if (!send_all(v->fd, buf_span(&v->answer))) {
        return;
    }
    if (v->mode == PORT_APP_ECHO) {
        echo(v);
    } else if (v->mode == PORT_APP_FLOOD) {
        flood(v);
    } else if (v->mode == PORT_APP_HOLD) {
        while (read_more(v)) {
            buf_clear(&v->in);
        }
    }
}

/* So that unread bytes of the peer do not turn our end into a reset. */
static void close_gently(int fd)
{
    uint8_t piece[4096];

    (void)shutdown(fd, SHUT_WR);
    while (read(fd, piece, sizeof(piece)) > 0) {
    }
    (void)close(fd);
}

static void *visit_main(void *arg)
{
    struct visit *v = arg;
    struct port_app *app = v->app;

    if (v->mode == PORT_APP_PIPE) {
        echo(v);
    } else {
        serve_request(v);
    }
    close_gently(v->fd);
    (void)pthread_mutex_lock(&app->lock);
    app->fds[v->slot] = -1;
    app->running--;
    (void)pthread_cond_broadcast(&app->changed);
    (void)pthread_mutex_unlock(&app->lock);
    buf_done(&v->answer);
    buf_done(&v->in);
    free(v);
    return NULL;
}

static void begin_visit(struct port_app *app, int fd)
{
    struct visit *v = calloc(1, sizeof(*v));
    pthread_t thread;
    int slot = 0;

    if (v == NULL) {
        abort();
    }
    (void)pthread_mutex_lock(&app->lock);
    while (app->fds[slot] >= 0) {
        slot++;
    }
    app->fds[slot] = fd;
    app->connections++;
    app->running++;
    *v = (struct visit){.app = app,
                        .slot = slot,
                        .fd = fd,
                        .mode = app->mode,
                        .flood = app->flood,
                        .answer = buf_make(0),
                        .in = buf_make(0)};
    buf_put(&v->answer, buf_span(&app->answer));
    (void)pthread_mutex_unlock(&app->lock);
    if (pthread_create(&thread, NULL, visit_main, v) != 0 || pthread_detach(thread) != 0) {
        abort();
    }
}

static void *accept_main(void *arg)
{
    struct port_app *app = arg;
    int fd;

    while ((fd = accept4(app->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        begin_visit(app, fd);
    }
    return NULL;
}

/* ---- for the test ---- */

struct port_app *port_app_new(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct port_app *app = calloc(1, sizeof(*app));
    socklen_t n = sizeof(address);

    assert_non_null(app);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    app->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    app->answer = buf_make(0);
    app->last = buf_make(0);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        app->fds[i] = -1;
    }
    assert_int_equal(bind(app->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(app->listener, 64), 0);
    assert_int_equal(getsockname(app->listener, (struct sockaddr *)&address, &n), 0);
    app->port = ntohs(address.sin_port);
    assert_int_equal(pthread_mutex_init(&app->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&app->changed, NULL), 0);
    assert_int_equal(pthread_create(&app->thread, NULL, accept_main, app), 0);
    return app;
}

static struct timespec deadline(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_SECONDS;
    return t;
}

void port_app_free(struct port_app *app)
{
    struct timespec end = deadline();
    int r = 0;

    (void)shutdown(app->listener, SHUT_RDWR);
    (void)pthread_join(app->thread, NULL);
    (void)close(app->listener);
    (void)pthread_mutex_lock(&app->lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (app->fds[i] >= 0) {
            (void)shutdown(app->fds[i], SHUT_RDWR);
        }
    }
    while (app->running > 0 && r == 0) {
        r = pthread_cond_timedwait(&app->changed, &app->lock, &end);
    }
    (void)pthread_mutex_unlock(&app->lock);
    assert_int_equal(r, 0);
    (void)pthread_cond_destroy(&app->changed);
    (void)pthread_mutex_destroy(&app->lock);
    buf_done(&app->answer);
    buf_done(&app->last);
    free(app);
}

unsigned int port_app_port(const struct port_app *app)
{
    return app->port;
}

void port_app_set(struct port_app *app, enum port_app_mode mode, const char *answer)
{
    (void)pthread_mutex_lock(&app->lock);
    app->mode = mode;
    buf_clear(&app->answer);
    buf_put_str(&app->answer, answer);
    app->complete = false;
    (void)pthread_mutex_unlock(&app->lock);
}

void port_app_set_flood(struct port_app *app, uint64_t bytes)
{
    (void)pthread_mutex_lock(&app->lock);
    app->flood = bytes;
    (void)pthread_mutex_unlock(&app->lock);
}

void port_app_last(struct port_app *app, struct buf *out)
{
    struct timespec end = deadline();
    int r = 0;

    (void)pthread_mutex_lock(&app->lock);
    while (!app->complete && r == 0) {
        r = pthread_cond_timedwait(&app->changed, &app->lock, &end);
    }
    buf_clear(out);
    buf_put(out, buf_span(&app->last));
    app->complete = false;
    (void)pthread_mutex_unlock(&app->lock);
    assert_int_equal(r, 0);
}

void port_app_wait_idle(struct port_app *app)
{
    struct timespec end = deadline();
    int r = 0;

    (void)pthread_mutex_lock(&app->lock);
    while (app->running > 0 && r == 0) {
        r = pthread_cond_timedwait(&app->changed, &app->lock, &end);
    }
    (void)pthread_mutex_unlock(&app->lock);
    assert_int_equal(r, 0);
}

unsigned int port_app_connections(struct port_app *app)
{
    unsigned int n;

    (void)pthread_mutex_lock(&app->lock);
    n = app->connections;
    (void)pthread_mutex_unlock(&app->lock);
    return n;
}
