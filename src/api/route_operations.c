/* Reading operations. */
#include <errno.h>

#include "api/api.h"
#include "api/lifecycle.h"
#include "api/page.h"
#include "api/record_json.h"
#include "api/routes.h"

static int add_operation(void *arg, const struct operation *o)
{
    return page_add(arg, operation_json(o), o->seq);
}

static bool is_kind(const char *kind)
{
    static const char *const kinds[] = {"create",     "delete",   "pause", "suspend", "wake",
                                        "checkpoint", "rollback", "fork",  "template"};
    bool found = false;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        found = found || strcmp(kind, kinds[i]) == 0;
    }
    return found;
}

static int read_filter(const struct request *rq, struct operation_filter *filter, struct error *err)
{
    filter->sandbox_id = query_find(&rq->query, "sandbox_id");
    filter->kind = query_find(&rq->query, "kind");
    if (filter->sandbox_id != NULL && !id_is_valid(filter->sandbox_id, "sb")) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "sandbox_id",
                              "sandbox_id is no sandbox id: %.40s", filter->sandbox_id);
    }
    if (filter->kind != NULL && !is_kind(filter->kind)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "kind",
                              "kind must be create, delete, pause, suspend, wake, checkpoint, "
                              "rollback, fork or template, got %.40s",
                              filter->kind);
    }
    for (size_t i = 0; i < rq->query.count; i++) {
        const struct query_item *item = &rq->query.items[i];
        enum operation_state state;

        if (strcmp(item->name, "state") != 0) {
            continue;
        }
        if (operation_state_find(item->value, &state) < 0) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "state",
                                  "there is no operation state %.40s", item->value);
        }
        filter->states |= 1U << (unsigned int)state;
    }
    return 0;
}

void route_operation_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct operation_filter filter = {.before_seq = 0};
    struct error err = {0};
    int r = page_start(&page, rq, "operations", OPERATION_FIELDS, &err);

    if (r == 0) {
        r = read_filter(rq, &filter, &err);
    }
    if (r == 0) {
        filter.before_seq = page.before_seq;
        filter.limit = page.limit + 1;
        r = store_operation_list(rq->api->store, &filter, add_operation, &page, &err);
    }
    if (r == -ENOMEM) {
        (void)error_set(&err, ENOMEM, "no memory");
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

static void answer_operation(struct request *rq)
{
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};
    const char *fields;
    int r = fields_read(rq, OPERATION_FIELDS, &fields, &err);

    if (r == 0) {
        r = store_operation_get(rq->api->store, rq->operation_id, &o, &err);
        if (r == 0) {
            request_fail_missing(rq, "operation", rq->operation_id);
            return;
        }
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    request_answer(rq, o.finished_at != 0 ? 200 : 202, fields_pick(operation_json(&o), fields));
}

void route_operation_get(struct request *rq)
{
    struct error err;
    const char *fields;

    if (fields_read(rq, OPERATION_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (!id_is_valid(rq->params[0], "op")) {
        request_fail_missing(rq, "operation", rq->params[0]);
        return;
    }
    operation_wait(rq, rq->params[0], answer_operation);
}
