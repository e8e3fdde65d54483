#include "api/lifecycle.h"

#include <errno.h>

#include "api/drain.h"
#include "api/lifecycle_private.h"
#include "api/node_link.h"
#include "api/record_json.h"
#include "api/store_checkpoint.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/json_request.h"
#include "io/loop.h"

#define CHANGE_CALL_MS    150000 /* more than the node's own deadlines together */
#define DELETE_TIMEOUT_MS 120000
#define RETRY_FIRST_MS    200
#define RETRY_MAX_MS      5000
#define ANSWER_MAX        (4U * 1024U * 1024U)
#define BUCKETS           1024U

struct lifecycle {
    struct list jobs;
    struct list buckets[BUCKETS];
};

/* ---- jobs ---- */

static struct list *bucket_of(const struct api *api, const char *sandbox_id)
{
    uint32_t hash = 2166136261U;

    for (const char *p = sandbox_id; *p != '\0'; p++) {
        hash = (hash ^ (uint8_t)*p) * 16777619U;
    }
    return &api->lifecycle->buckets[hash % BUCKETS];
}

void job_free(struct job *job)
{
    if (job->call != NULL) {
        http_call_cancel(job->call);
    }
    list_remove(&job->link);
    list_remove(&job->hash_link);
    loop_timer_free(job->timer);
    json_decref(job->fetch_answer);
    free(job);
}

bool job_is_change(const struct job *job)
{
    return job->kind == JOB_PAUSE || job->kind == JOB_SUSPEND || job->kind == JOB_WAKE;
}

/* It is one of those that wait for each other. */
static bool has_turn(const struct job *job)
{
    return job_is_change(job) || job_is_capture(job);
}

static bool is_late(const struct job *job)
{
    return (job->kind == JOB_CREATE || job->kind == JOB_TEMPLATE || has_turn(job)) &&
           !fork_is_waiting(job) && clock_monotonic_ms() >= job->give_up_ms;
}

static void give_up(struct job *job)
{
    if (job->kind == JOB_CREATE) {
        job_give_up_create(job);
    } else if (job->kind == JOB_TEMPLATE) {
        job_give_up_template(job);
    } else if (job_is_capture(job)) {
        job_give_up_capture(job);
    } else {
        job_give_up_change(job);
    }
}

/* To look at it again when a while has passed, or its time is over. */
static void rest(struct job *job)
{
    int64_t left = job->give_up_ms - clock_monotonic_ms();

    loop_timer_start(job->timer, left < RETRY_MAX_MS && left > 0 ? left : RETRY_MAX_MS);
}

static void on_job_timer(void *arg)
{
    struct job *job = arg;

    if (job->call != NULL) {
        return;
    }
    if (job->is_over) {
        job_end(job);
    } else if (is_late(job)) {
        give_up(job);
    } else if (job_is_first(job) && node_link_is_ready(job->api->node)) {
        job_send(job, NULL);
    } else {
        rest(job);
    }
}

static int64_t change_ms(const struct api *api)
{
    return (int64_t)api->settings.api_operation_timeout_seconds * 1000;
}

struct job *
job_new(struct api *api, enum job_kind kind, const char *sandbox_id, const char *operation_id)
{
    struct job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        return NULL;
    }
    job->api = api;
    job->kind = kind;
    job->delay_ms = RETRY_FIRST_MS;
    job->give_up_ms =
        clock_monotonic_ms() + (kind == JOB_CREATE ? JOB_CREATE_TIMEOUT_MS : change_ms(api));
    (void)snprintf(job->sandbox_id, sizeof(job->sandbox_id), "%s", sandbox_id);
    (void)snprintf(job->operation_id, sizeof(job->operation_id), "%s", operation_id);
    job->timer = loop_timer_new(api->loop, on_job_timer, job);
    list_append(&api->lifecycle->jobs, &job->link);
    list_append(bucket_of(api, sandbox_id), &job->hash_link);
    if (job->timer == NULL) {
        job_free(job);
        return NULL;
    }
    /* One that is loaded waits for the node; its deadline runs all the same. */
    rest(job);
    return job;
}

