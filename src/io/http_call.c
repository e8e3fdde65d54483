/* One call of the HTTP client: its answer, its streamed body, its end. */
#include "io/http_call.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "io/loop.h"

void call_free(struct http_call *call)
{
    list_remove(&call->link);
    list_remove(&call->turn_link);
    loop_timer_free(call->timer);
    loop_timer_free(call->connect_timer);
    buf_done(&call->request);
    buf_done(&call->tunnel);
    buf_done(&call->collected);
    free(call->upgrade);
    free(call->text);
    free(call);
}

void call_end_ok(struct http_call *call)
{
    if (call->in_tunnel_request) {
        call_tunnel_refused(call);
    } else if (!call->is_done) {
        call->is_done = true;
        client_schedule(call);
    }
}

void call_end_error(struct http_call *call, enum error_code code, int errnum, const char *what)
{
    if (call->is_done) {
        return;
    }
    call->is_done = true;
    (void)error_set_code(&call->error, code, NULL, "no answer from %s: %s",
                         call->is_tunnelled && !call->in_tunnel_request
                             ? "the server behind the tunnel"
                             : call->client->address.sun_path,
                         what);
    call->error.errnum = errnum;
    client_schedule(call);
}

void call_reset_answer(struct http_call *call)
{
    http1_head_init(&call->head, HTTP1_RESPONSE, call->fields, CALL_MAX_FIELDS,
                    CALL_MAX_HEAD_BYTES);
}

/* ---- the answer ---- */

void call_bad_answer(struct http_call *call, const char *what)
{
    call_end_error(call, ERROR_BAD_GATEWAY, EBADMSG, what);
}

void call_out_of_memory(struct http_call *call)
{
    call_end_error(call, ERROR_CAPACITY_UNAVAILABLE, ENOMEM, "no memory");
}

static void slice_end(struct http_call *call, struct http1_slice slice)
{
    call->text[slice.start + slice.n] = '\0';
}

bool call_keep_head(struct http_call *call, struct span head)
{
    call->text = malloc(head.n + 1);
    if (call->text == NULL) {
        call_out_of_memory(call);
        return false;
    }
    memcpy(call->text, head.p, head.n);
    call->text[head.n] = '\0';
    /* The byte after each part is a colon or a CR. */
    for (unsigned int i = 0; i < call->head.field_count; i++) {
        slice_end(call, call->fields[i].name);
        slice_end(call, call->fields[i].value);
    }
    call->has_head = true;
    return true;
}

/* 100 Continue and its like: the real answer follows. */
static void call_skip_interim(struct http_call *call)
{
    if (++call->interim_count > CALL_MAX_INTERIM) {
        call_bad_answer(call, "too many interim answers");
    }
    call_reset_answer(call);
}

static size_t feed_head(struct http_call *call, struct span bytes)
{
    int used = http1_head_parse(&call->head, bytes);

    if (used == 0) {
        return 0;
    }
    if (used < 0) {
        call_bad_answer(call, http1_fault_text(call->head.fault));
        return bytes.n;
    }
    if (call->head.status == 101) {
        call_on_switch(call, span_head(bytes, (size_t)used));
        return (size_t)used;
    }
    if (call->head.status < 200) {
        call_skip_interim(call);
        return (size_t)used;
    }
    if (!call_keep_head(call, span_head(bytes, (size_t)used))) {
        return bytes.n;
    }
    call->body = http1_head_body(&call->head, call->is_head && !call->in_tunnel_request);
    if (call->body == HTTP1_BODY_LENGTH) {
        call->body_left = (uint64_t)call->head.content_length;
    }
    http1_chunks_init(&call->chunks);
    if (call->callbacks.on_head != NULL && !call->in_tunnel_request) {
        call->callbacks.on_head(call->arg, call, call->head.status);
    }
    if (call->body == HTTP1_BODY_NONE) {
        call_end_ok(call);
    }
    return (size_t)used;
}

