#include "api/drain.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "api/api.h"
#include "api/lifecycle.h"
#include "api/node_link.h"
#include "api/record_json.h"
#include "api/run_once.h"
#include "api/store_operation.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"

#define AT_ONCE      4   /* suspends on their way, whoever asked for them */
#define LOOK_MAX     256 /* sandboxes looked at in one turn of the loop */
#define PROBLEMS_MAX 100
#define ROUND_MS     500
#define WATCH_MS     5000 /* while drained */
#define RETRY_MAX_MS 30000

struct problem {
    char sandbox_id[ID_SIZE];
    char code[32];
    char message[256];
    int64_t failed_at;
    int64_t retry_ms; /* monotonic */
    int attempts;
};

struct drain {
    struct api *api;
    struct loop_timer *timer;
    struct store_node node;        /* as the store has it */
    int64_t after;                 /* the round has come to this seq */
    char places[AT_ONCE][ID_SIZE]; /* the operations it has begun; "": free */
    struct problem problems[PROBLEMS_MAX];
    size_t problem_count;
    struct list waiters; /* requests, by wait_link */
};

static const char *node_name(const struct api *api)
{
    return api->settings.node_name;
}

/* ---- problems ---- */

static struct problem *find_problem(struct drain *drain, const char *sandbox_id)
{
    for (size_t i = 0; i < drain->problem_count; i++) {
        if (strcmp(drain->problems[i].sandbox_id, sandbox_id) == 0) {
            return &drain->problems[i];
        }
    }
    return NULL;
}

static void drop_problem(struct drain *drain, struct problem *problem)
{
    *problem = drain->problems[--drain->problem_count];
}

/* Beyond the table they are tried again in the next round. */
static void
note_problem(struct drain *drain, const char *sandbox_id, const char *code, const char *message)
{
    struct problem *p = find_problem(drain, sandbox_id);
    int64_t delay = ROUND_MS;

    if (p == NULL && drain->problem_count < PROBLEMS_MAX) {
        p = &drain->problems[drain->problem_count++];
        *p = (struct problem){.attempts = 0};
        (void)snprintf(p->sandbox_id, sizeof(p->sandbox_id), "%s", sandbox_id);
    }
    if (p == NULL) {
        return;
    }
    (void)snprintf(p->code, sizeof(p->code), "%s", code);
    (void)snprintf(p->message, sizeof(p->message), "%s", message);
    for (int i = 0; i < p->attempts && delay < RETRY_MAX_MS; i++) {
        delay *= 2;
    }
    p->attempts++;
    p->failed_at = clock_real_ms();
    p->retry_ms = clock_monotonic_ms() + (delay < RETRY_MAX_MS ? delay : RETRY_MAX_MS);
}

/* Forgets those of sandboxes that no longer stand in the way. */
static void prune_problems(struct drain *drain)
{
    for (size_t i = drain->problem_count; i > 0; i--) {
        _cleanup_sandbox_ struct sandbox s = {0};
        struct error err;
        int r = store_sandbox_get(drain->api->store, drain->problems[i - 1].sandbox_id, &s, &err);

        if (r == 0 || (r > 0 && (s.deleted_at != 0 || s.state == SANDBOX_SUSPENDED ||
                                 s.state == SANDBOX_ERROR || s.state == SANDBOX_DELETING))) {
            drop_problem(drain, &drain->problems[i - 1]);
        }
    }
}

json_t *drain_problems(struct api *api)
{
    struct drain *drain = api->drain;
    json_t *list = json_array();

    prune_problems(drain);
    for (size_t i = 0; i < drain->problem_count; i++) {
        const struct problem *p = &drain->problems[i];

        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:o, s:i}", "sandbox_id", p->sandbox_id, "code",
                            p->code, "message", p->message, "failed_at", time_json(p->failed_at),
                            "attempts", p->attempts));
    }
    return list;
}

/* ---- suspends ---- */

static void take_failure(struct drain *drain, const struct operation *o)
{
    _cleanup_json_ json_t *error = json_loads(o->error == NULL ? "{}" : o->error, 0, NULL);
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message"));

    note_problem(drain, o->sandbox_id, code == NULL ? "internal" : code,
                 message == NULL ? "the suspend failed" : message);
}

