/* Checkpoints, rollbacks, and the checkpoints of forks: jobs of a sandbox like its changes of
 * state.
 */
#include <errno.h>
#include <string.h>

#include "api/drain.h"
#include "api/expiry.h"
#include "api/lifecycle_private.h"
#include "api/record_json.h"
#include "api/report.h"
#include "api/store_checkpoint.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

bool job_is_capture(const struct job *job)
{
    return job_makes_checkpoint(job) || job->kind == JOB_ROLLBACK;
}

bool job_makes_checkpoint(const struct job *job)
{
    return job->kind == JOB_CHECKPOINT || job->kind == JOB_FORK;
}

static const char *kind_name(const struct job *job)
{
    if (job->kind == JOB_FORK) {
        return "fork";
    }
    return job->kind == JOB_CHECKPOINT ? "checkpoint" : "rollback";
}

static bool is_possible(enum sandbox_state state)
{
    return state == SANDBOX_RUNNING || state == SANDBOX_PAUSED || state == SANDBOX_SUSPENDED ||
           state == SANDBOX_PAUSING || state == SANDBOX_SUSPENDING || state == SANDBOX_WAKING;
}

static int refuse(const struct sandbox *s, const struct job *job, struct error *err)
{
    const char *state = sandbox_state_name(s->state);
    const char *participle = "rolled back";

    if (job->kind != JOB_ROLLBACK) {
        participle = job->kind == JOB_FORK ? "forked" : "captured";
    }
    return error_set_code(err, ERROR_FAILED_PRECONDITION, state,
                          "a sandbox that is %s cannot be %s%s%.200s", state, participle,
                          s->reason_message[0] == '\0' ? "" : ": ", s->reason_message);
}

/* ---- the end ---- */

/* The node's record C, which says what is in it. */
static int settle(const struct job *job, const json_t *answer, char **ret_result)
{
    struct store *store = job->api->store;
    _cleanup_checkpoint_ struct checkpoint c = {0};
    _cleanup_json_ json_t *shown = NULL;
    const json_t *size = json_object_get(answer, "size_bytes");
    struct error err = {0};
    int r = store_checkpoint_get(store, job->checkpoint_id, &c, &err);

    if (r <= 0) {
        return r < 0 ? r : -ENOENT;
    }
    c.memory = json_is_true(json_object_get(answer, "memory"));
    c.size_bytes = json_is_integer(size) ? (int64_t)json_integer_value(size) : 0;
    r = store_checkpoint_settle(store, &c, &err);
    if (r == 0) {
        shown = checkpoint_json(&c);
        *ret_result = shown == NULL ? NULL : json_dumps(shown, JSON_COMPACT);
        r = *ret_result == NULL
                ? -ENOMEM
                : store_operation_set_result(store, job->operation_id, *ret_result, &err);
    }
    return r;
}

static int apply_record(const struct job *job, const json_t *record)
{
    struct store *store = job->api->store;
    _cleanup_sandbox_ struct sandbox s = {0};
    struct sandbox_report report;
    struct error err = {0};
    int r = store_sandbox_get(store, job->sandbox_id, &s, &err);

    if (r <= 0 || s.deleted_at != 0 || s.state == SANDBOX_DELETING || record == NULL ||
        report_read(record, &report) < 0 || strcmp(report.id, s.id) != 0 || report.deleted) {
        return r < 0 ? r : 0;
    }
    r = report_apply(&report, &s);
    return r < 0 ? r : store_sandbox_update(store, &s, &err);
}

/* error NULL: it succeeded, with this answer of the node. */
static int write_end(struct job *job, const json_t *answer, const char *error)
{
    struct store *store = job->api->store;
    _cleanup_free_ char *result = NULL;
    struct error err = {0};
    bool goes_on = job->kind == JOB_FORK && error == NULL; /* with its children */
    int r = store_begin(store, &err);

    if (r < 0) {
        return r;
    }
    if (job->kind == JOB_ROLLBACK) {
        r = apply_record(job, error == NULL ? answer : json_object_get(answer, "sandbox"));
    } else if (goes_on) {
        r = fork_captured(job, &err);
    } else if (error == NULL) {
        r = settle(job, answer, &result);
    } else {
        /* The node may have it all the same, if nobody has heard its answer. */
        r = store_checkpoint_set_deleting(store, job->checkpoint_id, &err);
    }
    if (r >= 0 && job->kind == JOB_FORK && !goes_on) {
        r = fork_fail(job, &err);
    }
    if (r >= 0) {
        r = job_write_loss(job, &err);
    }
    if (r >= 0 && !goes_on) {
        r = store_operation_finish(store, job->operation_id, error, clock_real_ms(), &err);
    }
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, &err);
}

