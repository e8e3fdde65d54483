/* Files of a sandbox, and its metrics: the node does all of it; here bytes are packed and unpacked.
 */
#include <errno.h>

#include "api/api.h"
#include "api/encoding.h"
#include "api/expiry.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/proxy.h"
#include "api/route.h"
#include "api/routes.h"
#include "api/wake.h"

#define PATH_SIZE 128

/* The node's path is the public one: what stands behind the sandbox in the route's row. */
static void node_path(const struct request *rq, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "/n1/sandboxes/%s%s", rq->params[0],
                   &rq->route->path[sizeof("/v1/sandboxes/{}") - 1]);
}

/* Runs fn when the sandbox runs and the node is there; the call counts as activity. */
static bool begin(struct request *rq, char ret_path[PATH_SIZE])
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (!node_call_running(rq, &s)) {
        return false;
    }
    expiry_touch(rq->api, s.id);
    node_path(rq, ret_path);
    return true;
}

static void need_running(struct request *rq, request_fn fn)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s)) {
        wake_need(rq, fn);
    }
}

/* ---- as they are ---- */

static void pass_now(struct request *rq)
{
    char path[PATH_SIZE];

    if (begin(rq, path)) {
        proxy_json(rq, rq->route->method, path, rq->body, true);
    }
}

void route_files_pass(struct request *rq)
{
    need_running(rq, pass_now);
}

/* ---- a page of entries ---- */

static void on_page(struct request *rq, int status, json_t *answer)
{
    json_t *items = json_object_get(answer, "items");
    const char *fields = NULL;
    struct error err;
    json_t *item;
    size_t i;

    if (fields_read(rq, ENTRY_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    json_array_foreach(items, i, item) {
        (void)json_array_set_new(items, i, fields_pick(json_incref(item), fields));
    }
    request_answer(rq, status, json_incref(answer));
}

/* Without `fields` the page goes through as the node says it. */
static void list_now(struct request *rq)
{
    _cleanup_buf_ struct buf target = buf_make(0);
    char path[PATH_SIZE];
    struct error err;

    if (!begin(rq, path)) {
        return;
    }
    if (query_find(&rq->query, "fields") == NULL) {
        proxy_json(rq, "GET", path, NULL, true);
        return;
    }
    buf_put_str(&target, path);
    proxy_put_query(rq, NULL, &target);
    buf_put_u8(&target, 0);
    if (buf_error(&target) != 0) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return;
    }
    node_call_json(rq, "GET", (const char *)target.p, NULL, on_page);
}

void route_files_list(struct request *rq)
{
    const char *fields;
    struct error err;

    if (fields_read(rq, ENTRY_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    need_running(rq, list_now);
}

/* ---- metrics ---- */

static void metrics_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    char path[PATH_SIZE];

    if (node_call_sandbox(rq, &s)) {
        node_path(rq, path);
        proxy_json(rq, "GET", path, NULL, true);
    }
}

/* Reading what was measured needs no guest and is no activity. */
void route_sandbox_metrics(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s)) {
        node_link_need(rq, metrics_now);
    }
}

/* ---- content ---- */

static void get_now(struct request *rq)
{
    struct proxy_order order = {.method = http_exchange_method(rq->exchange), .with_query = true};
    char path[PATH_SIZE];
    struct error err;

    if (encoding_of_answer(rq, &order, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (begin(rq, path)) {
        order.path = path;
        proxy_start(rq, &order);
    }
}

static void put_now(struct request *rq)
{
    struct proxy_order order = {.method = "PUT", .with_query = true, .uploads = true};
    char path[PATH_SIZE];
    struct error err;

    if (encoding_of_upload(rq, &order, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (begin(rq, path)) {
        order.path = path;
        proxy_start(rq, &order);
    }
}

void route_files_get(struct request *rq)
{
    struct proxy_order order = {0};
    struct error err;

    if (encoding_of_answer(rq, &order, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    need_running(rq, get_now);
}

void route_files_put(struct request *rq)
{
    struct proxy_order order = {0};
    struct error err;

    if (encoding_of_upload(rq, &order, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    need_running(rq, put_now);
}
