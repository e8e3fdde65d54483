/* Ports: what listens in a sandbox, what of it is public, and raw streams to it. What passes as
 * HTTP is in port_front.c. */
#include <errno.h>

#include "api/api.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/port_front.h"
#include "api/public_url.h"
#include "api/routes.h"
#include "api/store_port.h"
#include "api/tunnel.h"
#include "api/wake.h"
#include "io/byte_stream.h"
#include "io/http_client.h"
#include "io/json_request.h"

#define PATH_SIZE     160
#define TCP_PROTOCOL  "space-tcp"
#define ADDRESSES_MAX 65536 /* of one port, more than the node tells */

/* ---- descriptions ---- */

static json_t *url_of(const struct request *rq, const char *sandbox_id, unsigned int port)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    public_url_put_port(rq, sandbox_id, port, &text);
    buf_put_str(&text, "/");
    return buf_error(&text) < 0 ? NULL : json_stringn((const char *)text.p, text.n);
}

/* The node's item with what we know of the port. 0, -EPROTO for a node's nonsense, or another
 * -errno with err. */
static int complete(struct request *rq, json_t *item, struct error *err)
{
    json_int_t port = json_integer_value(json_object_get(item, "port"));
    const char *id = rq->params[0];
    int is_public;

    if (port < 1 || port > UINT16_MAX) {
        return error_set_code(err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
    }
    is_public = store_port_is_public(rq->api->store, id, (uint16_t)port, err);
    if (is_public < 0) {
        return is_public;
    }
    if (json_object_set_new(item, "public", json_boolean(is_public)) < 0 ||
        json_object_set_new(item, "url", url_of(rq, id, (unsigned int)port)) < 0) {
        return error_set(err, ENOMEM, "no memory");
    }
    return 0;
}

/* ---- reading ---- */

/* Public ports where nothing listens now are in the list too: who opened one must be able to see
 * it. */
static int add_silent(struct request *rq, json_t *items, struct error *err)
{
    uint16_t ports[STORE_PORTS_PUBLIC_MAX];
    int count = store_port_list(rq->api->store, rq->params[0], ports, err);
    size_t at = 0;

    for (int i = 0; i < count; i++) {
        json_int_t there = 0;

        while (at < json_array_size(items) &&
               (there = json_integer_value(json_object_get(json_array_get(items, at), "port"))) <
                   ports[i]) {
            at++;
        }
        if (there != ports[i] &&
            json_array_insert_new(
                items, at,
                json_pack("{s:i, s:n, s:n}", "port", ports[i], "address", "process_id")) < 0) {
            return error_set(err, ENOMEM, "no memory");
        }
    }
    return count < 0 ? count : 0;
}

/* The node's items stand in the order of ports and addresses. A cursor is the last port and which
 * of its addresses that was, so that another port between two pages moves nothing. */
static void on_list(struct request *rq, int status, json_t *answer)
{
    json_t *items = json_object_get(answer, "items");
    _cleanup_page_ struct page page = {0};
    struct error err;
    json_t *item;
    json_int_t last = 0;
    int64_t seq = 0;
    size_t i;
    int r = page_start(&page, rq, "ports", PORT_FIELDS, &err);

    (void)status;
    if (r == 0) {
        r = add_silent(rq, items, &err);
    }
    json_array_foreach(items, i, item) {
        json_int_t port = json_integer_value(json_object_get(item, "port"));

        if (r != 0) {
            break;
        }
        seq = port == last ? seq + 1 : port * ADDRESSES_MAX;
        last = port;
        if (page.before_seq == 0 || seq > page.before_seq) {
            r = complete(rq, item, &err);
            r = r < 0 ? r : page_add(&page, json_incref(item), seq);
        }
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

static void list_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox sandbox = {0};
    char path[PATH_SIZE];

    if (node_call_running(rq, &sandbox)) {
        (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/ports", sandbox.id);
        node_call_json(rq, "GET", path, NULL, on_list);
    }
}

void route_port_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct error err;

    if (page_start(&page, rq, "ports", PORT_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    wake_need(rq, list_now);
}

/* The port of the path; answers and returns false when it is none. */
static bool read_port(struct request *rq, uint16_t *ret_port)
{
    struct error err;

    if (port_number_parse(span_of_str(rq->params[1]), ret_port) < 0) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "port",
                             "port must be a number between 1 and 65535");
        request_fail(rq, &err);
        return false;
    }
    return true;
}

static void on_port(struct request *rq, int status, json_t *answer)
{
    struct error err;

    if (complete(rq, answer, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    request_answer(rq, status, json_incref(answer));
}

static void get_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox sandbox = {0};
    char path[PATH_SIZE];
    uint16_t port;

    if (node_call_running(rq, &sandbox) && read_port(rq, &port)) {
        (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/ports/%u?wait=%lld.%03lld", sandbox.id,
                       port, (long long)rq->wait_ms / 1000, (long long)rq->wait_ms % 1000);
        node_call_json(rq, "GET", path, NULL, on_port);
    }
}

void route_port_get(struct request *rq)
{
    wake_need(rq, get_now);
}

/* ---- public or private ---- */

void route_port_put(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox sandbox = {0};
    struct json_fields fields;
    struct port_host at = {0};
    struct error err;
    bool is_public;
    int r;

    if (!node_call_sandbox(rq, &sandbox) || !read_port(rq, &at.port)) {
        return;
    }
    memcpy(at.sandbox_id, sandbox.id, sizeof(at.sandbox_id));
    json_fields_start(&fields, rq->body, "", &err);
    is_public = json_fields_bool(&fields, "public", false);
    json_fields_require(&fields, "public");
    r = json_fields_finish(&fields);
    if (r == 0) {
        r = store_port_set_public(rq->api->store, sandbox.id, at.port, is_public, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    if (!is_public) {
        port_visits_cut(&rq->api->port_visits, &at);
    }
    /* The guest is not asked: this works at any time. */
    request_answer(rq, 200,
                   json_pack("{s:i, s:n, s:n, s:b, s:o?}", "port", at.port, "address", "process_id",
                             "public", is_public, "url", url_of(rq, sandbox.id, at.port)));
}

/* ---- raw streams ---- */

struct tcp_call {
    struct request *rq;
    struct http_call *call;
    struct port_host at;
};

static void on_tcp_gone(void *arg)
{
    struct tcp_call *tcp = arg;

    http_call_cancel(tcp->call);
    free(tcp);
}

static void on_tcp_head(void *arg, struct http_call *call, int status)
{
    struct tcp_call *tcp = arg;
    struct request *rq = tcp->rq;
    struct port_host at = tcp->at;
    const struct http_header headers[] = {{"X-Request-Id", rq->id}};
    struct byte_stream *far;
    struct error err;

    if (status != 101) {
        return; /* an error, which on_tcp_done passes on */
    }
    request_on_gone(rq, NULL, NULL);
    far = http_call_take_stream(call);
    if (far == NULL) {
        on_tcp_gone(tcp);
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return;
    }
    free(tcp);
    tunnel_start(rq, far,
                 &(struct tunnel_order){.protocol = TCP_PROTOCOL,
                                        .headers = headers,
                                        .header_count = 1,
                                        .sandbox_id = at.sandbox_id,
                                        .port = &at});
}

static void on_tcp_done(void *arg, struct http_call *call, const struct error *err)
{
    struct tcp_call *tcp = arg;
    struct request *rq = tcp->rq;
    int status = http_call_status(call);

    free(tcp);
    request_on_gone(rq, NULL, NULL);
    if (err != NULL) {
        request_fail(rq, err);
    } else {
        request_answer_json_text(rq, status, http_call_body(call),
                                 http_call_header(call, "Retry-After"));
    }
}

static void tcp_now(struct request *rq)
{
    static const struct http_call_callbacks callbacks = {on_tcp_head, NULL, on_tcp_done};
    _cleanup_sandbox_ struct sandbox sandbox = {0};
    const struct http_header headers[] = {{"X-Request-Id", rq->id}};
    char path[PATH_SIZE];
    struct http_call_request request = {.method = "GET",
                                        .target = path,
                                        .headers = headers,
                                        .header_count = 1,
                                        .upgrade = TCP_PROTOCOL};
    struct tcp_call *tcp;
    struct error err;
    uint16_t port;

    if (!node_call_running(rq, &sandbox) || !read_port(rq, &port)) {
        return;
    }
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/ports/%u/tcp", sandbox.id, port);
    (void)error_set(&err, ENOMEM, "no memory");
    tcp = calloc(1, sizeof(*tcp));
    if (tcp != NULL) {
        tcp->rq = rq;
        tcp->at.port = port;
        memcpy(tcp->at.sandbox_id, sandbox.id, sizeof(tcp->at.sandbox_id));
        tcp->call = http_client_start(rq->api->client, &request, &callbacks, tcp, &err);
    }
    if (tcp == NULL || tcp->call == NULL) {
        free(tcp);
        request_fail(rq, &err);
        return;
    }
    request_on_gone(rq, on_tcp_gone, tcp);
}

void route_port_tcp(struct request *rq)
{
    struct error err;

    if (!http_exchange_wants_upgrade(rq->exchange, TCP_PROTOCOL)) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "Upgrade",
                             "this call needs `Connection: Upgrade` and `Upgrade: " TCP_PROTOCOL
                             "`");
        request_fail(rq, &err);
        return;
    }
    wake_need(rq, tcp_now);
}
