/* One call to the node does it all: PUT with `run` and `delete_after`. Two commits: the record
 * before, so that the sandbox counts, is listed, and is found again after a crash; its end after.
 *
 * Client gone: without an Idempotency-Key the call is dropped, and the node deletes the sandbox (a
 * kept one stays, and its create is finished like any other). With one the call goes on without a
 * client, so that a repetition gets its answer.
 *
 * The result goes to the client as it comes, at the client's pace; the record is at its end before
 * that begins, by what the answer's head says of the sandbox.
 *
 * A repetition that finds the kept sandbox of an earlier attempt asks the node for the result only:
 * whatever the answer is, record and sandbox are that attempt's, or its create's. */
#include "api/run_once.h"

#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/expiry.h"
#include "api/idempotency.h"
#include "api/lifecycle.h"
#include "api/node_link.h"
#include "api/report.h"
#include "api/routes.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_client.h"

/* Two streams of 16 MiB, of which each byte may take six in JSON. What a repetition gets later is
 * less (idempotency.h); this is for those who wait now. */
#define KEPT_MAX    (200U * 1024U * 1024U)
#define REFUSAL_MAX 1048576U /* an error, and what became of its VM */
#define FILES_MAX   1024
#define ID_TRIES    8

struct run_job {
    struct list link; /* of api->runs */
    struct api *api;
    struct request *rq;                /* NULL: the client is gone */
    struct idempotency_flight *flight; /* only without rq */
    struct http_call *call;
    char sandbox_id[ID_SIZE];
    struct buf refusal;
    struct spill kept; /* with an Idempotency-Key: the result */
    bool keep;
    bool is_repetition; /* of an attempt whose kept sandbox is there */
    bool is_result;     /* the answer is one, and its record is written */
    struct sandbox_loss loss;
};

static const char *const run_keys[] = {
    "argv",
    "shell",
    "cwd",
    "user",
    "input",
    "input_base64",
    "timeout_seconds",
    "on_timeout",
    "max_output_bytes",
    "encoding",
    "shell_state",
};
#define RUN_KEYS (sizeof(run_keys) / sizeof(run_keys[0]))

/* Of those whose sandbox has not been written down: one whose result is only being read has no more
 * say in what becomes of it. */
static struct run_job *find_job(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->runs)
    {
        struct run_job *job = list_entry(it, struct run_job, link);

        if (!job->is_result && strcmp(job->sandbox_id, sandbox_id) == 0) {
            return job;
        }
    }
    return NULL;
}

bool run_once_is_busy(const struct api *api, const char *sandbox_id)
{
    return find_job(api, sandbox_id) != NULL;
}

void run_once_note(struct api *api, const struct sandbox_report *report)
{
    struct run_job *job = find_job(api, report->id);

    if (job != NULL) {
        report_note_loss(report, &job->loss);
    }
}

static void job_free(struct run_job *job)
{
    if (job->call != NULL) {
        http_call_cancel(job->call);
    }
    spill_done(&job->kept);
    buf_done(&job->refusal);
    list_remove(&job->link);
    free(job);
}

void run_once_done(struct api *api)
{
    while (!list_is_empty(&api->runs)) {
        job_free(list_entry(api->runs.next, struct run_job, link));
    }
}

/* ---- records ---- */

static void bury(struct api *api, const char *sandbox_id)
{
    struct error err = {0};

    if (store_sandbox_bury(api->store, sandbox_id, clock_real_ms(), &err) < 0) {
        log_warning("run", "sandbox=%s problem=%s", sandbox_id, LOG_STR(err.message));
    }
}

static int write_kept(struct run_job *job, const json_t *record)
{
    struct api *api = job->api;
    const char *sandbox_id = job->sandbox_id;
    _cleanup_sandbox_ struct sandbox s = {0};
    struct sandbox_report report;
    struct error err = {0};
    int r = report_read(record, &report);

    if (r == 0) {
        r = store_sandbox_get(api->store, sandbox_id, &s, &err);
    }
    if (r > 0 && (s.state == SANDBOX_DELETING || s.deleted_at != 0)) {
        return 0; /* a delete has come in between */
    }
    if (r > 0) {
        r = report_apply(&report, &s);
        r = r >= 0 && report_apply_loss(&job->loss, &s) ? 1 : r;
    }
    if (r > 0) {
        r = store_sandbox_update(api->store, &s, &err);
        expiry_changed(api, clock_real_ms()); /* its idle rule counts now */
    }
    if (r == 0) {
        r = store_sandbox_drop_pending(api->store, sandbox_id, &err);
    }
    return r;
}

