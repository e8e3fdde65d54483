/* The server's own parts: listeners, deadlines, turns. Connections are in http_conn.c. */
#include "io/http_server.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <event2/event.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/byte_stream_inner.h"
#include "io/http_conn.h"
#include "io/listen.h"
#include "io/loop.h"

#define DEFAULT_HEAD_BYTES  65536U
#define DEFAULT_HEADERS     100U
#define DEFAULT_CONNECTIONS 1024U
#define DEFAULT_HEADER_MS   10000
#define DEFAULT_IDLE_MS     60000
#define DEFAULT_PROBE_MS    15000
#define DEFAULT_WRITE_HIGH  262144U
#define DEFAULT_COLLECTED   268435456U
#define ACCEPT_SHARE        64  /* connections accepted in one turn */
#define ACCEPT_PAUSE_MS     100 /* after descriptors ran out */

static void on_deadline_timer(void *arg);
static void on_accept_timer(void *arg);
static void on_turn(void *arg);

static void fill_limits(struct http_server_limits *limits)
{
    if (limits->max_head_bytes == 0) {
        limits->max_head_bytes = DEFAULT_HEAD_BYTES;
    }
    if (limits->max_headers == 0) {
        limits->max_headers = DEFAULT_HEADERS;
    }
    if (limits->max_connections == 0) {
        limits->max_connections = DEFAULT_CONNECTIONS;
    }
    if (limits->header_timeout_ms == 0) {
        limits->header_timeout_ms = DEFAULT_HEADER_MS;
    }
    if (limits->idle_timeout_ms == 0) {
        limits->idle_timeout_ms = DEFAULT_IDLE_MS;
    }
    if (limits->probe_ms == 0) {
        limits->probe_ms = DEFAULT_PROBE_MS;
    }
    if (limits->max_collected_bytes == 0) {
        limits->max_collected_bytes = DEFAULT_COLLECTED;
        if (limits->max_body_bytes > DEFAULT_COLLECTED / 2) {
            limits->max_collected_bytes = 2 * limits->max_body_bytes; /* a buffer of it */
        }
    }
    if (limits->write_high_bytes == 0) {
        limits->write_high_bytes = DEFAULT_WRITE_HIGH;
    }
}

int http_server_new(struct loop *loop,
                    const struct http_server_limits *limits,
                    const struct http_server_callbacks *callbacks,
                    void *ctx,
                    struct http_server **ret_server,
                    struct error *err)
{
    struct http_server *server = calloc(1, sizeof(*server));

    if (server == NULL) {
        return error_set(err, ENOMEM, "no memory for an HTTP server");
    }
    server->loop = loop;
    server->limits = *limits;
    fill_limits(&server->limits);
    server->callbacks = *callbacks;
    server->ctx = ctx;
    server->head = buf_make(0);
    list_init(&server->conns);
    list_init(&server->streams);
    list_init(&server->turns);
    for (size_t i = 0; i < DEADLINE_COUNT; i++) {
        list_init(&server->deadlines[i]);
    }
    server->scratch = malloc(CONN_READ_BYTES);
    server->token = calloc(1, sizeof(*server->token));
    server->deadline_timer = loop_timer_new(loop, on_deadline_timer, server);
    server->accept_timer = loop_timer_new(loop, on_accept_timer, server);
    if (server->scratch == NULL || server->token == NULL || server->deadline_timer == NULL ||
        server->accept_timer == NULL) {
        http_server_free(server);
        return error_set(err, ENOMEM, "no memory for an HTTP server");
    }
    server->token->server = server;
    *ret_server = server;
    return 0;
}

static void listener_close(struct http_listener *listener)
{
    struct stat st;

    if (listener->fd < 0) {
        return;
    }
    (void)event_del(&listener->event);
    /* The path may by now belong to a successor. */
    if (listener->unix_path != NULL && stat(listener->unix_path, &st) == 0 &&
        st.st_ino == listener->unix_inode) {
        (void)unlink(listener->unix_path);
    }
    free(TAKE(listener->unix_path));
    tls_context_free(TAKE(listener->tls));
    (void)close(TAKE_FD(listener->fd));
}

