/* Routes that change the state of a sandbox: pause, suspend and wake. */
#include <errno.h>

#include "io/json_request.h"
#include "node/data.h"
#include "node/routes.h"
#include "node/sandbox_boot.h"

#define REASON_CODE_MAX    31
#define REASON_MESSAGE_MAX 300

void call_fail_with_record(struct call *call, const struct error *err)
{
    const struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);
    json_t *answer = json_error_make(err, call->request_id, NULL);

    if (answer != NULL && sb != NULL) {
        (void)json_object_set_new(answer, "sandbox", sandbox_describe(sb));
    }
    call_respond(call, error_code_status(err->code), answer);
}

static void on_changed(void *arg, struct sandbox *sb, const struct error *err)
{
    struct call *call = arg;

    if (err != NULL) {
        call_fail_with_record(call, err);
        return;
    }
    call_respond(call, 200, sandbox_describe(sb));
}

static int read_reason(json_t *body, struct sandbox_reason *ret, struct error *err)
{
    struct json_fields f;
    struct json_fields inner;
    json_t *reason;
    const char *code;
    const char *message;

    *ret = (struct sandbox_reason){"", ""};
    json_fields_start(&f, body, "", err);
    reason = json_fields_object(&f, "reason", 2);
    if (json_fields_finish(&f) < 0) {
        return -EINVAL;
    }
    if (reason == NULL) {
        return 0;
    }
    json_fields_start(&inner, reason, "reason.", err);
    code = json_fields_string(&inner, "code", 1, REASON_CODE_MAX, NULL);
    message = json_fields_string(&inner, "message", 1, REASON_MESSAGE_MAX, NULL);
    json_fields_require(&inner, "code");
    json_fields_require(&inner, "message");
    if (json_fields_finish(&inner) < 0) {
        return -EINVAL;
    }
    *ret = (struct sandbox_reason){code, message};
    return 0;
}

void handle_sandbox_pause(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct sandbox_reason reason;
    struct error err = {0};

    if (sb == NULL) {
        return;
    }
    if (read_reason(body, &reason, &err) < 0) {
        call_fail(call, &err);
    } else if (sandbox_pause(sb, &reason, on_changed, call, &err) < 0) {
        call_fail_with_record(call, &err);
    }
}

void handle_sandbox_suspend(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct sandbox_reason reason;
    struct error err = {0};

    if (sb == NULL) {
        return;
    }
    if (read_reason(body, &reason, &err) < 0) {
        call_fail(call, &err);
    } else if (sandbox_suspend(sb, &reason, on_changed, call, &err) < 0) {
        call_fail_with_record(call, &err);
    }
}

/* One in state `error` is started only where that is asked for by name. */
void handle_sandbox_wake(struct call *call, json_t *body)
{
    struct sandbox *sb = call_sandbox(call);
    struct error err = {0};
    struct json_fields f;
    bool boots;

    if (sb == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    boots = json_fields_bool(&f, "boot", false);
    if (json_fields_finish(&f) < 0) {
        call_fail(call, &err);
    } else if ((boots ? sandbox_boot : sandbox_wake)(sb, on_changed, call, &err) < 0) {
        call_fail_with_record(call, &err);
    }
}
