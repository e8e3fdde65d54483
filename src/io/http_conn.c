/* One connection of the HTTP server: reading, the order of requests, refusals, closing. The states
 * are explained in http_conn.h. */
#include "io/http_conn.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <sys/socket.h>

#include <event2/event.h>

#include "base/log.h"
#include "io/byte_stream_inner.h"
#include "io/loop.h"

static void on_readable(evutil_socket_t fd, short events, void *arg);
static void on_writable(evutil_socket_t fd, short events, void *arg);

static void conn_set_state(struct http_conn *conn, enum conn_state state)
{
    conn->state = state;
    switch (state) {
    case CONN_HANDSHAKE:
    case CONN_HEAD:
        server_set_deadline(conn, DEADLINE_HEADER);
        break;
    case CONN_IDLE:
        server_set_deadline(conn, conn->served ? DEADLINE_IDLE : DEADLINE_HEADER);
        break;
    case CONN_LINGER:
        server_set_deadline(conn, DEADLINE_LINGER);
        break;
    case CONN_EXCHANGE:
    case CONN_UPGRADED:
    case CONN_CLOSED:
        server_set_deadline(conn, DEADLINE_NONE);
        break;
    }
}

void conn_kill(struct http_conn *conn)
{
    conn_set_state(conn, CONN_CLOSED);
    conn_schedule(conn);
}

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted) {
        return;
    }
    *is_added = wanted;
    if (wanted) {
        (void)event_add(event, NULL);
    } else {
        (void)event_del(event);
    }
}

static bool conn_wants_read(const struct http_conn *conn)
{
    if (conn->state != CONN_EXCHANGE) {
        return conn->state != CONN_CLOSED && conn->state != CONN_UPGRADED;
    }
    if (conn->read_ahead && conn->in.n > 0) {
        return false; /* first what is here, in the coming turn */
    }
    /* Without need of the body we still read a little, to see the client go away. */
    return body_is_wanted(conn->exchange) ||
           (conn->exchange->body_done && conn->in.n < CONN_AHEAD_BYTES);
}

/* While the client owes us something, it has the idle time to make some progress. One whose input
 * we hold back owes nothing, but may be gone. */
static void conn_watch_progress(struct http_conn *conn)
{
    bool waits = conn->out.queued > 0 || body_is_wanted(conn->exchange);
    enum conn_deadline quiet = conn_wants_read(conn) ? DEADLINE_NONE : DEADLINE_PROBE;

    if (!waits) {
        if (conn->deadline != quiet) {
            server_set_deadline(conn, quiet);
        }
    } else if (conn->deadline != DEADLINE_IDLE || conn->made_progress) {
        server_set_deadline(conn, DEADLINE_IDLE);
    }
    conn->made_progress = false;
}

/* Makes events and deadline fit the state. */
static void conn_update(struct http_conn *conn)
{
    if (conn->state == CONN_CLOSED || conn->state == CONN_UPGRADED) {
        return;
    }
    if (conn->state == CONN_EXCHANGE) {
        conn_watch_progress(conn);
    }
    set_event(&conn->event_read, &conn->reads, conn_wants_read(conn));
    set_event(&conn->event_write, &conn->writes,
              (conn->out.queued > 0 && conn->write_blocked) || conn->transport.read_wants_write);
}

void conn_flush(struct http_conn *conn)
{
    uint64_t before = conn->out.queued;
    int r;

    if (before == 0 || conn->state == CONN_CLOSED || conn->state == CONN_LINGER) {
        return;
    }
    r = http_output_flush(&conn->out, &conn->transport);
    if (r < 0) {
        conn_kill(conn);
        return;
    }
    conn->write_blocked = r != HTTP_FLUSH_EMPTY;
    conn->made_progress = conn->made_progress || conn->out.queued < before;
}

/* ---- refusals ---- */

/* The answer of an application that gave none. */
static void refuse_plainly(struct http_exchange *exchange, const struct error *err)
{
    if (!http_exchange_is_started(exchange)) {
        http_exchange_respond(exchange, error_code_status(err->code), NULL, 0, span_make(NULL, 0));
    }
}

