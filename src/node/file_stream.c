/* The two bodies of a transfer. Neither side runs ahead of the other: the guest's bytes are
 * acknowledged when the connection has taken them, and the request is read as the guest has
 * room. */
#include "node/file_call.h"
#include "node/file_error.h"

/* ---- the guest's bytes to the client ---- */

static void on_drain(void *arg)
{
    struct file_call *f = arg;
    size_t owed = f->owed;

    f->owed = 0;
    if (f->service != NULL) {
        service_take(f->service, owed);
    }
}

void file_call_write(struct file_call *f, struct span bytes)
{
    http_exchange_on_drain(f->call->exchange, on_drain, f);
    if (http_exchange_write(f->call->exchange, bytes) == 0) {
        f->owed += bytes.n;
        return;
    }
    if (f->service != NULL) {
        service_take(f->service, f->owed + bytes.n);
        f->owed = 0;
    }
}

/* ---- the client's bytes to the guest ---- */

/* Sends what there is room for; returns how much. */
static size_t send_some(struct file_call *f, struct span bytes)
{
    size_t room = service_room(f->service, bytes.n);
    struct span head = span_head(bytes, room);
    bool end = f->body_ended && head.n == bytes.n;

    if (service_input_is_closed(f->service)) {
        return bytes.n; /* the guest has seen enough, and will say why */
    }
    if ((head.n == 0 && !end) || f->end_sent) {
        return 0;
    }
    if (!service_send(f->service, head, end)) {
        return 0;
    }
    if (end) {
        f->end_sent = true;
        service_set_idle(f->service, FILE_STEP_MAX_MS);
    }
    return head.n;
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct file_call *f = arg;
    size_t sent = 0;

    if (f->call->answered || f->service == NULL) {
        return;
    }
    if (err != NULL) {
        file_call_close(f);
        call_fail(f->call, err);
        return;
    }
    f->body_ended = last;
    if (f->pending.n == 0) {
        sent = send_some(f, piece);
    }
    if (sent < piece.n) {
        buf_put(&f->pending, span_skip(piece, sent));
        f->body_paused = true;
        http_exchange_pause_body(exchange, true);
    }
    if (buf_error(&f->pending) != 0) {
        http_exchange_abort(exchange);
    }
}

void file_call_on_room(void *arg)
{
    struct file_call *f = arg;

    if (f->service == NULL) {
        return;
    }
    if (!f->body_begun) {
        f->body_begun = true;
        http_exchange_stream_body(f->call->exchange, on_piece, f);
        return;
    }
    if (f->pending.n > 0) {
        buf_consume(&f->pending, send_some(f, buf_span(&f->pending)));
    } else if (f->body_ended && !f->end_sent) {
        (void)send_some(f, span_make(NULL, 0));
    }
    if (f->pending.n == 0 && f->body_paused) {
        f->body_paused = false;
        http_exchange_pause_body(f->call->exchange, false);
    }
}
