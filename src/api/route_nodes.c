/* Nodes: what they are and have, drain and undrain. One node serves an installation. */
#include <errno.h>

#include "api/api.h"
#include "api/drain.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/record_json.h"
#include "api/route.h"
#include "api/routes.h"
#include "io/http_client.h"
#include "io/json_request.h"

#define ASK_TIMEOUT_MS 3000

/* ---- the record ---- */

static const char *state_of(const struct api *api)
{
    const struct store_node *node = drain_record(api);

    if (node->drain_at != 0) {
        return node->drained_at != 0 ? "drained" : "draining";
    }
    return node_link_is_ready(api->node) ? "ready" : "away";
}

static json_t *counts_json(const int64_t counts[SANDBOX_STATE_COUNT])
{
    json_t *object = json_object();

    for (int i = 0; i < SANDBOX_STATE_COUNT; i++) {
        (void)json_object_set_new(object, sandbox_state_name((enum sandbox_state)i),
                                  json_integer((json_int_t)counts[i]));
    }
    return object;
}

/* One of the node's own words; null while it is away. */
static json_t *figure(const json_t *figures, const char *key)
{
    json_t *value = json_object_get(figures, key);

    return value == NULL ? json_null() : json_incref(value);
}

/* NULL with err filled. */
static json_t *record_json(struct api *api, const json_t *figures, struct error *err)
{
    const struct store_node *node = drain_record(api);
    int64_t counts[SANDBOX_STATE_COUNT];
    json_t *record;

    if (store_node_count(api->store, counts, err) < 0) {
        return NULL;
    }
    record = json_pack("{s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
                       api->settings.node_name, "state", state_of(api), "connected",
                       (int)node_link_is_ready(api->node), "drain_requested_at",
                       time_json(node->drain_at), "drained_at", time_json(node->drained_at),
                       "sandboxes", counts_json(counts), "version", figure(figures, "version"),
                       "vcpus", figure(figures, "vcpus"), "memory", figure(figures, "memory"),
                       "disk", figure(figures, "disk"), "problems", drain_problems(api));
    if (record == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
    }
    return record;
}

/* ---- the node's own figures ---- */

typedef void (*figures_fn)(struct request *rq, const json_t *figures);

struct asking {
    struct request *rq;
    struct http_call *call;
    figures_fn fn;
};

static void on_gone(void *arg)
{
    struct asking *asking = arg;

    http_call_cancel(asking->call);
    free(asking);
}

static void on_figures(void *arg, struct http_call *call, const struct error *err)
{
    struct asking *asking = arg;
    struct request *rq = asking->rq;
    figures_fn fn = asking->fn;
    _cleanup_json_ json_t *figures = NULL;
    struct error bad;

    free(asking);
    request_on_gone(rq, NULL, NULL);
    if (err != NULL || http_call_status(call) != 200 ||
        json_answer_parse(http_call_body(call), &figures, &bad) < 0) {
        figures = NULL; /* it has gone away in this moment */
    }
    fn(rq, figures);
}

/* Runs fn with what the node says of itself, NULL when it is away. */
static void with_figures(struct request *rq, figures_fn fn)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_figures};
    const struct http_call_request request = {
        .method = "GET", .target = "/n1/node", .timeout_ms = ASK_TIMEOUT_MS};
    struct asking *asking = NULL;
    struct error err;

    if (node_link_is_ready(rq->api->node)) {
        asking = calloc(1, sizeof(*asking));
    }
    if (asking != NULL) {
        *asking = (struct asking){.rq = rq, .fn = fn};
        asking->call = http_client_start(rq->api->client, &request, &callbacks, asking, &err);
    }
    if (asking == NULL || asking->call == NULL) {
        free(asking);
        fn(rq, NULL);
        return;
    }
    request_on_gone(rq, on_gone, asking);
}

/* ---- the calls ---- */

static void answer_list(struct request *rq, const json_t *figures)
{
    _cleanup_page_ struct page page = {0};
    _cleanup_json_ json_t *list = json_array();
    struct error err;
    json_t *record;

    if (page_start(&page, rq, "nodes", NODE_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    record = record_json(rq->api, figures, &err);
    if (record == NULL) {
        request_fail(rq, &err);
        return;
    }
    (void)json_array_append_new(list, record);
    page_answer_array(&page, list);
}

void route_node_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct error err;

    if (page_start(&page, rq, "nodes", NODE_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    with_figures(rq, answer_list);
}

/* A drain that has not come to its end is 202, like an operation. */
static void answer_node(struct request *rq, const json_t *figures)
{
    const struct store_node *node = drain_record(rq->api);
    bool goes_on =
        rq->route->handle == route_node_drain && node->drain_at != 0 && node->drained_at == 0;
    const char *fields;
    struct error err;
    json_t *record;

    if (fields_read(rq, NODE_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    record = record_json(rq->api, figures, &err);
    if (record == NULL) {
        request_fail(rq, &err);
        return;
    }
    request_answer(rq, goes_on ? 202 : 200, fields_pick(record, fields));
}

static void answer_waited(struct request *rq)
{
    with_figures(rq, answer_node);
}

static bool is_known(struct request *rq)
{
    if (strcmp(rq->params[0], rq->api->settings.node_name) == 0) {
        return true;
    }
    request_fail_missing(rq, "node", rq->params[0]);
    return false;
}

void route_node_get(struct request *rq)
{
    const char *fields;
    struct error err;

    if (fields_read(rq, NODE_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
    } else if (is_known(rq)) {
        drain_wait(rq, answer_waited);
    }
}

typedef int (*order_fn)(struct api *api, struct error *err);

static void order(struct request *rq, order_fn fn)
{
    struct json_fields f;
    struct error err;

    json_fields_start(&f, rq->body, "", &err);
    if (json_fields_finish(&f) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (!is_known(rq)) {
        return;
    }
    if (fn(rq->api, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    drain_wait(rq, answer_waited);
}

void route_node_drain(struct request *rq)
{
    order(rq, drain_begin);
}

void route_node_undrain(struct request *rq)
{
    order(rq, drain_end);
}
