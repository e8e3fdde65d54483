#include "node/routes.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/checkpoint.h"
#include "node/data.h"
#include "node/node.h"
#include "node/run.h"
#include "node/sandbox.h"
#include "node/template_make.h"
#include "wire/url.h"

#define SANDBOX "/n1/sandboxes/{sb}"

static const struct route routes[] = {
    {"GET", "/n1/node", ROUTE_BODY_NONE, handle_node},
    {"GET", "/n1/templates", ROUTE_BODY_NONE, handle_templates},
    {"POST", "/n1/templates/remove", ROUTE_BODY_JSON, handle_template_remove},
    {"PUT", "/n1/templates/{tm}", ROUTE_BODY_JSON, handle_template_put},
    {"GET", "/n1/events", ROUTE_BODY_NONE, handle_feed},
    {"GET", "/n1/sandboxes", ROUTE_BODY_NONE, handle_sandbox_list},
    {"PUT", SANDBOX, ROUTE_BODY_JSON, handle_sandbox_put},
    {"GET", SANDBOX, ROUTE_BODY_NONE, handle_sandbox_get},
    {"PATCH", SANDBOX, ROUTE_BODY_JSON, handle_sandbox_patch},
    {"DELETE", SANDBOX, ROUTE_BODY_NONE, handle_sandbox_delete},
    {"POST", SANDBOX "/pause", ROUTE_BODY_OPTIONAL, handle_sandbox_pause},
    {"POST", SANDBOX "/suspend", ROUTE_BODY_OPTIONAL, handle_sandbox_suspend},
    {"POST", SANDBOX "/wake", ROUTE_BODY_OPTIONAL, handle_sandbox_wake},
    {"POST", SANDBOX "/rollback", ROUTE_BODY_JSON, handle_sandbox_rollback},
    {"GET", "/n1/checkpoints", ROUTE_BODY_NONE, handle_checkpoint_list},
    {"PUT", "/n1/checkpoints/{ck}", ROUTE_BODY_JSON, handle_checkpoint_put},
    {"GET", "/n1/checkpoints/{ck}", ROUTE_BODY_NONE, handle_checkpoint_get},
    {"DELETE", "/n1/checkpoints/{ck}", ROUTE_BODY_NONE, handle_checkpoint_delete},
    {"GET", SANDBOX "/console", ROUTE_BODY_NONE, handle_console},
    {"POST", SANDBOX "/run", ROUTE_BODY_JSON, handle_run},
    {"POST", SANDBOX "/commands", ROUTE_BODY_JSON, handle_commands},
    {"GET", SANDBOX "/processes", ROUTE_BODY_NONE, handle_process_list},
    {"GET", SANDBOX "/processes/{pr}", ROUTE_BODY_NONE, handle_process_get},
    {"GET", SANDBOX "/processes/{pr}/result", ROUTE_BODY_NONE, handle_result},
    {"POST", SANDBOX "/processes/{pr}/signal", ROUTE_BODY_JSON, handle_signal},
    {"POST", SANDBOX "/processes/{pr}/kill", ROUTE_BODY_OPTIONAL, handle_kill},
    {"POST", SANDBOX "/processes/{pr}/resize", ROUTE_BODY_JSON, handle_resize},
    {"POST", SANDBOX "/processes/{pr}/stdin", ROUTE_BODY_STREAM, handle_stdin},
    {"GET", SANDBOX "/sessions/{se}/events", ROUTE_BODY_NONE, handle_session_events},
    {"GET", SANDBOX "/sessions/{se}/output", ROUTE_BODY_NONE, handle_session_output},
    {"GET", SANDBOX "/sessions/{se}/attach", ROUTE_BODY_NONE, handle_session_attach},
    {"GET", SANDBOX "/files", ROUTE_BODY_NONE, handle_file_get},
    {"HEAD", SANDBOX "/files", ROUTE_BODY_NONE, handle_file_get},
    {"PUT", SANDBOX "/files", ROUTE_BODY_STREAM, handle_file_put},
    {"DELETE", SANDBOX "/files", ROUTE_BODY_NONE, handle_file_delete},
    {"GET", SANDBOX "/files/stat", ROUTE_BODY_NONE, handle_file_stat},
    {"GET", SANDBOX "/files/list", ROUTE_BODY_NONE, handle_file_list},
    {"POST", SANDBOX "/files/mkdir", ROUTE_BODY_JSON, handle_file_make_directory},
    {"POST", SANDBOX "/files/move", ROUTE_BODY_JSON, handle_file_move},
    {"POST", SANDBOX "/files/chmod", ROUTE_BODY_JSON, handle_file_chmod},
    {"POST", SANDBOX "/files/chown", ROUTE_BODY_JSON, handle_file_chown},
    {"GET", SANDBOX "/files/tar", ROUTE_BODY_NONE, handle_tar_get},
    {"PUT", SANDBOX "/files/tar", ROUTE_BODY_STREAM, handle_tar_put},
    {"GET", SANDBOX "/files/watch", ROUTE_BODY_NONE, handle_watch},
    {"GET", SANDBOX "/ports", ROUTE_BODY_NONE, handle_port_list},
    {"GET", SANDBOX "/ports/{port}", ROUTE_BODY_NONE, handle_port_get},
    {"GET", SANDBOX "/ports/{port}/tcp", ROUTE_BODY_NONE, handle_port_tcp},
    {"GET", SANDBOX "/metrics", ROUTE_BODY_NONE, handle_metrics},
};

#define ROUTE_COUNT (sizeof(routes) / sizeof(routes[0]))

