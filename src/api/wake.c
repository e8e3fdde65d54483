#include "api/wake.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/expiry.h"
#include "api/lifecycle.h"
#include "api/node_link.h"
#include "api/route.h"
#include "api/store_operation.h"
#include "api/store_sandbox.h"
#include "io/http_client.h"

#define WAKE_WAIT_MS 30000
#define REPEATS_MAX  5U

static void go_on(struct request *rq)
{
    request_fn fn = rq->awake;

    expiry_touch(rq->api, rq->guest_id);
    fn(rq);
}

static void on_waited(struct request *rq)
{
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};
    int r = store_operation_get(rq->api->store, rq->operation_id, &o, &err);

    if (r <= 0) {
        (void)error_set(&err, EIO, "the operation's record cannot be read");
        request_fail(rq, &err);
    } else if (o.state == OPERATION_FAILED) {
        operation_fail(rq, &o);
    } else if (o.finished_at == 0) {
        (void)error_set_code(&err, ERROR_DEADLINE_EXCEEDED, NULL,
                             "the sandbox was not awake in time");
        request_fail(rq, &err);
    } else {
        go_on(rq);
    }
}

static void wait_for(struct request *rq, const char *operation_id)
{
    operation_wait_for(rq, operation_id, rq->wait_ms > 0 ? rq->wait_ms : WAKE_WAIT_MS, on_waited);
}

static void refuse(struct request *rq, const struct sandbox *s, const char *why)
{
    const char *state = sandbox_state_name(s->state);
    struct error err;

    (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, state, "the sandbox is %s, and %s", state,
                         why);
    request_fail(rq, &err);
}

static void wake(struct request *rq, const struct sandbox *s)
{
    char id[ID_SIZE];
    const struct change change = {
        .verb = CHANGE_WAKE,
        .operation_id = id,
        .key_id = rq->key != NULL ? rq->key->record.id : s->key_id,
        .reason_code = "",
        .reason_message = "",
    };
    struct error err = {0};

    /* Who came to a port has been let in already, be it in public. */
    if (rq->role < KEY_ROLE_MEMBER && rq->port == NULL) {
        refuse(rq, s, "a key that only reads wakes nothing");
    } else if (!s->rules.auto_wake) {
        refuse(rq, s, "its lifecycle.auto_wake is false");
    } else if (id_make("op", id) < 0) {
        (void)error_set(&err, EIO, "no random bytes");
        request_fail(rq, &err);
    } else if (lifecycle_change(rq->api, s, &change, &err) < 0) {
        request_fail(rq, &err);
    } else {
        wait_for(rq, id);
    }
}

/* What is on its way is said already. */
static void look_ahead(struct sandbox *s, enum lifecycle_end end)
{
    if (s->state == SANDBOX_RUNNING && end == LIFECYCLE_END_PAUSED) {
        s->state = SANDBOX_PAUSING;
    } else if (s->state == SANDBOX_RUNNING && end == LIFECYCLE_END_SUSPENDED) {
        s->state = SANDBOX_SUSPENDING;
    }
}

static bool is_asleep(const struct sandbox *s)
{
    return s->state == SANDBOX_PAUSING || s->state == SANDBOX_PAUSED ||
           s->state == SANDBOX_SUSPENDING || s->state == SANDBOX_SUSPENDED ||
           s->state == SANDBOX_WAKING;
}

static int find(const struct request *rq, struct sandbox *ret_sandbox)
{
    struct store *store = rq->api->store;
    struct error err = {0};

    if ((rq->route->flags & ROUTE_SESSION) != 0) {
        return store_sandbox_get_shard(store, rq->params[0], ret_sandbox, &err);
    }
    return id_is_valid(rq->params[0], "sb")
               ? store_sandbox_get(store, rq->params[0], ret_sandbox, &err)
               : 0;
}

static void enter(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    char operation_id[ID_SIZE];
    enum lifecycle_end end;

    if (find(rq, &s) <= 0 || s.deleted_at != 0) {
        rq->awake(rq);
        return;
    }
    memcpy(rq->guest_id, s.id, sizeof(rq->guest_id));
    end = lifecycle_end_of(rq->api, s.id, operation_id);
    look_ahead(&s, end);
    if (end == LIFECYCLE_END_RUNNING) {
        wait_for(rq, operation_id);
    } else if (is_asleep(&s)) {
        wake(rq, &s);
    } else {
        go_on(rq);
    }
}

void wake_need(struct request *rq, request_fn fn)
{
    rq->awake = fn;
    node_link_need(rq, enter);
}

bool wake_may_repeat(const struct request *rq, const struct http_call *call)
{
    const char *method = http_exchange_method(rq->exchange);

    return rq->awake != NULL && !rq->answered && rq->repeats < REPEATS_MAX &&
           http_call_header(call, "X-Space-Asleep") != NULL &&
           (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0);
}

void wake_repeat(struct request *rq)
{
    rq->repeats++;
    wake_need(rq, rq->awake);
}
