#include "api/idle.h"

#include <string.h>

#include "api/api.h"
#include "api/expiry.h"
#include "api/lifecycle.h"
#include "api/node_link.h"
#include "api/report.h"
#include "api/request.h"
#include "api/tunnel.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

#define BATCH_MAX      32
#define ASK_TIMEOUT_MS 5000
#define PROBLEM_MS     1000 /* before the next question after one without an answer */
#define ANSWER_MAX     65536U

struct idle_check {
    struct list link;
    struct api *api;
    char sandbox_id[ID_SIZE];
    struct http_call *call;
};

static void check_free(struct idle_check *check)
{
    if (check->call != NULL) {
        http_call_cancel(check->call);
    }
    list_remove(&check->link);
    free(check);
}

static bool is_asked(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->idle_checks)
    {
        if (strcmp(list_entry(it, struct idle_check, link)->sandbox_id, sandbox_id) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether somebody is at it: the end of that counts as activity too. */
static bool is_used(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->requests)
    {
        if (strcmp(list_entry(it, struct request, all_link)->guest_id, sandbox_id) == 0) {
            return true;
        }
    }
    return tunnels_have(api, sandbox_id) || lifecycle_is_busy(api, sandbox_id);
}

static int carry_out(struct api *api, struct sandbox *s, struct error *err)
{
    char operation_id[ID_SIZE];
    char started[ID_SIZE];
    int r = id_make("op", operation_id);

    (void)snprintf(s->reason_code, sizeof(s->reason_code), "idle_timeout");
    (void)snprintf(s->reason_message, sizeof(s->reason_message), "idle_timeout_seconds has passed");
    if (r < 0) {
        return r;
    }
    log_info("idle", "sandbox=%s action=%s", s->id, lifecycle_action_name(s->rules.idle_action));
    return s->rules.idle_action == LIFECYCLE_DELETE
               ? lifecycle_delete(api, s, operation_id, s->key_id, started, err)
               : expiry_rest(api, s, s->rules.idle_action, operation_id, err);
}

/* The node's word of when it was active last. */
static void decide(struct api *api, const struct sandbox_report *report)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    int r;

    if (is_used(api, report->id)) {
        expiry_touch(api, report->id);
        return;
    }
    r = store_sandbox_touch(api->store, report->id, report->active_at, &err);
    if (r == 0) {
        r = store_sandbox_get(api->store, report->id, &s, &err);
    }
    if (r > 0 && s.deleted_at == 0 && s.state == SANDBOX_RUNNING &&
        report->state == SANDBOX_RUNNING && s.rules.idle_timeout_ms > 0 &&
        s.active_at + s.rules.idle_timeout_ms <= clock_real_ms()) {
        r = carry_out(api, &s, &err);
    }
    if (r < 0) {
        log_warning("idle", "sandbox=%s problem=%s", report->id, LOG_STR(err.message));
        api->idle_held_until_ms = clock_monotonic_ms() + PROBLEM_MS;
    }
}

static void on_answer(void *arg, struct http_call *call, const struct error *err)
{
    struct idle_check *check = arg;
    struct api *api = check->api;
    _cleanup_json_ json_t *answer = NULL;
    struct sandbox_report report;
    struct error bad;

    check->call = NULL;
    check_free(check);
    if (err == NULL && http_call_status(call) == 200 &&
        json_answer_parse(http_call_body(call), &answer, &bad) == 0 &&
        report_read(answer, &report) == 0) {
        decide(api, &report);
    } else {
        api->idle_held_until_ms = clock_monotonic_ms() + PROBLEM_MS;
    }
}

static void ask(struct api *api, const char *sandbox_id)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_answer};
    struct idle_check *check = calloc(1, sizeof(*check));
    char target[64];
    struct http_call_request request = {
        .method = "GET", .target = target, .timeout_ms = ASK_TIMEOUT_MS, .max_body = ANSWER_MAX};
    struct error err;

    if (check == NULL) {
        return; /* at the next tick */
    }
    check->api = api;
    (void)snprintf(check->sandbox_id, sizeof(check->sandbox_id), "%.20s", sandbox_id);
    (void)snprintf(target, sizeof(target), "/n1/sandboxes/%.20s", sandbox_id);
    list_append(&api->idle_checks, &check->link);
    check->call = http_client_start(api->client, &request, &callbacks, check, &err);
    if (check->call == NULL) {
        check_free(check);
    }
}

void idle_check(struct api *api, int64_t now)
{
    char ids[BATCH_MAX][ID_SIZE];
    struct error err = {0};
    int count;

    if (!node_link_is_ready(api->node) || clock_monotonic_ms() < api->idle_held_until_ms) {
        return;
    }
    count = store_sandbox_find_idle(
        api->store, now, ids, (struct id_range){.skip = api->idle_skip, .max = BATCH_MAX}, &err);
    /* The next ones at the next tick, whatever becomes of these. */
    api->idle_skip = count == BATCH_MAX ? api->idle_skip + BATCH_MAX : 0;
    for (int i = 0; i < count; i++) {
        if (is_used(api, ids[i])) {
            expiry_touch(api, ids[i]);
        } else if (!is_asked(api, ids[i])) {
            ask(api, ids[i]);
        }
    }
}

void idle_done(struct api *api)
{
    while (!list_is_empty(&api->idle_checks)) {
        check_free(list_entry(api->idle_checks.next, struct idle_check, link));
    }
}
