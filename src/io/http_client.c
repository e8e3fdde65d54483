/* The HTTP client's connections: pool, connecting, events, turns. Calls are in http_call.c. */
#include "io/http_client.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <sys/socket.h>

#include <event2/event.h>

#include "io/byte_stream_inner.h"
#include "io/http_call.h"
#include "io/loop.h"

static void on_readable(evutil_socket_t fd, short events, void *arg);
static void on_writable(evutil_socket_t fd, short events, void *arg);
static void on_turn(void *arg);

struct http_client *http_client_new(struct loop *loop, const char *unix_path, unsigned int max_idle)
{
    struct http_client *client = calloc(1, sizeof(*client));

    if (client == NULL) {
        return NULL;
    }
    client->loop = loop;
    client->max_idle = max_idle;
    list_init(&client->idle);
    list_init(&client->busy);
    list_init(&client->calls);
    list_init(&client->turns);
    client->address.sun_family = AF_UNIX;
    client->scratch = malloc(CALL_READ_BYTES);
    client->token = calloc(1, sizeof(*client->token));
    if (client->scratch == NULL || client->token == NULL ||
        span_copy_str(span_of_str(unix_path), client->address.sun_path,
                      sizeof(client->address.sun_path)) < 0) {
        free(client->scratch);
        free(client->token);
        free(client);
        return NULL;
    }
    client->token->client = client;
    return client;
}

/* ---- connections ---- */

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

static void link_free(struct client_link *conn)
{
    set_event(&conn->event_read, &conn->reads, false);
    set_event(&conn->event_write, &conn->writes, false);
    list_remove(&conn->link);
    http_transport_done(&conn->transport);
    http_output_clear(&conn->out);
    buf_done(&conn->in);
    free(conn);
}

/* A connected link for this call, or NULL with errno (EAGAIN: the backlog is full). */
static struct client_link *link_open(struct http_client *client)
{
    struct event_base *base = loop_event_base(client->loop);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct client_link *conn;
    int taken;

    if (fd < 0 ||
        connect(fd, (const struct sockaddr *)&client->address, sizeof(client->address)) < 0) {
        return NULL;
    }
    conn = calloc(1, sizeof(*conn));
    if (conn == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    taken = TAKE_FD(fd);
    if (http_transport_init(&conn->transport, taken, NULL) < 0) {
        errno = ENOMEM; /* not reached: a plain transport allocates nothing */
    }
    conn->client = client;
    list_init(&conn->link);
    http_output_init(&conn->out);
    conn->in = buf_make(0);
    (void)event_assign(&conn->event_read, base, taken, EV_READ | EV_PERSIST, on_readable, conn);
    (void)event_assign(&conn->event_write, base, taken, EV_WRITE | EV_PERSIST, on_writable, conn);
    return conn;
}

static struct client_link *link_take_idle(struct http_client *client)
{
    struct client_link *conn;

