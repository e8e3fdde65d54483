#include "api/port_proxy.h"

#include <errno.h>

#include "api/api.h"
#include "api/port_front.h"
#include "api/port_headers.h"
#include "api/request.h"
#include "api/store_sandbox.h"
#include "api/tunnel.h"
#include "base/clock.h"
#include "io/byte_stream.h"
#include "io/http_client.h"
#include "io/loop.h"

#define IDLE_MS     3600000
#define HEADERS_MAX 100U /* of a head that our parsers take */
#define TUNNEL_SIZE 128
#define HOST_SIZE   32

struct port_proxy {
    struct request *rq;
    struct port_request *port;
    struct http_call *call;
    struct loop_timer *timer;
    int64_t moved_ms; /* when the last byte passed */
    bool ended;       /* the request's body */
};

struct header_list {
    struct http_header items[HEADERS_MAX];
    size_t count;
};

static void proxy_free(struct port_proxy *p)
{
    port_visit_end(&p->port->visit);
    loop_timer_free(p->timer);
    free(p);
}

/* The request is over, or somebody else ends it. */
static void on_gone(void *arg)
{
    struct port_proxy *p = arg;

    http_call_cancel(p->call);
    proxy_free(p);
}

/* Ends it from here: with this error, or by a cut when the answer has begun. */
static void abandon(struct port_proxy *p, const struct error *err)
{
    struct request *rq = p->rq;

    request_on_gone(rq, NULL, NULL);
    on_gone(p);
    if (http_exchange_is_started(rq->exchange)) {
        http_exchange_abort(rq->exchange);
    } else {
        request_fail(rq, err);
    }
}

/* The port is no longer public. */
static void on_made_private(void *arg)
{
    struct error err;

    (void)error_set_code(&err, ERROR_UNAUTHORIZED, NULL, "this port has been made private");
    abandon(arg, &err);
}

static bool is_asleep(const struct port_proxy *p)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;

    return store_sandbox_get(p->rq->api->store, p->port->at.sandbox_id, &s, &err) > 0 &&
           s.state != SANDBOX_RUNNING && s.state != SANDBOX_ERROR;
}

static void on_idle_timer(void *arg)
{
    struct port_proxy *p = arg;
    int64_t left_ms = p->moved_ms + IDLE_MS - clock_monotonic_ms();
    struct error err;

    if (left_ms <= 0 && is_asleep(p)) {
        left_ms = IDLE_MS; /* nobody is silent who cannot speak */
    }
    if (left_ms > 0) {
        loop_timer_start(p->timer, left_ms);
        return;
    }
    (void)error_set_code(&err, ERROR_DEADLINE_EXCEEDED, NULL, "port %u was silent for %d minutes",
                         p->port->at.port, IDLE_MS / 60000);
    abandon(p, &err);
}

/* The guest's end broke, in words for whoever called it. */
static void explain(const struct port_proxy *p, const struct error *err, struct error *ret_err)
{
    const char *why = strstr(err->message, ": ");

    *ret_err = *err;
    if (err->code == ERROR_BAD_GATEWAY && err->errnum == EBADMSG && why != NULL) {
        (void)error_set_code(ret_err, ERROR_BAD_GATEWAY, NULL,
                             "the service on port %u gave no proper answer: %.200s",
                             p->port->at.port, &why[2]);
    }
}

/* ---- the answer ---- */

static void collect_header(void *arg, const char *name, const char *value)
{
    struct header_list *list = arg;

    if (list->count < HEADERS_MAX) {
        list->items[list->count++] = (struct http_header){name, value};
    }
}

static void read_answer(const struct port_proxy *p, struct port_headers *out)
{
    const struct port_answer_facts facts = {
        .by_path = p->port->by_path,
        .had_token = p->port->had_token,
        .by_token = !p->port->is_public && !p->port->by_cookie,
    };
    struct header_list in = {.count = 0};

    http_call_each_header(p->call, collect_header, &in);
    port_headers_of_answer(in.items, in.count, &facts, out);
    if (port_headers_find(out, "X-Request-Id") == NULL) {
        port_headers_add(out, "X-Request-Id", p->rq->id);
    }
}

static int64_t content_length(const struct http_call *call)
{
    const char *text = http_call_header(call, "Content-Length");
    uint64_t value;

    if (text == NULL || span_parse_u64(span_of_str(text), INT64_MAX, &value) < 0) {
        return -1;
    }
    return (int64_t)value;
}

static void fail_memory(struct port_proxy *p)
{
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    abandon(p, &err);
}

static void fail_headers(struct port_proxy *p)
{
    struct error err;

    (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL,
                         "the service on port %u gave too many headers", p->port->at.port);
    abandon(p, &err);
}

/* The application speaks another protocol from here on. */
static void join(struct port_proxy *p, struct http_call *call, const struct port_headers *headers)
{
    const char *protocol = http_call_header(call, "Upgrade");
    struct request *rq = p->rq;
    struct port_host at = p->port->at;
    struct byte_stream *far = http_call_take_stream(call);

    if (far == NULL || protocol == NULL) {
        byte_stream_free(far);
        fail_memory(p);
        return;
    }
    request_on_gone(rq, NULL, NULL);
    proxy_free(p);
    tunnel_start(rq, far,
                 &(struct tunnel_order){.protocol = protocol,
                                        .headers = headers->items,
                                        .header_count = headers->count,
                                        .sandbox_id = at.sandbox_id,
                                        .port = &at});
}

static void on_answer_drain(void *arg)
{
    struct port_proxy *p = arg;

    http_call_pause(p->call, false);
}

