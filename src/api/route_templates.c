/* Templates, as the node has them. */
#include "api/api.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/routes.h"
#include "io/json_request.h"

static void answer_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct error err;

    if (page_start(&page, rq, "templates", TEMPLATE_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer_array(&page, node_link_templates(rq->api->node));
}

static void refresh_list(struct request *rq)
{
    node_link_refresh_templates(rq, answer_list);
}

void route_template_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct error err;

    if (page_start(&page, rq, "templates", TEMPLATE_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, refresh_list);
}

static void answer_one(struct request *rq)
{
    const json_t *item = node_link_find_template(rq->api->node, rq->params[0]);
    struct error err;
    const char *fields;

    if (fields_read(rq, TEMPLATE_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
    } else if (item == NULL) {
        request_fail_missing(rq, "template", rq->params[0]);
    } else {
        request_answer(rq, 200, fields_pick(json_deep_copy(item), fields));
    }
}

static void refresh_one(struct request *rq)
{
    node_link_refresh_templates(rq, answer_one);
}

void route_template_get(struct request *rq)
{
    node_link_need(rq, refresh_one);
}