void conn_refuse(struct http_conn *conn, const struct error *err)
{
    struct http_exchange *exchange = conn->exchange;

    if (exchange == NULL) {
        exchange = exchange_new(conn);
        if (exchange == NULL) {
            conn_kill(conn);
            return;
        }
        conn->exchange = exchange;
    }
    exchange->is_bad = true;
    exchange->body_done = true;
    exchange->mode = BODY_DROP;
    conn->closes_after = true;
    conn_set_state(conn, CONN_EXCHANGE);
    conn->server->callbacks.on_refused(conn->server->ctx, err, exchange);
    refuse_plainly(exchange, err);
}

/* The numbers are those of this server, which the parser does not say. */
static int set_too_large(const struct http_conn *conn, const char *field, struct error *err)
{
    const struct http_server_limits *limits = &conn->server->limits;

    return conn->exchange->head.fault == HTTP1_FAULT_FIELD_COUNT
               ? error_set_code(err, ERROR_PAYLOAD_TOO_LARGE, field,
                                "there are more than %u headers, a limit without a setting",
                                limits->max_headers)
               : error_set_code(err, ERROR_PAYLOAD_TOO_LARGE, field,
                                "the request line and headers are larger than %zu bytes, a limit "
                                "without a setting",
                                limits->max_head_bytes);
}

static void refuse_head(struct http_conn *conn, struct span bytes, int r)
{
    const struct http1_head *head = &conn->exchange->head;
    struct span at_fault = http1_head_fault_field(head, bytes);
    char field[sizeof(((struct error *)NULL)->field)];
    struct error err;

    (void)snprintf(field, sizeof(field), "%.*s", (int)at_fault.n, (const char *)at_fault.p);
    if (r == -EMSGSIZE) {
        (void)set_too_large(conn, field, &err);
    } else {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, field, "%s",
                             http1_fault_text(head->fault));
    }
    conn_refuse(conn, &err);
}

/* ---- input ---- */

/* A complete head: hands the request to the application. */
static void begin_request(struct http_conn *conn, struct span head)
{
    struct http_exchange *exchange = conn->exchange;
    struct error err;

    if (exchange->head.target_form != HTTP1_TARGET_ORIGIN) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, http1_fault_field(HTTP1_FAULT_TARGET),
                             "the request target must be a path that begins with /");
        conn_refuse(conn, &err);
        return;
    }
    if (exchange_begin(exchange, head) < 0) {
        conn_kill(conn);
        return;
    }
    conn->served = true;
    conn->closes_after = !exchange->head.is_keep_alive || conn->server->is_stopped;
    conn_set_state(conn, CONN_EXCHANGE);
    conn->server->callbacks.on_request(conn->server->ctx, exchange);
    if (conn->state == CONN_EXCHANGE) {
        body_advance(exchange);
    }
}

void conn_set_upgraded(struct http_conn *conn)
{
    set_event(&conn->event_read, &conn->reads, false);
    set_event(&conn->event_write, &conn->writes, false);
    conn_set_state(conn, CONN_UPGRADED);
    conn_schedule(conn);
}

/* Returns the bytes used: all of the head's, or none. */
static size_t feed_head(struct http_conn *conn, struct span bytes)
{
    int r;

    if (conn->state == CONN_IDLE) {
        conn->exchange = exchange_new(conn);
        if (conn->exchange == NULL) {
            conn_kill(conn);
            return bytes.n;
        }
        conn_set_state(conn, CONN_HEAD);
    }
    r = http1_head_parse(&conn->exchange->head, bytes);
    if (r < 0) {
        refuse_head(conn, bytes, r);
        return bytes.n;
    }
    if (r > 0) {
        begin_request(conn, span_head(bytes, (size_t)r));
    }
    return (size_t)r;
}

/* Feeds bytes to whoever wants them now; returns how many were used. */
static size_t conn_feed(struct http_conn *conn, struct span bytes)
{
    size_t used = 0;

    while (used < bytes.n) {
        struct span rest = span_skip(bytes, used);
        size_t n = rest.n; /* bad, lingering or closed: dropped */

        if (conn->state == CONN_UPGRADED) {
            break; /* the rest is the stream's */
        }
        if (conn->state == CONN_IDLE || conn->state == CONN_HEAD) {
            n = feed_head(conn, rest);
        } else if (conn->state == CONN_EXCHANGE && !conn->exchange->is_bad) {
            n = body_feed(conn->exchange, rest);
        }
        if (n == 0) {
            break;
        }
        used += n;
    }
    return used;
}

/* Feeds what waits in the connection's own buffer. */
static void conn_feed_waiting(struct http_conn *conn)
{
    size_t used;

    if (conn->in.n == 0) {
        return;
    }
    used = conn_feed(conn, buf_span(&conn->in));
    buf_consume(&conn->in, used);
    if (conn->in.n == 0) {
        buf_done(&conn->in);
    }
}

