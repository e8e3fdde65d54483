/* Checkpoints: make, list, read, remove, and roll a sandbox back to one. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/lifecycle.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/record_json.h"
#include "api/route.h"
#include "api/routes.h"
#include "base/clock.h"
#include "io/json_request.h"

static void fail_lost(struct request *rq, const char *id)
{
    struct error err;

    (void)error_set_code(&err, ERROR_NOT_FOUND, "checkpoint",
                         "checkpoint %.20s is lost: its node no longer has it, DELETE removes its "
                         "record",
                         id);
    request_fail(rq, &err);
}

/* Of the path or of a body: 1, or answers and returns 0. A lost one can only be deleted. */
static int find(struct request *rq, const char *id, bool deletes, struct checkpoint *ret)
{
    struct error err = {0};
    int r = id_is_valid(id, "ck") ? store_checkpoint_get(rq->api->store, id, ret, &err) : 0;

    if (r < 0) {
        request_fail(rq, &err);
        return 0;
    }
    if (r > 0 && ret->state == CHECKPOINT_LOST && !deletes) {
        fail_lost(rq, id);
        return 0;
    }
    if (r == 0 || (ret->state != CHECKPOINT_READY && ret->state != CHECKPOINT_LOST)) {
        request_fail_missing(rq, "checkpoint", id);
        return 0;
    }
    return 1;
}

bool route_answer_earlier(struct request *rq, char operation_id[ID_SIZE])
{
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};

    if (request_make_id(rq, "op", operation_id) < 0) {
        (void)error_set(&err, EIO, "no random bytes");
        request_fail(rq, &err);
        return true;
    }
    if (rq->flight != NULL && store_operation_get(rq->api->store, operation_id, &o, &err) > 0) {
        operation_wait(rq, operation_id, route_answer_lifecycle);
        return true;
    }
    return false;
}

/* ---- make ---- */

static int read_make(struct request *rq, const char **ret_name, bool *ret_memory, struct error *err)
{
    struct json_fields f;

    json_fields_start(&f, rq->body, "", err);
    *ret_name = json_fields_string(&f, "name", 1, SANDBOX_NAME_SIZE - 1, NULL);
    if (*ret_name != NULL && !create_name_is_valid(*ret_name)) {
        json_fields_fail(&f, "name", "must be 1 to 63 of a-z, 0-9 and -, got %.70s", *ret_name);
    }
    *ret_memory = json_fields_bool(&f, "memory", true);
    return json_fields_finish(&f);
}

int route_fill_checkpoint(struct request *rq,
                          const struct sandbox *s,
                          struct checkpoint *c,
                          struct error *err)
{
    int r = request_make_id(rq, "ck", c->id);

    if (r < 0) {
        return error_set(err, -r, "no random bytes");
    }
    memcpy(c->sandbox_id, s->id, sizeof(c->sandbox_id));
    (void)snprintf(c->key_id, sizeof(c->key_id), "%s", rq->key->record.id);
    c->memory = true;
    memcpy(c->template_name, s->template_name, sizeof(c->template_name));
    memcpy(c->template_version, s->template_version, sizeof(c->template_version));
    c->vcpus = s->vcpus;
    c->memory_mib = s->memory_mib;
    c->disk_mib = s->disk_mib;
    c->created_at = clock_real_ms();
    c->env_names = strdup(s->env_names == NULL ? "[]" : s->env_names);
    return c->env_names == NULL ? error_set(err, ENOMEM, "no memory") : 0;
}

static int
fill(struct request *rq, const struct sandbox *s, struct checkpoint *c, struct error *err)
{
    const char *name;
    bool memory;
    int r = read_make(rq, &name, &memory, err);

    if (r == 0) {
        r = route_fill_checkpoint(rq, s, c, err);
    }
    if (r == 0) {
        (void)snprintf(c->name, sizeof(c->name), "%s", name == NULL ? "" : name);
        c->memory = memory;
    }
    return r;
}

