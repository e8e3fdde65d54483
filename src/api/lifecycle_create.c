/* The end of a create: what the node's answer makes of the record and the operation. */
#include <errno.h>
#include <string.h>

#include "api/expiry.h"
#include "api/lifecycle_private.h"
#include "api/record_json.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

/* What the record becomes when the node refused: nothing was made, so nothing stays; or it tried
 * and failed, which the owner must be able to see. */
static bool is_refusal(enum error_code code)
{
    return code != ERROR_INTERNAL && code != ERROR_DEADLINE_EXCEEDED && code != ERROR_BAD_GATEWAY;
}

/* The node says what became of the VM, where there was one. */
static const char *reason_of(const struct error *why)
{
    const char *key = error_code_detail_key(why->code);

    if (key != NULL && strcmp(key, "reason") == 0 && why->field[0] != '\0') {
        return why->field;
    }
    return why->code == ERROR_INTERNAL ? "start_failed" : error_code_name(why->code);
}

static int write_failure(struct job *job, const char *text, const struct error *why)
{
    struct api *api = job->api;
    int64_t now = clock_real_ms();
    struct error err = {0};
    int r = store_begin(api->store, &err);

    if (r < 0) {
        return r;
    }
    if (job->operation_id[0] != '\0') {
        r = store_operation_finish(api->store, job->operation_id, text, now, &err);
    }
    if (r >= 0 && is_refusal(why->code)) {
        r = store_sandbox_bury(api->store, job->sandbox_id, now, &err);
    } else if (r >= 0) {
        r = store_sandbox_set_state(api->store, job->sandbox_id, SANDBOX_ERROR, reason_of(why),
                                    why->message, &err);
        if (r == 0) {
            r = store_sandbox_drop_pending(api->store, job->sandbox_id, &err);
        }
    }
    if (r >= 0) {
        r = fork_end_child(job, text, &err);
    }
    if (r < 0) {
        store_rollback(api->store);
        return r;
    }
    return store_commit(api->store, &err);
}

static void end(struct job *job)
{
    struct api *api = job->api;
    char fork_id[ID_SIZE];

    memcpy(fork_id, job->fork_id, sizeof(fork_id));
    job_end(job);
    fork_tell(api, fork_id);
}

void job_fail_create(struct job *job, const json_t *envelope, const struct error *why)
{
    _cleanup_free_ char *text =
        envelope != NULL ? error_text_of_envelope(envelope) : error_text(why);

    log_warning("create failed", "sandbox=%s code=%s message=%s", job->sandbox_id,
                error_code_name(why->code), LOG_STR(why->message));
    if (text == NULL || write_failure(job, text, why) < 0) {
        job_park(job); /* the store cannot say so yet: the node is asked again */
        return;
    }
    end(job);
}

void job_give_up_create(struct job *job)
{
    struct error late;

    (void)error_set_code(&late, ERROR_DEADLINE_EXCEEDED, NULL,
                         "the sandbox was not running within %d s", JOB_CREATE_TIMEOUT_MS / 1000);
    job_fail_create(job, NULL, &late);
}

static int write_success(struct job *job, const struct sandbox_report *report)
{
    struct api *api = job->api;
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    int r = store_sandbox_get(api->store, job->sandbox_id, &s, &err);

    if (r <= 0) {
        return r;
    }
    r = report_apply(report, &s);
    (void)report_apply_loss(&job->loss, &s);
    if (r >= 0) {
        r = store_begin(api->store, &err);
    }
    if (r < 0) {
        return r;
    }
    r = store_sandbox_update(api->store, &s, &err);
    if (r == 0) {
        r = store_sandbox_drop_pending(api->store, s.id, &err);
    }
    if (r == 0 && job->operation_id[0] != '\0') {
        r = store_operation_finish(api->store, job->operation_id, NULL, clock_real_ms(), &err);
    }
    if (r >= 0) {
        r = fork_end_child(job, NULL, &err);
    }
    if (r < 0) {
        store_rollback(api->store);
        return r;
    }
    return store_commit(api->store, &err);
}

static void finish_create(struct job *job, const json_t *record)
{
    struct sandbox_report report;
    struct error err;

    if (report_read(record, &report) < 0 || strcmp(report.id, job->sandbox_id) != 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        job_fail_create(job, NULL, &err);
        return;
    }
    if (write_success(job, &report) < 0) {
        job_park(job);
        return;
    }
    expiry_changed(job->api, clock_real_ms()); /* its idle rule counts from here on */
    end(job);
}

void job_on_created(struct job *job, const char *record)
{
    _cleanup_json_ json_t *value = NULL;
    struct error err;

    finish_create(job, json_answer_parse(span_of_str(record), &value, &err) < 0 ? NULL : value);
}

void job_on_create_done(struct job *job, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err;

    if (json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        job_fail_create(job, NULL, &err);
    } else if (http_call_status(call) == 200) {
        finish_create(job, json_object_get(answer, "sandbox"));
    } else if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node answered status %d",
                             http_call_status(call));
        job_fail_create(job, NULL, &err);
    } else if (err.code == ERROR_SERVICE_UNAVAILABLE) {
        job_park(job); /* it is starting or stopping */
    } else if (err.code == ERROR_NOT_FOUND && job_try_fetch(job, answer)) {
        return;
    } else if (job->fetch_answer != NULL && json_error_read(job->fetch_answer, &err) == 0) {
        job_fail_create(job, job->fetch_answer, &err); /* why it is not there */
    } else {
        job_fail_create(job, answer, &err);
    }
}
