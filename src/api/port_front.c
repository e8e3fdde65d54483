#include "api/port_front.h"

#include <errno.h>
#include <inttypes.h>
#include <strings.h>

#include "api/api.h"
#include "api/auth.h"
#include "api/cors.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/port_access.h"
#include "api/port_cookie.h"
#include "api/port_headers.h"
#include "api/port_proxy.h"
#include "api/request.h"
#include "api/route.h"
#include "api/store_port.h"
#include "api/wake.h"
#include "base/clock.h"

#define READY_WAIT_MS 10000
#define FLAGS         (ROUTE_PROXY | ROUTE_TOKEN | ROUTE_PORT)

/* What the log says instead of the path. */
static const struct route by_host = {"*",   "{port}-{id}.{domain}/", NULL, KEY_ROLE_MEMBER,
                                     FLAGS, ROUTE_BODY_RAW,          "",   0};
static const struct route by_host_upgrade = {
    "*", "{port}-{id}.{domain}/", NULL, KEY_ROLE_MEMBER, FLAGS | ROUTE_STREAM, ROUTE_BODY_RAW, "",
    0};
static const struct route by_path = {
    "*", "/v1/sandboxes/{}/ports/{}/proxy/", NULL, KEY_ROLE_MEMBER, FLAGS, ROUTE_BODY_RAW, "", 0};
static const struct route by_path_upgrade = {"*",
                                             "/v1/sandboxes/{}/ports/{}/proxy/",
                                             NULL,
                                             KEY_ROLE_MEMBER,
                                             FLAGS | ROUTE_STREAM,
                                             ROUTE_BODY_RAW,
                                             "",
                                             0};
static const struct route by_no_name = {"*",         "{}.{domain}/", NULL, KEY_ROLE_MEMBER,
                                        ROUTE_PROXY, ROUTE_BODY_RAW, "",   0};

const char *port_front_scheme(const struct request *rq)
{
    const struct settings *s = &rq->api->settings;
    bool tls = s->api_public_url[0] == '\0' ? s->api_tls_certificate[0] != '\0'
                                            : strncasecmp(s->api_public_url, "https:", 6) == 0;

    return tls ? "https" : "http";
}

/* ---- whose request it is ---- */

/* The parts of "/v1/sandboxes/ID/ports/PORT/proxy" and what follows, which is "" or begins with a
 * slash. */
static bool split_path(const char *path, struct span ret_params[2], const char **ret_rest)
{
    static const char *const words[] = {"v1", "sandboxes", NULL, "ports", NULL, "proxy"};
    struct span rest = span_of_str(path);
    size_t params = 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct span segment;

        if (rest.n == 0 || rest.p[0] != '/') {
            return false;
        }
        segment = span_head(span_skip(rest, 1), span_find(span_skip(rest, 1), 0, '/'));
        rest = span_skip(rest, segment.n + 1);
        if (words[i] != NULL && !span_equals_str(segment, words[i])) {
            return false;
        }
        if (words[i] == NULL) {
            ret_params[params++] = segment;
        }
    }
    *ret_rest = &path[strlen(path) - rest.n];
    return true;
}

/* The protocols that the client would change to: "websocket", or a list. A request with a body
 * stays HTTP. */
static const char *wanted_upgrade(const struct request *rq)
{
    const char *header = http_exchange_header(rq->exchange, "Upgrade");
    char first[64];

    if (header == NULL ||
        span_copy_str(span_head(span_of_str(header), strcspn(header, ", \t")), first,
                      sizeof(first)) < 0 ||
        !http_exchange_wants_upgrade(rq->exchange, first)) {
        return NULL;
    }
    return header;
}

