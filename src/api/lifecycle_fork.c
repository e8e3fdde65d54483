/* Forks: a checkpoint that nobody sees, as many creates from it, and its removal.
 *
 *   operation  checkpoint  children  what is at work                     after a restart
 *   pending    making      creating  nothing: earlier jobs of the source waits again
 *   running    making      creating  JOB_FORK of the source              asks the node again
 *   running    forking     creating, a JOB_CREATE for each child that    those of them that have
 *                          running…  has not ended; the source is free   not ended are sent again
 *   ended      deleting    as ended  JOB_DROP of the checkpoint          is sent again
 *
 * Each line is one transaction. The children's jobs are there from the first one on, so that what
 * is asked of a child waits for its create, and a delete ends it; they wait until the checkpoint is
 * made. The last child that comes to its end ends the fork, in the same transaction; a fork without
 * a checkpoint takes its children with it. */
#include <errno.h>
#include <string.h>

#include "api/create.h"
#include "api/lifecycle_private.h"
#include "api/record_json.h"
#include "api/store_checkpoint.h"
#include "api/store_fork.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"

#define ID_TRIES 8

bool fork_is_waiting(const struct job *job)
{
    return job->fork_id[0] != '\0' && !job->is_begun;
}

/* ---- the jobs of the children ---- */

static struct job *make_job(struct api *api, const char *sandbox_id, const char *fork_id)
{
    struct job *job = job_new(api, JOB_CREATE, sandbox_id, "");

    if (job != NULL) {
        (void)snprintf(job->fork_id, sizeof(job->fork_id), "%s", fork_id);
    }
    return job;
}

typedef void (*child_fn)(struct job *job);

/* fn frees its own job at most. */
static void each_job(struct api *api, const char *fork_id, child_fn fn)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, lifecycle_jobs(api))
    {
        struct job *job = list_entry(it, struct job, link);

        if (strcmp(job->fork_id, fork_id) == 0) {
            fn(job);
        }
    }
}

static void release(struct job *job)
{
    job->is_begun = true;
    job->give_up_ms = clock_monotonic_ms() + JOB_CREATE_TIMEOUT_MS;
    loop_timer_start(job->timer, 0);
}

static void abandon(struct job *job)
{
    job->is_over = true;
    loop_timer_start(job->timer, 0); /* others may be walking over the jobs now */
}

void fork_release(struct api *api, const char *operation_id)
{
    each_job(api, operation_id, release);
}

void fork_abandon(struct api *api, const char *operation_id)
{
    each_job(api, operation_id, abandon);
}

void fork_forget(struct api *api, const char *operation_id)
{
    each_job(api, operation_id, job_free);
}

/* ---- the begin ---- */

static int
insert_record(struct store *store, const struct fork *fork, struct sandbox *s, struct error *err)
{
    int r = -EEXIST;

    for (int i = 0; r == -EEXIST && i < ID_TRIES; i++) {
        _cleanup_json_ json_t *body = NULL;
        _cleanup_free_ char *text = NULL;

        if (id_make("sb", s->id) < 0) {
            return error_set(err, EIO, "no random bytes");
        }
        body = create_node_body(fork->spec, s);
        text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
        if (text == NULL) {
            return error_set(err, ENOMEM, "no memory");
        }
        r = store_sandbox_insert(store, s, text, err);
    }
    return r == -EEXIST ? error_set(err, EEXIST, "no free id was found") : r;
}

int fork_insert(const struct job *job, const struct fork *fork, struct error *err)
{
    struct store *store = job->api->store;
    int r = 0;

    for (int i = 0; r == 0 && i < fork->spec->count; i++) {
        struct sandbox s = *fork->child; /* its texts are borrowed */

        r = insert_record(store, fork, &s, err);
        if (r == 0) {
            r = store_fork_add(store, job->operation_id, i, s.id, err);
        }
        if (r == 0 && make_job(job->api, s.id, job->operation_id) == NULL) {
            r = error_set(err, ENOMEM, "no memory");
        }
    }
    return r;
}

/* ---- the end ---- */

static json_t *child_json(struct store *store, const struct fork_child *child, struct error *err)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    json_t *shown;
    int r = store_sandbox_get(store, child->sandbox_id, &s, err);

    if (r < 0) {
        return NULL;
    }
    shown = json_pack("{s:s, s:o, s:o}", "sandbox_id", child->sandbox_id, "sandbox",
                      r == 0 || s.deleted_at != 0 ? json_null() : sandbox_json(&s), "error",
                      child->error == NULL ? json_null() : json_loads(child->error, 0, NULL));
    if (shown == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
    }
    return shown;
}

static char *
result_of(struct store *store, const struct fork_child *children, int count, struct error *err)
{
    json_t *list = json_array();
    _cleanup_json_ json_t *result = json_pack("{s:o}", "children", list);
    char *text;

    for (int i = 0; i < count; i++) {
        json_t *shown = child_json(store, &children[i], err);

        if (shown == NULL) {
            return NULL;
        }
        (void)json_array_append_new(list, shown);
    }
    text = result == NULL ? NULL : json_dumps(result, JSON_COMPACT);
    if (text == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
    }
    return text;
}