/* Nobody knows whether the node has it: the create is brought to an end like any other. */
static void finish_later(struct run_job *job)
{
    struct error err;

    if (job->is_repetition) {
        return; /* has been brought to its end, or is being so */
    }
    if (!job->keep) {
        bury(job->api, job->sandbox_id);
        lifecycle_purge(job->api, job->sandbox_id);
    } else if (lifecycle_create(job->api, job->sandbox_id, "", NULL, &err) < 0) {
        log_warning("run", "sandbox=%s problem=%s", job->sandbox_id, LOG_STR(err.message));
    }
}

/* ---- the answer ---- */

static void answer_error(struct run_job *job, const struct error *err)
{
    if (job->rq != NULL) {
        request_on_gone(job->rq, NULL, NULL);
        request_fail(job->rq, err);
    } else if (job->flight != NULL) {
        _cleanup_buf_ struct buf text = buf_make(0);

        json_error_format(err, "", &text);
        idempotency_finish(job->flight, error_code_status(err->code), buf_span(&text),
                           !error_code_is_retryable(err->code));
    }
}

/* The node names fields of the command "run.argv"; in this call they stand at the top. */
static void strip_run(struct error *err)
{
    static const char prefix[] = "run.";
    size_t n = sizeof(prefix) - 1;

    if (strncmp(err->field, prefix, n) == 0) {
        memmove(err->field, &err->field[n], strlen(&err->field[n]) + 1);
    }
    if (strncmp(err->message, prefix, n) == 0) {
        memmove(err->message, &err->message[n], strlen(&err->message[n]) + 1);
    }
}

static void answer_refusal(struct run_job *job, json_t *answer)
{
    struct error err;
    json_t *details;

    if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        answer_error(job, &err);
        return;
    }
    strip_run(&err);
    if (job->rq == NULL) {
        answer_error(job, &err);
        return;
    }
    details = json_copy(json_object_get(json_object_get(answer, "error"), "details"));
    (void)json_object_del(details, error_code_detail_key(err.code));
    request_on_gone(job->rq, NULL, NULL);
    request_fail_more(job->rq, &err, details);
}

/* Nothing is left of the attempt: a repetition is a new one. */
static void refused(struct run_job *job)
{
    struct idempotency_flight *flight = job->rq != NULL ? job->rq->flight : job->flight;

    if (job->is_repetition) {
        return; /* the first one stands */
    }
    if (flight != NULL) {
        flight->is_begun = false;
    }
    bury(job->api, job->sandbox_id);
    if (job->keep) {
        lifecycle_purge(job->api, job->sandbox_id); /* the command failed, not the create */
    }
}

/* The end of an answer that was no result. */
static void on_refused(struct run_job *job)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err;

    if (buf_error(&job->refusal) < 0 ||
        json_answer_parse(buf_span(&job->refusal), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        finish_later(job);
        answer_error(job, &err);
        return;
    }
    refused(job);
    answer_refusal(job, answer);
}

static void on_drain(void *arg)
{
    struct run_job *job = arg;

    http_call_pause(job->call, false);
}

static void start_answer(struct run_job *job, const struct http_call *call)
{
    struct request *rq = job->rq;
    const char *length = http_call_header(call, "Content-Length");
    struct request_headers headers;
    uint64_t n = 0;
    bool has_length = length != NULL && span_parse_u64(span_of_str(length), INT64_MAX, &n) == 0;

    request_headers_make(rq, "application/json", &headers);
    rq->answered = true;
    rq->status = 200;
    http_exchange_on_drain(rq->exchange, on_drain, job);
    http_exchange_start(rq->exchange, 200, headers.list, headers.count,
                        has_length ? (int64_t)n : -1);
}

/* A result begins: what it says of the sandbox is written down before the client reads any of it.
 */
