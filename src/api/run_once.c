/* One call to the node does it all: PUT with `run` and `delete_after`. Two commits: the record
 * before, so that the sandbox counts, is listed, and is found again after a crash; its end after.
 *
 * Client gone: without an Idempotency-Key the call is dropped, and the node deletes the sandbox (a
 * kept one stays, and its create is finished like any other). With one the call goes on without a
 * client, so that a repetition gets its answer.
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

/* Two streams of 16 MiB, of which each byte may take six in JSON. */
#define ANSWER_MAX (200U * 1024U * 1024U)
/* Of answers that clients have not read: beyond it nothing is started whose answer may be large. */
#define UNREAD_MAX (256U * 1024U * 1024U)
/* What the answers of all that is under way may come to, with those that are not read: a run with
 * more output than usual counts with the most that its answer can be, another with its two streams
 * as they are. A run that has no place in the first gets less output, as from a node that holds too
 * much of it; and beyond the second nothing is started. Both leave room for one answer that is read
 * and written. */
#define ANSWERS_MAX       (768U * 1024U * 1024U)
#define ANSWERS_SMALL_MAX (1280U * 1024U * 1024U)
#define ANSWER_PER_BYTE   12U /* of max_output_bytes: two streams, six in JSON */
#define USUAL_PER_BYTE    2U
#define OUTPUT_DEFAULT    1048576U
#define OUTPUT_MAX        16777216U
#define OUTPUT_SMALL      65536U
#define FILES_MAX         1024
#define ID_TRIES          8

struct run_job {
    struct list link; /* of api->runs */
    struct api *api;
    struct request *rq;                /* NULL: the client is gone */
    struct idempotency_flight *flight; /* only without rq */
    struct http_call *call;
    char sandbox_id[ID_SIZE];
    uint64_t reserved_bytes; /* in api->run_bytes */
    bool keep;
    bool is_repetition; /* of an attempt whose kept sandbox is there */
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

static struct run_job *find_job(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->runs)
    {
        struct run_job *job = list_entry(it, struct run_job, link);

        if (strcmp(job->sandbox_id, sandbox_id) == 0) {
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
    job->api->run_bytes -= job->reserved_bytes;
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

static void answer_result(struct run_job *job, json_t *run)
{
    if (job->rq != NULL) {
        request_on_gone(job->rq, NULL, NULL);
        request_answer(job->rq, 200, json_incref(run));
    } else if (job->flight != NULL) {
        _cleanup_buf_ struct buf text = buf_make(0);

        json_write(run, &text);
        idempotency_finish(job->flight, 200, buf_span(&text), buf_error(&text) == 0);
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

static void on_answer(struct run_job *job, struct http_call *call)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err;
    json_t *run;

    if (json_answer_parse(http_call_body(call), &answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        finish_later(job);
        answer_error(job, &err);
        return;
    }
    if (http_call_status(call) != 200) {
        refused(job);
        answer_refusal(job, answer);
        return;
    }
    if (!job->keep) {
        bury(job->api, job->sandbox_id);
    } else if (write_kept(job, json_object_get(answer, "sandbox")) < 0) {
        finish_later(job);
    }
    run = json_object_get(answer, "run");
    if (json_object_set_new(run, "sandbox_id", json_string(job->sandbox_id)) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer has no result");
        answer_error(job, &err);
        return;
    }
    answer_result(job, run);
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct run_job *job = arg;

    job->call = NULL;
    if (err != NULL) {
        finish_later(job);
        answer_error(job, err);
    } else {
        on_answer(job, call);
    }
    job_free(job);
}

static void on_gone(void *arg)
{
    struct run_job *job = arg;

    if (job->rq->flight != NULL) {
        job->flight = idempotency_detach(job->rq);
        job->rq = NULL;
        return;
    }
    job->rq = NULL;
    if (job->keep) {
        finish_later(job);
    } else {
        bury(job->api, job->sandbox_id);
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

static uint64_t answer_bytes(uint64_t output_bytes)
{
    return output_bytes * (output_bytes > OUTPUT_DEFAULT ? ANSWER_PER_BYTE : USUAL_PER_BYTE);
}

/* What the node may send per stream: what is asked for, or what there is room for. What it refuses
 * is left to it. */
static uint64_t choose_output(const struct request *rq)
{
    const json_t *value = json_object_get(rq->body, "max_output_bytes");
    uint64_t asked = OUTPUT_DEFAULT;

    if (value != NULL) {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > OUTPUT_MAX) {
            return OUTPUT_DEFAULT;
        }
        asked = (uint64_t)json_integer_value(value);
    }
    if (asked > OUTPUT_SMALL &&
        rq->api->unread_bytes + rq->api->run_bytes + answer_bytes(asked) > ANSWERS_MAX) {
        return OUTPUT_SMALL;
    }
    return asked;
}

static int check_room(const struct request *rq, uint64_t output_bytes, struct error *err)
{
    uint64_t others = rq->api->unread_bytes + rq->api->run_bytes;

    if (rq->api->unread_bytes > UNREAD_MAX ||
        others + answer_bytes(output_bytes) > ANSWERS_SMALL_MAX) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "too many large answers are under way or wait to be read");
    }
    return 0;
}

static json_t *run_body(struct request *rq, const char *sandbox_id, uint64_t output_bytes)
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
    if (output_bytes == OUTPUT_SMALL) {
        (void)json_object_set_new(run, "max_output_bytes", json_integer(OUTPUT_SMALL));
    }
    (void)json_object_set_new(run, "process_id", json_string(process_id));
    (void)json_object_set_new(run, "session_id", json_string(session_id));
    return run;
}

static char *node_text(struct request *rq,
                       const struct create_spec *spec,
                       const struct sandbox *s,
                       uint64_t output_bytes)
{
    _cleanup_json_ json_t *body = create_node_body(spec, s);
    json_t *run = run_body(rq, s->id, output_bytes);
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

static void start_job(struct request *rq,
                      const struct sandbox *s,
                      const char *text,
                      uint64_t output_bytes,
                      bool is_repetition)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_done};
    const struct http_header headers[] = {{"X-Request-Id", rq->id},
                                          {"Content-Type", "application/json"}};
    char target[64];
    struct http_call_request request = {.method = "PUT",
                                        .target = target,
                                        .headers = headers,
                                        .header_count = 2,
                                        .body = span_of_str(text),
                                        .max_body = ANSWER_MAX};
    struct run_job *job = calloc(1, sizeof(*job));
    struct error err;

    (void)error_set(&err, ENOMEM, "no memory");
    (void)snprintf(target, sizeof(target), "/n1/sandboxes/%s", s->id);
    if (job != NULL) {
        *job = (struct run_job){.api = rq->api,
                                .rq = rq,
                                .reserved_bytes = answer_bytes(output_bytes),
                                .keep = !s->transient,
                                .is_repetition = is_repetition};
        rq->api->run_bytes += job->reserved_bytes;
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
    uint64_t output_bytes = choose_output(rq);
    bool is_repetition = false;
    bool keep;
    int r = read_request(rq, &spec, &keep, &err);

    if (r == 0) {
        r = check_room(rq, output_bytes, &err);
    }
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
        text = node_text(rq, &spec, &s, output_bytes);
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
    start_job(rq, &s, text, output_bytes, is_repetition);
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
    if (check_room(rq, choose_output(rq), &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, run_at_node);
}
