/* GET …/ports/{port}/tcp: a connection to a port of the guest, as a stream of bytes.
 *
 * The request is answered with 101 only when the guest's agent has a connection; then the client's
 * stream and the agent's `connect` service are joined. Each direction ends on its own, neither is
 * read faster than the other side takes it (what is held here is at most the two windows of the
 * agent protocol and one piece), and where the guest resets, the client's stream is cut. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/id.h"
#include "io/byte_stream.h"
#include "node/data.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/service.h"
#include "node/services.h"

#define PROTOCOL     "space-tcp"
#define CONNECT_MS   15000
#define LINGER_MS    30000    /* for a client that does not notice that the guest has closed */
#define LINGER_BYTES 1048576U /* that it may send meanwhile */
#define HEADER_COUNT 1U
#define PORT_SIZE    8

struct tunnel {
    struct data *data;
    struct services *services; /* with the service */
    struct service *service;   /* NULL once it is over */
    struct byte_stream *stream;
    struct call *call;  /* until the stream */
    struct buf pending; /* of the client, what the guest has no room for yet */
    size_t owed;        /* of the guest, not taken by the client yet */
    size_t discarded;
    char sandbox_id[ID_SIZE];
    bool is_paused;
    bool client_ended;
    bool end_sent;
};

static void drop_service(struct tunnel *t)
{
    if (t->services != NULL) {
        t->services->connection_count--;
        t->services = NULL;
    }
    service_close(TAKE(t->service));
}

static void tunnel_free(struct tunnel *t)
{
    drop_service(t);
    buf_done(&t->pending);
    free(t);
}

/* ---- the client's stream ---- */

/* Sends what there is room for; returns how much is done with. */
static size_t send_some(struct tunnel *t, struct span bytes)
{
    struct span head = span_head(bytes, service_room(t->service, bytes.n));
    bool end = t->client_ended && head.n == bytes.n;

    if (service_input_is_closed(t->service)) {
        return bytes.n; /* nobody reads it */
    }
    if (t->end_sent || (head.n == 0 && !end)) {
        return 0;
    }
    if (!service_send(t->service, head, end)) {
        return 0;
    }
    t->end_sent = end;
    return head.n;
}

static void on_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct tunnel *t = arg;
    size_t sent = 0;

    if (t->service == NULL) {
        t->discarded += bytes.n;
        if (t->discarded > LINGER_BYTES) {
            byte_stream_abort(stream);
        }
        return;
    }
    if (t->pending.n == 0) {
        sent = send_some(t, bytes);
    }
    if (sent < bytes.n) {
        buf_put(&t->pending, span_skip(bytes, sent));
        t->is_paused = true;
        byte_stream_pause(stream, true);
    }
    if (buf_error(&t->pending) != 0) {
        byte_stream_abort(stream);
    }
}

static void on_end(void *arg, struct byte_stream *stream)
{
    struct tunnel *t = arg;

    (void)stream;
    t->client_ended = true;
    if (t->service != NULL && t->pending.n == 0) {
        (void)send_some(t, span_make(NULL, 0));
    }
}

static void on_drain(void *arg, struct byte_stream *stream)
{
    struct tunnel *t = arg;
    size_t owed = t->owed;

    (void)stream;
    t->owed = 0;
    if (t->service != NULL) {
        service_take(t->service, owed);
    }
}

static void on_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct tunnel *t = arg;

    (void)stream;
    (void)err;
    data_touch(t->data, t->sandbox_id); /* an open connection is activity */
    tunnel_free(t);
}

/* ---- the guest's connection ---- */

static const char *on_body(void *arg, const struct service_body *body)
{
    static const struct byte_stream_callbacks callbacks = {
        .on_data = on_data,
        .on_end = on_end,
        .on_drain = on_drain,
        .on_closed = on_closed,
    };
    struct tunnel *t = arg;
    struct call *call = TAKE(t->call);
    const struct http_header headers[HEADER_COUNT] = {{"X-Request-Id", call->request_id}};

    if (body->offset != 0 || body->length != SERVICE_LENGTH_UNKNOWN) {
        t->call = call;
        return "a connection of a known length";
    }
    call->on_close = NULL; /* the tunnel is not the call's any more */
    call->answered = true;
    t->stream = http_exchange_upgrade(call->exchange, PROTOCOL, headers, HEADER_COUNT);
    if (t->stream == NULL) {
        http_exchange_abort(call->exchange);
        tunnel_free(t);
        return NULL;
    }
    service_set_idle(t->service, 0);
    byte_stream_set_callbacks(t->stream, &callbacks, t);
    byte_stream_pause(t->stream, false);
    return NULL;
}