void http_server_stop_accepting(struct http_server *server)
{
    struct list *it;
    struct list *following;

    server->is_stopped = true;
    list_foreach(it, following, &server->conns)
    {
        struct http_conn *conn = list_entry(it, struct http_conn, link);

        conn->closes_after = true;
        if (conn->state == CONN_IDLE) {
            conn_kill(conn);
        }
    }
    loop_timer_stop(server->accept_timer);
    for (unsigned int i = 0; i < server->listener_count; i++) {
        listener_close(&server->listeners[i]);
    }
}

void http_server_free(struct http_server *server)
{
    struct list *it;
    struct list *following;

    if (server == NULL) {
        return;
    }
    server->is_freeing = true;
    if (server->accept_timer != NULL) {
        http_server_stop_accepting(server);
    }
    while (!list_is_empty(&server->streams)) { /* one may take another along */
        byte_stream_cut(list_entry(server->streams.next, struct byte_stream, owner_link),
                        ECANCELED);
    }
    list_foreach(it, following, &server->conns)
    {
        conn_free(list_entry(it, struct http_conn, link));
    }
    assert(server->collected_bytes == 0);
    loop_timer_free(server->deadline_timer);
    loop_timer_free(server->accept_timer);
    if (server->token != NULL && server->token->pending) {
        server->token->server = NULL; /* the pending call frees it */
    } else {
        free(server->token);
    }
    buf_done(&server->head);
    free(server->scratch);
    free(server);
}

unsigned int http_server_connections(const struct http_server *server)
{
    return server->conn_count;
}

/* ---- deadlines ---- */

static int64_t deadline_length_ms(const struct http_server *server, enum conn_deadline deadline)
{
    switch (deadline) {
    case DEADLINE_HEADER:
        return server->limits.header_timeout_ms;
    case DEADLINE_IDLE:
        return server->limits.idle_timeout_ms;
    case DEADLINE_PROBE:
        return server->limits.probe_ms;
    case DEADLINE_LINGER:
    case DEADLINE_NONE:
    case DEADLINE_COUNT:
        break;
    }
    return CONN_LINGER_MS;
}

static void server_arm(struct http_server *server, int64_t at_ms, int64_t now_ms)
{
    if (server->armed_ms == 0 || at_ms < server->armed_ms) {
        server->armed_ms = at_ms;
        loop_timer_start(server->deadline_timer, at_ms > now_ms ? at_ms - now_ms : 0);
    }
}

void server_set_deadline(struct http_conn *conn, enum conn_deadline deadline)
{
    struct http_server *server = conn->server;
    int64_t now_ms;

    list_remove(&conn->deadline_link);
    conn->deadline = deadline;
    if (deadline == DEADLINE_NONE) {
        return;
    }
    now_ms = clock_monotonic_ms();
    conn->deadline_ms = now_ms + deadline_length_ms(server, deadline);
    /* One length per list, so appending keeps it ordered. */
    list_append(&server->deadlines[deadline], &conn->deadline_link);
    server_arm(server, conn->deadline_ms, now_ms);
}

static void on_deadline_timer(void *arg)
{
    struct http_server *server = arg;
    int64_t now_ms = clock_monotonic_ms();

    server->armed_ms = 0;
    if (!server->token->pending && !list_is_empty(&server->turns)) {
        on_turn(server->token); /* a turn that could not be deferred */
    }
    for (size_t i = 0; i < DEADLINE_COUNT; i++) {
        while (!list_is_empty(&server->deadlines[i])) {
            struct http_conn *conn =
                list_entry(server->deadlines[i].next, struct http_conn, deadline_link);

            if (conn->deadline_ms > now_ms) {
                server_arm(server, conn->deadline_ms, now_ms);
                break;
            }
            server_set_deadline(conn, DEADLINE_NONE);
            conn_expire(conn, (enum conn_deadline)i);
        }
    }
}