static void call_deliver(struct http_call *call, struct span data)
{
    if (data.n == 0) {
        return;
    }
    if (call->callbacks.on_data != NULL && !call->in_tunnel_request) {
        call->callbacks.on_data(call->arg, call, data);
        return;
    }
    buf_put(&call->collected, data);
    if (buf_error(&call->collected) == -EMSGSIZE) {
        call_bad_answer(call, "its body is too large");
    } else if (buf_error(&call->collected) < 0) {
        call_out_of_memory(call);
    }
}

static size_t feed_chunks(struct http_call *call, struct span bytes)
{
    struct span data;
    int used = http1_chunks_next(&call->chunks, bytes, &data);

    if (used < 0) {
        call_bad_answer(call, http1_fault_text(call->chunks.fault));
        return bytes.n;
    }
    call_deliver(call, data);
    if (http1_chunks_is_done(&call->chunks)) {
        call_end_ok(call);
    }
    return (size_t)used;
}

static size_t feed_body(struct http_call *call, struct span bytes)
{
    if (call->body == HTTP1_BODY_CHUNKED) {
        return feed_chunks(call, bytes);
    }
    if (call->body == HTTP1_BODY_LENGTH && bytes.n >= call->body_left) {
        bytes = span_head(bytes, (size_t)call->body_left);
    }
    call->body_left -= call->body == HTTP1_BODY_LENGTH ? bytes.n : 0;
    call_deliver(call, bytes);
    if (call->body == HTTP1_BODY_LENGTH && call->body_left == 0) {
        call_end_ok(call);
    }
    return bytes.n;
}

size_t call_feed(struct http_call *call, struct span bytes)
{
    size_t used = 0;

    while (used < bytes.n && !call->is_paused && !call->is_done) {
        struct span rest = span_skip(bytes, used);
        size_t n = call->has_head ? feed_body(call, rest) : feed_head(call, rest);

        if (n == 0) {
            break;
        }
        used += n;
    }
    return used;
}

void call_at_end(struct http_call *call, int errnum)
{
    if (call->has_head && call->body == HTTP1_BODY_UNTIL_CLOSE && errnum == 0) {
        call_end_ok(call);
    } else if (call->got_bytes || (call->is_tunnelled && !call->in_tunnel_request)) {
        call_bad_answer(call, call->got_bytes ? "it broke off" : "it closed the connection");
    } else {
        call_end_error(call, ERROR_SERVICE_UNAVAILABLE, errnum == 0 ? ECONNRESET : errnum,
                       "it closed the connection");
    }
}

bool call_leaves_connection_clean(const struct http_call *call)
{
    const struct client_link *conn = call->conn;

    return call->has_head && !call->is_tunnelled && call->head.is_keep_alive && call->is_sent &&
           conn != NULL && conn->in.n == 0 && conn->out.queued == 0 && !conn->write_failed &&
           call->body != HTTP1_BODY_UNTIL_CLOSE;
}

/* Whether there is a head of the server that the call is meant for. */
static bool call_has_answer(const struct http_call *call)
{
    return call->has_head && !call->in_tunnel_request;
}

int http_call_status(const struct http_call *call)
{
    return call_has_answer(call) ? call->head.status : 0;
}

const char *http_call_header(const struct http_call *call, const char *name)
{
    for (unsigned int i = 0; call_has_answer(call) && i < call->head.field_count; i++) {
        if (strcasecmp(&call->text[call->fields[i].name.start], name) == 0) {
            return &call->text[call->fields[i].value.start];
        }
    }
    return NULL;
}

void http_call_each_header(const struct http_call *call,
                           void (*fn)(void *arg, const char *name, const char *value),
                           void *arg)
{
    for (unsigned int i = 0; call_has_answer(call) && i < call->head.field_count; i++) {
        fn(arg, &call->text[call->fields[i].name.start], &call->text[call->fields[i].value.start]);
    }
}

struct span http_call_body(const struct http_call *call)
{
    return buf_span(&call->collected);
}

