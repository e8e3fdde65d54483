/* Answers with the result of a process. A short one is written at once. A long one is read from the
 * session's output as the connection takes it, so that nobody's slow reading costs memory, and
 * nobody gets less of his output because of others. */
#include <errno.h>

#include "base/buf.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process.h"
#include "node/routes.h"
#include "node/run.h"

#define TURN_PIECES 8 /* of a text, before others have their turn */

static void send_pieces(void *arg)
{
    struct call *call = arg;
    _cleanup_buf_ struct buf piece = buf_make(0);
    int room = 1;
    int more = 1;

    for (int i = 0; i < TURN_PIECES && more == 1 && room == 1; i++) {
        buf_clear(&piece);
        more = run_text_next(call->text, &piece);
        room = more < 0 ? 0 : http_exchange_write(call->exchange, buf_span(&piece));
    }
    if (more < 0) {
        http_exchange_abort(call->exchange);
    } else if (more == 0) {
        http_exchange_end(call->exchange);
    } else if (room == 1) {
        loop_timer_start(call->text_timer, 0);
    }
}

static void on_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;

    if ((events & PROCESS_EVENT_GONE) != 0) {
        process_watch_remove(&call->watch); /* the text has what it needs */
    } else if (run_text_is_behind(call->text, p)) {
        http_exchange_abort(call->exchange);
    }
}

static void
start_text(struct call *call, struct process *p, const struct http_header *headers, size_t count)
{
    call->answered = true;
    process_watch_remove(&call->watch);
    call_watch(call, p, on_event);
    http_exchange_on_drain(call->exchange, send_pieces, call);
    http_exchange_start(call->exchange, 200, headers, count, -1);
    send_pieces(call);
}

static int respond_whole(struct call *call, const struct http_header *headers, size_t count)
{
    _cleanup_buf_ struct buf body = buf_make(0);
    int more = 1;

    while (more == 1) {
        more = run_text_next(call->text, &body);
    }
    run_text_free(TAKE(call->text));
    if (more == 0) {
        call->answered = true;
        http_exchange_respond(call->exchange, 200, headers, count, buf_span(&body));
    }
    return more;
}

void call_respond_result(struct call *call,
                         struct process *p,
                         const struct run_options *options,
                         json_t *sandbox)
{
    _cleanup_json_ json_t *own = sandbox;
    _cleanup_free_ char *record =
        own == NULL ? NULL : json_dumps(own, JSON_COMPACT | JSON_ENSURE_ASCII);
    const struct http_header headers[] = {{"Content-Type", "application/json"},
                                          {"X-Request-Id", call->request_id},
                                          {"X-Space-Sandbox", record}};
    size_t count = record == NULL ? 2 : 3;
    struct error err = {0};
    int r;

    if (call->answered) {
        return;
    }
    r = run_text_new(p, options, own == NULL ? NULL : call->sandbox_id, &call->text, &err);
    if (r == 0 && run_text_shown(call->text) <= ANSWER_OUTPUT_WHOLE) {
        r = respond_whole(call, headers, count);
    } else if (r == 0) {
        call->text_timer = loop_timer_new(call->data->node->loop, send_pieces, call);
        r = call->text_timer == NULL ? -ENOMEM : 0;
        if (r == 0) {
            start_text(call, p, headers, count);
        }
    }
    if (r < 0) {
        if (err.code == ERROR_NONE) {
            (void)error_set(&err, -r, "the result of %s cannot be made", p->id);
        }
        call_fail(call, &err);
    }
}
