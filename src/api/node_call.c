#include "api/node_call.h"

#include <errno.h>

#include "api/api.h"
#include "api/idempotency.h"
#include "api/wake.h"
#include "io/http_client.h"
#include "io/json_request.h"

#define COLLECT_MAX (16U * 1024U * 1024U)

struct node_call {
    struct request *rq;
    struct http_call *call;
    node_answer_fn fn;
};

bool node_call_known(struct request *rq, struct sandbox *ret_sandbox)
{
    const char *id = rq->params[0];
    struct error err = {0};
    int r = 0;

    if (id_is_valid(id, "sb")) {
        r = store_sandbox_get(rq->api->store, id, ret_sandbox, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return false;
    }
    if (r == 0) {
        request_fail_missing(rq, "sandbox", id);
        return false;
    }
    return true;
}

bool node_call_sandbox(struct request *rq, struct sandbox *ret_sandbox)
{
    if (!node_call_known(rq, ret_sandbox)) {
        return false;
    }
    if (ret_sandbox->deleted_at != 0) {
        request_fail_missing(rq, "sandbox", rq->params[0]);
        return false;
    }
    return true;
}

bool node_call_running(struct request *rq, struct sandbox *ret_sandbox)
{
    struct error err;

    if (!node_call_sandbox(rq, ret_sandbox)) {
        return false;
    }
    if (ret_sandbox->state != SANDBOX_RUNNING) {
        const char *state = sandbox_state_name(ret_sandbox->state);

        (void)error_set_code(
            &err, ERROR_FAILED_PRECONDITION, state, "the sandbox is %s, not running%s%.200s", state,
            ret_sandbox->reason_message[0] == '\0' ? "" : ": ", ret_sandbox->reason_message);
        request_fail(rq, &err);
        return false;
    }
    return true;
}

bool node_call_process(struct request *rq, const struct sandbox *sandbox)
{
    const char *id = rq->params[1];

    if (!id_is_valid(id, "pr") || memcmp(&id[2], &sandbox->id[2], ID_SHARD_CHARS) != 0) {
        request_fail_missing(rq, "process", id);
        return false;
    }
    return true;
}

static void on_gone(void *arg)
{
    struct node_call *nc = arg;

    http_call_cancel(nc->call);
    free(nc);
}

/* The node's own error, as it is. */
static void pass_error(struct request *rq, const struct http_call *call)
{
    const char *after = http_call_header(call, "Retry-After");
    int status = http_call_status(call);

    if (after == NULL && (status == 503 || status == 429 || status == 502 || status == 504)) {
        after = "1";
    }
    request_answer_json_text(rq, status, http_call_body(call), after);
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct node_call *nc = arg;
    struct request *rq = nc->rq;
    node_answer_fn fn = nc->fn;
    _cleanup_json_ json_t *answer = NULL;
    int status = http_call_status(call);
    struct error bad;

    free(nc);
    request_on_gone(rq, NULL, NULL);
    if (err != NULL) {
        request_fail(rq, err);
    } else if (json_answer_parse(http_call_body(call), &answer, &bad) < 0) {
        (void)error_set_code(&bad, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        request_fail(rq, &bad);
    } else if (wake_may_repeat(rq, call)) {
        wake_repeat(rq);
    } else if (status < 200 || status > 299) {
        pass_error(rq, call);
    } else {
        fn(rq, status, answer);
    }
}

void node_call_json(
    struct request *rq, const char *method, const char *path, const json_t *body, node_answer_fn fn)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_done};
    const struct http_header headers[] = {{"X-Request-Id", rq->id},
                                          {"Content-Type", "application/json"}};
    struct http_call_request request = {.method = method,
                                        .target = path,
                                        .headers = headers,
                                        .header_count = body == NULL ? 1 : 2,
                                        .max_body = COLLECT_MAX};
    _cleanup_buf_ struct buf text = buf_make(0);
    struct node_call *nc = calloc(1, sizeof(*nc));
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    if (body != NULL) {
        json_write(body, &text);
        request.body = buf_span(&text);
    }
    if (nc != NULL && buf_error(&text) == 0) {
        nc->rq = rq;
        nc->fn = fn;
        nc->call = http_client_start(rq->api->client, &request, &callbacks, nc, &err);
    }
    if (nc == NULL || nc->call == NULL) {
        free(nc);
        request_fail(rq, &err);
        return;
    }
    idempotency_begun(rq);
    request_on_gone(rq, on_gone, nc);
}