    if (list_is_empty(&client->idle)) {
        return NULL;
    }
    conn = list_entry(client->idle.next, struct client_link, link);
    list_remove(&conn->link);
    client->idle_count--;
    conn->is_reused = true;
    return conn;
}

/* Lets go of the call's connection, to the pool when it is clean. */
static void link_release(struct http_call *call, bool keep)
{
    struct client_link *conn = TAKE(call->conn);
    struct http_client *client = call->client;

    if (conn == NULL) {
        return;
    }
    conn->call = NULL;
    list_remove(&conn->link);
    if (!keep || client->max_idle == 0 || client->is_freeing) {
        link_free(conn);
        return;
    }
    if (client->idle_count >= client->max_idle) {
        struct client_link *oldest = list_entry(client->idle.prev, struct client_link, link);

        client->idle_count--;
        link_free(oldest);
    }
    /* At the front: the one used last is the least likely to have been closed by the server. */
    list_append(client->idle.next, &conn->link);
    client->idle_count++;
    set_event(&conn->event_read, &conn->reads, true); /* anything that comes now ends it */
    set_event(&conn->event_write, &conn->writes, false);
}

void client_link_silence(struct client_link *conn)
{
    set_event(&conn->event_read, &conn->reads, false);
    set_event(&conn->event_write, &conn->writes, false);
}

void client_link_update(struct client_link *conn)
{
    const struct http_call *call = conn->call;

    if (call == NULL) {
        return;
    }
    set_event(&conn->event_read, &conn->reads, !call->is_done && !call->is_paused);
    set_event(&conn->event_write, &conn->writes,
              conn->write_blocked && conn->out.queued > 0 && !call->is_done);
}

/* A server may answer and close before it has read all of a body: its answer is still to be had. */
static void link_write_failed(struct client_link *conn)
{
    conn->write_failed = true;
    conn->write_blocked = false;
    http_output_clear(&conn->out);
}

void client_link_send(struct client_link *conn, struct span bytes)
{
    int r = http_output_send(&conn->out, &conn->transport, bytes, span_make(NULL, 0));

    if (r < 0) {
        link_write_failed(conn);
    } else {
        conn->write_blocked = r != HTTP_FLUSH_EMPTY;
    }
    client_schedule(conn->call);
}

void client_link_flush(struct client_link *conn)
{
    int r;

    if (conn->out.queued == 0 || conn->write_failed) {
        return;
    }
    r = http_output_flush(&conn->out, &conn->transport);
    if (r < 0) {
        link_write_failed(conn);
    } else {
        conn->write_blocked = r != HTTP_FLUSH_EMPTY;
    }
    client_schedule(conn->call);
}

static void on_readable(evutil_socket_t fd, short events, void *arg)
{
    struct client_link *conn = arg;
    struct http_client *client = conn->client;
    struct http_call *call = conn->call;
    struct span bytes;
    ssize_t n;

    (void)fd;
    (void)events;
    if (call == NULL) { /* an idle one: closed, or talking out of turn */
        client->idle_count--;
        link_free(conn);
        return;
    }
    n = http_transport_read(&conn->transport, client->scratch, CALL_READ_BYTES);
    if (n == -EAGAIN) {
        return;
    }
    if (n <= 0) {
        call_at_end(call, n < 0 ? (int)-n : 0);
        client_link_update(conn);
        return;
    }
    call->got_bytes = true;
    bytes = span_make(client->scratch, (size_t)n);
    if (conn->in.n == 0) {
        bytes = span_skip(bytes, call_feed(call, bytes));
        buf_put(&conn->in, bytes);
    } else {
        buf_put(&conn->in, bytes);
        buf_consume(&conn->in, call_feed(call, buf_span(&conn->in)));
    }
    if (buf_error(&conn->in) < 0) {
        call_out_of_memory(call);
    }
    client_link_update(conn);
}

static void on_writable(evutil_socket_t fd, short events, void *arg)
{
    struct client_link *conn = arg;

    (void)fd;
    (void)events;
    if (conn->call != NULL) {
        client_link_flush(conn);
        client_link_update(conn);
    }
}

/* ---- starting ---- */

static void call_send(struct http_call *call, struct client_link *conn)
{
    call->conn = conn;
    conn->call = call;
    list_append(&call->client->busy, &conn->link);
    client_link_send(conn,
                     call->in_tunnel_request ? buf_span(&call->tunnel) : buf_span(&call->request));
    client_link_update(conn);
}

static void on_connect_timer(void *arg);

/* The server's backlog is full, which nothing signals: try again shortly. */
static void call_wait_to_connect(struct http_call *call)
{
    if (call->connect_timer == NULL) {
        call->connect_timer = loop_timer_new(call->client->loop, on_connect_timer, call);
    }
    if (call->connect_timer == NULL || call->connect_tries >= CALL_CONNECT_TRIES) {
        call_end_error(call, ERROR_SERVICE_UNAVAILABLE, EAGAIN, "it accepts no connections");
        return;
    }
    call->connect_tries++;
    loop_timer_start(call->connect_timer, CALL_CONNECT_WAIT_MS);
}

static void call_connect(struct http_call *call, bool allow_idle)
{
    struct client_link *conn = allow_idle ? link_take_idle(call->client) : NULL;

    if (conn == NULL) {
        conn = link_open(call->client);
    }
    if (conn != NULL) {
        call_send(call, conn);
    } else if (errno == EAGAIN) {
        call_wait_to_connect(call);
    } else {
        call_end_error(call, ERROR_SERVICE_UNAVAILABLE, errno, strerror(errno));
    }
}

static void on_connect_timer(void *arg)
{
    struct http_call *call = arg;

    if (call->conn == NULL && !call->is_done) {
        call_connect(call, !call->is_tunnelled);
    }
}

static void on_call_timeout(void *arg)
{
    struct http_call *call = arg;

    call_end_error(call, ERROR_DEADLINE_EXCEEDED, ETIMEDOUT, "it did not answer in time");
}

struct http_call *http_client_start(struct http_client *client,
                                    const struct http_call_request *request,
                                    const struct http_call_callbacks *callbacks,
                                    void *arg,
                                    struct error *err)
{
    struct http_call *call = calloc(1, sizeof(*call));
    int r;

