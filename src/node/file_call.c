#include "node/file_call.h"

#include <errno.h>
#include <string.h>

#include "node/data.h"
#include "node/file_entry.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/services.h"

void file_call_on_close(struct call *call, bool complete)
{
    struct file_call *f = call->state;

    (void)complete;
    file_call_close(f);
    service_args_done(&f->args);
    buf_done(&f->pending);
    json_decref(f->entry);
}

static void fail(struct file_call *f, const struct service_end *end)
{
    struct call *call = f->call;
    struct error err = {0};

    if (http_exchange_is_started(call->exchange)) {
        http_exchange_abort(call->exchange); /* never a proper end */
        return;
    }
    file_error_of_end(&err, end, sandbox_find(call->data->node, call->sandbox_id), f->user);
    call_fail(call, &err);
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct file_call *f = arg;

    f->service = NULL;
    gate_leave(&f->ticket);
    if (end->kind == SERVICE_END_DONE) {
        f->on_done(f, end);
    } else if (f->on_failed == NULL || !f->on_failed(f, end)) {
        fail(f, end);
    }
}

static const char *on_record(void *arg, const struct service_record *record)
{
    struct file_call *f = arg;
    struct service_entry entry;

    if (record->type != SERVICE_RECORD_ENTRY || f->entry != NULL ||
        service_entry_parse(record->payload, &entry) < 0) {
        return "a record that is no ENTRY, or a second one";
    }
    f->entry = file_entry_describe(&entry);
    return NULL;
}

struct file_call *file_call_new(struct call *call, const char *service)
{
    struct file_call *f = http_exchange_alloc(call->exchange, sizeof(*f));
    struct error err = {0};

    if (f == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return NULL;
    }
    memset(f, 0, sizeof(*f));
    f->call = call;
    service_args_init(&f->args, service);
    f->pending = buf_make(0);
    f->spec.args = &f->args;
    f->spec.user = f->user;
    f->spec.is_activity = true;
    f->spec.idle_ms = FILE_STEP_MAX_MS;
    f->callbacks.on_record = on_record;
    f->callbacks.on_ended = on_ended;
    call->state = f;
    call->on_close = file_call_on_close;
    return f;
}

void file_call_answer_entry(struct file_call *f, int status)
{
    struct error err = {0};

    if (f->entry != NULL) {
        call_respond(f->call, status, TAKE(f->entry));
        return;
    }
    (void)error_set(&err, EIO, "the sandbox's agent did not say what it has done");
    call_fail(f->call, &err);
}

void file_call_close(struct file_call *f)
{
    service_close(TAKE(f->service));
    gate_leave(&f->ticket);
}

/* ---- start ---- */

/* The services of the call's sandbox, when it can serve; else answered. */
static struct services *find_services(struct call *call)
{
    struct sandbox *sb = call_sandbox(call);
    struct services *services;
    struct error err = {0};

    if (sb == NULL) {
        return NULL;
    }
    if (sandbox_require_running(sb, &err) < 0) {
        call_fail(call, &err);
        return NULL;
    }
    services = services_get(call->data, sb);
    if (services == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
    return services;
}

void file_call_open(struct file_call *f)
{
    struct services *services = find_services(f->call);
    struct error err = {0};

    if (services == NULL) {
        gate_leave(&f->ticket);
        return;
    }
    call_touch(f->call);
    f->service = service_open(services, &f->spec, &f->callbacks, f, &err);
    if (f->service == NULL) {
        gate_leave(&f->ticket);
        call_fail(f->call, &err);
    }
}

static void on_admitted(void *arg)
{
    file_call_open(arg);
}

void file_call_start(struct file_call *f, bool is_transfer)
{
    struct services *services = find_services(f->call);
    struct error err = {0};

    if (services == NULL) {
        return;
    }
    if (gate_enter(is_transfer ? &services->transfers : &services->calls, &f->ticket, on_admitted,
                   f) < 0) {
        (void)error_set_code(&err, ERROR_LIMIT_EXCEEDED,
                             is_transfer ? "node.max_transfers" : "file_calls",
                             "too many requests for the sandbox's files wait already");
        call_fail(f->call, &err);
    }
}

int file_call_read_query(struct file_call *f, const char *const *names, struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(0);
    int r = call_query_check(f->call, names, err);

    if (r == 0) {
        r = file_query_user(f->call, f->user, err);
    }
    if (r == 0) {
        r = file_query_path(f->call, &path, err);
    }
    if (r == 0) {
        service_args_add(&f->args, buf_span(&path));
    }
    return r;
}
