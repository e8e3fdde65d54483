/* Routes of templates. */
#include <errno.h>

#include "io/json_request.h"
#include "node/data.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/template_make.h"

void handle_templates(struct call *call, json_t *body)
{
    json_t *items = node_list_templates(call->data->node);

    (void)body;
    call_respond(call, 200, items != NULL ? json_pack("{s:o}", "items", items) : NULL);
}

static void on_done(void *arg, json_t *json, const struct error *err)
{
    struct call *call = arg;

    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    call_respond(call, 200, json_incref(json));
}

static const char *read_name(struct json_fields *f)
{
    const char *name;

    json_fields_require(f, "name");
    name = json_fields_string(f, "name", 1, SANDBOX_TEMPLATE_SIZE - 1, NULL);
    if (name != NULL && !template_name_is_valid(name)) {
        json_fields_fail(f, "name", "is no template's name: %.70s", name);
    }
    return name;
}

void handle_template_put(struct call *call, json_t *body)
{
    struct template_order order = {.version = call->template_version};
    struct json_fields f;
    struct error err = {0};
    const char *key;

    json_fields_start(&f, body, "", &err);
    order.name = read_name(&f);
    json_fields_require(&f, "checkpoint");
    order.checkpoint_id = json_fields_string(&f, "checkpoint", 1, ID_LENGTH, NULL);
    if (order.checkpoint_id != NULL && !id_is_valid(order.checkpoint_id, "ck")) {
        json_fields_fail(&f, "checkpoint", "is no checkpoint id");
    }
    key = json_fields_string(&f, "key", 1, ID_LENGTH, NULL);
    if (key != NULL && !id_is_valid(key, "ky")) {
        json_fields_fail(&f, "key", "is no key's id");
    }
    order.made_by = key != NULL ? key : "";
    if (!id_is_valid(order.version, "tm")) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "version",
                             "the path has no template version");
        call_fail(call, &err);
    } else if (json_fields_finish(&f) < 0 ||
               template_make(call->data->node, &order, on_done, call, &err) < 0) {
        call_fail(call, &err);
    }
}

void handle_template_remove(struct call *call, json_t *body)
{
    struct json_fields f;
    struct error err = {0};
    const char *name;
    const char *version;

    json_fields_start(&f, body, "", &err);
    name = read_name(&f);
    version = json_fields_string(&f, "version", 1, ID_LENGTH, NULL);
    if (version != NULL && !id_is_valid(version, "tm")) {
        json_fields_fail(&f, "version", "is no template version");
    }
    if (json_fields_finish(&f) < 0 ||
        template_withdraw(call->data->node, name, version != NULL ? version : "", on_done, call,
                          &err) < 0) {
        call_fail(call, &err);
    }
}
