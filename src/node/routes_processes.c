/* Processes: list, look at, signal, kill. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "io/json_request.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/process_signal.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/signal_name.h"

#define LIST_MAX 1000U /* when a page is asked for; without `limit` all are listed */
/* After SIGKILL was delivered: how long the answer waits for the end to be seen. */
#define KILL_WAIT_MS 10000

void handle_process_get(struct call *call, json_t *body)
{
    const struct process *p = call_process(call);

    (void)body;
    if (p != NULL) {
        call_respond(call, 200, process_describe(p));
    }
}

/* The newest first, from the one after the cursor (an id) on. */
static json_t *list_page(struct process_table *table, struct list *from, uint64_t limit)
{
    json_t *items = json_array();
    json_t *cursor = json_null();
    const char *last = NULL;
    struct list *it;

    for (it = from; items != NULL && it != &table->processes; it = it->prev) {
        struct process *p = list_entry(it, struct process, link);

        if (json_array_size(items) == limit) {
            cursor = json_string(last);
            break;
        }
        (void)json_array_append_new(items, process_describe(p));
        last = p->id;
    }
    return items == NULL ? NULL : json_pack("{s:o, s:o}", "items", items, "next_cursor", cursor);
}

void handle_process_list(struct call *call, json_t *body)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    struct sandbox *sb = call_sandbox(call);
    struct process_table *table;
    struct list *from;
    uint64_t limit = UINT64_MAX;
    char cursor[64];
    struct error err = {0};

    (void)body;
    if (sb == NULL) {
        return;
    }
    table = process_table_get(call->data, sb);
    if (table == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    if (call_query_check(call, names, &err) < 0 ||
        call_query_unsigned(call, "limit", LIST_MAX, &limit, &err) < 0 ||
        call_query_text(call, "cursor", cursor, sizeof(cursor), &err) < 0) {
        call_fail(call, &err);
        return;
    }
    from = table->processes.prev;
    if (cursor[0] != '\0') {
        struct process *p = process_find(table, cursor);

        if (p == NULL) {
            (void)error_set_code(&err, ERROR_INVALID_REQUEST, "cursor", "cursor is not valid");
            call_fail(call, &err);
            return;
        }
        from = p->link.prev;
    }
    if (limit == 0) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "limit", "limit must be between 1 and %u",
                             LIST_MAX);
        call_fail(call, &err);
        return;
    }
    call_respond(call, 200, list_page(table, from, limit));
}

/* ---- signal and kill ---- */

/* Outlives the call, because a signal cannot be called off. */
struct signal_request {
    struct call *call; /* NULL once the client is gone */
    bool kill;
};

static void on_signal_close(struct call *call, bool complete)
{
    struct signal_request *request = call->state;

    (void)complete;
    if (request != NULL) {
        request->call = NULL;
    }
}

static void on_kill_timer(void *arg)
{
    struct call *call = arg;
    const struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);

    if (sb != NULL && sandbox_is_resting(sb) &&
        call_start_timer(call, KILL_WAIT_MS, on_kill_timer) == 0) {
        return; /* it was paused meanwhile: its end is still to come */
    }
    call_respond(arg, 200, json_pack("{s:b}", "killed", 1));
}

static void on_kill_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;

    (void)p;
    if ((events & (PROCESS_EVENT_ENDED | PROCESS_EVENT_GONE | PROCESS_EVENT_FAILED)) != 0) {
        process_watch_remove(&call->watch);
        call_respond(call, 200, json_pack("{s:b}", "killed", 1));
    }
}

/* SIGKILL was delivered: the answer comes when the end was seen. */
static void wait_for_end(struct call *call)
{
    struct process *p = call_process(call);

    if (p == NULL) {
        return;
    }
    if (process_is_ended(p) || call_start_timer(call, KILL_WAIT_MS, on_kill_timer) < 0) {
        call_respond(call, 200, json_pack("{s:b}", "killed", 1));
        return;
    }
    call_watch(call, p, on_kill_event);
}

static void on_signalled(void *arg, int result)
{
    struct signal_request *request = arg;
    struct call *call = request->call;
    bool is_kill = request->kill;
    struct error err = {0};

    free(request);
    if (call == NULL) {
        return;
    }
    call->state = NULL;
    if (is_kill && result == ESRCH) {
        call_respond(call, 200, json_pack("{s:b}", "killed", 0));
    } else if (result != 0) {
        process_signal_error(NULL, result, &err);
        call_fail(call, &err);
    } else if (is_kill) {
        wait_for_end(call);
    } else {
        call_respond(call, 200, json_object());
    }
}

static void
send_signal(struct call *call, struct process *p, int number, enum agent_scope scope, bool is_kill)
{
    struct signal_request *request = calloc(1, sizeof(*request));
    struct error err = {0};

    if (request == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    if (!process_is_ended(p) && !process_is_waiting(p) && p->channel == NULL &&
        sandbox_require_running(p->table->sandbox, &err) < 0) {
        free(request);
        call_fail(call, &err);
        return;
    }
    request->call = call;
    request->kill = is_kill;
    call->state = request;
    call->on_close = on_signal_close;
    call_touch(call);
    process_signal(p, number, scope, on_signalled, request);
}

void handle_signal(struct call *call, json_t *body)
{
    struct process *p = call_process(call);
    enum agent_scope scope = AGENT_SCOPE_GROUP;
    struct error err = {0};
    struct json_fields f;
    int number = 0;

    if (p == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    signal_read(&f, &number, &scope);
    if (json_fields_finish(&f) < 0) {
        call_fail(call, &err);
        return;
    }
    if (process_is_ended(p)) {
        process_signal_error(p, ESRCH, &err);
        call_fail(call, &err);
        return;
    }
    send_signal(call, p, number, scope, false);
}

void handle_kill(struct call *call, json_t *body)
{
    struct process *p = call_process(call);
    struct error err = {0};
    struct json_fields f;

    if (p == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    if (json_fields_finish(&f) < 0) {
        call_fail(call, &err);
        return;
    }
    send_signal(call, p, SIGKILL, AGENT_SCOPE_TREE, true);
}

void handle_resize(struct call *call, json_t *body)
{
    struct process *p = call_process(call);
    struct command_tty size = {.on = true};
    struct error err = {0};
    struct json_fields f;

    if (p == NULL) {
        return;
    }
    json_fields_start(&f, body, "", &err);
    json_fields_require(&f, "cols");
    json_fields_require(&f, "rows");
    command_read_size(&f, &p->tty, &size);
    if (json_fields_finish(&f) < 0 || process_resize(p, &size, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    call_touch(call);
    call_respond(call, 200, json_object());
}
