/* The lifecycle calls: create, delete, pause, suspend, wake. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/expiry.h"
#include "api/lifecycle.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/record_json.h"
#include "api/route.h"
#include "api/routes.h"

#define ID_TRIES 8

/* ---- the answer of a lifecycle call ---- */

void route_answer_lifecycle(struct request *rq)
{
    _cleanup_operation_ struct operation o = {0};
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    bool makes = rq->route->handle == route_sandbox_create ||
                 rq->route->handle == route_checkpoint_create ||
                 rq->route->handle == route_sandbox_fork;
    int status = makes ? 201 : 200;
    int r = store_operation_get(rq->api->store, rq->operation_id, &o, &err);

    if (r > 0) {
        r = store_sandbox_get(rq->api->store, o.sandbox_id, &s, &err);
    }
    if (r <= 0) {
        if (r == 0) {
            (void)error_set(&err, EIO, "the operation's record is gone");
        }
        request_fail(rq, &err);
        return;
    }
    if (o.state == OPERATION_FAILED) {
        operation_fail(rq, &o);
        return;
    }
    request_answer(
        rq, o.finished_at != 0 ? status : 202,
        json_pack("{s:o, s:o}", "sandbox", sandbox_json(&s), "operation", operation_json(&o)));
}

/* ---- create ---- */

static int write_create(struct request *rq,
                        const struct sandbox *s,
                        const char *body,
                        char operation_id[ID_SIZE],
                        struct error *err)
{
    struct store *store = rq->api->store;
    struct operation o = {.kind = "create", .state = OPERATION_RUNNING};
    int r = request_make_id(rq, "op", operation_id);

    if (r < 0) {
        return error_set(err, -r, "no random bytes");
    }
    memcpy(o.id, operation_id, sizeof(o.id));
    memcpy(o.sandbox_id, s->id, sizeof(o.sandbox_id));
    memcpy(o.key_id, s->key_id, sizeof(o.key_id));
    o.created_at = s->created_at;
    r = store_begin(store, err);
    if (r < 0) {
        return r;
    }
    r = store_sandbox_insert(store, s, body, err);
    if (r == 0) {
        r = store_operation_insert(store, &o, err);
    }
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, err);
}

/* Whether an earlier attempt with the same Idempotency-Key has made the sandbox. */
static bool answer_earlier(struct request *rq, const char *sandbox_id)
{
    _cleanup_operation_ struct operation o = {0};
    struct error err;

    if (rq->flight == NULL ||
        store_operation_find(rq->api->store, sandbox_id, "create", &o, &err) <= 0) {
        return false;
    }
    operation_wait(rq, o.id, route_answer_lifecycle);
    return true;
}

static void create_now(struct request *rq)
{
    struct error err = {0};
    struct json_fields f;
    struct create_spec spec;
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_json_ json_t *node_body = NULL;
    _cleanup_free_ char *text = NULL;
    char operation_id[ID_SIZE];
    char other[ID_SIZE] = "";
    int r;

    json_fields_start(&f, rq->body, "", &err);
    create_spec_read_any(&f, &spec);
    if (rq->flight != NULL) {
        char id[ID_SIZE];

        if (request_make_id(rq, "sb", id) == 0 && answer_earlier(rq, id)) {
            return;
        }
        rq->made_ids = 0;
    }
    r = create_prepare(rq, &spec, &s, other, &err);
    for (int i = 0; r == 0 && i < ID_TRIES; i++) {
        node_body = create_node_body(&spec, &s);
        text = node_body == NULL ? NULL : json_dumps(node_body, JSON_COMPACT);
        r = text == NULL ? error_set(&err, ENOMEM, "no memory")
                         : write_create(rq, &s, text, operation_id, &err);
        if (r != -EEXIST) {
            break;
        }
        free(TAKE(text));
        json_decref(TAKE(node_body));
        (void)error_set(&err, EEXIST, "no free id was found");
        r = id_make("sb", s.id);
    }
    if (r == 0) {
        r = lifecycle_create(rq->api, s.id, operation_id, text, &err);
    }
    if (r < 0) {
        create_fail(rq, &err, other);
        return;
    }
    expiry_changed(rq->api, s.expires_at);
    if (s.rules.idle_timeout_ms > 0) {
        expiry_changed(rq->api, s.created_at + s.rules.idle_timeout_ms);
    }
    operation_wait(rq, operation_id, route_answer_lifecycle);
}

static void create_at_node(struct request *rq)
{
    struct error err = {0};
    struct json_fields f;
    struct create_spec spec;

    json_fields_start(&f, rq->body, "", &err);
    create_spec_read_any(&f, &spec);
    if (spec.checkpoint_id[0] != '\0') {
        create_now(rq);
    } else {
        create_with_template(rq, spec.template_name, create_now);
    }
}

void route_sandbox_create(struct request *rq)
{
    struct error err = {0};
    struct json_fields f;
    struct create_spec spec;

    json_fields_start(&f, rq->body, "", &err);
    create_spec_read_any(&f, &spec);
    if (json_fields_finish(&f) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, create_at_node);
}

/* ---- delete ---- */

void route_sandbox_delete(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};
    char operation_id[ID_SIZE];
    char started[ID_SIZE];
    int r;

    if (request_make_id(rq, "op", operation_id) < 0) {
        (void)error_set(&err, EIO, "no random bytes");
        request_fail(rq, &err);
        return;
    }
    /* An attempt that was cut off by a crash had this very operation. */
    if (rq->flight != NULL && store_operation_get(rq->api->store, operation_id, &o, &err) > 0) {
        operation_wait(rq, operation_id, route_answer_lifecycle);
        return;
    }
    if (!node_call_sandbox(rq, &s)) {
        return;
    }
    r = lifecycle_delete(rq->api, &s, operation_id, rq->key->record.id, started, &err);
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    if (started[0] == '\0') { /* one of a run without an operation is on its way */
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox is being deleted");
        request_fail(rq, &err);
        return;
    }
    operation_wait(rq, started, route_answer_lifecycle);
}

/* ---- pause, suspend and wake ---- */

static enum change_verb verb_of(const struct request *rq)
{
    if (rq->route->handle == route_sandbox_pause) {
        return CHANGE_PAUSE;
    }
    return rq->route->handle == route_sandbox_suspend ? CHANGE_SUSPEND : CHANGE_WAKE;
}

static void change_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};
    char id[ID_SIZE];
    const struct change change = {
        .verb = verb_of(rq),
        .operation_id = id,
        .key_id = rq->key->record.id,
        .reason_code = "",
        .reason_message = "",
    };

    if (request_make_id(rq, "op", id) < 0) {
        (void)error_set(&err, EIO, "no random bytes");
        request_fail(rq, &err);
        return;
    }
    /* An attempt that was cut off by a crash had this very operation. */
    if (rq->flight != NULL && store_operation_get(rq->api->store, id, &o, &err) > 0) {
        operation_wait(rq, id, route_answer_lifecycle);
        return;
    }
    if (!node_call_sandbox(rq, &s)) {
        return;
    }
    if (lifecycle_change(rq->api, &s, &change, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    operation_wait(rq, id, route_answer_lifecycle);
}

static void change(struct request *rq)
{
    struct json_fields f;
    struct error err;

    json_fields_start(&f, rq->body, "", &err);
    if (json_fields_finish(&f) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, change_now);
}

void route_sandbox_pause(struct request *rq)
{
    change(rq);
}

void route_sandbox_suspend(struct request *rq)
{
    change(rq);
}

void route_sandbox_wake(struct request *rq)
{
    change(rq);
}
