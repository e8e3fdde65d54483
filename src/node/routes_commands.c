/* run, commands and the result of a process. */
#include <errno.h>
#include <string.h>

#include "io/json_request.h"
#include "node/data.h"
#include "node/routes.h"
#include "node/run.h"
#include "node/sandbox.h"

static const char *const encoding_words[] = {"auto", "utf8", "base64"};

/* A watched process is gone or could not be started. True when that was answered. */
static bool answered_failure(struct call *call, const struct process *p, unsigned int events)
{
    struct error err = {0};

    if ((events & (PROCESS_EVENT_FAILED | PROCESS_EVENT_GONE)) != 0) {
        process_watch_remove(&call->watch);
    }
    if ((events & PROCESS_EVENT_FAILED) != 0) {
        call_fail(call, &p->start_error);
        return true;
    }
    if ((events & PROCESS_EVENT_GONE) != 0) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "process %s was removed", p->id);
        call_fail(call, &err);
        return true;
    }
    return false;
}

static void respond_result(struct call *call, struct process *p)
{
    struct run_options options = {p->max_output_bytes, p->encoding};

    call_respond_result(call, p, &options, NULL);
}

static void on_run_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;

    if (answered_failure(call, p, events)) {
        return;
    }
    if ((events & (PROCESS_EVENT_ENDED | PROCESS_EVENT_TIMEOUT)) != 0) {
        process_watch_remove(&call->watch);
        respond_result(call, p);
    }
}

static void on_command_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;

    if (answered_failure(call, p, events)) {
        return;
    }
    if ((events & (PROCESS_EVENT_STARTED | PROCESS_EVENT_ENDED)) != 0) {
        process_watch_remove(&call->watch);
        call_respond(call, 201, json_pack("{s:o}", "process", process_describe(p)));
    }
}

/* The same ids again: the request was sent twice, the command runs once. */
static struct process *find_same(struct process_table *table, const struct command_request *request)
{
    struct process *p = process_find(table, request->process_id);

    return p != NULL && strcmp(p->session_id, request->session_id) == 0 ? p : NULL;
}

static void start_command(struct call *call, json_t *body, enum command_kind kind)
{
    _cleanup_command_request_ struct command_request request = {0};
    struct sandbox *sb = call_sandbox(call);
    struct process_table *table;
    struct process *p = NULL;
    struct error err = {0};

    if (sb == NULL) {
        return;
    }
    table = process_table_get(call->data, sb);
    if (table == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    if (command_request_parse(body, kind, "", call->sandbox_id, &request, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    p = find_same(table, &request);
    if (p == NULL &&
        (sandbox_require_running(sb, &err) < 0 || process_start(table, &request, &p, &err) < 0)) {
        call_fail(call, &err);
        return;
    }
    call_touch(call);
    if (kind == COMMAND_KIND_COMMANDS && process_is_waiting(p)) {
        p->announced = true;
        call_respond(call, 201, json_pack("{s:o}", "process", process_describe(p)));
        return;
    }
    call_watch(call, p, kind == COMMAND_KIND_RUN ? on_run_event : on_command_event);
    if (process_is_ended(p)) {
        call->watch.fn(call, p, PROCESS_EVENT_ENDED);
    } else if (p->state == PROCESS_STATE_RUNNING) {
        call->watch.fn(call, p, PROCESS_EVENT_STARTED);
    }
}

void handle_run(struct call *call, json_t *body)
{
    start_command(call, body, COMMAND_KIND_RUN);
}

void handle_commands(struct call *call, json_t *body)
{
    start_command(call, body, COMMAND_KIND_COMMANDS);
}

/* ---- result ---- */

struct result_wait {
    struct run_options options;
};

static void on_result_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;
    const struct result_wait *wait = call->state;

    if (answered_failure(call, p, events) || (events & PROCESS_EVENT_ENDED) == 0) {
        return;
    }
    process_watch_remove(&call->watch);
    call_respond_result(call, p, &wait->options, NULL);
}

static void on_result_timer(void *arg)
{
    struct call *call = arg;
    struct process *p = call_process(call);

    if (p != NULL) {
        process_watch_remove(&call->watch);
        call_respond(call, 202, process_describe(p));
    }
}

static int read_result_options(struct call *call,
                               const struct process *p,
                               struct run_options *options,
                               struct error *err)
{
    static const char *const names[] = {"wait", "max_output_bytes", "encoding", NULL};
    char encoding[16] = "";
    int r = call_query_check(call, names, err);

    options->max_output_bytes = p->max_output_bytes;
    options->encoding = p->encoding;
    if (r == 0) {
        r = call_query_unsigned(call, "max_output_bytes", COMMAND_OUTPUT_BYTES_MAX,
                                &options->max_output_bytes, err);
    }
    if (r == 0) {
        r = call_query_text(call, "encoding", encoding, sizeof(encoding), err);
    }
    if (r < 0 || encoding[0] == '\0') {
        return r;
    }
    for (int i = 0; i <= COMMAND_ENCODING_BASE64; i++) {
        if (strcmp(encoding, encoding_words[i]) == 0) {
            options->encoding = (enum command_encoding)i;
            return 0;
        }
    }
    return error_set_code(err, ERROR_INVALID_REQUEST, "encoding",
                          "encoding must be one of: auto, utf8, base64");
}

void handle_result(struct call *call, json_t *body)
{
    struct process *p = call_process(call);
    struct result_wait *wait;
    struct error err = {0};
    int64_t wait_ms = 0;

    (void)body;
    if (p == NULL) {
        return;
    }
    wait = http_exchange_alloc(call->exchange, sizeof(*wait));
    if (wait == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    call->state = wait;
    if (read_result_options(call, p, &wait->options, &err) < 0 ||
        call_query_wait(call, &wait_ms, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (!process_is_ended(p) && wait_ms == 0) {
        call_respond(call, 202, process_describe(p));
        return;
    }
    if (!process_is_ended(p) && call_start_timer(call, wait_ms, on_result_timer) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    call_watch(call, p, on_result_event);
    if (process_is_ended(p)) {
        on_result_event(call, p, PROCESS_EVENT_ENDED);
    }
}