static void conn_take(struct http_conn *conn, struct span bytes)
{
    if (conn->in.n == 0) {
        bytes = span_skip(bytes, conn_feed(conn, bytes));
        buf_put(&conn->in, bytes);
    } else {
        buf_put(&conn->in, bytes);
        conn_feed_waiting(conn);
    }
    if (buf_error(&conn->in) < 0) {
        conn_kill(conn);
    }
}

static void conn_at_end(struct http_conn *conn)
{
    /* An answer that is complete is still delivered to a client that only shut its own side; a
     * client that left while the application works is gone. */
    if (conn->state == CONN_EXCHANGE && conn->exchange->answer == ANSWER_ENDED) {
        conn->closes_after = true;
        conn->exchange->body_done = true;
        set_event(&conn->event_read, &conn->reads, false);
        if (conn->out.queued > 0) {
            return;
        }
    }
    conn_kill(conn);
}

static void conn_read(struct http_conn *conn)
{
    ssize_t n = http_transport_read(&conn->transport, conn->server->scratch, CONN_READ_BYTES);

    if (n == -EAGAIN) {
        return;
    }
    if (n < 0) {
        conn_kill(conn);
        return;
    }
    if (n == 0) {
        conn_at_end(conn);
        return;
    }
    conn->made_progress = true;
    if (conn->state == CONN_LINGER) {
        conn->lingered += (uint32_t)n;
        if (conn->lingered > CONN_LINGER_BYTES) {
            conn_kill(conn);
        }
        return;
    }
    conn_take(conn, span_make(conn->server->scratch, (size_t)n));
    if (conn->state == CONN_EXCHANGE && conn->exchange->answer == ANSWER_ENDED) {
        conn_schedule(conn);
    }
    if (http_transport_has_pending(&conn->transport)) {
        conn->read_ahead = true;
        conn_schedule(conn);
    }
}

static void conn_handshake(struct http_conn *conn)
{
    int r = http_transport_accept(&conn->transport);

    if (r < 0) {
        conn_kill(conn);
        return;
    }
    if (r == 1) {
        conn_set_state(conn, CONN_IDLE);
        conn->read_ahead = true;
        conn_schedule(conn);
    }
}

static void on_readable(evutil_socket_t fd, short events, void *arg)
{
    struct http_conn *conn = arg;

    (void)fd;
    (void)events;
    if (conn->state == CONN_HANDSHAKE) {
        conn_handshake(conn);
    } else if (conn->state != CONN_CLOSED) {
        conn_read(conn);
    }
    if (conn->transport.ssl != NULL) {
        conn_flush(conn); /* a TLS write may have waited for input */
    }
    conn_update(conn);
}

static void on_writable(evutil_socket_t fd, short events, void *arg)
{
    struct http_conn *conn = arg;

    (void)fd;
    (void)events;
    if (conn->transport.read_wants_write) {
        on_readable(fd, events, arg);
    }
    conn_flush(conn);
    conn_schedule(conn);
    conn_update(conn);
}

/* ---- turns ---- */

static void conn_hand_over(struct http_conn *conn)
{
    if (conn->stream != NULL) {
        byte_stream_begin(conn->stream, &conn->in);
        conn->stream = NULL;
    }
    conn_free(conn);
}

static void conn_end_service(struct http_conn *conn, bool lingers)
{
    if (!lingers) {
        conn_kill(conn);
        return;
    }
    (void)http_transport_shutdown(&conn->transport);
    buf_done(&conn->in);
    conn_set_state(conn, CONN_LINGER);
}

/* The answer is written; finishes the exchange as soon as its body is out of the way. */
static void conn_settle(struct http_conn *conn)
{
    struct http_exchange *exchange = conn->exchange;
    bool lingers;

    body_drop(exchange);
    if (!exchange->body_done && body_is_hopeless(exchange)) {
        conn->closes_after = true;
    }
    if (!exchange->body_done && !conn->closes_after) {
        return;
    }
    /* Unread input would turn a close into a reset, and that can overtake the answer. */
    lingers = !exchange->body_done || exchange->is_bad || conn->in.n > 0;
    conn->exchange = NULL;
    exchange_finish(exchange, true);
    if (conn->closes_after) {
        conn_end_service(conn, lingers);
        return;
    }
    conn_set_state(conn, CONN_IDLE);
    if (conn->in.n > 0) {
        conn->read_ahead = true;
        conn_schedule(conn);
    }
}

