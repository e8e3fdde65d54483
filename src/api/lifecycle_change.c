/* Pause, suspend and wake: from the request to the record that the node's answer gives. */
#include <errno.h>
#include <string.h>

#include "api/drain.h"
#include "api/expiry.h"
#include "api/lifecycle_private.h"
#include "api/record_json.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

struct change_words {
    enum job_kind kind;
    const char *verb;
    const char *participle;
    enum sandbox_state during;
    enum sandbox_state after;
};

static const struct change_words changes[] = {
    [CHANGE_PAUSE] = {JOB_PAUSE, "pause", "paused", SANDBOX_PAUSING, SANDBOX_PAUSED},
    [CHANGE_SUSPEND] = {JOB_SUSPEND, "suspend", "suspended", SANDBOX_SUSPENDING, SANDBOX_SUSPENDED},
    [CHANGE_WAKE] = {JOB_WAKE, "wake", "woken", SANDBOX_WAKING, SANDBOX_RUNNING},
};

static const struct change_words *words_of(enum job_kind kind)
{
    if (kind == JOB_PAUSE) {
        return &changes[CHANGE_PAUSE];
    }
    return &changes[kind == JOB_SUSPEND ? CHANGE_SUSPEND : CHANGE_WAKE];
}

const char *job_change_verb(const struct job *job)
{
    return words_of(job->kind)->verb;
}

void job_keep_reason(struct job *job, const char *code, const char *message)
{
    (void)snprintf(job->reason_code, sizeof(job->reason_code), "%.31s", code);
    (void)snprintf(job->reason_message, sizeof(job->reason_message), "%.159s", message);
}

/* Whether the change can be made from this state, was made before (*ret_done), or neither. */
static bool is_possible(enum job_kind kind, bool boots, enum sandbox_state state, bool *ret_done)
{
    *ret_done = state == words_of(kind)->after;
    if (state == SANDBOX_ERROR) {
        return boots;
    }
    if (state == SANDBOX_SUSPENDING || state == SANDBOX_SUSPENDED) {
        return kind != JOB_PAUSE; /* it would have to wake, to use more than it does */
    }
    return *ret_done || state == SANDBOX_RUNNING || state == SANDBOX_PAUSING ||
           state == SANDBOX_PAUSED || state == SANDBOX_WAKING;
}

static int refuse(const struct sandbox *s, enum job_kind kind, struct error *err)
{
    const char *state = sandbox_state_name(s->state);

    return error_set_code(
        err, ERROR_FAILED_PRECONDITION, state, "a sandbox that is %s cannot be %s%s%.200s", state,
        words_of(kind)->participle, s->reason_message[0] == '\0' ? "" : ": ", s->reason_message);
}

/* Nothing is woken on a node that is to be drained. */
static int check_drain(const struct api *api, enum job_kind kind, struct error *err)
{
    return kind != JOB_WAKE
               ? 0
               : drain_refuse(api, ERROR_SERVICE_UNAVAILABLE, "no sandbox is woken", err);
}

/* ---- the end ---- */