static void fail(struct job *job, const json_t *envelope, const struct error *why)
{
    _cleanup_free_ char *text =
        envelope != NULL ? error_text_of_envelope(envelope) : error_text(why);
    struct api *api = job->api;
    const struct job was = *job;

    log_warning(kind_name(job), "sandbox=%s code=%s message=%s", job->sandbox_id,
                error_code_name(why->code), LOG_STR(why->message));
    if (text == NULL || write_end(job, envelope, text) < 0) {
        job_park(job); /* the store cannot say so yet: the node is asked again */
        return;
    }
    expiry_changed(api, clock_real_ms());
    if (was.kind == JOB_FORK) {
        fork_abandon(api, was.operation_id);
    }
    job_end(job);
    if (job_makes_checkpoint(&was)) {
        lifecycle_drop_checkpoint(api, was.checkpoint_id);
    }
}

static void succeed(struct job *job, const json_t *answer)
{
    struct api *api = job->api;
    const struct job was = *job;

    if (write_end(job, answer, NULL) < 0) {
        job_park(job);
        return;
    }
    expiry_changed(api, clock_real_ms());
    if (was.kind == JOB_FORK) {
        job->operation_id[0] = '\0'; /* it has not ended */
    }
    job_end(job);
    if (was.kind == JOB_FORK) {
        fork_release(api, was.operation_id);
        fork_tell(api, was.operation_id);
    }
}

void job_give_up_capture(struct job *job)
{
    struct error late;

    (void)error_set_code(&late, ERROR_DEADLINE_EXCEEDED, NULL, "the %s did not end within %llu s",
                         kind_name(job),
                         (unsigned long long)job->api->settings.api_operation_timeout_seconds);
    fail(job, NULL, &late);
}

/* Restarted in the middle, the node first brings the sandbox to a state that stays. */
static bool is_settling(const json_t *envelope, const struct error *why)
{
    const char *state = json_string_value(
        json_object_get(json_object_get(json_object_get(envelope, "error"), "details"), "state"));

    return why->code == ERROR_FAILED_PRECONDITION && state != NULL &&
           (strcmp(state, "pausing") == 0 || strcmp(state, "suspending") == 0 ||
            strcmp(state, "waking") == 0);
}

/* The node has lost the sandbox; a checkpoint that is gone there is the rollback's failure only.
 * One that the object store has is where it was. */
static int note_missing(const struct job *job, const json_t *envelope, struct error *why)
{
    const char *resource = json_string_value(json_object_get(
        json_object_get(json_object_get(envelope, "error"), "details"), "resource"));
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;

    if (resource == NULL || strcmp(resource, "sandbox") != 0) {
        return 0;
    }
    if (store_sandbox_get(job->api->store, job->sandbox_id, &s, &err) > 0 &&
        s.manifest[0] != '\0') {
        (void)error_set_code(why, ERROR_FAILED_PRECONDITION, "suspended",
                             "the sandbox is in the object store alone: wake it first");
        return store_sandbox_set_state(job->api->store, job->sandbox_id, SANDBOX_SUSPENDED, "", "",
                                       &err);
    }
    return store_sandbox_set_state(job->api->store, job->sandbox_id, SANDBOX_ERROR,
                                   "host_restarted", "the node no longer has this sandbox", &err);
}

static bool has_code(const json_t *envelope, const char *code)
{
    const char *have =
        json_string_value(json_object_get(json_object_get(envelope, "error"), "code"));

    return have != NULL && strcmp(have, code) == 0;
}

void job_on_capture_done(struct job *job, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    int status = http_call_status(call);
    struct error err;

    if (json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        fail(job, NULL, &err);
    } else if (status == 200) {
        succeed(job, answer);
    } else if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node answered status %d", status);
        fail(job, NULL, &err);
    } else if (err.code == ERROR_NOT_FOUND && job_try_fetch(job, answer)) {
        return;
    } else if (err.code == ERROR_SERVICE_UNAVAILABLE || is_settling(answer, &err) ||
               (err.code == ERROR_NOT_FOUND && note_missing(job, answer, &err) < 0)) {
        job_park(job); /* it is starting or stopping, not yet at rest, or the store cannot say so */
    } else if (err.code == ERROR_FAILED_PRECONDITION && !has_code(answer, "failed_precondition")) {
        fail(job, NULL, &err); /* said here */
    } else {
        if (job->fetch_answer != NULL && json_error_read(job->fetch_answer, &err) == 0) {
            (void)json_object_set(answer, "error", json_object_get(job->fetch_answer, "error"));
        }
        fail(job, answer, &err);
    }
}

/* ---- the begin ---- */

static int mark_begun(const struct job *job, struct error *err)
{
    return job_makes_checkpoint(job) ? 0
                                     : store_sandbox_set_state(job->api->store, job->sandbox_id,
                                                               SANDBOX_WAKING, "", "", err);
}