/* Path and query as the guest gets them, and the token that was in the query. */
static int make_target(struct request *rq, struct port_request *port, const char *path)
{
    _cleanup_buf_ struct buf query = buf_make(0);
    _cleanup_buf_ struct buf target = buf_make(0);
    const char *given = http_exchange_query(rq->exchange);
    char *copy;

    port->had_token = port_query_strip(span_of_str(given), &query, port->token);
    buf_put_str(&target, path[0] == '\0' ? "/" : path);
    if (query.n > 0) {
        buf_put_str(&target, "?");
        buf_put(&target, buf_span(&query));
    }
    copy = buf_error(&target) < 0 || buf_error(&query) < 0
               ? NULL
               : http_exchange_alloc(rq->exchange, target.n + 1);
    if (copy == NULL || span_copy_str(buf_span(&target), copy, target.n + 1) < 0) {
        return -ENOMEM;
    }
    port->target = copy;
    return 0;
}

/* ---- the browser's login ---- */

/* A browser that opens a URL, not a page's script or a program, which go on with their token. */
static bool is_navigation(const struct request *rq)
{
    const char *method = http_exchange_method(rq->exchange);
    const char *mode = http_exchange_header(rq->exchange, "Sec-Fetch-Mode");

    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        return false;
    }
    return mode != NULL ? strcmp(mode, "navigate") == 0
                        : port_accepts_html(http_exchange_header(rq->exchange, "Accept"));
}

/* The cookie's token opens this port and nothing else, as long as the one in the URL would. */
static int put_cookie(const struct request *rq, const struct port_request *port, struct buf *out)
{
    bool secure = strcmp(port_front_scheme(rq), "https") == 0;
    struct token token = rq->token;
    char text[TOKEN_TEXT_SIZE];

    token.kind = TOKEN_PORT;
    token.port = port->at.port;
    token.session_id[0] = '\0';
    token.renew_until = token.expires_at;
    if (token_format(rq->api->token_secret, &token, text) < 0) {
        return -ENOMEM;
    }
    buf_printf(out, "%s=%s; Path=/; HttpOnly; SameSite=Lax; Max-Age=%" PRId64 "%s",
               secure ? PORT_COOKIE_SECURE : PORT_COOKIE, text,
               (token.expires_at - clock_real_ms()) / 1000, secure ? "; Secure" : "");
    return buf_error(out);
}

/* Sets the cookie and sends the browser to the URL without the token. */
static void log_in(struct request *rq, const struct port_request *port)
{
    _cleanup_buf_ struct buf cookie = buf_make(0);
    _cleanup_buf_ struct buf location = buf_make(0);
    struct request_headers headers;
    struct error err;

    /* "//host" would be another site's URL. */
    buf_printf(&location, "%s%s", port->target[1] == '/' || port->target[1] == '\\' ? "/." : "",
               port->target);
    if (put_cookie(rq, port, &cookie) < 0 || buf_error(&location) < 0) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return;
    }
    request_headers_make(rq, NULL, &headers);
    request_headers_add(&headers, "Location", buf_str(&location));
    request_headers_add(&headers, "Set-Cookie", buf_str(&cookie));
    request_headers_add(&headers, "Referrer-Policy", "no-referrer");
    request_answer_headers(rq, 303, &headers, span_make(NULL, 0));
}

/* ---- in ---- */

static void proxy_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox sandbox = {0};

    struct error err = {0};

    if (rq->port->is_public && store_port_is_public(rq->api->store, rq->port->at.sandbox_id,
                                                    rq->port->at.port, &err) != 1) {
        if (err.code == ERROR_NONE) { /* made private while this waited for the node */
            (void)error_set_code(&err, ERROR_UNAUTHORIZED, NULL, "this port has been made private");
        }
        request_fail(rq, &err);
        return;
    }
    if (node_call_running(rq, &sandbox)) {
        port_proxy_start(rq, rq->port);
    }
}

