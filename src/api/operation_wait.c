/* Requests that wait for the end of an operation. */
#include <errno.h>

#include "api/api.h"
#include "api/lifecycle.h"
#include "api/store_operation.h"
#include "io/json_request.h"
#include "io/loop.h"

static void stop_waiting(struct request *rq)
{
    list_remove(&rq->wait_link);
    loop_timer_free(rq->timer);
    rq->timer = NULL;
}

static void on_timeout(void *arg)
{
    struct request *rq = arg;

    stop_waiting(rq);
    rq->resume(rq);
}

void operation_wait(struct request *rq, const char *operation_id, request_fn fn)
{
    operation_wait_for(rq, operation_id, rq->wait_ms, fn);
}

void operation_wait_for(struct request *rq,
                        const char *operation_id,
                        int64_t wait_ms,
                        request_fn fn)
{
    struct error err = {0};
    _cleanup_operation_ struct operation operation = {0};
    int r = store_operation_get(rq->api->store, operation_id, &operation, &err);

    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    (void)snprintf(rq->operation_id, sizeof(rq->operation_id), "%s", operation_id);
    rq->resume = fn;
    if (r == 0 || operation.finished_at != 0 || wait_ms == 0) {
        fn(rq);
        return;
    }
    rq->timer = loop_timer_new(rq->api->loop, on_timeout, rq);
    if (rq->timer == NULL) {
        fn(rq);
        return;
    }
    loop_timer_start(rq->timer, wait_ms);
    list_append(&rq->api->waiters, &rq->wait_link);
}

void operation_notify(struct api *api, const char *operation_id)
{
    struct list told;
    struct list *it;
    struct list *following;

    /* Set aside first: one that is answered may bring the end of what others wait for. */
    list_init(&told);
    list_foreach(it, following, &api->waiters)
    {
        if (strcmp(list_entry(it, struct request, wait_link)->operation_id, operation_id) == 0) {
            list_remove(it);
            list_append(&told, it);
        }
    }
    while (!list_is_empty(&told)) {
        struct request *rq = list_entry(told.next, struct request, wait_link);

        stop_waiting(rq);
        rq->resume(rq);
    }
}

void operation_fail(struct request *rq, const struct operation *o)
{
    struct error err;
    json_t *stored = json_loads(o->error == NULL ? "{}" : o->error, 0, NULL);
    _cleanup_json_ json_t *envelope = json_pack("{s:o}", "error", stored);
    json_t *details = json_copy(json_object_get(stored, "details"));

    if (json_error_read(envelope, &err) < 0) {
        (void)error_set(&err, EIO, "the operation failed");
    }
    if (details == NULL) {
        details = json_object();
    }
    (void)json_object_set_new(details, "operation_id", json_string(o->id));
    if (o->sandbox_id[0] != '\0') {
        (void)json_object_set_new(details, "sandbox_id", json_string(o->sandbox_id));
    }
    request_fail_more(rq, &err, details);
}
