#include "api/node_link.h"

#include <errno.h>

#include "api/api.h"
#include "api/feed.h"
#include "api/lifecycle.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "wire/sse.h"

#define ASK_TIMEOUT_MS  5000
#define SYNC_TIMEOUT_MS 30000
#define FEED_SILENT_MS  45000 /* three comments of the node are missing */
#define BACKOFF_FIRST   50
#define BACKOFF_MAX     2000
#define TEMPLATES_MAX   (1024U * 1024U)
#define TEMPLATES_OLD   10000 /* ms: asked for again beside the request that uses them */

enum link_state {
    LINK_ASKING,
    LINK_FEEDING,
    LINK_READY,
    LINK_WAITING,
};

struct node_link {
    struct api *api;
    enum link_state state;
    struct loop_timer *timer;
    struct http_call *call;
    struct http_call *templates_call; /* the one in the background */
    struct sse_parser parser;
    bool feed_broken;
    int64_t backoff_ms;
    json_t *waiting_for; /* what the node itself said */
    json_t *templates;
    int64_t templates_at;
    unsigned int templates_changes; /* that we know of */
    unsigned int templates_asked;   /* what that was when the call in the background began */
    struct list waiters;            /* requests, by wait_link */
};

static const char *const state_names[] = {
    [LINK_ASKING] = "asking",
    [LINK_FEEDING] = "feeding",
    [LINK_READY] = "ready",
    [LINK_WAITING] = "waiting",
};

static void ask_node(struct node_link *link);

static void set_state(struct node_link *link, enum link_state state, int64_t deadline_ms)
{
    if ((link->state == LINK_READY) != (state == LINK_READY)) {
        log_info("node", "state=%s", state_names[state]);
    }
    link->state = state;
    loop_timer_stop(link->timer);
    if (deadline_ms > 0) {
        loop_timer_start(link->timer, deadline_ms);
    }
}

/* Starts over after a while. */
static void retry(struct node_link *link)
{
    if (link->call != NULL) {
        http_call_cancel(link->call);
        link->call = NULL;
    }
    sse_clear(&link->parser);
    set_state(link, LINK_WAITING, link->backoff_ms);
    link->backoff_ms = link->backoff_ms * 2 > BACKOFF_MAX ? BACKOFF_MAX : link->backoff_ms * 2;
}

static void on_timer(void *arg)
{
    struct node_link *link = arg;

    if (link->state == LINK_WAITING) {
        ask_node(link);
    } else {
        log_warning("node", "problem=\"no answer in time\" state=%s", state_names[link->state]);
        retry(link);
    }
}

static struct http_call *start_call(struct node_link *link,
                                    const char *target,
                                    int64_t timeout_ms,
                                    const struct http_call_callbacks *callbacks)
{
    struct http_call_request request = {
        .method = "GET", .target = target, .timeout_ms = timeout_ms, .max_body = TEMPLATES_MAX};
    struct error err;

    return http_client_start(link->api->client, &request, callbacks, link, &err);
}

/* ---- templates ---- */

static void take_templates(struct node_link *link, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err;
    json_t *items;

    if (http_call_status(call) != 200 ||
        json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        return;
    }
    items = json_object_get(answer, "items");
    if (json_is_array(items)) {
        json_decref(link->templates);
        link->templates = json_incref(items);
        link->templates_at = clock_monotonic_ms();
    }
}

static void on_templates(void *arg, struct http_call *call, const struct error *err)
{
    struct node_link *link = arg;

    link->templates_call = NULL;
    if (err == NULL && link->templates_asked == link->templates_changes) {
        take_templates(link, call);
    }
}

static void ask_templates(struct node_link *link)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_templates};

    if (link->templates_call == NULL) {
        link->templates_asked = link->templates_changes;
        link->templates_call = start_call(link, "/n1/templates", ASK_TIMEOUT_MS, &callbacks);
    }
}

const json_t *node_link_templates(const struct node_link *link)
{
    return link->templates;
}

void node_link_forget_templates(struct node_link *link)
{
    link->templates_changes++;
    json_decref(link->templates);
    link->templates = NULL;
}

const json_t *node_link_find_template(struct node_link *link, const char *name)
{
    return node_link_find_version(link, name, "");
}

static bool has_text(const json_t *item, const char *key, const char *want)
{
    const char *have = json_string_value(json_object_get(item, key));

    return have != NULL && strcmp(have, want) == 0;
}