/* ---- turns ---- */

static void on_turn(void *arg)
{
    struct turn_token *token = arg;
    struct http_server *server = token->server;
    struct list mine;

    token->pending = false;
    if (server == NULL) {
        free(token);
        return;
    }
    /* Connections scheduled from here on get the next turn. */
    list_init(&mine);
    list_append(&server->turns, &mine);
    while (server->turns.next != &mine) {
        struct http_conn *conn = list_entry(server->turns.next, struct http_conn, turn_link);

        list_remove(&conn->turn_link);
        conn_turn(conn);
    }
    list_remove(&mine);
}

void conn_schedule(struct http_conn *conn)
{
    struct http_server *server = conn->server;

    if (server->is_freeing) {
        return;
    }
    if (list_is_empty(&conn->turn_link)) {
        list_append(&server->turns, &conn->turn_link);
    }
    if (!server->token->pending) {
        server->token->pending = loop_defer(server->loop, on_turn, server->token) == 0;
        if (!server->token->pending) {
            /* No memory for the call: the deadline timer takes over. */
            loop_timer_start(server->deadline_timer, 0);
        }
    }
}

const char *server_date(struct http_server *server)
{
    int64_t second = clock_real_ms() / 1000;

    if (second != server->date_second) {
        time_t t = (time_t)second;
        struct tm tm;

        if (gmtime_r(&t, &tm) != NULL) {
            (void)strftime(server->date, sizeof(server->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        }
        server->date_second = second;
    }
    return server->date;
}

/* ---- listeners ---- */

static void on_accept_timer(void *arg)
{
    struct http_server *server = arg;

    for (unsigned int i = 0; i < server->listener_count; i++) {
        (void)event_add(&server->listeners[i].event, NULL);
    }
}

static void pause_accepting(struct http_server *server, int errnum)
{
    log_warning("cannot accept connections", "error=%s", LOG_STR(strerror(errnum)));
    for (unsigned int i = 0; i < server->listener_count; i++) {
        (void)event_del(&server->listeners[i].event);
    }
    loop_timer_start(server->accept_timer, ACCEPT_PAUSE_MS);
}

static void peer_text(const struct sockaddr_storage *address, char out[INET6_ADDRSTRLEN])
{
    const void *bytes = NULL;

    if (address->ss_family == AF_INET) {
        bytes = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    } else if (address->ss_family == AF_INET6) {
        bytes = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    }
    if (bytes == NULL || inet_ntop(address->ss_family, bytes, out, INET6_ADDRSTRLEN) == NULL) {
        (void)snprintf(out, INET6_ADDRSTRLEN, "unix");
    }
}

/* "unix:UID" of whoever connected. */
static void unix_peer_text(int fd, char out[INET6_ADDRSTRLEN])
{
    struct ucred peer;
    socklen_t length = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0) {
        (void)snprintf(out, INET6_ADDRSTRLEN, "unix:%u", peer.uid);
    }
}

/* Closes the kept connection that has been idle longest; false when all are in use. */
static bool evict_idle(struct http_server *server)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &server->deadlines[DEADLINE_IDLE])
    {
        struct http_conn *conn = list_entry(it, struct http_conn, deadline_link);

        if (conn->state == CONN_IDLE) {
            conn_kill(conn);
            return true;
        }
    }
    return false;
}

/* Streams may be quiet for hours: the kernel finds out within about two minutes when the peer's
 * machine is no longer there. */
