/* Commands and processes: ids are made here, all the rest is the node's. */
#include <errno.h>

#include "api/api.h"
#include "api/expiry.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/proxy.h"
#include "api/routes.h"
#include "api/tokens.h"
#include "api/wake.h"
#include "io/json_request.h"

#define PATH_SIZE 256

static void sandbox_path(const struct request *rq, const char *rest, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "/n1/sandboxes/%s/%s", rq->params[0], rest);
}

static void process_path(const struct request *rq, const char *rest, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "/n1/sandboxes/%s/processes/%s%s", rq->params[0], rq->params[1],
                   rest);
}

/* ---- run and commands ---- */

/* Adds the ids to the body. The session's goes to ret_session_id. */
static bool add_ids(struct request *rq, char ret_session_id[ID_SIZE])
{
    struct error err;
    char process_id[ID_SIZE];
    const char *given = json_object_get(rq->body, "process_id") != NULL   ? "process_id"
                        : json_object_get(rq->body, "session_id") != NULL ? "session_id"
                                                                          : NULL;

    if (given != NULL) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, given, "unknown field %s", given);
        request_fail(rq, &err);
        return false;
    }
    if (request_make_id_within(rq, "pr", rq->params[0], process_id) < 0 ||
        request_make_id_within(rq, "se", rq->params[0], ret_session_id) < 0 ||
        json_object_set_new(rq->body, "process_id", json_string(process_id)) < 0 ||
        json_object_set_new(rq->body, "session_id", json_string(ret_session_id)) < 0) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return false;
    }
    return true;
}

static void run_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    char session_id[ID_SIZE];
    char path[PATH_SIZE];

    if (!node_call_running(rq, &s) || !add_ids(rq, session_id)) {
        return;
    }
    expiry_touch(rq->api, s.id);
    sandbox_path(rq, "run", path);
    proxy_json(rq, "POST", path, rq->body, false);
}

void route_command_run(struct request *rq)
{
    wake_need(rq, run_now);
}

static void on_started(struct request *rq, int status, json_t *answer)
{
    const char *id = json_string_value(json_object_get(rq->body, "session_id"));

    tokens_answer(rq, status,
                  json_pack("{s:O, s:o}", "process", json_object_get(answer, "process"), "session",
                            tokens_session(rq, id)));
}

static void start_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    char session_id[ID_SIZE];
    char path[PATH_SIZE];

    if (!node_call_running(rq, &s) || !add_ids(rq, session_id)) {
        return;
    }
    expiry_touch(rq->api, s.id);
    sandbox_path(rq, "commands", path);
    node_call_json(rq, "POST", path, rq->body, on_started);
}

void route_command_start(struct request *rq)
{
    wake_need(rq, start_now);
}

/* ---- reading processes ---- */

static void on_processes(struct request *rq, int status, json_t *answer)
{
    _cleanup_page_ struct page page = {0};
    struct error err;

    (void)status;
    if (page_start(&page, rq, "processes", PROCESS_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer_array(&page, json_object_get(answer, "items"));
}

static void list_now(struct request *rq)
{
    char path[PATH_SIZE];

    sandbox_path(rq, "processes", path);
    node_call_json(rq, "GET", path, NULL, on_processes);
}

void route_process_list(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    _cleanup_page_ struct page page = {0};
    struct error err;

    if (page_start(&page, rq, "processes", PROCESS_FIELDS, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (node_call_sandbox(rq, &s)) {
        node_link_need(rq, list_now);
    }
}

static void on_process(struct request *rq, int status, json_t *answer)
{
    struct error err;
    const char *fields;

    if (fields_read(rq, PROCESS_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    request_answer(rq, status, fields_pick(json_incref(answer), fields));
}

static void get_now(struct request *rq)
{
    char path[PATH_SIZE];

    process_path(rq, "", path);
    node_call_json(rq, "GET", path, NULL, on_process);
}

/* The sandbox lives and the process can be one of its: then fn when the node is there. */
static void need_process(struct request *rq, request_fn fn)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s) && node_call_process(rq, &s)) {
        node_link_need(rq, fn);
    }
}

void route_process_get(struct request *rq)
{
    struct error err;
    const char *fields;

    if (fields_read(rq, PROCESS_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    need_process(rq, get_now);
}

static void result_now(struct request *rq)
{
    char path[PATH_SIZE];

    process_path(rq, "/result", path);
    proxy_json(rq, "GET", path, NULL, true);
}

/* Like the output of a session: gone, and not unknown, while the deleted sandbox is remembered. */
void route_process_result(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;

    if (!node_call_known(rq, &s) || !node_call_process(rq, &s)) {
        return;
    }
    if (s.deleted_at != 0) {
        (void)error_set_code(&err, ERROR_GONE, "process", "the sandbox of process %s was deleted",
                             rq->params[1]);
        request_fail(rq, &err);
        return;
    }
    node_link_need(rq, result_now);
}

/* ---- acting on processes ---- */

static void need_process_awake(struct request *rq, request_fn fn)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s) && node_call_process(rq, &s)) {
        wake_need(rq, fn);
    }
}

static void signal_now(struct request *rq)
{
    char path[PATH_SIZE];

    expiry_touch(rq->api, rq->params[0]);
    process_path(rq, "/signal", path);
    proxy_json(rq, "POST", path, rq->body, false);
}

void route_process_signal(struct request *rq)
{
    need_process_awake(rq, signal_now);
}

static void resize_now(struct request *rq)
{
    char path[PATH_SIZE];

    expiry_touch(rq->api, rq->params[0]);
    process_path(rq, "/resize", path);
    proxy_json(rq, "POST", path, rq->body, false);
}

void route_process_resize(struct request *rq)
{
    need_process_awake(rq, resize_now);
}

static void kill_now(struct request *rq)
{
    char path[PATH_SIZE];

    expiry_touch(rq->api, rq->params[0]);
    process_path(rq, "/kill", path);
    proxy_json(rq, "POST", path, rq->body, false);
}

void route_process_kill(struct request *rq)
{
    struct error err;

    if (json_object_size(rq->body) > 0) {
        const char *first = json_object_iter_key(json_object_iter(rq->body));

        (void)error_set_code(&err, ERROR_INVALID_REQUEST, first, "unknown field %.60s", first);
        request_fail(rq, &err);
        return;
    }
    need_process_awake(rq, kill_now);
}

static void stdin_now(struct request *rq)
{
    char path[PATH_SIZE];

    expiry_touch(rq->api, rq->params[0]);
    process_path(rq, "/stdin", path);
    proxy_upload(rq, "POST", path);
}

void route_process_stdin(struct request *rq)
{
    const char *eof = query_find(&rq->query, "eof");
    uint64_t offset = 0;
    struct error err;

    if (eof != NULL && strcmp(eof, "true") != 0 && strcmp(eof, "false") != 0) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "eof", "eof must be true or false");
        request_fail(rq, &err);
        return;
    }
    if (query_unsigned(&rq->query, "offset", 0, INT64_MAX, &offset, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    need_process_awake(rq, stdin_now);
}
