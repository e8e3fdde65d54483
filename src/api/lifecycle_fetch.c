/* What the node has lost and the object store has: a suspended sandbox that is woken, a checkpoint
 * that something is made from. The node fetches it, by the name of its manifest. */
#include <errno.h>
#include <string.h>

#include "api/lifecycle_private.h"
#include "api/store_checkpoint.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

static const char *detail_of(const json_t *envelope, const char *key)
{
    const char *value = json_string_value(
        json_object_get(json_object_get(json_object_get(envelope, "error"), "details"), key));

    return value == NULL ? "" : value;
}

/* ---- whether the store has it ---- */

static bool has_sandbox(const struct job *job)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};

    return store_sandbox_get(job->api->store, job->sandbox_id, &s, &err) > 0 && s.deleted_at == 0 &&
           s.manifest[0] != '\0';
}

/* The one that the body of a create names. */
static int find_checkpoint(struct job *job)
{
    struct error err = {0};
    _cleanup_free_ char *body = NULL;
    _cleanup_json_ json_t *root = NULL;
    const char *id;

    if (job->kind != JOB_CREATE) {
        return 0;
    }
    body = store_sandbox_pending_body(job->api->store, job->sandbox_id, &err);
    root = body == NULL ? NULL : json_loads(body, 0, NULL);
    id = json_string_value(json_object_get(root, "checkpoint"));
    if (id == NULL || !id_is_valid(id, "ck")) {
        return -ENOENT;
    }
    (void)snprintf(job->checkpoint_id, sizeof(job->checkpoint_id), "%s", id);
    return 0;
}

static bool has_checkpoint(struct job *job)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};

    return (job->kind == JOB_CREATE || job->kind == JOB_ROLLBACK) && find_checkpoint(job) == 0 &&
           store_checkpoint_get(job->api->store, job->checkpoint_id, &c, &err) > 0 &&
           c.manifest[0] != '\0';
}

bool job_try_fetch(struct job *job, const json_t *envelope)
{
    const char *resource = detail_of(envelope, "resource");

    if (job->has_fetched) {
        return false;
    }
    if (strcmp(resource, "sandbox") == 0 && job->kind == JOB_WAKE && has_sandbox(job)) {
        job->fetch = JOB_FETCH_SANDBOX;
    } else if (strcmp(resource, "checkpoint") == 0 && has_checkpoint(job)) {
        job->fetch = JOB_FETCH_CHECKPOINT;
    } else {
        return false;
    }
    log_info("fetch", "sandbox=%s checkpoint=%s", job->sandbox_id,
             job->fetch == JOB_FETCH_CHECKPOINT ? job->checkpoint_id : "-");
    job->has_fetched = true;
    job_send_fetch(job);
    return true;
}

/* ---- asking for it ---- */

static json_t *sandbox_body(const struct job *job)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};

    if (store_sandbox_get(job->api->store, job->sandbox_id, &s, &err) <= 0) {
        return NULL;
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:s}", "template", s.template_name,
                     "template_version", s.template_version, "vcpus", (json_int_t)s.vcpus,
                     "memory_mib", (json_int_t)s.memory_mib, "disk_mib", (json_int_t)s.disk_mib,
                     "manifest", s.manifest);
}

static json_t *checkpoint_body(const struct job *job)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct error err = {0};

    if (store_checkpoint_get(job->api->store, job->checkpoint_id, &c, &err) <= 0) {
        return NULL;
    }
    return json_pack("{s:s, s:s, s:s}", "template", c.template_name, "template_version",
                     c.template_version, "manifest", c.manifest);
}

void job_send_fetch(struct job *job)
{
    bool is_sandbox = job->fetch == JOB_FETCH_SANDBOX;
    _cleanup_json_ json_t *body = is_sandbox ? sandbox_body(job) : checkpoint_body(job);
    _cleanup_free_ char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    char target[80];
    struct http_call_request request = {
        .method = "PUT", .target = target, .timeout_ms = JOB_CREATE_TIMEOUT_MS};

    if (text == NULL) {
        job_park(job);
        return;
    }
    (void)snprintf(target, sizeof(target), "/n1/%s/%s", is_sandbox ? "sandboxes" : "checkpoints",
                   is_sandbox ? job->sandbox_id : job->checkpoint_id);
    request.body = span_of_str(text);
    job_start_call(job, &request);
}

/* A checkpoint is there now, or will not be: either way what needs it is asked again, and says what
 * has become of the sandbox. */
void job_on_fetched(struct job *job, struct http_call *call)
{
    struct error err = {0};

    if (job->fetch == JOB_FETCH_SANDBOX) {
        job_on_change_done(job, call);
        return;
    }
    job->fetch = JOB_FETCH_NONE;
    if (http_call_status(call) != 200) {
        json_decref(job->fetch_answer);
        job->fetch_answer = NULL;
        if (json_answer_parse(http_call_body(call), &job->fetch_answer, &err) < 0) {
            job->fetch_answer = NULL;
        }
    }
    job_send(job, NULL);
}