void job_load(struct job *job, const struct operation *o)
{
    int64_t left = o->created_at + change_ms(job->api) - clock_real_ms();

    job->is_begun = o->state == OPERATION_RUNNING;
    memcpy(job->checkpoint_id, o->checkpoint_id, sizeof(job->checkpoint_id));
    if (job->is_begun || !has_turn(job) || left >= change_ms(job->api)) {
        return; /* the node is asked how it ended, or the wall clock was set back */
    }
    left = left < 0 ? 0 : left;
    job->give_up_ms = clock_monotonic_ms() + left;
    loop_timer_start(job->timer, left < RETRY_MAX_MS ? left : RETRY_MAX_MS);
}

struct list *lifecycle_jobs(struct api *api)
{
    return &api->lifecycle->jobs;
}

struct job *job_find(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, bucket_of(api, sandbox_id))
    {
        struct job *job = list_entry(it, struct job, hash_link);

        if (strcmp(job->sandbox_id, sandbox_id) == 0) {
            return job;
        }
    }
    return NULL;
}

struct job *job_find_last(const struct api *api, const char *sandbox_id)
{
    struct job *last = NULL;
    struct list *it;
    struct list *following;

    list_foreach(it, following, bucket_of(api, sandbox_id))
    {
        struct job *job = list_entry(it, struct job, hash_link);

        if (strcmp(job->sandbox_id, sandbox_id) == 0) {
            last = job;
        }
    }
    return last;
}

int job_count(const struct api *api, const char *sandbox_id)
{
    int count = 0;
    struct list *it;
    struct list *following;

    list_foreach(it, following, bucket_of(api, sandbox_id))
    {
        count += strcmp(list_entry(it, struct job, hash_link)->sandbox_id, sandbox_id) == 0;
    }
    return count;
}

bool job_is_first(const struct job *job)
{
    return job_find(job->api, job->sandbox_id) == job;
}

bool lifecycle_is_busy(const struct api *api, const char *sandbox_id)
{
    return job_find(api, sandbox_id) != NULL;
}

int lifecycle_count_suspends(const struct api *api)
{
    int count = 0;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->lifecycle->jobs)
    {
        count += list_entry(it, struct job, link)->kind == JOB_SUSPEND;
    }
    return count;
}

enum lifecycle_end
lifecycle_end_of(const struct api *api, const char *sandbox_id, char ret_operation_id[21])
{
    const struct job *last = job_find_last(api, sandbox_id);

    ret_operation_id[0] = '\0';
    if (last == NULL || (!job_is_change(last) && last->kind != JOB_ROLLBACK)) {
        return LIFECYCLE_END_OTHER;
    }
    memcpy(ret_operation_id, last->operation_id, ID_SIZE);
    if (last->kind == JOB_WAKE || last->kind == JOB_ROLLBACK) {
        return LIFECYCLE_END_RUNNING;
    }
    return last->kind == JOB_PAUSE ? LIFECYCLE_END_PAUSED : LIFECYCLE_END_SUSPENDED;
}

void lifecycle_note(struct api *api, const struct sandbox_report *report)
{
    struct job *job = job_find(api, report->id);

    if (job != NULL) {
        if (job->boots && report->state != SANDBOX_ERROR) {
            job->loss.is_known = false; /* that was what it was woken from */
        }
        report_note_loss(report, &job->loss);
    }
}

int job_write_loss(const struct job *job, struct error *err)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    int r = job->loss.is_known ? store_sandbox_get(job->api->store, job->sandbox_id, &s, err) : 0;

    if (r <= 0 || s.deleted_at != 0 || s.state == SANDBOX_DELETING ||
        !report_apply_loss(&job->loss, &s)) {
        return r < 0 ? r : 0;
    }
    return store_sandbox_update(job->api->store, &s, err);
}

int job_write_begin(struct job *job, job_mark_fn mark, struct error *err)
{
    struct store *store = job->api->store;
    int r = store_begin(store, err);

    if (r < 0) {
        return r;
    }
    r = store_operation_run(store, job->operation_id, err);
    if (r == 0) {
        r = mark(job, err);
    }
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, err);
}

void job_park(struct job *job)
{
    loop_timer_start(job->timer, job->delay_ms);
    job->delay_ms = job->delay_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : job->delay_ms * 2;
}

void job_end(struct job *job)
{
    struct api *api = job->api;
    char sandbox_id[ID_SIZE];
    char operation_id[ID_SIZE];
    struct job *next;

    memcpy(sandbox_id, job->sandbox_id, sizeof(sandbox_id));
    memcpy(operation_id, job->operation_id, sizeof(operation_id));
    job_free(job);
    next = job_find(api, sandbox_id);
    if (next != NULL) {
        loop_timer_start(next->timer, 0); /* after those who waited for this one */
    }
    if (operation_id[0] != '\0') {
        operation_notify(api, operation_id);
    }
    drain_poke(api);
}