static void on_bytes(void *arg, struct span bytes)
{
    struct tunnel *t = arg;

    if (byte_stream_write(t->stream, bytes) == 0) {
        t->owed += bytes.n;
        return;
    }
    service_take(t->service, t->owed + bytes.n);
    t->owed = 0;
}

static void on_bytes_end(void *arg)
{
    struct tunnel *t = arg;

    byte_stream_end(t->stream);
}

static void on_room(void *arg)
{
    struct tunnel *t = arg;

    if (t->stream == NULL) {
        return;
    }
    if (t->pending.n > 0) {
        buf_consume(&t->pending, send_some(t, buf_span(&t->pending)));
    }
    if (t->pending.n == 0 && t->client_ended) {
        (void)send_some(t, span_make(NULL, 0));
    }
    if (t->pending.n == 0 && t->is_paused) {
        t->is_paused = false;
        byte_stream_pause(t->stream, false);
    }
}

/* It never came to a stream. */
static void fail(struct tunnel *t, const struct service_end *end)
{
    struct call *call = t->call;
    struct error err = {0};

    if (end->kind == SERVICE_END_ERROR && end->errnum == ECONNREFUSED) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL,
                             "nothing listens on port %.7s of the sandbox", call->port);
    } else if (end->kind == SERVICE_END_ERROR) {
        (void)error_set_errno(&err, ERROR_BAD_GATEWAY, NULL, end->errnum,
                              "port %.7s of the sandbox cannot be reached: %s", call->port,
                              strerrordesc_np(end->errnum) != NULL ? strerrordesc_np(end->errnum)
                                                                   : "?");
    } else {
        file_error_of_end(&err, end, sandbox_find(call->data->node, call->sandbox_id), "root");
    }
    call_fail(call, &err);
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct tunnel *t = arg;

    t->service = NULL;
    drop_service(t);
    if (t->stream == NULL) {
        fail(t, end); /* freed when the call is closed */
    } else if (end->kind == SERVICE_END_DONE) {
        byte_stream_end(t->stream);
        byte_stream_set_idle(t->stream, LINGER_MS, true);
        if (t->is_paused) {
            byte_stream_pause(t->stream, false);
        }
    } else {
        byte_stream_abort(t->stream);
    }
}

/* ---- the request ---- */

static void on_close(struct call *call, bool complete)
{
    (void)complete;
    tunnel_free(call->state);
}

static int open_service(struct tunnel *t, struct services *services, struct error *err)
{
    static const struct service_callbacks callbacks = {
        .on_body = on_body,
        .on_bytes = on_bytes,
        .on_bytes_end = on_bytes_end,
        .on_room = on_room,
        .on_ended = on_ended,
    };
    uint64_t max = services->data->node->settings.node_max_connections;
    struct service_args args;
    const struct service_spec spec = {
        .args = &args,
        .user = "",
        .has_input = true,
        .is_activity = true,
        .idle_ms = CONNECT_MS,
    };

    if (services->connection_count >= max) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "node.max_connections",
                              "the sandbox has %u connections to its ports, as many as it may",
                              services->connection_count);
    }
    service_args_init(&args, "connect");
    service_args_add_str(&args, t->call->port);
    t->service = service_open(services, &spec, &callbacks, t, err);
    service_args_done(&args);
    if (t->service == NULL) {
        return -EAGAIN;
    }
    t->services = services;
    services->connection_count++;
    return 0;
}

static int begin(struct call *call, struct sandbox *sb, struct error *err)
{
    static const char *const names[] = {NULL};
    struct services *services;
    struct tunnel *t;

    if (call_query_check(call, names, err) < 0 || sandbox_require_running(sb, err) < 0) {
        return -EINVAL;
    }
    if (!http_exchange_wants_upgrade(call->exchange, PROTOCOL)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Upgrade",
                              "this call needs the header Upgrade: " PROTOCOL);
    }
    services = services_get(call->data, sb);
    t = calloc(1, sizeof(*t));
    if (services == NULL || t == NULL) {
        free(t);
        return error_set(err, ENOMEM, "out of memory");
    }
    t->data = call->data;
    memcpy(t->sandbox_id, call->sandbox_id, sizeof(t->sandbox_id));
    t->call = call;
    t->pending = buf_make(0);
    call->state = t;
    call->on_close = on_close;
    call_touch(call);
    return open_service(t, services, err);
}

void handle_port_tcp(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    uint16_t port;
    struct error err = {0};

    (void)body;
    if (sb == NULL || !call_port(call, &port)) {
        return;
    }
    (void)snprintf(call->port, PORT_SIZE, "%u", port); /* without leading zeros */
    if (begin(call, sb, &err) < 0) {
        call_fail(call, &err);
    }
}
