/* GET …/ports and …/ports/{port}: what listens in a guest. */
#include <errno.h>
#include <string.h>

#include "node/data.h"
#include "node/file_call.h"
#include "node/node.h"
#include "node/ports.h"
#include "node/sandbox.h"
#include "node/services.h"

struct list_state {
    json_t *items;
    unsigned int count;
};

/* ---- the list ---- */

static const char *on_record(void *arg, const struct service_record *record)
{
    struct file_call *f = arg;
    struct list_state *state = f->state;
    const struct sandbox *sb = sandbox_find(f->call->data->node, f->call->sandbox_id);
    struct service_listener listener;

    if (record->type != SERVICE_RECORD_LISTENER ||
        service_listener_parse(record->payload, &listener) < 0) {
        return "a bad LISTENER";
    }
    if (sb != NULL && state->count++ < PORTS_MAX) {
        (void)json_array_append_new(state->items, port_describe(sb, &listener));
    }
    return NULL;
}

static void on_done(struct file_call *f, const struct service_end *end)
{
    struct list_state *state = f->state;

    (void)end;
    call_respond(f->call, 200, json_pack("{s:o}", "items", TAKE(state->items)));
}

static void on_list_close(struct call *call, bool complete)
{
    struct file_call *f = call->state;
    struct list_state *state = f->state;

    json_decref(state->items);
    file_call_on_close(call, complete);
}

void handle_port_list(struct call *call, json_t *body)
{
    static const char *const names[] = {NULL};
    struct file_call *f = file_call_new(call, "ports");
    struct list_state *state =
        f != NULL ? http_exchange_alloc(call->exchange, sizeof(*state)) : NULL;
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    if (state == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    *state = (struct list_state){.items = json_array()};
    f->state = state;
    f->callbacks.on_record = on_record;
    f->on_done = on_done;
    call->on_close = on_list_close;
    if (call_query_check(call, names, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    file_call_start(f, false);
}

/* ---- one port ---- */

static void fail_absent(struct call *call)
{
    struct error err = {0};

    (void)error_set_code(&err, ERROR_NOT_FOUND, "port", "nothing listens on port %.8s", call->port);
    call_fail(call, &err);
}

static void on_wait_close(struct call *call, bool complete)
{
    (void)complete;
    port_wait_end(call->state);
}

static void on_wait_timer(void *arg)
{
    struct call *call = arg;

    if (port_wait_expire(call->state)) {
        fail_absent(call);
    }
}

static void on_port(void *arg, const struct service_listener *listener, const struct error *err)
{
    struct call *call = arg;
    const struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);

    if (err != NULL) {
        call_fail(call, err);
    } else if (listener == NULL || sb == NULL) {
        fail_absent(call);
    } else {
        call_respond(call, 200, port_describe(sb, listener));
    }
}

bool call_port(struct call *call, uint16_t *ret_port)
{
    uint64_t port = 0;

    if (span_parse_u64(span_of_str(call->port), UINT16_MAX, &port) < 0 || port == 0) {
        fail_absent(call);
        return false;
    }
    *ret_port = (uint16_t)port;
    return true;
}

void handle_port_get(struct call *call, json_t *body)
{
    static const char *const names[] = {"wait", NULL};
    struct sandbox *sb = call_sandbox(call);
    struct port_wait *wait = http_exchange_alloc(call->exchange, sizeof(*wait));
    struct services *services;
    int64_t wait_ms = 0;
    struct error err = {0};

    (void)body;
    if (sb == NULL) {
        return;
    }
    if (wait == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    memset(wait, 0, sizeof(*wait));
    if (!call_port(call, &wait->port)) {
        return;
    }
    if (call_query_check(call, names, &err) < 0 || call_query_wait(call, &wait_ms, &err) < 0 ||
        sandbox_require_running(sb, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    list_init(&wait->link);
    wait->is_once = wait_ms == 0;
    wait->fn = on_port;
    wait->arg = call;
    call->state = wait;
    call->on_close = on_wait_close;
    call_touch(call);
    services = services_get(call->data, sb);
    if (services == NULL || port_wait_begin(services, wait) < 0 ||
        (wait_ms > 0 && call_start_timer(call, wait_ms, on_wait_timer) < 0)) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
}
