/* Routes of checkpoints, and the rollback to one. */
#include <errno.h>

#include "io/json_request.h"
#include "node/checkpoint.h"
#include "node/data.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"

static void on_made(void *arg, const struct checkpoint *ck, const struct error *err)
{
    struct call *call = arg;

    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    call_respond(call, 200, checkpoint_describe(ck));
}

static void on_removed(void *arg, const struct checkpoint *ck, const struct error *err)
{
    struct call *call = arg;

    (void)ck;
    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    call_respond(call, 200, json_object());
}

/* ---- making one ---- */

struct put {
    const char *sandbox;
    bool memory;
    bool is_local;
    const char *manifest; /* instead of a sandbox: it comes from the object store */
    const char *template_name;
    const char *template_version;
};

static int read_put(json_t *body, struct put *ret, struct error *err)
{
    struct json_fields f;

    json_fields_start(&f, body, "", err);
    ret->manifest =
        json_fields_string(&f, "manifest", OBJECTS_NAME_SIZE - 1, OBJECTS_NAME_SIZE - 1, NULL);
    if (ret->manifest != NULL) {
        json_fields_require(&f, "template");
        json_fields_require(&f, "template_version");
        ret->template_name = json_fields_string(&f, "template", 1, SANDBOX_TEMPLATE_SIZE - 1, NULL);
        ret->template_version = json_fields_string(&f, "template_version", 1, ID_LENGTH, NULL);
        return json_fields_finish(&f);
    }
    json_fields_require(&f, "sandbox");
    ret->sandbox = json_fields_string(&f, "sandbox", 1, ID_LENGTH, NULL);
    ret->memory = json_fields_bool(&f, "memory", true);
    ret->is_local = json_fields_bool(&f, "local", false);
    return json_fields_finish(&f);
}

static int begin(struct call *call, const struct put *put, struct error *err)
{
    struct node *node = call->data->node;
    struct sandbox *sb = put->manifest == NULL ? sandbox_find(node, put->sandbox) : NULL;
    struct checkpoint *ck;
    int r;

    if (put->manifest == NULL && sb == NULL) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox", "no sandbox %.20s", put->sandbox);
    }
    ck = checkpoint_new(node, call->checkpoint_id);
    if (ck == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    ck->info.is_local = put->is_local;
    r = put->manifest == NULL
            ? sandbox_checkpoint(sb, ck, put->memory, err)
            : checkpoint_fetch(ck, put->manifest, put->template_name, put->template_version, err);
    if (r < 0) {
        checkpoint_discard(ck);
        return r;
    }
    return checkpoint_wait(ck, on_made, call) < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
}

void handle_checkpoint_put(struct call *call, json_t *body)
{
    struct checkpoint *ck = checkpoint_find(call->data->node, call->checkpoint_id);
    struct error err = {0};
    struct put put = {0};

    if (!id_is_valid(call->checkpoint_id, "ck")) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "id", "the path has no checkpoint id");
        call_fail(call, &err);
    } else if (read_put(body, &put, &err) < 0) {
        call_fail(call, &err);
    } else if (ck == NULL) {
        if (begin(call, &put, &err) < 0) {
            call_fail(call, &err);
        }
    } else if (ck->state == CHECKPOINT_STATE_READY && !ck->remove_wanted) {
        on_made(call, ck, NULL);
    } else if (ck->state != CHECKPOINT_STATE_MAKING || ck->remove_wanted) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "checkpoint %s is being removed",
                             call->checkpoint_id);
        call_fail(call, &err);
    } else if (checkpoint_wait(ck, on_made, call) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
}

/* ---- records ---- */

void handle_checkpoint_list(struct call *call, json_t *body)
{
    struct checkpoint_walk walk = {0};
    const struct checkpoint *ck;
    json_t *items = json_array();

    (void)body;
    while ((ck = checkpoint_next(call->data->node, &walk)) != NULL) {
        if (!checkpoint_is_image(ck)) {
            (void)json_array_append_new(items, checkpoint_describe(ck));
        }
    }
    call_respond(call, 200, json_pack("{s:o}", "items", items));
}

void handle_checkpoint_get(struct call *call, json_t *body)
{
    const struct checkpoint *ck = checkpoint_find(call->data->node, call->checkpoint_id);
    struct error err = {0};

    (void)body;
    if (ck == NULL) {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "checkpoint", "no checkpoint %.20s",
                             call->checkpoint_id);
        call_fail(call, &err);
        return;
    }
    call_respond(call, 200, checkpoint_describe(ck));
}

void handle_checkpoint_delete(struct call *call, json_t *body)
{
    struct error err = {0};

    (void)body;
    if (checkpoint_remove(call->data->node, call->checkpoint_id, on_removed, call) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
}

/* ---- rollback ---- */

static void on_rolled_back(void *arg, struct sandbox *sb, const struct error *err)
{
    struct call *call = arg;

    if (err != NULL) {
        call_fail_with_record(call, err);
        return;
    }
    call_respond(call, 200, sandbox_describe(sb));
}

void handle_sandbox_rollback(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct json_fields f;
    struct error err = {0};
    const char *checkpoint;

    if (sb == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    json_fields_require(&f, "checkpoint");
    checkpoint = json_fields_string(&f, "checkpoint", 1, ID_LENGTH, NULL);
    if (json_fields_finish(&f) < 0) {
        call_fail(call, &err);
    } else if (sandbox_rollback(sb, checkpoint, on_rolled_back, call, &err) < 0) {
        call_fail_with_record(call, &err);
    }
}