/* error NULL: it succeeded. record NULL: the node said nothing of the sandbox. */
static int write_end(struct job *job, const json_t *record, const char *error)
{
    struct store *store = job->api->store;
    _cleanup_sandbox_ struct sandbox s = {0};
    struct sandbox_report report;
    struct error err = {0};
    int r = store_sandbox_get(store, job->sandbox_id, &s, &err);

    if (r >= 0) {
        r = store_begin(store, &err);
    }
    if (r < 0) {
        return r;
    }
    if (s.id[0] != '\0' && s.deleted_at == 0 && s.state != SANDBOX_DELETING && record != NULL &&
        report_read(record, &report) == 0 && strcmp(report.id, s.id) == 0 && !report.deleted) {
        r = report_apply(&report, &s);
        r = r < 0 ? r : store_sandbox_update(store, &s, &err);
    }
    if (r >= 0) {
        r = job_write_loss(job, &err);
    }
    if (r >= 0 && error != NULL && job->fetch == JOB_FETCH_SANDBOX) {
        /* No node has it: it is where it was. */
        r = store_sandbox_set_state(store, job->sandbox_id, SANDBOX_SUSPENDED, "", "", &err);
    }
    if (r >= 0) {
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
    const json_t *record = envelope != NULL ? json_object_get(envelope, "sandbox") : NULL;

    log_warning(job_change_verb(job), "sandbox=%s code=%s message=%s", job->sandbox_id,
                error_code_name(why->code), LOG_STR(why->message));
    if (text == NULL || write_end(job, record, text) < 0) {
        job_park(job); /* the store cannot say so yet: the node is asked again */
        return;
    }
    if (strcmp(job->reason_code, "idle_timeout") == 0) {
        expiry_touch(job->api, job->sandbox_id); /* the rule waits once more, not at every tick */
    }
    job_end(job);
}

void job_give_up_change(struct job *job)
{
    struct error late;

    (void)error_set_code(&late, ERROR_DEADLINE_EXCEEDED, NULL, "the %s did not end within %llu s",
                         job_change_verb(job),
                         (unsigned long long)job->api->settings.api_operation_timeout_seconds);
    fail(job, NULL, &late);
}

/* The node has lost it. */
static void fail_missing(struct job *job, const json_t *envelope, const struct error *why)
{
    struct error err;
    struct error gone;

    if (job->boots) {
        (void)error_set_code(&gone, ERROR_FAILED_PRECONDITION, sandbox_state_name(SANDBOX_ERROR),
                             "the sandbox cannot be started again: the node has no disk of it");
        envelope = NULL;
        why = &gone;
    }
    if (store_sandbox_set_state(job->api->store, job->sandbox_id, SANDBOX_ERROR, "host_restarted",
                                "the node no longer has this sandbox", &err) < 0) {
        job_park(job);
        return;
    }
    fail(job, envelope, why);
}

/* Restarted in the middle of a change, the node first brings the sandbox back to a state that
 * stays. Nothing else is at work here, so that this passes. */
static bool is_settling(const json_t *envelope, const struct error *why)
{
    struct sandbox_report report;

    return why->code == ERROR_FAILED_PRECONDITION &&
           report_read(json_object_get(envelope, "sandbox"), &report) == 0 && !report.deleted &&
           (report.state == SANDBOX_PAUSING || report.state == SANDBOX_SUSPENDING ||
            report.state == SANDBOX_WAKING || report.state == SANDBOX_CREATING);
}

/* By the node. A fetch is not taken up again: what it was for says so. */
static void refused(struct job *job, const json_t *answer, const struct error *err)
{
    if (job->fetch != JOB_FETCH_SANDBOX &&
        (err->code == ERROR_SERVICE_UNAVAILABLE || is_settling(answer, err))) {
        job_park(job); /* it is starting or stopping, or not yet at rest */
        return;
    }
    if (job->fetch != JOB_FETCH_SANDBOX && err->code == ERROR_NOT_FOUND) {
        if (!job_try_fetch(job, answer)) {
            fail_missing(job, answer, err);
        }
        return;
    }
    fail(job, answer, err);
}

void job_on_change_done(struct job *job, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    int status = http_call_status(call);
    struct error err;

    if (json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        fail(job, NULL, &err);
    } else if (status == 200) {
        const json_t *record =
            job->fetch == JOB_FETCH_SANDBOX ? json_object_get(answer, "sandbox") : answer;

        if (write_end(job, record, NULL) < 0) {
            job_park(job);
            return;
        }
        expiry_changed(job->api, clock_real_ms()); /* the idle rules of a running one count */
        job_end(job);
    } else if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node answered status %d", status);
        fail(job, NULL, &err);
    } else {
        refused(job, answer, &err);
    }
}

/* ---- the begin ---- */