static void enter(struct request *rq, struct port_request *port, const char *path)
{
    struct error err = {0};
    int r = make_target(rq, port, path);

    if (r < 0) {
        (void)error_set(&err, -r, "no memory");
    } else if (rq->api->stopping) {
        r = error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL, "space-api is stopping");
    } else {
        r = port_access_check(rq, port, &err);
    }
    if (r < 0 && port->is_strange && err.code == ERROR_UNAUTHORIZED &&
        cors_answer_port_preflight(rq)) {
        return;
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    if (!port->by_path && !port->is_public && port->upgrade == NULL && port->had_token &&
        rq->has_token && is_navigation(rq)) {
        log_in(rq, port);
        return;
    }
    wake_need(rq, proxy_now);
}

static struct port_request *port_new(struct request *rq, bool is_by_path)
{
    struct port_request *port = http_exchange_alloc(rq->exchange, sizeof(*port));
    struct error err;

    rq->route = is_by_path ? &by_path : &by_host;
    rq->ready_ms = READY_WAIT_MS;
    if (port == NULL) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return NULL;
    }
    rq->port = port;
    port->by_path = is_by_path;
    port->upgrade = wanted_upgrade(rq);
    if (port->upgrade != NULL) {
        rq->route = is_by_path ? &by_path_upgrade : &by_host_upgrade;
    }
    return port;
}

static void take_by_host(struct request *rq, const struct port_host *at)
{
    struct port_request *port = port_new(rq, false);

    if (port != NULL) {
        port->at = *at;
        (void)snprintf(rq->params[0], sizeof(rq->params[0]), "%s", at->sandbox_id);
        (void)snprintf(rq->params[1], sizeof(rq->params[1]), "%u", at->port);
        enter(rq, port, http_exchange_path(rq->exchange));
    }
}

static int read_params(struct request *rq,
                       struct port_request *port,
                       const struct span params[2],
                       struct error *err)
{
    if (span_copy_str(params[0], port->at.sandbox_id, sizeof(port->at.sandbox_id)) < 0 ||
        !id_is_valid(port->at.sandbox_id, "sb")) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox", "there is no such sandbox");
    }
    if (port_number_parse(params[1], &port->at.port) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "port",
                              "port must be a number between 1 and 65535");
    }
    (void)snprintf(rq->params[0], sizeof(rq->params[0]), "%s", port->at.sandbox_id);
    (void)snprintf(rq->params[1], sizeof(rq->params[1]), "%u", port->at.port);
    return 0;
}

static void take_by_path(struct request *rq, const struct span params[2], const char *rest)
{
    struct port_request *port = port_new(rq, true);
    const char *worker = http_exchange_header(rq->exchange, "Service-Worker");
    struct error err;
    int r;

    if (port == NULL) {
        return;
    }
    r = read_params(rq, port, params, &err);
    if (r == 0 && worker != NULL) {
        /* It would answer for all pages of the API's name. */
        r = error_set_code(&err, ERROR_FORBIDDEN, NULL,
                           "a service worker can be installed only under the port's own name");
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    enter(rq, port, rest);
}

bool port_front_take(struct request *rq)
{
    const char *host = http_exchange_header(rq->exchange, "Host");
    const char *domain = rq->api->settings.api_domain;
    struct port_host at;
    struct span params[2];
    const char *rest;
    struct error err;

    switch (port_host_parse(span_of_str(host == NULL ? "" : host), domain, &at)) {
    case PORT_HOST_PORT:
        take_by_host(rq, &at);
        return true;
    case PORT_HOST_UNKNOWN:
        rq->route = &by_no_name;
        (void)error_set_code(&err, ERROR_NOT_FOUND, "host",
                             "there is nothing at this name: ports of sandboxes are at "
                             "PORT-SANDBOX.%.150s",
                             domain);
        request_fail(rq, &err);
        return true;
    case PORT_HOST_OUTSIDE:
        break;
    }
    if (!split_path(http_exchange_path(rq->exchange), params, &rest)) {
        return false;
    }
    take_by_path(rq, params, rest);
    return true;
}