/* Where the id of a pattern's segment goes, or NULL for a fixed word. */
static char *id_slot(struct call *call, struct span segment)
{
    if (span_equals_str(segment, "{sb}")) {
        return call->sandbox_id;
    }
    if (span_equals_str(segment, "{pr}")) {
        return call->process_id;
    }
    if (span_equals_str(segment, "{ck}")) {
        return call->checkpoint_id;
    }
    if (span_equals_str(segment, "{tm}")) {
        return call->template_version;
    }
    if (span_equals_str(segment, "{port}")) {
        return call->port;
    }
    return span_equals_str(segment, "{se}") ? call->session_id : NULL;
}

static bool matches(struct call *call, const char *pattern, struct span path)
{
    struct span rest = span_of_str(pattern);
    struct span want;
    struct span got;

    while (url_path_next(&rest, &want) > 0) {
        char *slot = id_slot(call, want);

        if (url_path_next(&path, &got) <= 0) {
            return false;
        }
        if (slot == NULL && !span_equals(want, got)) {
            return false;
        }
        /* Something that is no id cannot exist: "" is found nowhere. */
        if (slot != NULL && span_copy_str(got, slot, ID_SIZE) < 0) {
            slot[0] = '\0';
        }
    }
    return url_path_next(&path, &got) == 0;
}

static const struct route *find_route(struct call *call, char allow[64])
{
    struct span path = span_of_str(http_exchange_path(call->exchange));
    const char *method = http_exchange_method(call->exchange);
    size_t used = 0;

    allow[0] = '\0';
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        if (!matches(call, routes[i].pattern, path)) {
            continue;
        }
        if (strcmp(routes[i].method, method) == 0) {
            return &routes[i];
        }
        used += (size_t)snprintf(&allow[used], 64 - used, "%s%s", used > 0 ? ", " : "",
                                 routes[i].method);
    }
    return NULL;
}

static bool is_request_id(const char *id)
{
    size_t n = strnlen(id, 65);

    return n >= 1 && n <= 64 &&
           strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static void on_close(void *arg, struct http_exchange *exchange, bool complete)
{
    struct call *call = arg;

    (void)exchange;
    if (call->on_close != NULL) {
        call->on_close(call, complete);
    }
    if (call->is_activity) {
        data_touch(call->data, call->sandbox_id); /* it has been active until now */
    }
    process_watch_remove(&call->watch);
    loop_timer_free(TAKE(call->timer));
    loop_timer_free(TAKE(call->text_timer));
    run_text_free(TAKE(call->text));
    sandbox_cancel_waits(call->data->node, call);
    checkpoint_cancel_waits(call->data->node, call);
    template_cancel_waits(call->data->node, call);
}

static void
on_body(void *arg, struct http_exchange *exchange, struct span body, const struct error *err)
{
    struct call *call = arg;
    _cleanup_json_ json_t *object = NULL;
    struct error problem = {0};

    (void)exchange;
    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    if (json_request_parse(body, call->route->body == ROUTE_BODY_OPTIONAL, &object, &problem) < 0) {
        call_fail(call, &problem);
        return;
    }
    call->route->handle(call, object);
}

static void dispatch(struct call *call)
{
    const struct settings *settings = &call->data->node->settings;
    struct error err = {0};
    char allow[64];

    call->route = find_route(call, allow);
    if (call->route == NULL && allow[0] != '\0') {
        (void)error_set_code(&err, ERROR_METHOD_NOT_ALLOWED, NULL, "this path knows only %s",
                             allow);
        call_fail(call, &err);
        return;
    }
    if (call->route == NULL) {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "path", "no such path");
        call_fail(call, &err);
        return;
    }
    if (call->route->handle != handle_node && !node_is_ready(call->data->node)) {
        (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the node is still starting: it takes its sandboxes over");
        call_fail(call, &err);
        return;
    }
    if (call->route->body == ROUTE_BODY_JSON || call->route->body == ROUTE_BODY_OPTIONAL) {
        http_exchange_collect_body(call->exchange, settings->api_max_body_bytes + BODY_SLACK_BYTES,
                                   on_body, call);
        return;
    }
    call->route->handle(call, NULL);
}

void routes_on_request(void *ctx, struct http_exchange *exchange)
{
    struct call *call = http_exchange_alloc(exchange, sizeof(*call));
    const char *request_id = http_exchange_header(exchange, "X-Request-Id");
    struct error err = {0};

    if (call == NULL) {
        http_exchange_abort(exchange);
        return;
    }
    memset(call, 0, sizeof(*call));
    call->data = ctx;
    call->exchange = exchange;
    if (request_id != NULL && is_request_id(request_id)) {
        (void)snprintf(call->request_id, sizeof(call->request_id), "%s", request_id);
    }
    http_exchange_on_close(exchange, on_close, call);
    log_debug("request", "request_id=%s method=%s path=%s", call->request_id,
              http_exchange_method(exchange), LOG_STR(http_exchange_path(exchange)));
    if (!data_peer_is_allowed(call->data, http_exchange_peer(exchange))) {
        (void)error_set_code(&err, ERROR_FORBIDDEN, NULL,
                             "only root and the service user may speak to the node");
        call_fail(call, &err);
        return;
    }
    dispatch(call);
}

void routes_on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    const struct http_header type = {"Content-Type", "application/json"};

    (void)ctx;
    json_error_format(err, "", &text);
    http_exchange_respond(exchange, error_code_status(err->code), &type, 1, buf_span(&text));
}