/* One child is enough for the fork to have succeeded; without any it has failed as the first one
 * did. */
static const char *failure_of(const struct fork_child *children, int count)
{
    for (int i = 0; i < count; i++) {
        if (children[i].error == NULL) {
            return NULL;
        }
    }
    return children[0].error;
}

static int write_result(struct store *store,
                        const struct operation *o,
                        const struct fork_child *children,
                        int count,
                        struct error *err)
{
    _cleanup_free_ char *result = result_of(store, children, count, err);
    int r = result == NULL ? -err->errnum : store_operation_set_result(store, o->id, result, err);

    if (r == 0) {
        r = store_operation_finish(store, o->id, failure_of(children, count), clock_real_ms(), err);
    }
    if (r >= 0) {
        r = store_checkpoint_set_deleting(store, o->checkpoint_id, err);
    }
    return r < 0 ? r : store_fork_remove(store, o->id, err);
}

static int finish(struct store *store, const struct operation *o, struct error *err)
{
    struct fork_child children[FORK_MAX];
    int count = store_fork_read(store, o->id, children, FORK_MAX, err);
    int r;

    if (count <= 0) {
        return count;
    }
    r = write_result(store, o, children, count, err);
    fork_children_done(children, count);
    return r;
}

/* Not before its checkpoint is made: until then the source's job is to say how it ends. */
static int finish_when_due(struct store *store, const char *operation_id, struct error *err)
{
    _cleanup_operation_ struct operation o = {0};
    _cleanup_checkpoint_ struct checkpoint c = {0};
    int r = store_fork_count_open(store, operation_id, err);

    if (r != 0) {
        return r < 0 ? r : 0;
    }
    r = store_operation_get(store, operation_id, &o, err);
    if (r > 0) {
        r = store_checkpoint_get(store, o.checkpoint_id, &c, err);
    }
    if (r <= 0 || c.state != CHECKPOINT_FORKING) {
        return r < 0 ? r : 0;
    }
    return finish(store, &o, err);
}

int fork_captured(const struct job *job, struct error *err)
{
    struct store *store = job->api->store;
    int r = store_checkpoint_set_forking(store, job->checkpoint_id, err);

    return r < 0 ? r : finish_when_due(store, job->operation_id, err);
}

int fork_end_child(const struct job *child, const char *error, struct error *err)
{
    struct store *store = child->api->store;
    int r;

    if (child->fork_id[0] == '\0') {
        return 0;
    }
    r = store_fork_end(store, child->fork_id, child->sandbox_id, error, err);
    return r <= 0 ? r : finish_when_due(store, child->fork_id, err);
}

int fork_fail(const struct job *job, struct error *err)
{
    struct store *store = job->api->store;
    struct fork_child children[FORK_MAX];
    int64_t now = clock_real_ms();
    int count = store_fork_read(store, job->operation_id, children, FORK_MAX, err);
    int r = count < 0 ? count : 0;

    for (int i = 0; r == 0 && i < count; i++) {
        if (!children[i].ended) { /* else its own delete goes on */
            r = store_sandbox_bury(store, children[i].sandbox_id, now, err);
        }
    }
    if (count >= 0) {
        fork_children_done(children, count);
    }
    return r < 0 ? r : store_fork_remove(store, job->operation_id, err);
}

void fork_tell(struct api *api, const char *operation_id)
{
    _cleanup_operation_ struct operation o = {0};
    struct error err = {0};

    if (operation_id[0] == '\0' || store_operation_get(api->store, operation_id, &o, &err) <= 0 ||
        o.finished_at == 0) {
        return;
    }
    log_info("fork", "operation=%s sandbox=%s state=%s", o.id, o.sandbox_id,
             operation_state_name(o.state));
    lifecycle_drop_checkpoint(api, o.checkpoint_id);
    operation_notify(api, operation_id);
}

/* ---- after a start ---- */

int fork_load(struct api *api, const struct operation *o)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    struct fork_child children[FORK_MAX];
    struct error err = {0};
    int r = store_checkpoint_get(api->store, o->checkpoint_id, &c, &err);
    bool is_captured = r > 0 && c.state == CHECKPOINT_FORKING;
    int count = r < 0 ? r : store_fork_read(api->store, o->id, children, FORK_MAX, &err);
    struct job *job;

    if (count < 0) {
        return count;
    }
    for (int i = 0; r >= 0 && i < count; i++) {
        job = children[i].ended ? NULL : make_job(api, children[i].sandbox_id, o->id);
        if (job != NULL) {
            job->is_begun = is_captured;
        } else if (!children[i].ended) {
            r = -ENOMEM;
        }
    }
    fork_children_done(children, count);
    if (r < 0 || is_captured) {
        return r < 0 ? r : 0;
    }
    job = job_new(api, JOB_FORK, o->sandbox_id, o->id);
    if (job == NULL) {
        return -ENOMEM;
    }
    job_load(job, o);
    return 0;
}