const json_t *node_link_find_version(struct node_link *link, const char *name, const char *version)
{
    size_t index;
    json_t *item;

    if (link->state == LINK_READY && clock_monotonic_ms() - link->templates_at > TEMPLATES_OLD) {
        ask_templates(link);
    }
    json_array_foreach(link->templates, index, item) {
        if (has_text(item, "name", name) &&
            (version[0] == '\0' ? json_is_true(json_object_get(item, "current"))
                                : has_text(item, "version", version))) {
            return item;
        }
    }
    return NULL;
}

struct refresh {
    struct request *rq;
    struct node_link *link;
    struct http_call *call;
    request_fn fn;
    unsigned int changes; /* link->templates_changes, when it began */
};

static void refresh_gone(void *arg)
{
    struct refresh *refresh = arg;

    http_call_cancel(refresh->call);
    free(refresh);
}

static void refresh_done(void *arg, struct http_call *call, const struct error *err)
{
    struct refresh *refresh = arg;
    struct node_link *link = refresh->link;
    struct request *rq = refresh->rq;
    request_fn fn = refresh->fn;
    bool is_old = refresh->changes != link->templates_changes;

    if (err == NULL) {
        take_templates(refresh->link, call);
    }
    free(refresh);
    request_on_gone(rq, NULL, NULL);
    if (err != NULL) {
        request_fail(rq, err);
        return;
    }
    fn(rq);
    if (is_old) { /* good enough for a request that came before the change */
        json_decref(link->templates);
        link->templates = NULL;
    }
}

void node_link_refresh_templates(struct request *rq, request_fn fn)
{
    static const struct http_call_callbacks callbacks = {.on_done = refresh_done};
    struct http_call_request request = {.method = "GET",
                                        .target = "/n1/templates",
                                        .timeout_ms = ASK_TIMEOUT_MS,
                                        .max_body = TEMPLATES_MAX};
    struct refresh *refresh = calloc(1, sizeof(*refresh));
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    if (refresh != NULL) {
        *refresh = (struct refresh){rq, rq->api->node, NULL, fn, rq->api->node->templates_changes};
        refresh->call = http_client_start(rq->api->client, &request, &callbacks, refresh, &err);
    }
    if (refresh == NULL || refresh->call == NULL) {
        free(refresh);
        request_fail(rq, &err);
        return;
    }
    request_on_gone(rq, refresh_gone, refresh);
}

/* ---- requests that wait ---- */

static void on_wait_timeout(void *arg)
{
    struct request *rq = arg;
    struct error err;

    list_remove(&rq->wait_link);
    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL, "the node is not ready");
    request_fail_more(rq, &err,
                      json_pack("{s:o}", "waiting_for", node_link_waiting_for(rq->api->node)));
}

void node_link_need(struct request *rq, request_fn fn)
{
    struct node_link *link = rq->api->node;

    if (link->state == LINK_READY) {
        fn(rq);
        return;
    }
    rq->resume = fn;
    if (rq->timer == NULL) {
        rq->timer = loop_timer_new(rq->api->loop, on_wait_timeout, rq);
    }
    if (rq->ready_ms == 0 || rq->timer == NULL) {
        on_wait_timeout(rq);
        return;
    }
    loop_timer_start(rq->timer, rq->ready_ms);
    list_append(&link->waiters, &rq->wait_link);
}

static void resume_waiters(struct node_link *link)
{
    /* Those who begin to wait again during the walk come next time. */
    struct list now;

    list_init(&now);
    while (!list_is_empty(&link->waiters)) {
        struct list *first = link->waiters.next;

        list_remove(first);
        list_append(&now, first);
    }
    while (!list_is_empty(&now)) {
        struct request *rq = list_entry(now.next, struct request, wait_link);

        list_remove(&rq->wait_link);
        loop_timer_free(rq->timer);
        rq->timer = NULL;
        rq->resume(rq);
    }
}

/* ---- the feed ---- */

