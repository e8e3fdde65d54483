/* POST /v1/sandboxes/{id}/fork. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/expiry.h"
#include "api/lifecycle.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/route.h"
#include "api/routes.h"
#include "api/store_checkpoint.h"
#include "io/json_request.h"

static int read_fork(struct request *rq, struct create_spec *spec, struct error *err)
{
    struct json_fields f;

    json_fields_start(&f, rq->body, "", err);
    create_spec_read_fork(&f, spec);
    return json_fields_finish(&f);
}

/* Their rules count from now on. */
static void tell_expiry(struct request *rq, const struct sandbox *child)
{
    expiry_changed(rq->api, child->expires_at);
    if (child->rules.idle_timeout_ms > 0) {
        expiry_changed(rq->api, child->created_at + child->rules.idle_timeout_ms);
    }
}

static void fork_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox source = {0};
    _cleanup_sandbox_ struct sandbox child = {0};
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct create_spec spec = {.name = NULL};
    struct fork fork = {.spec = &spec, .child = &child};
    struct error err = {0};
    char operation_id[ID_SIZE];
    char other[ID_SIZE] = "";
    const struct capture capture = {.operation_id = operation_id,
                                    .key_id = rq->key->record.id,
                                    .checkpoint_id = c.id,
                                    .checkpoint = &c,
                                    .fork = &fork};
    int r;

    if (route_answer_earlier(rq, operation_id) || !node_call_sandbox(rq, &source)) {
        return;
    }
    spec.rules = source.rules;
    r = read_fork(rq, &spec, &err);
    if (r == 0) {
        r = route_fill_checkpoint(rq, &source, &c, &err);
    }
    if (r == 0) {
        memcpy(spec.checkpoint_id, c.id, sizeof(spec.checkpoint_id));
        r = create_prepare_fork(rq, &spec, &source, &child, other, &err);
    }
    if (r == 0) {
        r = lifecycle_capture(rq->api, &source, &capture, &err);
    }
    if (r < 0) {
        create_fail(rq, &err, other);
        return;
    }
    tell_expiry(rq, &child);
    operation_wait(rq, operation_id, route_answer_lifecycle);
}

void route_sandbox_fork(struct request *rq)
{
    struct create_spec spec = {.rules = create_default_rules()};
    struct error err = {0};

    if (read_fork(rq, &spec, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, fork_now);
}