static void make_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};
    char operation_id[ID_SIZE];
    const struct capture capture = {.operation_id = operation_id,
                                    .key_id = rq->key->record.id,
                                    .checkpoint_id = c.id,
                                    .checkpoint = &c};

    if (route_answer_earlier(rq, operation_id) || !node_call_sandbox(rq, &s)) {
        return;
    }
    if (fill(rq, &s, &c, &err) < 0 || lifecycle_capture(rq->api, &s, &capture, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    operation_wait(rq, operation_id, route_answer_lifecycle);
}

void route_checkpoint_create(struct request *rq)
{
    struct error err = {0};
    const char *name;
    bool memory;

    if (read_make(rq, &name, &memory, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, make_now);
}

/* ---- read ---- */

static int add_checkpoint(void *arg, const struct checkpoint *c)
{
    return page_add(arg, checkpoint_json(c), c->seq);
}

static int read_list(struct page *page, struct checkpoint_filter *filter, struct error *err)
{
    int r = page_start(page, page->rq, "checkpoints", CHECKPOINT_FIELDS, err);

    if (r == 0) {
        filter->before_seq = page->before_seq;
        filter->limit = page->limit + 1;
        r = store_checkpoint_list(page->rq->api->store, filter, add_checkpoint, page, err);
    }
    return r == -ENOMEM ? error_set(err, ENOMEM, "no memory") : r;
}

/* Those of a sandbox that is gone are listed as long as there are any. */
void route_checkpoint_list(struct request *rq)
{
    _cleanup_page_ struct page page = {.rq = rq};
    _cleanup_sandbox_ struct sandbox s = {0};
    struct checkpoint_filter filter = {.sandbox_id = rq->params[0]};
    struct error err = {0};
    int known = 0;
    int r = read_list(&page, &filter, &err);

    if (r >= 0 && json_array_size(page.items) == 0) {
        known = id_is_valid(rq->params[0], "sb")
                    ? store_sandbox_get(rq->api->store, rq->params[0], &s, &err)
                    : 0;
        if (known == 0) {
            request_fail_missing(rq, "sandbox", rq->params[0]);
            return;
        }
    }
    if (r < 0 || known < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

void route_checkpoint_list_all(struct request *rq)
{
    _cleanup_page_ struct page page = {.rq = rq};
    struct checkpoint_filter filter = {.sandbox_id = query_find(&rq->query, "sandbox_id"),
                                       .name = query_find(&rq->query, "name")};
    struct error err = {0};

    if (read_list(&page, &filter, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

void route_checkpoint_get(struct request *rq)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};
    const char *fields;

    if (fields_read(rq, CHECKPOINT_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (find(rq, rq->params[0], false, &c)) {
        request_answer(rq, 200, fields_pick(checkpoint_json(&c), fields));
    }
}

/* ---- remove ---- */

void route_checkpoint_delete(struct request *rq)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};
    int r;

    if (!find(rq, rq->params[0], true, &c)) {
        return;
    }
    r = store_checkpoint_is_used(rq->api->store, c.id, &err);
    if (r > 0) {
        r = error_set_code(
            &err, ERROR_CONFLICT, NULL,
            "a sandbox or a template is being made from, or a sandbox rolled back to, "
            "checkpoint %s",
            c.id);
    }
    if (r == 0) {
        r = store_checkpoint_set_deleting(rq->api->store, c.id, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    lifecycle_drop_checkpoint(rq->api, c.id);
    request_answer(rq, 200, checkpoint_json(&c));
}

/* ---- roll back ---- */

static int read_rollback(struct request *rq, const char **ret_id, struct error *err)
{
    struct json_fields f;

    json_fields_start(&f, rq->body, "", err);
    json_fields_require(&f, "checkpoint_id");
    *ret_id = json_fields_string(&f, "checkpoint_id", 1, ID_LENGTH, NULL);
    return json_fields_finish(&f);
}

static void rollback_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};
    char operation_id[ID_SIZE];
    const char *id = NULL;
    const struct capture capture = {
        .operation_id = operation_id, .key_id = rq->key->record.id, .checkpoint_id = c.id};

    (void)read_rollback(rq, &id, &err);
    if (route_answer_earlier(rq, operation_id) || !node_call_sandbox(rq, &s) ||
        !find(rq, id, false, &c)) {
        return;
    }
    if (strcmp(c.sandbox_id, s.id) != 0) {
        (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, "checkpoint",
                             "checkpoint %s is of another sandbox: create one from it", c.id);
        request_fail(rq, &err);
        return;
    }
    if (lifecycle_capture(rq->api, &s, &capture, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    operation_wait(rq, operation_id, route_answer_lifecycle);
}

void route_sandbox_rollback(struct request *rq)
{
    struct error err = {0};
    const char *id;

    if (read_rollback(rq, &id, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, rollback_now);
}
