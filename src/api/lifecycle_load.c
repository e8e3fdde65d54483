/* What was under way when an earlier run ended is taken up again. */
#include <errno.h>
#include <string.h>

#include "api/lifecycle.h"
#include "api/lifecycle_private.h"

/* The record has had the reason since the begin. */
static void load_reason(struct job *job)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;

    if (store_sandbox_get(job->api->store, job->sandbox_id, &s, &err) > 0 &&
        (s.state == SANDBOX_PAUSING || s.state == SANDBOX_SUSPENDING ||
         s.state == SANDBOX_WAKING)) {
        job_keep_reason(job, s.reason_code, s.reason_message);
    }
}

static int load_operation(void *arg, const struct operation *o)
{
    struct api *api = arg;
    static const char *const kinds[] = {
        [JOB_CREATE] = "create",     [JOB_DELETE] = "delete", [JOB_PAUSE] = "pause",
        [JOB_SUSPEND] = "suspend",   [JOB_WAKE] = "wake",     [JOB_CHECKPOINT] = "checkpoint",
        [JOB_ROLLBACK] = "rollback", [JOB_FORK] = "fork"};
    enum job_kind kind = JOB_CREATE;
    struct job *job;

    if (strcmp(o->kind, "template") == 0) {
        return lifecycle_load_template(api, o);
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i] != NULL && strcmp(kinds[i], o->kind) == 0) {
            kind = (enum job_kind)i;
        }
    }
    if (kind == JOB_FORK) {
        return fork_load(api, o);
    }
    job = job_new(api, kind, o->sandbox_id, o->id);
    if (job == NULL) {
        return -ENOMEM;
    }
    job_load(job, o);
    job->boots = o->boots;
    if (job->is_begun && job_is_change(job)) {
        load_reason(job);
    }
    return 0;
}

/* Sandboxes of POST /v1/run have no operation: a kept one is finished like a create, the others
 * have lost their client and go. */
static int load_sandbox(void *arg, const struct sandbox *s)
{
    struct api *api = arg;
    enum job_kind kind = s->transient ? JOB_DELETE : JOB_CREATE;

    if (job_find(api, s->id) != NULL || (!s->transient && s->state != SANDBOX_CREATING)) {
        return 0;
    }
    return job_new(api, kind, s->id, "") == NULL ? -ENOMEM : 0;
}

int lifecycle_load(struct api *api, struct error *err)
{
    int r = store_operation_each_open(api->store, load_operation, api, err);

    if (r == 0) {
        r = store_sandbox_each_living(api->store, load_sandbox, api, err);
    }
    if (r == 0) {
        r = lifecycle_load_drops(api, err);
    }
    if (r == 0) {
        r = lifecycle_load_unmakes(api, err);
    }
    return r == -ENOMEM ? error_set(err, ENOMEM, "no memory") : r;
}