/* ---- the end of a delete ---- */

static void finish_delete(struct job *job)
{
    struct api *api = job->api;
    int64_t now = clock_real_ms();
    struct error err = {0};
    int r = store_begin(api->store, &err);

    if (r == 0) {
        r = store_sandbox_bury(api->store, job->sandbox_id, now, &err);
        if (r == 0 && job->operation_id[0] != '\0') {
            r = store_operation_finish(api->store, job->operation_id, NULL, now, &err);
        }
        if (r < 0) {
            store_rollback(api->store);
        } else {
            r = store_commit(api->store, &err);
        }
    }
    if (r < 0) {
        job_park(job);
        return;
    }
    job_end(job);
}

/* ---- calls ---- */

/* Of a create that came with a command: the result behind it is for those who ask for it. */
static void on_job_head(void *arg, struct http_call *call, int status)
{
    struct job *job = arg;
    const char *record = http_call_header(call, "X-Space-Sandbox");

    if (job->kind == JOB_CREATE && job->fetch == JOB_FETCH_NONE && status == 200 &&
        record != NULL) {
        job->call = NULL;
        job_on_created(job, record);
        http_call_cancel(call);
    }
}

static void on_job_done(void *arg, struct http_call *call, const struct error *err)
{
    struct job *job = arg;

    job->call = NULL;
    if (is_late(job) && err != NULL) {
        give_up(job);
    } else if (err != NULL) {
        job_park(job);
    } else if (job->fetch != JOB_FETCH_NONE) {
        job_on_fetched(job, call);
    } else if (job->kind == JOB_CREATE) {
        job_on_create_done(job, call);
    } else if (job_is_change(job)) {
        job_on_change_done(job, call);
    } else if (job_is_capture(job)) {
        job_on_capture_done(job, call);
    } else if (job->kind == JOB_TEMPLATE) {
        job_on_template_done(job, call);
    } else if (job->kind == JOB_UNMAKE) {
        job_on_unmake_done(job, call);
    } else if (http_call_status(call) != 200) {
        log_warning("delete", "sandbox=%s status=%d", job->sandbox_id, http_call_status(call));
        job_park(job);
    } else if (job->kind == JOB_DELETE) {
        finish_delete(job);
    } else if (job->kind == JOB_DROP) {
        job_finish_drop(job);
    } else {
        job_end(job);
    }
}

/* What a create sends: body, or the one kept in the store. Fails the job without one. */
static const char *create_body(struct job *job, const char *body, char **ret_kept)
{
    struct error err = {0};

    if (body == NULL) {
        *ret_kept = store_sandbox_pending_body(job->api->store, job->sandbox_id, &err);
        body = *ret_kept;
    }
    if (body == NULL) {
        (void)error_set(&err, EIO, "the create's body was lost");
        job_fail_create(job, NULL, &err);
    }
    return body;
}

void job_start_call(struct job *job, struct http_call_request *request)
{
    static const struct http_call_callbacks callbacks = {.on_head = on_job_head,
                                                         .on_done = on_job_done};
    struct error err = {0};

    loop_timer_stop(job->timer);
    request->max_body = ANSWER_MAX;
    job->call = http_client_start(job->api->client, request, &callbacks, job, &err);
    if (job->call == NULL) {
        job_park(job);
    }
}

static void send_change(struct job *job)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char target[80];
    struct http_call_request request = {
        .method = "POST", .target = target, .timeout_ms = CHANGE_CALL_MS};

    (void)snprintf(target, sizeof(target), "/n1/sandboxes/%s/%s", job->sandbox_id,
                   job_change_verb(job));
    if (job_change_body(job, &text) == NULL) {
        job_park(job);
        return;
    }
    if (job->boots) {
        job->loss.is_known = false;
    }
    request.body = buf_span(&text);
    job_start_call(job, &request);
}

