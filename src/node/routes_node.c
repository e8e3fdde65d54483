/* Routes about the node, and the plain ones about its sandboxes. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "io/json_request.h"
#include "node/command_request.h"
#include "node/data.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "wire/agent_limits.h"

void handle_node(struct call *call, json_t *body)
{
    struct node *node = call->data->node;
    json_t *answer = node_describe(node);

    (void)body;
    if (answer != NULL && json_object_get(answer, "sandboxes") == NULL) {
        (void)json_object_set_new(answer, "sandboxes", json_integer(sandbox_count(node)));
    }
    call_respond(call, 200, answer);
}

void handle_sandbox_list(struct call *call, json_t *body)
{
    json_t *items = json_array();
    unsigned int index = 0;
    const struct sandbox *sb;

    (void)body;
    while (items != NULL && (sb = sandbox_next(call->data->node, &index)) != NULL) {
        if (sandbox_info(sb)->state != SANDBOX_STATE_DELETED) {
            (void)json_array_append_new(items, sandbox_describe(sb));
        }
    }
    call_respond(call, 200, items != NULL ? json_pack("{s:o}", "items", items) : NULL);
}

void handle_sandbox_get(struct call *call, json_t *body)
{
    const struct sandbox *sb = call_sandbox(call);

    (void)body;
    if (sb != NULL) {
        attach_touch(call->data,
                     call->sandbox_id); /* active_at is asked for: an open one is activity */
        call_respond(call, 200, sandbox_describe(sb));
    }
}

void handle_sandbox_patch(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct error err = {0};
    struct json_fields f;
    json_t *env;
    const char *name;
    const json_t *value;

    if (sb == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    env = json_fields_object(&f, "env", (size_t)SANDBOX_ENV_MAX * 2);
    json_object_foreach(env, name, value) {
        if (name[0] == '\0' || strchr(name, '=') != NULL ||
            !(json_is_string(value) || json_is_null(value))) {
            json_fields_fail(&f, "env", "must map names to strings, or to null to delete");
            break;
        }
    }
    if (json_fields_finish(&f) < 0 || (env != NULL && sandbox_merge_env(sb, env, &err) < 0)) {
        call_fail(call, &err);
        return;
    }
    call_respond(call, 200, sandbox_describe(sb));
}

static void on_deleted(void *arg, struct sandbox *sb, const struct error *err)
{
    struct call *call = arg;

    (void)sb;
    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    call_respond(call, 200, json_object());
}

void handle_sandbox_delete(struct call *call, json_t *body)
{
    struct error err = {0};

    (void)body;
    if (sandbox_delete(call->data->node, call->sandbox_id, on_deleted, call) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
}

/* Outlives the call, because reading the console cannot be called off. */
struct console_read {
    struct call *call; /* NULL once the client is gone */
};

static void on_console_close(struct call *call, bool complete)
{
    struct console_read *reading = call->state;

    (void)complete;
    if (reading != NULL) {
        reading->call = NULL;
    }
}

static void on_console(void *arg, const struct buf *text, const struct error *err)
{
    struct console_read *reading = arg;
    struct call *call = reading->call;

    free(reading);
    if (call == NULL) {
        return;
    }
    call->state = NULL;
    if (err != NULL) {
        call_fail(call, err);
    } else {
        const struct http_header headers[] = {
            {"Content-Type", "text/plain; charset=utf-8"},
            {"X-Request-Id", call->request_id},
        };

        call->answered = true;
        http_exchange_respond(call->exchange, 200, headers, 2, buf_span(text));
    }
}

void handle_console(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct console_read *reading;
    struct error err = {0};

    (void)body;
    if (sb == NULL) {
        return;
    }
    reading = calloc(1, sizeof(*reading));
    if (reading != NULL) {
        reading->call = call;
        call->state = reading;
        call->on_close = on_console_close;
        if (sandbox_read_console(sb, on_console, reading) == 0) {
            return;
        }
        call->state = NULL;
        free(reading);
    }
    (void)error_set(&err, ENOMEM, "the console cannot be read");
    call_fail(call, &err);
}