const char *job_change_body(const struct job *job, struct buf *text)
{
    _cleanup_json_ json_t *body = json_object();

    if (job->boots) {
        (void)json_object_set_new(body, "boot", json_true());
    } else if (job->reason_code[0] != '\0') {
        (void)json_object_set_new(
            body, "reason",
            json_pack("{s:s, s:s}", "code", job->reason_code, "message", job->reason_message));
    }
    json_write(body, text);
    return buf_error(text) < 0 ? NULL : buf_str(text);
}

/* What the record says from the begin on. */
static int mark_begun(const struct job *job, struct error *err)
{
    return store_sandbox_set_state(job->api->store, job->sandbox_id, words_of(job->kind)->during,
                                   job->reason_code, job->reason_message, err);
}

void job_start_change(struct job *job)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    bool is_done = false;
    int r = store_sandbox_get(job->api->store, job->sandbox_id, &s, &err);

    if (r == 0 || (r > 0 && s.deleted_at != 0)) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
        fail(job, NULL, &err);
        return;
    }
    if (r > 0 && !is_possible(job->kind, job->boots, s.state, &is_done)) {
        (void)refuse(&s, job->kind, &err);
        fail(job, NULL, &err);
        return;
    }
    if (r > 0 && is_done) {
        if (write_end(job, NULL, NULL) < 0) {
            job_park(job);
        } else {
            job_end(job);
        }
        return;
    }
    if (r > 0 && s.state == SANDBOX_ERROR) {
        job_keep_reason(job, s.reason_code, s.reason_message);
    }
    if (r < 0 || check_drain(job->api, job->kind, &err) < 0 ||
        job_write_begin(job, mark_begun, &err) < 0) {
        fail(job, NULL, &err);
        return;
    }
    job->is_begun = true;
    job_send(job, NULL);
}

/* Operation and, where it begins at once, what that changes, in one step. */
static int insert(const struct job *job, const struct change *c, struct error *err)
{
    struct store *store = job->api->store;
    struct operation o = {.state = job->is_begun ? OPERATION_RUNNING : OPERATION_PENDING,
                          .boots = job->boots,
                          .created_at = clock_real_ms()};
    int r = store_begin(store, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(o.kind, sizeof(o.kind), "%s", job_change_verb(job));
    memcpy(o.id, job->operation_id, sizeof(o.id));
    memcpy(o.sandbox_id, job->sandbox_id, sizeof(o.sandbox_id));
    (void)snprintf(o.key_id, sizeof(o.key_id), "%s", c->key_id);
    r = store_operation_insert(store, &o, err);
    if (r == 0 && c->spends_timeout) {
        r = store_sandbox_spend_timeout(store, job->sandbox_id, err);
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

int lifecycle_change(struct api *api,
                     const struct sandbox *s,
                     const struct change *change,
                     struct error *err)
{
    enum job_kind kind = changes[change->verb].kind;
    /* One that was never there has no disk. */
    bool boots = kind == JOB_WAKE && s->state == SANDBOX_ERROR && s->running_at != 0;
    bool is_done;
    bool can = is_possible(kind, boots, s->state, &is_done);
    struct job *job;
    int r;

    if (!can && (s->state == SANDBOX_DELETING || job_find(api, s->id) == NULL)) {
        return refuse(s, kind, err);
    }
    if (!is_done && check_drain(api, kind, err) < 0) {
        return -err->errnum;
    }
    if (job_count(api, s->id) >= JOBS_MAX) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "operations",
                              "%d operations of this sandbox are under way or waiting already",
                              JOBS_MAX);
    }
    job = job_new(api, kind, s->id, change->operation_id);
    if (job == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    job->boots = boots;
    job_keep_reason(job, boots ? s->reason_code : change->reason_code,
                    boots ? s->reason_message : change->reason_message);
    job->is_begun = can && !is_done && job_is_first(job);
    r = insert(job, change, err);
    if (r < 0) {
        job_free(job);
        return r;
    }
    if (job_is_first(job)) {
        job_send(job, NULL);
    }
    return 0;
}