static void notice_dead_peer(int fd)
{
    const int on = 1;
    const int idle_seconds = 60;
    const int interval_seconds = 15;
    const int probes = 4;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static void
take_connection(struct http_listener *listener, int fd, const struct sockaddr_storage *address)
{
    struct http_server *server = listener->server;
    bool is_surplus = server->conn_count >= server->limits.max_connections && !evict_idle(server);
    char peer[INET6_ADDRSTRLEN] = "unix";

    if (is_surplus && (listener->tls != NULL ||
                       server->conn_count >= server->limits.max_connections + CONN_REFUSED_EXTRA)) {
        (void)close(fd);
        return;
    }
    if (listener->unix_path == NULL) {
        const int on = 1;

        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        notice_dead_peer(fd);
        peer_text(address, peer);
    } else {
        unix_peer_text(fd, peer);
    }
    conn_open(server, fd, listener->tls, peer, is_surplus);
}

static void on_acceptable(evutil_socket_t fd, short events, void *arg)
{
    struct http_listener *listener = arg;

    (void)events;
    for (int i = 0; i < ACCEPT_SHARE; i++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof(address);
        int accepted =
            accept4(fd, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (accepted >= 0) {
            take_connection(listener, accepted, &address);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(listener->server, errno);
            return;
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

/* Takes fd, tls and unix_path. */
static int add_listener(
    struct http_server *server, int fd, struct ssl_ctx_st *tls, char *unix_path, struct error *err)
{
    struct http_listener *listener = &server->listeners[server->listener_count];

    *listener = (struct http_listener){
        .server = server,
        .fd = fd,
        .tls = tls,
        .unix_path = unix_path,
    };
    if (unix_path != NULL) {
        struct stat st = {0};

        (void)stat(unix_path, &st);
        listener->unix_inode = st.st_ino;
    }
    if (event_assign(&listener->event, loop_event_base(server->loop), fd, EV_READ | EV_PERSIST,
                     on_acceptable, listener) < 0 ||
        event_add(&listener->event, NULL) < 0) {
        listener_close(listener);
        return error_set(err, ENOMEM, "cannot watch a listening socket");
    }
    server->listener_count++;
    return 0;
}

static int check_listener_room(const struct http_server *server, struct error *err)
{
    if (server->listener_count == HTTP_MAX_LISTENERS || server->is_stopped) {
        return error_set(err, EINVAL, "an HTTP server listens on at most %u addresses",
                         HTTP_MAX_LISTENERS);
    }
    return 0;
}

int http_server_listen_fd(struct http_server *server,
                          int fd,
                          const char *tls_certificate,
                          const char *tls_key,
                          struct error *err)
{
    _cleanup_close_ int owned = fd;
    struct ssl_ctx_st *tls = NULL;
    int r = check_listener_room(server, err);

    if (r == 0 && tls_certificate != NULL && tls_key != NULL) {
        r = tls_context_new(tls_certificate, tls_key, &tls, err);
    }
    return r < 0 ? r : add_listener(server, TAKE_FD(owned), tls, NULL, err);
}

int http_server_listen_tcp(struct http_server *server,
                           const char *address,
                           const char *tls_certificate,
                           const char *tls_key,
                           struct error *err)
{
    int fd = listen_tcp(address, err);

    return fd < 0 ? fd : http_server_listen_fd(server, fd, tls_certificate, tls_key, err);
}

int http_server_listen_unix(
    struct http_server *server, const char *path, mode_t mode, gid_t group, struct error *err)
{
    _cleanup_free_ char *copy = NULL;
    int fd;
    int r = check_listener_room(server, err);

    if (r < 0) {
        return r;
    }
    copy = strdup(path);
    if (copy == NULL) {
        return error_set(err, ENOMEM, "no memory to listen on %.150s", path);
    }
    fd = listen_unix(path, mode, group, err);
    return fd < 0 ? fd : add_listener(server, fd, NULL, TAKE(copy), err);
}

static int bound_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t length = sizeof(address);

    memset(&address, 0, sizeof(address));
    if (getsockname(fd, &address.any, &length) < 0) {
        return -errno;
    }
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

int http_server_port(const struct http_server *server)
{
    for (unsigned int i = 0; i < server->listener_count; i++) {
        const struct http_listener *listener = &server->listeners[i];

        if (listener->fd >= 0 && listener->unix_path == NULL) {
            return bound_port(listener->fd);
        }
    }
    return -ENOENT;
}
