/* Templates, as the node has them; new ones of checkpoints, and their end. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/lifecycle.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/record_json.h"
#include "api/routes.h"
#include "api/store_checkpoint.h"
#include "io/json_request.h"

/* ---- read ---- */

static const char *text_of(const json_t *item, const char *key)
{
    const char *text = json_string_value(json_object_get(item, key));

    return text == NULL ? "" : text;
}

/* The current version of each, or with `name` all of one. */
static void answer_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    _cleanup_json_ json_t *items = json_array();
    const char *name = query_find(&rq->query, "name");
    struct error err;
    json_t *item;
    size_t i;

    if (page_start(&page, rq, "templates", TEMPLATE_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    json_array_foreach(node_link_templates(rq->api->node), i, item) {
        if (name == NULL ? json_is_true(json_object_get(item, "current"))
                         : strcmp(text_of(item, "name"), name) == 0) {
            (void)json_array_append(items, item);
        }
    }
    page_answer_array(&page, items);
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

/* NAME, or NAME@VERSION, of the path; NULL: answered. */
static const json_t *find(struct request *rq, struct create_spec *ret_what)
{
    const json_t *item = NULL;

    memset(ret_what, 0, sizeof(*ret_what));
    if (create_read_template(rq->params[0], ret_what)) {
        item = node_link_find_version(rq->api->node, ret_what->template_name,
                                      ret_what->template_version);
    }
    if (item == NULL) {
        request_fail_missing(rq, "template", rq->params[0]);
    }
    return item;
}

static void answer_one(struct request *rq)
{
    struct create_spec what;
    struct error err;
    const char *fields;
    const json_t *item;

    if (fields_read(rq, TEMPLATE_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    item = find(rq, &what);
    if (item != NULL) {
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

/* ---- make ---- */

static int read_make(struct request *rq, struct template_order *order, struct error *err)
{
    struct create_spec spec = {0};
    struct json_fields f;

    json_fields_start(&f, rq->body, "", err);
    json_fields_require(&f, "name");
    order->name = json_fields_string(&f, "name", 1, SANDBOX_NAME_SIZE - 1, NULL);
    if (order->name != NULL && (!create_read_template(order->name, &spec) ||
                                strcmp(spec.template_name, order->name) != 0)) {
        json_fields_fail(
            &f, "name",
            "must be 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or "
            "digit, got %.70s",
            order->name);
    }
    json_fields_require(&f, "checkpoint_id");
    order->checkpoint_id = json_fields_string(&f, "checkpoint_id", 1, ID_LENGTH, NULL);
    return json_fields_finish(&f);
}

static void answer_made(struct request *rq)
{
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};
    json_t *made;
    int r = store_operation_get(rq->api->store, rq->operation_id, &o, &err);

    if (r == 0) {
        r = error_set(&err, EIO, "the operation's record is gone");
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    if (o.state == OPERATION_FAILED) {
        operation_fail(rq, &o);
        return;
    }
    made = o.result == NULL ? json_null() : json_loads(o.result, 0, NULL);
    request_answer(rq, o.finished_at != 0 ? 201 : 202,
                   json_pack("{s:o, s:o}", "template", made, "operation", operation_json(&o)));
}

static int check_checkpoint(struct request *rq, const char *id, struct error *err)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    int r = id_is_valid(id, "ck") ? store_checkpoint_get(rq->api->store, id, &c, err) : 0;

    if (r < 0) {
        return r;
    }
    return r == 0 || c.state != CHECKPOINT_READY
               ? error_set_code(err, ERROR_NOT_FOUND, "checkpoint", "there is no checkpoint %s", id)
               : 0;
}

static void make_now(struct request *rq)
{
    _cleanup_operation_ struct operation earlier = {0};
    struct error err = {0};
    char operation_id[ID_SIZE];
    char version[ID_SIZE];
    struct template_order order = {
        .version = version, .operation_id = operation_id, .key_id = rq->key->record.id};
    int r = request_make_id(rq, "op", operation_id);

    if (r == 0) {
        r = request_make_id(rq, "tm", version);
    }
    if (r < 0) {
        (void)error_set(&err, EIO, "no random bytes");
        request_fail(rq, &err);
        return;
    }
    /* An attempt that was cut off by a crash had this very operation. */
    if (rq->flight != NULL &&
        store_operation_get(rq->api->store, operation_id, &earlier, &err) > 0) {
        operation_wait(rq, operation_id, answer_made);
        return;
    }
    r = read_make(rq, &order, &err);
    if (r == 0) {
        r = check_checkpoint(rq, order.checkpoint_id, &err);
    }
    if (r == 0) {
        r = lifecycle_make_template(rq->api, &order, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    operation_wait(rq, operation_id, answer_made);
}

void route_template_create(struct request *rq)
{
    struct template_order order;
    struct error err = {0};

    if (read_make(rq, &order, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, make_now);
}

/* ---- delete ---- */

static void on_removed(struct request *rq, int status, json_t *answer)
{
    (void)status;
    node_link_forget_templates(rq->api->node);
    request_answer(rq, 200, json_incref(answer));
}

static void remove_now(struct request *rq)
{
    struct create_spec what;
    _cleanup_json_ json_t *body = NULL;

    if (find(rq, &what) == NULL) {
        return;
    }
    body = json_pack("{s:s, s:s*}", "name", what.template_name, "version",
                     what.template_version[0] == '\0' ? NULL : what.template_version);
    node_link_forget_templates(rq->api->node);
    node_call_json(rq, "POST", "/n1/templates/remove", body, on_removed);
}

static void refresh_removed(struct request *rq)
{
    node_link_refresh_templates(rq, remove_now);
}

void route_template_delete(struct request *rq)
{
    node_link_need(rq, refresh_removed);
}