/* Frees the places of those that have ended. */
static void take_ends(struct drain *drain)
{
    for (size_t i = 0; i < AT_ONCE; i++) {
        char *place = drain->places[i];
        _cleanup_operation_ struct operation o = {0};
        struct error err;
        int r = place[0] == '\0' ? 0 : store_operation_get(drain->api->store, place, &o, &err);

        if (r > 0 && o.state == OPERATION_FAILED) {
            take_failure(drain, &o);
        }
        if (r == 0 || (r > 0 && o.finished_at != 0)) {
            place[0] = '\0';
        }
    }
}

static char *find_place(struct drain *drain)
{
    for (size_t i = 0; i < AT_ONCE; i++) {
        if (drain->places[i][0] == '\0') {
            return drain->places[i];
        }
    }
    return NULL;
}

static int suspend(struct drain *drain, char place[ID_SIZE], const char *id, struct error *err)
{
    struct api *api = drain->api;
    _cleanup_sandbox_ struct sandbox s = {0};
    char message[160];
    char operation_id[ID_SIZE];
    struct change change = {
        .verb = CHANGE_SUSPEND,
        .operation_id = operation_id,
        .reason_code = "node_drain",
        .reason_message = message,
    };
    int r = store_sandbox_get(api->store, id, &s, err);

    if (r <= 0) {
        return r;
    }
    if (id_make("op", operation_id) < 0) {
        return error_set(err, EIO, "no random bytes");
    }
    change.key_id = s.key_id;
    (void)snprintf(message, sizeof(message), "node %s is being drained", node_name(api));
    r = lifecycle_change(api, &s, &change, err);
    if (r == 0) {
        memcpy(place, operation_id, ID_SIZE);
    }
    return r;
}

/* Not one that is busy: what it is on its way to decides, in a later round. */
static bool is_due(struct drain *drain, const char *id)
{
    const struct problem *p = find_problem(drain, id);

    return !lifecycle_is_busy(drain->api, id) && !run_once_is_busy(drain->api, id) &&
           (p == NULL || p->retry_ms <= clock_monotonic_ms());
}

/* Goes on with the round as far as there are places. Returns whether it has come to its end, or
 * -errno. */
static int go_round(struct drain *drain, struct error *err)
{
    struct api *api = drain->api;

    for (int looked = 0; looked < LOOK_MAX; looked++) {
        char *place = find_place(drain);
        struct store_node_sandbox next;
        struct error why = {0};
        int r;

        if (place == NULL || lifecycle_count_suspends(api) >= AT_ONCE) {
            return 0;
        }
        r = store_node_next(api->store, drain->after, &next, err);
        if (r <= 0) {
            drain->after = 0;
            return r < 0 ? r : 1;
        }
        drain->after = next.seq;
        if (is_due(drain, next.id) && suspend(drain, place, next.id, &why) < 0) {
            note_problem(drain, next.id, error_code_name(why.code), why.message);
        }
    }
    return 0;
}

/* ---- the state ---- */

static void tell_waiters(struct drain *drain)
{
    struct list told;

    /* Set aside first: one that is answered may let another one wait. */
    list_init(&told);
    while (!list_is_empty(&drain->waiters)) {
        struct list *first = drain->waiters.next;

        list_remove(first);
        list_append(&told, first);
    }
    while (!list_is_empty(&told)) {
        struct request *rq = list_entry(told.next, struct request, wait_link);

        list_remove(&rq->wait_link);
        loop_timer_free(rq->timer);
        rq->timer = NULL;
        rq->resume(rq);
    }
}

static int write_node(struct drain *drain, const struct store_node *node, struct error *err)
{
    int r = store_node_set(drain->api->store, node_name(drain->api), node, err);

    if (r == 0) {
        drain->node = *node;
    }
    return r;
}

/* At the end of a round: whether anything is left that has a VM or will have one. */
static int settle(struct drain *drain, struct error *err)
{
    struct store_node node = drain->node;
    int64_t counts[SANDBOX_STATE_COUNT];
    int64_t left = 0;
    int r = store_node_count(drain->api->store, counts, err);

    for (int i = 0; r == 0 && i < SANDBOX_STATE_COUNT; i++) {
        left += i == SANDBOX_SUSPENDED || i == SANDBOX_ERROR ? 0 : counts[i];
    }
    if (r < 0 || (left == 0) == (node.drained_at != 0)) {
        return r;
    }
    node.drained_at = left == 0 ? clock_real_ms() : 0;
    r = write_node(drain, &node, err);
    if (r == 0) {
        log_info("drain", "node=%s state=%s left=%" PRId64, node_name(drain->api),
                 left == 0 ? "drained" : "draining", left);
    }
    return r;
}