void conn_turn(struct http_conn *conn)
{
    if (conn->state == CONN_CLOSED) {
        conn_free(conn);
        return;
    }
    if (conn->state == CONN_UPGRADED) {
        conn_hand_over(conn);
        return;
    }
    if (conn->read_ahead) {
        conn->read_ahead = false;
        conn_feed_waiting(conn);
        if (conn->state == CONN_EXCHANGE) {
            body_advance(conn->exchange);
        }
        if (conn_wants_read(conn) && conn->transport.ssl != NULL) {
            conn_read(conn);
        }
    }
    if (!conn->write_blocked) {
        conn_flush(conn);
    }
    if (conn->state == CONN_EXCHANGE) {
        exchange_check_drain(conn->exchange);
    }
    if (conn->state == CONN_EXCHANGE && conn->exchange->answer == ANSWER_ENDED &&
        conn->out.queued == 0) {
        conn_settle(conn);
    }
    conn_update(conn);
}

void conn_expire(struct http_conn *conn, enum conn_deadline deadline)
{
    struct error err;

    if (deadline == DEADLINE_PROBE && !http_transport_is_left(&conn->transport)) {
        conn_update(conn); /* and looks again */
        return;
    }
    if (conn->state == CONN_HEAD) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "head",
                             "the request head did not arrive within %" PRId64 " ms",
                             conn->server->limits.header_timeout_ms);
        conn_refuse(conn, &err);
        conn_update(conn);
        return;
    }
    if (conn->state == CONN_EXCHANGE && deadline != DEADLINE_PROBE) {
        log_debug("client stalled", "peer=%s queued=%" PRIu64, LOG_STR(conn->peer),
                  conn->out.queued);
    }
    conn_kill(conn);
}

/* ---- life ---- */

static void refuse_surplus(struct http_conn *conn)
{
    struct error err;

    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL,
                         "all %u connections are in use; try again",
                         conn->server->limits.max_connections);
    conn_refuse(conn, &err);
}

void conn_open(
    struct http_server *server, int fd, struct ssl_ctx_st *tls, const char *peer, bool is_surplus)
{
    struct event_base *base = loop_event_base(server->loop);
    struct http_conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL || http_transport_init(&conn->transport, fd, tls) < 0) {
        free(conn);
        (void)close(fd);
        return;
    }
    conn->server = server;
    list_init(&conn->link);
    list_init(&conn->turn_link);
    list_init(&conn->deadline_link);
    http_output_init(&conn->out);
    conn->in = buf_make(0);
    (void)snprintf(conn->peer, sizeof(conn->peer), "%s", peer);
    list_append(&server->conns, &conn->link);
    server->conn_count++;
    if (event_assign(&conn->event_read, base, fd, EV_READ | EV_PERSIST, on_readable, conn) < 0 ||
        event_assign(&conn->event_write, base, fd, EV_WRITE | EV_PERSIST, on_writable, conn) < 0) {
        conn_kill(conn);
        return;
    }
    conn_set_state(conn, tls != NULL ? CONN_HANDSHAKE : CONN_IDLE);
    if (is_surplus) {
        refuse_surplus(conn);
    }
    conn_update(conn);
}

void conn_free(struct http_conn *conn)
{
    struct http_exchange *exchange = TAKE(conn->exchange);
    bool is_upgraded = conn->transport.fd < 0; /* counted with the stream */

    conn->state = CONN_CLOSED;
    set_event(&conn->event_read, &conn->reads, false);
    set_event(&conn->event_write, &conn->writes, false);
    if (exchange != NULL) {
        exchange_finish(exchange, exchange->answer == ANSWER_ENDED && !exchange->is_aborted &&
                                      conn->out.queued == 0);
    }
    if (conn->stream != NULL) { /* no memory for its first bytes */
        byte_stream_cut(conn->stream, ENOMEM);
    }
    list_remove(&conn->link);
    list_remove(&conn->turn_link);
    list_remove(&conn->deadline_link);
    if (!is_upgraded) {
        conn->server->conn_count--;
    }
    if (conn->resets) {
        http_transport_reset(&conn->transport);
    } else {
        http_transport_done(&conn->transport);
    }
    http_output_clear(&conn->out);
    buf_done(&conn->in);
    free(conn);
}