void http_call_pause(struct http_call *call, bool paused)
{
    if (call->is_paused == paused) {
        return;
    }
    call->is_paused = paused;
    call->wants_input = !paused;
    client_schedule(call);
}

/* ---- the streamed request body ---- */

static bool call_may_stream(const struct http_call *call)
{
    return call->is_streamed && !call->is_sent && !call->is_done;
}

/* Whether body bytes wait in the request itself: there is nobody yet to send it to. */
static bool call_holds_request(const struct http_call *call)
{
    return call->conn == NULL || call->in_tunnel_request;
}

static int call_queue(struct http_call *call, struct span bytes)
{
    if (call_holds_request(call)) {
        buf_put(&call->request, bytes);
        return buf_error(&call->request);
    }
    if (call->conn->write_failed) {
        return 0;
    }
    return http_output_put(&call->conn->out, bytes);
}

static uint64_t call_queued(const struct http_call *call)
{
    return call_holds_request(call) ? call->request.n : call->conn->out.queued;
}

/* One piece of the body with its framing. */
static int call_put_piece(struct http_call *call, struct span bytes)
{
    char text[HTTP1_CHUNK_HEAD_SIZE];

    if (call->has_length) {
        if (bytes.n > call->stream_left) {
            return -EMSGSIZE;
        }
        call->stream_left -= bytes.n;
        return call_queue(call, bytes);
    }
    if (call_queue(call, span_make(text, http1_format_chunk_head(bytes.n, text))) < 0 ||
        call_queue(call, bytes) < 0 || call_queue(call, span_of_str("\r\n")) < 0) {
        return -ENOMEM;
    }
    return 0;
}

int http_call_write(struct http_call *call, struct span bytes)
{
    int r;

    if (!call_may_stream(call)) {
        return 0;
    }
    if (bytes.n == 0) {
        return 1;
    }
    call->has_streamed = call->has_streamed || call->conn != NULL;
    r = call_put_piece(call, bytes);
    if (r < 0) {
        call_end_error(call, r == -EMSGSIZE ? ERROR_INTERNAL : ERROR_CAPACITY_UNAVAILABLE, -r,
                       r == -EMSGSIZE ? "more than the declared length" : "no memory");
        return 0;
    }
    client_schedule(call);
    if (!call_holds_request(call) && call_queued(call) >= CALL_FLUSH_BYTES &&
        !call->conn->write_blocked) {
        client_link_flush(call->conn);
    }
    if (call_queued(call) < CALL_WRITE_HIGH_BYTES) {
        return 1;
    }
    call->is_blocked = true;
    call->missed_drain = false;
    return 0;
}

void call_check_drain(struct http_call *call)
{
    if (!call->is_blocked || call->is_sent || call_queued(call) > CALL_WRITE_HIGH_BYTES / 2) {
        return;
    }
    call->is_blocked = false;
    if (call->on_drain != NULL) {
        call->on_drain(call->drain_arg);
    } else {
        call->missed_drain = true;
    }
}

void http_call_on_drain(struct http_call *call, void (*fn)(void *arg), void *arg)
{
    call->on_drain = fn;
    call->drain_arg = arg;
    if (fn != NULL && call->missed_drain) {
        call->missed_drain = false;
        call->is_blocked = true;
        client_schedule(call);
    }
}

void http_call_end(struct http_call *call)
{
    if (!call_may_stream(call)) {
        return;
    }
    call->is_sent = true;
    call->has_streamed = call->has_streamed || call->conn != NULL;
    if (call->has_length) {
        if (call->stream_left > 0) {
            call_end_error(call, ERROR_INTERNAL, EPROTO, "less than the declared length");
        }
    } else if (call_queue(call, span_of_str("0\r\n\r\n")) < 0) {
        call_out_of_memory(call);
    }
    client_schedule(call);
}

void http_call_cancel(struct http_call *call)
{
    call->is_cancelled = true;
    call_end_error(call, ERROR_SERVICE_UNAVAILABLE, ECANCELED, "cancelled");
}