static void on_head(void *arg, struct http_call *call, int status)
{
    struct port_proxy *p = arg;
    struct request *rq = p->rq;
    _cleanup_port_headers_ struct port_headers headers = {0};

    p->moved_ms = clock_monotonic_ms();
    read_answer(p, &headers);
    if (headers.error == -EMSGSIZE) {
        fail_headers(p);
        return;
    }
    if (headers.error < 0) {
        fail_memory(p);
        return;
    }
    if (status == 101) {
        join(p, call, &headers);
        return;
    }
    rq->answered = true;
    rq->status = status;
    http_exchange_on_drain(rq->exchange, on_answer_drain, p);
    http_exchange_start(rq->exchange, status, headers.items, headers.count, content_length(call));
}

static void on_data(void *arg, struct http_call *call, struct span piece)
{
    struct port_proxy *p = arg;

    p->moved_ms = clock_monotonic_ms();
    if (http_exchange_write(p->rq->exchange, piece) == 0) {
        http_call_pause(call, true);
    }
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct port_proxy *p = arg;
    struct request *rq = p->rq;
    struct error explained = {0};

    (void)call;
    if (err != NULL) {
        explain(p, err, &explained);
    }
    request_on_gone(rq, NULL, NULL);
    http_exchange_on_drain(rq->exchange, NULL, NULL);
    proxy_free(p);
    if (err == NULL) {
        http_exchange_end(rq->exchange);
    } else if (rq->answered) {
        http_exchange_abort(rq->exchange);
    } else {
        request_fail(rq, &explained);
    }
}

/* ---- the request ---- */

static void on_upload_drain(void *arg)
{
    struct port_proxy *p = arg;

    http_exchange_pause_body(p->rq->exchange, false);
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct request *rq = arg;
    struct port_proxy *p = rq->gone_arg;

    if (rq->on_gone != on_gone || p->ended) {
        return; /* the application has answered already; what still comes is dropped */
    }
    if (err != NULL) {
        struct error copy = *err;

        abandon(p, &copy);
        return;
    }
    p->moved_ms = clock_monotonic_ms();
    if (piece.n > 0 && http_call_write(p->call, piece) == 0) {
        http_exchange_pause_body(exchange, true);
    }
    if (last) {
        p->ended = true;
        http_call_end(p->call);
    }
}

static void
make_headers(const struct request *rq, const struct port_request *port, struct port_headers *out)
{
    const char *host = http_exchange_header(rq->exchange, "Host");
    const struct port_request_facts facts = {
        .by_path = port->by_path,
        .peer = http_exchange_peer(rq->exchange),
        .scheme = port_front_scheme(rq),
        .host = host == NULL ? "" : host,
    };
    struct header_list in = {.count = 0};

    while (in.count < HEADERS_MAX &&
           http_exchange_header_at(rq->exchange, (unsigned int)in.count, &in.items[in.count])) {
        in.count++;
    }
    port_headers_of_request(in.items, in.count, &facts, out);
}

static struct http_call *start_call(struct port_proxy *p, struct error *err)
{
    static const struct http_call_callbacks callbacks = {on_head, on_data, on_done};
    const struct port_request *port = p->port;
    struct http_exchange *exchange = p->rq->exchange;
    const struct http_header tunnel_headers[] = {{"X-Request-Id", p->rq->id}};
    int64_t length = http_exchange_content_length(exchange);
    _cleanup_port_headers_ struct port_headers headers = {0};
    char tunnel[TUNNEL_SIZE];
    char host[HOST_SIZE];
    struct http_call_request request = {
        .method = http_exchange_method(exchange),
        .target = port->target,
        .stream_body = length != 0,
        .stream_length = length > 0 ? (uint64_t)length : 0,
        .upgrade = port->upgrade,
        .tunnel = tunnel,
        .tunnel_headers = tunnel_headers,
        .tunnel_header_count = 1,
        .host = host,
    };

    /* Under its own name an application sees that name; by path, its own address. */
    (void)snprintf(host, sizeof(host), "localhost:%u", port->at.port);
    if (!port->by_path) {
        request.host = http_exchange_header(exchange, "Host");
    }
    (void)snprintf(tunnel, sizeof(tunnel), "/n1/sandboxes/%s/ports/%u/tcp", port->at.sandbox_id,
                   port->at.port);
    make_headers(p->rq, port, &headers);
    if (headers.error == -EMSGSIZE) {
        (void)error_set_code(err, ERROR_INVALID_REQUEST, "headers", "there are too many headers");
        return NULL;
    }
    if (headers.error < 0) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    request.headers = headers.items;
    request.header_count = headers.count;
    return http_client_start(p->rq->api->client, &request, &callbacks, p, err);
}

void port_proxy_start(struct request *rq, struct port_request *port)
{
    struct port_proxy *p = calloc(1, sizeof(*p));
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    if (p != NULL) {
        p->rq = rq;
        p->port = port;
        p->moved_ms = clock_monotonic_ms();
        p->timer = loop_timer_new(rq->api->loop, on_idle_timer, p);
        p->call = p->timer == NULL ? NULL : start_call(p, &err);
    }
    if (p == NULL || p->call == NULL) {
        if (p != NULL) {
            proxy_free(p);
        }
        request_fail(rq, &err);
        return;
    }
    loop_timer_start(p->timer, IDLE_MS);
    request_on_gone(rq, on_gone, p);
    if (port->is_public) {
        port_visit_begin(&port->visit, &rq->api->port_visits, &port->at, on_made_private, p);
    }
    if (http_exchange_content_length(rq->exchange) != 0) {
        http_call_on_drain(p->call, on_upload_drain, p);
        http_exchange_stream_body(rq->exchange, on_piece, rq);
    }
}
