#include "api/checkpoint_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/lifecycle.h"
#include "api/store_checkpoint.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"
#include "io/loop.h"

#define ORPHAN_AGE_MS  60000
#define ASK_TIMEOUT_MS 30000
#define ANSWER_MAX     (16U << 20)

struct checkpoint_check {
    struct api *api;
    struct loop_timer *timer;
    struct http_call *call; /* NULL: none is under way */
    json_t *expected;       /* ids that were ready when the node was asked */
    json_t *unknown;        /* ids that the store does not have: when that was found, monotonic */
    int64_t next_ms;        /* when one of them is to be looked at again; 0: never */
};

/* ---- what only one of them has ---- */

static void look_again(struct checkpoint_check *check, int64_t in_ms)
{
    int64_t at_ms = clock_monotonic_ms() + in_ms;

    if (check->next_ms == 0 || at_ms < check->next_ms) {
        check->next_ms = at_ms;
    }
}

/* The store may be an older one, and the one that knows it may come back. */
static void
take_unknown(struct checkpoint_check *check, json_t *unknown, const char *id, int64_t created_at)
{
    int64_t keep_ms = (int64_t)check->api->settings.api_unknown_checkpoint_seconds * 1000;
    int64_t now_ms = clock_monotonic_ms();
    const json_t *known = json_object_get(check->unknown, id);
    int64_t found_ms = known != NULL ? json_integer_value(known) : now_ms;

    if (created_at > clock_real_ms() - ORPHAN_AGE_MS) {
        look_again(check, ORPHAN_AGE_MS);
    } else if (found_ms + keep_ms > now_ms) {
        if (known == NULL) {
            log_warning("checkpoint unknown", "checkpoint=%s removed_in_s=%lld", id,
                        (long long)(keep_ms / 1000));
        }
        (void)json_object_set_new(unknown, id, json_integer(found_ms));
        look_again(check, found_ms + keep_ms - now_ms);
    } else {
        log_warning("orphan", "checkpoint=%s", id);
        lifecycle_drop_checkpoint(check->api, id);
    }
}

static void take_item(struct checkpoint_check *check, json_t *unknown, const json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    const char *state = json_string_value(json_object_get(item, "state"));
    const char *created = json_string_value(json_object_get(item, "created_at"));
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};
    int64_t created_at = 0;
    int r;

    if (id == NULL || !id_is_valid(id, "ck") || state == NULL || strcmp(state, "making") == 0 ||
        strcmp(state, "removing") == 0) {
        return;
    }
    if (created != NULL && clock_parse(created, &created_at) < 0) {
        created_at = 0; /* that of a damaged one tells nothing */
    }
    r = store_checkpoint_get(check->api->store, id, &c, &err);
    if (r == 0) {
        take_unknown(check, unknown, id, created_at);
    } else if (r > 0 && c.state == CHECKPOINT_LOST &&
               store_checkpoint_set_lost(check->api->store, id, false, &err) == 0) {
        log_info("checkpoint found", "checkpoint=%s", id);
    }
}

static void take_list(struct checkpoint_check *check, const json_t *items)
{
    _cleanup_json_ json_t *there = json_object();
    json_t *unknown = json_object();
    struct error err = {0};
    const json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        const char *id = json_string_value(json_object_get(item, "id"));

        if (id == NULL || json_object_set_new(there, id, json_true()) < 0) {
            json_decref(unknown);
            return; /* half a list proves nothing */
        }
    }
    check->next_ms = 0;
    json_array_foreach(items, i, item) {
        take_item(check, unknown, item);
    }
    json_decref(check->unknown);
    check->unknown = unknown;
    if (check->next_ms != 0) {
        loop_timer_start(check->timer, check->next_ms - clock_monotonic_ms() + 1);
    }
    json_array_foreach(check->expected, i, item) {
        const char *id = json_string_value(item);

        if (json_object_get(there, id) == NULL &&
            store_checkpoint_set_lost(check->api->store, id, true, &err) == 0) {
            log_warning("checkpoint lost", "checkpoint=%s", id);
        }
    }
}

/* ---- asking ---- */

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct checkpoint_check *check = arg;
    _cleanup_json_ json_t *answer = NULL;
    struct error bad;

    check->call = NULL;
    if (err == NULL && http_call_status(call) == 200 &&
        json_answer_parse(http_call_body(call), &answer, &bad) == 0 &&
        json_is_array(json_object_get(answer, "items"))) {
        take_list(check, json_object_get(answer, "items"));
    }
}

/* One that is in the object store is fetched from there when it is needed. */
static int expect(void *arg, const struct checkpoint *c)
{
    if (c->manifest[0] != '\0') {
        return 0;
    }
    return json_array_append_new(arg, json_string(c->id)) < 0 ? -ENOMEM : 0;
}

void checkpoint_check_start(struct checkpoint_check *check)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_done};
    const struct http_call_request request = {.method = "GET",
                                              .target = "/n1/checkpoints",
                                              .timeout_ms = ASK_TIMEOUT_MS,
                                              .max_body = ANSWER_MAX};
    const struct checkpoint_filter all = {.limit = INT64_MAX};
    struct error err = {0};

    if (check->call != NULL) {
        http_call_cancel(check->call);
        check->call = NULL;
    }
    (void)json_array_clear(check->expected);
    if (store_checkpoint_list(check->api->store, &all, expect, check->expected, &err) == 0) {
        check->call = http_client_start(check->api->client, &request, &callbacks, check, &err);
    }
}

static void on_timer(void *arg)
{
    checkpoint_check_start(arg);
}

struct checkpoint_check *checkpoint_check_new(struct api *api)
{
    struct checkpoint_check *check = calloc(1, sizeof(*check));

    if (check == NULL) {
        return NULL;
    }
    check->api = api;
    check->expected = json_array();
    check->unknown = json_object();
    check->timer = loop_timer_new(api->loop, on_timer, check);
    if (check->expected == NULL || check->unknown == NULL || check->timer == NULL) {
        checkpoint_check_free(check);
        return NULL;
    }
    return check;
}

void checkpoint_check_free(struct checkpoint_check *check)
{
    if (check == NULL) {
        return;
    }
    if (check->call != NULL) {
        http_call_cancel(check->call);
    }
    loop_timer_free(check->timer);
    json_decref(check->expected);
    json_decref(check->unknown);
    free(check);
}