static void on_head(void *arg, struct http_call *call, int status)
{
    struct run_job *job = arg;
    const char *text = http_call_header(call, "X-Space-Sandbox");
    _cleanup_json_ json_t *record = NULL;
    struct error err;

    if (status != 200) {
        return;
    }
    if (text == NULL || json_answer_parse(span_of_str(text), &record, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer has no result");
        finish_later(job);
        answer_error(job, &err);
        job_free(job);
        return;
    }
    job->is_result = true;
    if (!job->keep) {
        bury(job->api, job->sandbox_id);
    } else if (write_kept(job, record) < 0) {
        finish_later(job);
    }
    if (job->rq != NULL) {
        start_answer(job, call);
    }
}

static void on_data(void *arg, struct http_call *call, struct span piece)
{
    struct run_job *job = arg;

    if (!job->is_result) {
        buf_put(&job->refusal, piece);
        return;
    }
    if (job->flight != NULL || job->rq->flight != NULL) {
        spill_put(&job->kept, piece);
    }
    if (job->rq != NULL && http_exchange_write(job->rq->exchange, piece) == 0) {
        http_call_pause(call, true);
    }
}

static void finish_flight(struct run_job *job)
{
    struct idempotency_flight *flight = job->rq != NULL ? job->rq->flight : job->flight;
    struct span kept;

    if (flight != NULL && spill_read(&job->kept, &kept) < 0) {
        idempotency_finish_unkept(flight);
    } else if (flight != NULL) {
        idempotency_finish(flight, 200, kept, true);
    }
}

/* The client of an answer that has begun hears no more from us than its end, or a cut. */
static struct http_exchange *leave(struct run_job *job)
{
    struct http_exchange *exchange = job->rq != NULL ? job->rq->exchange : NULL;

    if (exchange != NULL) {
        request_on_gone(job->rq, NULL, NULL);
        http_exchange_on_drain(exchange, NULL, NULL);
    }
    return exchange;
}

static void on_result(struct run_job *job)
{
    struct http_exchange *exchange = leave(job);

    finish_flight(job);
    if (exchange != NULL) {
        http_exchange_end(exchange);
    }
}

/* What became of a sandbox that is to go is not known; one that stays is written down. */
static void on_cut(struct run_job *job, const struct error *err)
{
    struct http_exchange *exchange = leave(job);

    if (!job->keep) {
        finish_later(job);
    }
    if (exchange != NULL) {
        http_exchange_abort(exchange);
    } else {
        answer_error(job, err);
    }
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct run_job *job = arg;

    (void)call;
    job->call = NULL;
    if (err != NULL && job->is_result) {
        on_cut(job, err);
    } else if (err != NULL) {
        finish_later(job);
        answer_error(job, err);
    } else if (job->is_result) {
        on_result(job);
    } else {
        on_refused(job);
    }
    job_free(job);
}

static void on_gone(void *arg)
{
    struct run_job *job = arg;

    if (job->rq->flight != NULL) {
        job->flight = idempotency_detach(job->rq);
        job->rq = NULL;
        http_call_pause(job->call, false);
        return;
    }
    job->rq = NULL;
    if (!job->keep) {
        bury(job->api, job->sandbox_id);
    } else if (!job->is_result) {
        finish_later(job);
    }
    job_free(job);
}

/* ---- the request ---- */

static int
read_request(struct request *rq, struct create_spec *spec, bool *ret_keep, struct error *err)
{
    struct json_fields f;
    json_t *files;

    json_fields_start(&f, rq->body, "", err);
    create_spec_read(&f, spec);
    *ret_keep = json_fields_bool(&f, "keep", false);
    files = json_fields_array(&f, "files", FILES_MAX);
    (void)files; /* their content is the node's to judge */
    for (size_t i = 0; i < RUN_KEYS; i++) {
        json_fields_skip(&f, run_keys[i]);
    }
    return json_fields_finish(&f);
}

static json_t *run_body(struct request *rq, const char *sandbox_id)
{
    json_t *run = json_object();
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];

    for (size_t i = 0; i < RUN_KEYS; i++) {
        json_t *value = json_object_get(rq->body, run_keys[i]);

        if (value != NULL) {
            (void)json_object_set(run, run_keys[i], value);
        }
    }
    if (request_make_id_within(rq, "pr", sandbox_id, process_id) < 0 ||
        request_make_id_within(rq, "se", sandbox_id, session_id) < 0) {
        json_decref(run);
        return NULL;
    }
    (void)json_object_set_new(run, "process_id", json_string(process_id));
    (void)json_object_set_new(run, "session_id", json_string(session_id));
    return run;
}