static int check_drain(const struct job *job, struct error *err)
{
    if (job->kind == JOB_FORK) {
        return drain_refuse(job->api, ERROR_CAPACITY_UNAVAILABLE, "no sandbox is made", err);
    }
    return job->kind == JOB_CHECKPOINT
               ? 0
               : drain_refuse(job->api, ERROR_SERVICE_UNAVAILABLE, "no sandbox is woken", err);
}

void job_start_capture(struct job *job)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    int r = store_sandbox_get(job->api->store, job->sandbox_id, &s, &err);

    if (r == 0 || (r > 0 && s.deleted_at != 0)) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
        fail(job, NULL, &err);
        return;
    }
    if (r > 0 && !is_possible(s.state)) {
        (void)refuse(&s, job, &err);
        fail(job, NULL, &err);
        return;
    }
    if (r < 0 || check_drain(job, &err) < 0 || job_write_begin(job, mark_begun, &err) < 0) {
        fail(job, NULL, &err);
        return;
    }
    job->is_begun = true;
    job_send(job, NULL);
}

char *job_capture_body(const struct job *job)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    _cleanup_json_ json_t *body = NULL;
    struct error err = {0};

    if (job->kind == JOB_ROLLBACK) {
        body = json_pack("{s:s}", "checkpoint", job->checkpoint_id);
    } else if (store_checkpoint_get(job->api->store, job->checkpoint_id, &c, &err) > 0) {
        body = json_pack("{s:s, s:b, s:b}", "sandbox", job->sandbox_id, "memory", (int)c.memory,
                         "local", job->kind == JOB_FORK);
    }
    return body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
}

/* Operation, record, and what begins at once, in one step. */
static int insert(const struct job *job, const struct capture *c, struct error *err)
{
    struct store *store = job->api->store;
    struct operation o = {.state = job->is_begun ? OPERATION_RUNNING : OPERATION_PENDING,
                          .created_at = clock_real_ms()};
    int r = store_begin(store, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(o.kind, sizeof(o.kind), "%s", kind_name(job));
    memcpy(o.id, job->operation_id, sizeof(o.id));
    memcpy(o.sandbox_id, job->sandbox_id, sizeof(o.sandbox_id));
    memcpy(o.checkpoint_id, job->checkpoint_id, sizeof(o.checkpoint_id));
    (void)snprintf(o.key_id, sizeof(o.key_id), "%s", c->key_id);
    r = store_operation_insert(store, &o, err);
    if (r == 0 && c->checkpoint != NULL) {
        r = store_checkpoint_insert(store, c->checkpoint, err);
    }
    if (r == 0 && c->fork != NULL) {
        r = fork_insert(job, c->fork, err);
    }
    if (r == 0 && job->is_begun) {
        r = mark_begun(job, err);
    }
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, err);
}

int lifecycle_capture(struct api *api,
                      const struct sandbox *s,
                      const struct capture *capture,
                      struct error *err)
{
    enum job_kind kind = capture->fork != NULL         ? JOB_FORK
                         : capture->checkpoint != NULL ? JOB_CHECKPOINT
                                                       : JOB_ROLLBACK;
    bool can = is_possible(s->state);
    struct job *job;
    int r;

    if (job_count(api, s->id) >= JOBS_MAX) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "operations",
                              "%d operations of this sandbox are under way or waiting already",
                              JOBS_MAX);
    }
    job = job_new(api, kind, s->id, capture->operation_id);
    if (job == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    (void)snprintf(job->checkpoint_id, sizeof(job->checkpoint_id), "%s", capture->checkpoint_id);
    job->is_begun = can && job_is_first(job);
    r = !can && (s->state == SANDBOX_DELETING || job_is_first(job)) ? refuse(s, job, err)
                                                                    : check_drain(job, err);
    if (r == 0) {
        r = insert(job, capture, err);
    }
    if (r < 0) {
        fork_forget(api, job->operation_id);
        job_free(job);
        return r;
    }
    if (job_is_first(job)) {
        job_send(job, NULL);
    }
    return 0;
}

/* ---- removal at the node ---- */

void job_finish_drop(struct job *job)
{
    struct error err = {0};

    if (store_checkpoint_remove(job->api->store, job->sandbox_id, &err) < 0) {
        job_park(job);
        return;
    }
    job_end(job);
}

void lifecycle_drop_checkpoint(struct api *api, const char *checkpoint_id)
{
    struct job *job;

    if (job_find(api, checkpoint_id) != NULL) {
        return;
    }
    job = job_new(api, JOB_DROP, checkpoint_id, "");
    if (job != NULL) {
        job_send(job, NULL);
    }
}

static int load_drop(void *arg, const struct checkpoint *c)
{
    struct api *api = arg;

    return job_new(api, JOB_DROP, c->id, "") == NULL ? -ENOMEM : 0;
}

int lifecycle_load_drops(struct api *api, struct error *err)
{
    return store_checkpoint_each_deleting(api->store, load_drop, api, err);
}
