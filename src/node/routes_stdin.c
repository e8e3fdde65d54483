/* POST …/processes/{pr}/stdin: the body goes to the process as it comes. The answer comes when the
 * guest has consumed all of it, so that what was answered is never lost; a client that got no
 * answer sends the same bytes again with their offset. Its first request may still be here then,
 * held back before a full queue, where nobody sees that its client is gone: a request that says
 * where its bytes begin ends the one before. */
#include <errno.h>
#include <string.h>

#include "io/json_request.h"
#include "node/data.h"
#include "node/process_stream.h"
#include "node/routes.h"
#include "node/sandbox.h"

struct stdin_call {
    uint64_t skip;   /* bytes of the body that were taken before */
    uint64_t target; /* offset that must be consumed for the answer */
    bool eof;
    bool all_read;
    bool paused;
    bool owns; /* p->writer is this call */
    bool has_offset;
    bool repeats; /* what was taken before, at least at its begin */
};

static void on_close(struct call *call, bool complete)
{
    const struct stdin_call *in = call->state;
    struct sandbox *sb;
    struct process *p = NULL;

    (void)complete;
    if (!in->owns) {
        return;
    }
    sb = sandbox_find(call->data->node, call->sandbox_id);
    if (sb != NULL && sandbox_processes(sb) != NULL) {
        p = process_find(sandbox_processes(sb), call->process_id);
    }
    if (p != NULL) {
        p->writer = NULL;
    }
}

static void fail_closed(struct call *call, const struct process *p)
{
    struct error err = {0};

    (void)error_set_code(&err, ERROR_FAILED_PRECONDITION,
                         process_is_ended(p) ? process_state_name(p->state) : "closed",
                         process_is_ended(p) ? "the process has ended"
                                             : "the process's standard input is closed");
    call_fail(call, &err);
}

static bool is_closed(const struct process *p)
{
    return p->input_eof || p->input_closed;
}

/* Answers when there is an answer. */
static void settle(struct call *call, struct process *p)
{
    struct stdin_call *in = call->state;

    if (call->answered) {
        return;
    }
    if (in->all_read && p->input_base >= in->target) {
        process_watch_remove(&call->watch);
        call_respond(call, 200, json_pack("{s:I}", "offset", (json_int_t)process_input_end(p)));
        return;
    }
    if (process_is_ended(p) || (p->input_closed && !in->repeats)) {
        process_watch_remove(&call->watch);
        fail_closed(call, p);
        return;
    }
    if (in->paused && process_input_room(p) > 0) {
        in->paused = false;
        http_exchange_pause_body(call->exchange, false);
    }
}

static void on_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;

    if ((events & (PROCESS_EVENT_GONE | PROCESS_EVENT_FAILED)) != 0) {
        ((struct stdin_call *)call->state)->owns = false;
        process_watch_remove(&call->watch);
        if (!call->answered) {
            fail_closed(call, p);
        }
        return;
    }
    settle(call, p);
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct call *call = arg;
    struct stdin_call *in = call->state;
    struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);
    struct process *p = NULL;
    bool eof;

    (void)exchange;
    if (call->answered) {
        return;
    }
    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    if (sb != NULL && sandbox_processes(sb) != NULL) {
        p = process_find(sandbox_processes(sb), call->process_id);
    }
    if (p == NULL) {
        return; /* answered by on_event */
    }
    if (in->skip > 0) {
        size_t n = in->skip < piece.n ? (size_t)in->skip : piece.n;

        in->skip -= n;
        piece = span_skip(piece, n);
    }
    if (piece.n > 0 && is_closed(p)) {
        process_watch_remove(&call->watch);
        fail_closed(call, p);
        return;
    }
    eof = last && in->eof;
    if (eof && p->tty.on && in->skip > 0) {
        in->skip--; /* a terminal's end of input is a byte, and this one was taken */
        eof = false;
    }
    if (piece.n > 0 || eof) {
        process_put_input(p, piece, eof);
    }
    if (last) {
        in->all_read = true;
        in->target = process_input_end(p);
    } else if (process_input_room(p) == 0) {
        in->paused = true;
        http_exchange_pause_body(call->exchange, true);
    }
    settle(call, p);
}

static int
read_query(struct call *call, const struct process *p, struct stdin_call *in, struct error *err)
{
    static const char *const names[] = {"offset", "eof", NULL};
    uint64_t end = process_input_end(p);
    uint64_t offset = UINT64_MAX;

    if (call_query_check(call, names, err) < 0 ||
        call_query_unsigned(call, "offset", INT64_MAX, &offset, err) < 0 ||
        call_query_flag(call, "eof", &in->eof, err) < 0) {
        return -EINVAL;
    }
    in->has_offset = offset != UINT64_MAX;
    offset = in->has_offset ? offset : end;
    if (offset > end) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "offset",
                              "offset must be at most %llu, which is what was accepted so far",
                              (unsigned long long)end);
    }
    in->skip = end - offset;
    return 0;
}

static void fail_busy(struct call *call)
{
    struct error err = {0};

    (void)error_set_code(&err, ERROR_CONFLICT, NULL,
                         "another request is writing to this process's standard input");
    call_fail(call, &err);
}

/* What the writer before has handed over stays; nothing more of it is taken. */
static void cut_writer(struct process *p)
{
    struct call *former = TAKE(p->writer);

    ((struct stdin_call *)former->state)->owns = false;
    process_watch_remove(&former->watch);
    if (!former->answered) {
        fail_busy(former);
    }
}

/* Whether the process takes input, or this is the retry of a call that ended it: what such a one
 * brings beyond the end is refused when it comes. */
static bool takes_input(const struct process *p, const struct stdin_call *in)
{
    if (!p->has_stdin || process_is_ended(p)) {
        return false;
    }
    return !is_closed(p) || in->skip > 0 || in->eof;
}

void handle_stdin(struct call *call, json_t *body)
{
    struct process *p = call_process(call);
    struct stdin_call *in;
    struct error err = {0};

    (void)body;
    if (p == NULL) {
        return;
    }
    in = http_exchange_alloc(call->exchange, sizeof(*in));
    if (in == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    memset(in, 0, sizeof(*in));
    call->state = in;
    if (read_query(call, p, in, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (!takes_input(p, in)) {
        fail_closed(call, p);
        return;
    }
    if (p->writer != NULL && !in->has_offset) {
        fail_busy(call);
        return;
    }
    if (p->writer != NULL) {
        cut_writer(p);
    }
    p->writer = call;
    in->repeats = in->skip > 0 || is_closed(p);
    in->owns = true;
    call->on_close = on_close;
    call_touch(call);
    call_watch(call, p, on_event);
    http_exchange_stream_body(call->exchange, on_piece, call);
}