static int on_event(void *arg, const struct sse_event *event)
{
    struct node_link *link = arg;

    if (strcmp(event->name, "sandbox") == 0) {
        return feed_on_sandbox(link->api, event->data, link->state == LINK_READY);
    }
    if (strcmp(event->name, "checkpoint") == 0) {
        return feed_on_checkpoint(link->api, event->data);
    }
    if (strcmp(event->name, "started") == 0) {
        lifecycle_hurry(link->api);
    }
    if (strcmp(event->name, "synced") == 0 && link->state == LINK_FEEDING) {
        int r = feed_on_synced(link->api);

        if (r < 0) {
            return r;
        }
        set_state(link, LINK_READY, FEED_SILENT_MS);
        link->backoff_ms = BACKOFF_FIRST;
        feed_after_synced(link->api);
        resume_waiters(link);
    }
    return 0;
}

static void on_feed_data(void *arg, struct http_call *call, struct span piece)
{
    struct node_link *link = arg;
    int r;

    if (http_call_status(call) != 200 || link->feed_broken) {
        return;
    }
    if (link->state == LINK_READY) {
        loop_timer_start(link->timer, FEED_SILENT_MS);
    }
    r = sse_feed(&link->parser, piece, on_event, link);
    if (r < 0) {
        /* Not from inside the callback: the timer starts over. */
        log_warning("node feed", "problem=%s", strerror(-r));
        link->feed_broken = true;
        set_state(link, LINK_FEEDING, 1);
    }
}

static void on_feed_done(void *arg, struct http_call *call, const struct error *err)
{
    struct node_link *link = arg;

    (void)call;
    log_info("node feed", "ended=%s", LOG_STR(err == NULL ? "by the node" : err->message));
    link->call = NULL;
    retry(link);
}

static void start_feed(struct node_link *link)
{
    static const struct http_call_callbacks callbacks = {.on_data = on_feed_data,
                                                         .on_done = on_feed_done};

    feed_begin(link->api);
    link->feed_broken = false;
    set_state(link, LINK_FEEDING, SYNC_TIMEOUT_MS);
    link->call = start_call(link, "/n1/events", 0, &callbacks);
    if (link->call == NULL) {
        retry(link);
        return;
    }
    ask_templates(link);
}

static void on_node(void *arg, struct http_call *call, const struct error *err)
{
    struct node_link *link = arg;
    _cleanup_json_ json_t *node = NULL;
    struct error bad;

    link->call = NULL;
    json_decref(link->waiting_for);
    link->waiting_for = NULL;
    if (err != NULL || http_call_status(call) != 200 ||
        json_answer_parse(http_call_body(call), &node, &bad) < 0) {
        retry(link);
        return;
    }
    if (!json_is_true(json_object_get(node, "ready"))) {
        link->waiting_for = json_incref(json_object_get(node, "waiting_for"));
        link->backoff_ms = BACKOFF_FIRST * 2;
        retry(link);
        return;
    }
    start_feed(link);
}

static void ask_node(struct node_link *link)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_node};

    set_state(link, LINK_ASKING, ASK_TIMEOUT_MS + 1000);
    link->call = start_call(link, "/n1/node", ASK_TIMEOUT_MS, &callbacks);
    if (link->call == NULL) {
        retry(link);
    }
}

/* ---- the whole ---- */

struct node_link *node_link_new(struct api *api)
{
    struct node_link *link = calloc(1, sizeof(*link));

    if (link == NULL) {
        return NULL;
    }
    link->api = api;
    link->backoff_ms = BACKOFF_FIRST;
    link->state = LINK_WAITING;
    list_init(&link->waiters);
    sse_init(&link->parser);
    link->timer = loop_timer_new(api->loop, on_timer, link);
    if (link->timer == NULL) {
        node_link_free(link);
        return NULL;
    }
    ask_node(link);
    return link;
}

void node_link_free(struct node_link *link)
{
    if (link == NULL) {
        return;
    }
    if (link->call != NULL) {
        http_call_cancel(link->call);
    }
    if (link->templates_call != NULL) {
        http_call_cancel(link->templates_call);
    }
    loop_timer_free(link->timer);
    sse_done(&link->parser);
    json_decref(link->waiting_for);
    json_decref(link->templates);
    free(link);
}

bool node_link_is_ready(const struct node_link *link)
{
    return link->state == LINK_READY;
}

json_t *node_link_waiting_for(const struct node_link *link)
{
    if (link->state == LINK_READY) {
        return json_array();
    }
    if (json_is_array(link->waiting_for) && json_array_size(link->waiting_for) > 0) {
        return json_incref(link->waiting_for);
    }
    return json_pack("[s]", link->state == LINK_FEEDING ? "feed" : "node");
}
