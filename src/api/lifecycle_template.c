/* Jobs that make templates of checkpoints. They have no sandbox: their place among the jobs is that
 * of the version they make. */
#include <errno.h>
#include <string.h>

#include "api/lifecycle_private.h"
#include "api/node_link.h"
#include "api/record_json.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"

static int write_end(const struct job *job, const json_t *answer, const char *error)
{
    struct store *store = job->api->store;
    _cleanup_free_ char *result = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
    struct error err = {0};
    int r = error == NULL && result == NULL ? -ENOMEM : store_begin(store, &err);

    if (r < 0) {
        return r;
    }
    if (error == NULL) {
        r = store_operation_set_result(store, job->operation_id, result, &err);
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

    log_warning("template", "template=%s version=%s code=%s message=%s", job->template_name,
                job->sandbox_id, error_code_name(why->code), LOG_STR(why->message));
    if (text == NULL || write_end(job, NULL, text) < 0) {
        job_park(job); /* the store cannot say so yet: the node is asked again */
        return;
    }
    job_end(job);
}

/* The node may make it all the same, when nobody has heard its answer. */
static int unmake(struct api *api, const char *name, const char *version)
{
    struct job *drop = job_new(api, JOB_UNMAKE, version, "");

    if (drop == NULL) {
        return -ENOMEM;
    }
    (void)snprintf(drop->template_name, sizeof(drop->template_name), "%s", name);
    return 0;
}

void job_give_up_template(struct job *job)
{
    struct error late;

    (void)error_set_code(&late, ERROR_DEADLINE_EXCEEDED, NULL,
                         "the template was not made within %llu s",
                         (unsigned long long)job->api->settings.api_operation_timeout_seconds);
    if (job_find_last(job->api, job->sandbox_id) == job &&
        unmake(job->api, job->template_name, job->sandbox_id) < 0) {
        log_warning("template_left", "template=%s version=%s", job->template_name, job->sandbox_id);
    }
    fail(job, NULL, &late);
}

void job_on_template_done(struct job *job, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    int status = http_call_status(call);
    struct error err;

    if (json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        fail(job, NULL, &err);
    } else if (status == 200) {
        if (write_end(job, answer, NULL) < 0) {
            job_park(job);
            return;
        }
        node_link_forget_templates(job->api->node);
        job_end(job);
    } else if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node answered status %d", status);
        fail(job, NULL, &err);
    } else if (err.code == ERROR_SERVICE_UNAVAILABLE) {
        job_park(job); /* it is starting or stopping */
    } else {
        fail(job, answer, &err);
    }
}

void job_on_unmake_done(struct job *job, struct http_call *call)
{
    if (http_call_status(call) != 200 && http_call_status(call) != 404) {
        job_park(job);
        return;
    }
    node_link_forget_templates(job->api->node);
    job_end(job);
}

char *job_template_body(const struct job *job)
{
    _cleanup_json_ json_t *body =
        job->kind == JOB_TEMPLATE
            ? json_pack("{s:s, s:s, s:s*}", "name", job->template_name, "checkpoint",
                        job->checkpoint_id, "key",
                        id_is_valid(job->key_id, "ky") ? job->key_id : NULL)
            : json_pack("{s:s, s:s}", "name", job->template_name, "version", job->sandbox_id);

    return body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
}

int lifecycle_make_template(struct api *api, const struct template_order *order, struct error *err)
{
    struct operation o = {.state = OPERATION_RUNNING, .created_at = clock_real_ms()};
    struct job *job = job_new(api, JOB_TEMPLATE, order->version, order->operation_id);
    int r;

    if (job == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    (void)snprintf(job->template_name, sizeof(job->template_name), "%s", order->name);
    (void)snprintf(job->checkpoint_id, sizeof(job->checkpoint_id), "%s", order->checkpoint_id);
    (void)snprintf(job->key_id, sizeof(job->key_id), "%s", order->key_id);
    (void)snprintf(o.kind, sizeof(o.kind), "template");
    (void)snprintf(o.id, sizeof(o.id), "%s", order->operation_id);
    (void)snprintf(o.key_id, sizeof(o.key_id), "%s", order->key_id);
    (void)snprintf(o.checkpoint_id, sizeof(o.checkpoint_id), "%s", order->checkpoint_id);
    (void)snprintf(o.template_made, sizeof(o.template_made), "%s@%s", order->name, order->version);
    r = store_operation_insert(api->store, &o, err);
    if (r < 0) {
        job_free(job);
        return r;
    }
    job->is_begun = true;
    job_send(job, NULL);
    return 0;
}

/* `template_made` of an operation: NULL, or the version; *ret_name is what it is one of. */
static const char *read_made(const struct operation *o, char ret_name[SANDBOX_NAME_SIZE])
{
    const char *at = strchr(o->template_made, '@');

    if (at == NULL || !id_is_valid(at + 1, "tm")) {
        log_error("template", "operation=%s problem=\"its order cannot be read\"", o->id);
        return NULL;
    }
    (void)snprintf(ret_name, SANDBOX_NAME_SIZE, "%.*s", (int)(at - o->template_made),
                   o->template_made);
    return at + 1;
}

int lifecycle_load_template(struct api *api, const struct operation *o)
{
    char name[SANDBOX_NAME_SIZE];
    const char *version = read_made(o, name);
    struct job *job;

    if (version == NULL) {
        return 0;
    }
    job = job_new(api, JOB_TEMPLATE, version, o->id);
    if (job == NULL) {
        return -ENOMEM;
    }
    job->is_begun = true;
    memcpy(job->template_name, name, sizeof(job->template_name));
    memcpy(job->checkpoint_id, o->checkpoint_id, sizeof(job->checkpoint_id));
    memcpy(job->key_id, o->key_id, sizeof(job->key_id));
    return 0;
}

static int load_unmake(void *arg, const struct operation *o)
{
    _cleanup_json_ json_t *error = o->error != NULL ? json_loads(o->error, 0, NULL) : NULL;
    const char *code = json_string_value(json_object_get(error, "code"));
    char name[SANDBOX_NAME_SIZE];
    const char *version;

    if (code == NULL || strcmp(code, error_code_name(ERROR_DEADLINE_EXCEEDED)) != 0) {
        return 0;
    }
    version = read_made(o, name);
    return version != NULL ? unmake(arg, name, version) : 0;
}

int lifecycle_load_unmakes(struct api *api, struct error *err)
{
    const struct operation_filter given_up = {
        .kind = "template", .states = 1U << OPERATION_FAILED, .limit = INT64_MAX};

    return store_operation_list(api->store, &given_up, load_unmake, api, err);
}