static void send_capture(struct job *job)
{
    _cleanup_free_ char *body = job_capture_body(job);
    char target[80];
    struct http_call_request request = {
        .method = "POST", .target = target, .timeout_ms = CHANGE_CALL_MS};

    if (body == NULL) {
        job_park(job);
        return;
    }
    if (job_makes_checkpoint(job)) {
        request.method = "PUT";
        (void)snprintf(target, sizeof(target), "/n1/checkpoints/%s", job->checkpoint_id);
    } else {
        (void)snprintf(target, sizeof(target), "/n1/sandboxes/%s/rollback", job->sandbox_id);
    }
    request.body = span_of_str(body);
    job_start_call(job, &request);
}

static void send_template(struct job *job)
{
    _cleanup_free_ char *body = job_template_body(job);
    char target[64];
    struct http_call_request request = {
        .method = "POST", .target = "/n1/templates/remove", .timeout_ms = CHANGE_CALL_MS};

    if (body == NULL) {
        job_park(job);
        return;
    }
    if (job->kind == JOB_TEMPLATE) {
        request.method = "PUT";
        request.target = target;
        (void)snprintf(target, sizeof(target), "/n1/templates/%s", job->sandbox_id);
    }
    request.body = span_of_str(body);
    job_start_call(job, &request);
}

void job_send(struct job *job, const char *body)
{
    _cleanup_free_ char *kept = NULL;
    char target[64];
    struct http_call_request request = {.method = "DELETE", .target = target};

    if (job->is_over) {
        job_end(job);
        return;
    }
    if (job->fetch != JOB_FETCH_NONE) {
        job_send_fetch(job);
        return;
    }
    if (job->kind == JOB_TEMPLATE || job->kind == JOB_UNMAKE) {
        send_template(job);
        return;
    }
    if (fork_is_waiting(job)) {
        return;
    }
    if (has_turn(job) && !job->is_begun && is_late(job)) {
        give_up(job);
        return;
    }
    if (job_is_change(job)) {
        if (job->is_begun) {
            send_change(job);
        } else {
            job_start_change(job);
        }
        return;
    }
    if (job_is_capture(job)) {
        if (job->is_begun) {
            send_capture(job);
        } else {
            job_start_capture(job);
        }
        return;
    }
    (void)snprintf(target, sizeof(target), "/n1/%s/%s",
                   job->kind == JOB_DROP ? "checkpoints" : "sandboxes", job->sandbox_id);
    request.timeout_ms = DELETE_TIMEOUT_MS;
    if (job->kind == JOB_CREATE) {
        body = create_body(job, body, &kept);
        if (body == NULL) {
            return;
        }
        request.method = "PUT";
        request.body = span_of_str(body);
        request.timeout_ms = JOB_CREATE_TIMEOUT_MS;
    }
    job_start_call(job, &request);
}

/* ---- what the others ask for ---- */

int lifecycle_create(struct api *api,
                     const char *sandbox_id,
                     const char *operation_id,
                     const char *body,
                     struct error *err)
{
    struct job *job = job_new(api, JOB_CREATE, sandbox_id, operation_id);