static char *node_text(struct request *rq, const struct create_spec *spec, const struct sandbox *s)
{
    _cleanup_json_ json_t *body = create_node_body(spec, s);
    json_t *run = run_body(rq, s->id);
    json_t *files = json_object_get(rq->body, "files");

    if (run == NULL || json_object_set_new(body, "run", run) < 0 ||
        json_object_set_new(body, "delete_after", json_boolean(s->transient)) < 0) {
        return NULL;
    }
    if (json_is_array(files)) {
        (void)json_object_set(body, "files", files);
    }
    return json_dumps(body, JSON_COMPACT);
}

static void
start_job(struct request *rq, const struct sandbox *s, const char *text, bool is_repetition)
{
    static const struct http_call_callbacks callbacks = {on_head, on_data, on_done};
    const struct http_header headers[] = {{"X-Request-Id", rq->id},
                                          {"Content-Type", "application/json"}};
    char target[64];
    struct http_call_request request = {.method = "PUT",
                                        .target = target,
                                        .headers = headers,
                                        .header_count = 2,
                                        .body = span_of_str(text)};
    struct run_job *job = calloc(1, sizeof(*job));
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    (void)snprintf(target, sizeof(target), "/n1/sandboxes/%s", s->id);
    if (job != NULL) {
        *job = (struct run_job){.api = rq->api,
                                .rq = rq,
                                .refusal = buf_make(REFUSAL_MAX),
                                .keep = !s->transient,
                                .is_repetition = is_repetition};
        spill_init(&job->kept, rq->api, rq->key, KEPT_MAX);
        memcpy(job->sandbox_id, s->id, sizeof(job->sandbox_id));
        list_append(&rq->api->runs, &job->link);
        job->call = http_client_start(rq->api->client, &request, &callbacks, job, &err);
    }
    if (job == NULL || job->call == NULL) {
        if (!is_repetition) {
            bury(rq->api, s->id);
        }
        if (job != NULL) {
            job_free(job);
        }
        request_fail(rq, &err);
        return;
    }
    if (rq->flight != NULL) {
        rq->flight->is_begun = job->keep;
    }
    request_on_gone(rq, on_gone, job);
}

static bool is_earlier(struct request *rq, const struct sandbox *s)
{
    _cleanup_sandbox_ struct sandbox have = {0};
    struct error err;

    return rq->flight != NULL && !s->transient &&
           store_sandbox_get(rq->api->store, s->id, &have, &err) > 0 && have.deleted_at == 0;
}

static void run_now(struct request *rq)
{
    struct error err = {0};
    struct create_spec spec;
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_free_ char *text = NULL;
    char other[ID_SIZE] = "";
    bool is_repetition = false;
    bool keep;
    int r = read_request(rq, &spec, &keep, &err);

    /* An id that is in use is one of an attempt with the same Idempotency-Key that a crash cut off.
     * A kept sandbox is still there: the same call to the node gives the same result. Another one
     * is gone with all that the command did: a new one is made. */
    for (int i = 0; r == 0 && i < ID_TRIES; i++) {
        sandbox_done(&s);
        free(TAKE(text));
        r = create_prepare(rq, &spec, &s, other, &err);
        if (r < 0) {
            break;
        }
        s.transient = !keep;
        text = node_text(rq, &spec, &s);
        r = text == NULL ? error_set(&err, ENOMEM, "no memory")
                         : store_sandbox_insert(rq->api->store, &s, keep ? text : NULL, &err);
        is_repetition = r == -EEXIST && is_earlier(rq, &s);
        if (r != -EEXIST || is_repetition) {
            r = is_repetition ? 0 : r;
            break;
        }
        (void)error_set(&err, EEXIST, "no free id was found");
        r = i + 1 < ID_TRIES ? 0 : r;
    }
    if (r < 0 || text == NULL) {
        create_fail(rq, &err, other);
        return;
    }
    expiry_changed(rq->api, s.expires_at);
    if (s.rules.idle_timeout_ms > 0) {
        expiry_changed(rq->api, s.created_at + s.rules.idle_timeout_ms);
    }
    start_job(rq, &s, text, is_repetition);
}

static void run_at_node(struct request *rq)
{
    struct error err = {0};
    struct create_spec spec;
    bool keep;

    (void)read_request(rq, &spec, &keep, &err);
    create_with_template(rq, spec.template_name, run_now);
}

void route_run_once(struct request *rq)
{
    struct error err = {0};
    struct create_spec spec;
    bool keep;

    if (read_request(rq, &spec, &keep, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, run_at_node);
}