    if (call == NULL) {
        (void)error_set(err, ENOMEM, "no memory for a request");
        return NULL;
    }
    call->client = client;
    call->callbacks = *callbacks;
    call->arg = arg;
    list_init(&call->link);
    list_init(&call->turn_link);
    r = call_build(call, request);
    if (r == 0 && request->timeout_ms > 0) {
        call->timer = loop_timer_new(client->loop, on_call_timeout, call);
        r = call->timer == NULL ? -ENOMEM : 0;
    }
    if (r < 0) {
        call_free(call);
        (void)error_set(err, -r, "cannot build the request %.40s %.100s: %s", request->method,
                        request->target, strerror(-r));
        return NULL;
    }
    list_append(&client->calls, &call->link);
    if (call->timer != NULL) {
        loop_timer_start(call->timer, request->timeout_ms);
    }
    call_connect(call, !call->is_tunnelled);
    return call;
}

/* ---- turns ---- */

void client_schedule(struct http_call *call)
{
    struct http_client *client = call->client;

    if (client->is_freeing) {
        return;
    }
    if (list_is_empty(&call->turn_link)) {
        list_append(&client->turns, &call->turn_link);
    }
    if (!client->token->pending) {
        client->token->pending = loop_defer(client->loop, on_turn, client->token) == 0;
    }
}

/* A kept connection may have been closed by the server before it saw the request. */
static bool call_may_retry(const struct http_call *call)
{
    return call->error.code == ERROR_SERVICE_UNAVAILABLE && call->conn != NULL &&
           call->conn->is_reused && !call->got_bytes && !call->was_retried && !call->has_streamed &&
           !call->is_cancelled;
}

/* The connection lives on as a stream; what was read beyond the head goes along. */
static void call_hand_over(struct http_call *call)
{
    if (call->stream != NULL) {
        byte_stream_begin(call->stream, &call->conn->in);
        call->stream = NULL;
    }
    link_release(call, false);
    call_free(call);
}

static void call_finish(struct http_call *call)
{
    if (call->is_taken) {
        call_hand_over(call);
        return;
    }
    if (call_may_retry(call)) {
        call->was_retried = true;
        call->is_done = false;
        call->error = (struct error){0};
        link_release(call, false);
        call_connect(call, false);
        return;
    }
    link_release(call, call->error.code == ERROR_NONE && call_leaves_connection_clean(call));
    if (!call->is_cancelled) {
        call->callbacks.on_done(call->arg, call,
                                call->error.code == ERROR_NONE ? NULL : &call->error);
    }
    call_free(call);
}

static void call_turn(struct http_call *call)
{
    struct client_link *conn = call->conn;

    if (call->wants_input && conn != NULL && !call->is_done) {
        call->wants_input = false;
        buf_consume(&conn->in, call_feed(call, buf_span(&conn->in)));
    }
    if (conn != NULL && !call->is_done) {
        if (!conn->write_blocked) {
            client_link_flush(conn);
        }
        call_check_drain(call);
        client_link_update(conn);
    }
    if (call->is_done) {
        call_finish(call);
    }
}

static void on_turn(void *arg)
{
    struct client_token *token = arg;
    struct http_client *client = token->client;
    struct list mine;

    token->pending = false;
    if (client == NULL) {
        free(token);
        return;
    }
    /* Calls scheduled from here on get the next turn. */
    list_init(&mine);
    list_append(&client->turns, &mine);
    while (client->turns.next != &mine) {
        struct http_call *call = list_entry(client->turns.next, struct http_call, turn_link);

        list_remove(&call->turn_link);
        call_turn(call);
    }
    list_remove(&mine);
}

void http_client_free(struct http_client *client)
{
    struct list *it;
    struct list *following;

    if (client == NULL) {
        return;
    }
    client->is_freeing = true;
    list_foreach(it, following, &client->calls)
    {
        struct http_call *call = list_entry(it, struct http_call, link);

        call_end_error(call, ERROR_SERVICE_UNAVAILABLE, ECANCELED, "the client is closing");
        call->was_retried = true;
        call_finish(call);
    }
    list_foreach(it, following, &client->idle)
    {
        link_free(list_entry(it, struct client_link, link));
    }
    if (client->token->pending) {
        client->token->client = NULL; /* the pending call frees it */
    } else {
        free(client->token);
    }
    free(client->scratch);
    free(client);
}