    if (job == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    job_send(job, body);
    return 0;
}

static int overtake(const struct job *job, const char *why, struct error *err)
{
    struct store *store = job->api->store;
    int r = 0;

    if (job->operation_id[0] != '\0') {
        r = store_operation_finish(store, job->operation_id, why, clock_real_ms(), err);
    }
    if (r >= 0 && job_makes_checkpoint(job)) {
        r = store_checkpoint_set_deleting(store, job->checkpoint_id, err);
    }
    if (r >= 0 && job->kind == JOB_FORK) {
        r = fork_fail(job, err);
    }
    return r < 0 ? r : fork_end_child(job, why, err);
}

/* Everything that a delete ends. */
static int write_overtaken(struct api *api, const char *sandbox_id, struct error *err)
{
    struct error why;
    _cleanup_free_ char *text = NULL;
    struct list *it;
    struct list *following;
    int r = 0;

    (void)error_set_code(&why, ERROR_CONFLICT, NULL, "the sandbox was deleted");
    text = error_text(&why);
    if (text == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    list_foreach(it, following, bucket_of(api, sandbox_id))
    {
        const struct job *job = list_entry(it, struct job, hash_link);

        if (r >= 0 && strcmp(job->sandbox_id, sandbox_id) == 0 && job->kind != JOB_DELETE) {
            r = overtake(job, text, err);
        }
    }
    return r < 0 ? r : 0;
}

/* Frees the jobs before `keep`; those who waited for them are told when all are gone. */
static void end_overtaken(struct api *api, const struct job *keep)
{
    char sandbox_id[ID_SIZE];
    struct job *job;

    memcpy(sandbox_id, keep->sandbox_id, sizeof(sandbox_id));
    while ((job = job_find(api, sandbox_id)) != NULL && job != keep) {
        const struct job was = *job;

        job_free(job);
        if (was.kind == JOB_FORK) {
            fork_abandon(api, was.operation_id);
        }
        if (job_makes_checkpoint(&was)) {
            lifecycle_drop_checkpoint(api, was.checkpoint_id);
        }
        fork_tell(api, was.fork_id);
        if (was.operation_id[0] != '\0') {
            operation_notify(api, was.operation_id);
        }
    }
}

static int write_delete(struct api *api,
                        const struct sandbox *s,
                        const struct operation *operation,
                        struct error *err)
{
    int r = store_begin(api->store, err);

    if (r < 0) {
        return r;
    }
    r = write_overtaken(api, s->id, err);
    if (r == 0) {
        r = store_operation_insert(api->store, operation, err);
    }
    if (r == 0) {
        r = store_sandbox_set_state(api->store, s->id, SANDBOX_DELETING, s->reason_code,
                                    s->reason_message, err);
    }
    if (r < 0) {
        store_rollback(api->store);
        return r;
    }
    return store_commit(api->store, err);
}

int lifecycle_delete(struct api *api,
                     const struct sandbox *sandbox,
                     const char *operation_id,
                     const char *key_id,
                     char ret_operation_id[21],
                     struct error *err)
{
    struct job *old = job_find(api, sandbox->id);
    struct operation operation = {.kind = "delete", .state = OPERATION_PENDING};
    struct job *job;
    int r;

    if (old != NULL && old->kind == JOB_DELETE) {
        memcpy(ret_operation_id, old->operation_id, ID_SIZE);
        return 0;
    }
    (void)snprintf(operation.id, sizeof(operation.id), "%s", operation_id);
    (void)snprintf(operation.sandbox_id, sizeof(operation.sandbox_id), "%s", sandbox->id);
    (void)snprintf(operation.key_id, sizeof(operation.key_id), "%s", key_id);
    operation.created_at = clock_real_ms();
    job = job_new(api, JOB_DELETE, sandbox->id, operation_id);
    if (job == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    r = write_delete(api, sandbox, &operation, err);
    if (r == -ENOSPC && store_reserve_give_back(api->store)) {
        r = write_delete(api, sandbox, &operation, err);
    }
    if (r < 0) {
        job_free(job);
        return r;
    }
    memcpy(ret_operation_id, operation.id, ID_SIZE);
    end_overtaken(api, job);
    job_send(job, NULL);
    return 0;
}

void lifecycle_purge(struct api *api, const char *sandbox_id)
{
    struct job *job;

    if (job_find(api, sandbox_id) != NULL) {
        return;
    }
    job = job_new(api, JOB_PURGE, sandbox_id, "");
    if (job != NULL) {
        log_info("purge", "sandbox=%s", sandbox_id);
        job_send(job, NULL);
    }
}

/* ---- after a start, and after a lost connection ---- */

void lifecycle_resume(struct api *api)
{
    struct list *it;
    struct list *following;

    /* A job that ends at once frees only itself. */
    list_foreach(it, following, &api->lifecycle->jobs)
    {
        struct job *job = list_entry(it, struct job, link);

        if (job->call == NULL && job_is_first(job)) {
            job_send(job, NULL);
        }
    }
}

void lifecycle_hurry(struct api *api)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->lifecycle->jobs)
    {
        list_entry(it, struct job, link)->delay_ms = RETRY_FIRST_MS;
    }
    lifecycle_resume(api);
}

struct lifecycle *lifecycle_new(struct api *api)
{
    struct lifecycle *lifecycle = calloc(1, sizeof(*lifecycle));

    (void)api;
    if (lifecycle != NULL) {
        list_init(&lifecycle->jobs);
        for (size_t i = 0; i < BUCKETS; i++) {
            list_init(&lifecycle->buckets[i]);
        }
    }
    return lifecycle;
}

void lifecycle_free(struct lifecycle *lifecycle)
{
    if (lifecycle == NULL) {
        return;
    }
    while (!list_is_empty(&lifecycle->jobs)) {
        job_free(list_entry(lifecycle->jobs.next, struct job, link));
    }
    free(lifecycle);
}