static void on_tick(void *arg)
{
    struct drain *drain = arg;
    struct error err = {0};
    int64_t delay = ROUND_MS;
    int r;

    if (drain->node.drain_at == 0 || drain->api->stopping) {
        return;
    }
    take_ends(drain);
    if (node_link_is_ready(drain->api->node)) {
        r = go_round(drain, &err);
        if (r > 0) {
            prune_problems(drain);
            r = settle(drain, &err);
        }
        if (r < 0) {
            log_warning("drain", "problem=%s", LOG_STR(err.message));
        }
    }
    if (drain->node.drained_at != 0) {
        delay = WATCH_MS;
        tell_waiters(drain);
    }
    loop_timer_start(drain->timer, delay);
}

void drain_poke(struct api *api)
{
    if (api->drain != NULL && api->drain->node.drain_at != 0) {
        loop_timer_start(api->drain->timer, 0);
    }
}

int drain_begin(struct api *api, struct error *err)
{
    struct store_node node = {.drain_at = clock_real_ms()};
    int r = api->drain->node.drain_at != 0 ? 0 : write_node(api->drain, &node, err);

    if (r == 0) {
        log_info("drain", "node=%s state=draining", node_name(api));
        loop_timer_start(api->drain->timer, 0);
    }
    return r;
}

/* What is being suspended comes to its end; nothing more is begun. */
int drain_end(struct api *api, struct error *err)
{
    struct drain *drain = api->drain;
    int r = drain->node.drain_at == 0 ? 0 : write_node(drain, &(struct store_node){0}, err);

    if (r == 0) {
        log_info("drain", "node=%s state=ready", node_name(api));
        loop_timer_stop(drain->timer);
        memset(drain->places, 0, sizeof(drain->places));
        drain->problem_count = 0;
        drain->after = 0;
        tell_waiters(drain);
    }
    return r;
}

/* ---- what the others ask ---- */

const struct store_node *drain_record(const struct api *api)
{
    return &api->drain->node;
}

int drain_refuse(const struct api *api, enum error_code code, const char *what, struct error *err)
{
    const struct store_node *node = drain_record(api);

    if (node->drain_at == 0) {
        return 0;
    }
    return error_set_code(err, code, "node_drained",
                          "node %s is %s: %s on it until it is undrained", node_name(api),
                          node->drained_at != 0 ? "drained" : "draining", what);
}

static void on_wait_timeout(void *arg)
{
    struct request *rq = arg;

    list_remove(&rq->wait_link);
    loop_timer_free(rq->timer);
    rq->timer = NULL;
    rq->resume(rq);
}

void drain_wait(struct request *rq, request_fn fn)
{
    struct drain *drain = rq->api->drain;

    rq->resume = fn;
    if (drain->node.drain_at != 0 && drain->node.drained_at == 0 && rq->wait_ms > 0) {
        rq->timer = loop_timer_new(rq->api->loop, on_wait_timeout, rq);
    }
    if (rq->timer == NULL) {
        fn(rq);
        return;
    }
    loop_timer_start(rq->timer, rq->wait_ms);
    list_append(&drain->waiters, &rq->wait_link);
}

int drain_new(struct api *api, struct drain **ret_drain, struct error *err)
{
    struct drain *drain = calloc(1, sizeof(*drain));
    int r;

    if (drain == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    drain->api = api;
    list_init(&drain->waiters);
    drain->timer = loop_timer_new(api->loop, on_tick, drain);
    r = drain->timer == NULL ? error_set(err, ENOMEM, "no memory")
                             : store_node_get(api->store, node_name(api), &drain->node, err);
    if (r < 0) {
        drain_free(drain);
        return r;
    }
    loop_timer_start(drain->timer, 0);
    *ret_drain = drain;
    return 0;
}

void drain_free(struct drain *drain)
{
    if (drain != NULL) {
        loop_timer_free(drain->timer);
        free(drain);
    }
}
