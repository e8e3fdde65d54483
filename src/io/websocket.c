/* A WebSocket over a byte_stream, the server's end.
 *
 * It is open until a close frame goes either way or the peer breaks the protocol. Then nothing but
 * the close frame is sent, messages are dropped, and once the peer has taken what is queued,
 * WEBSOCKET_CLOSE_MS remain until the stream has to be over. While open, silence of the peer is
 * answered with pings and ended after WEBSOCKET_DROP_MS; while the owner pauses, silence is its own
 * doing, and only a peer that takes nothing of what waits for it counts as silent. */
#include "io/websocket.h"

#include <errno.h>

#include "base/clock.h"
#include "io/byte_stream_inner.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "io/websocket_inner.h"
#include "io/websocket_key.h"

static void on_timer(void *arg);

/* ---- the end ---- */

static void ws_release(struct websocket *ws)
{
    ws->is_gone = true;
    byte_stream_free(TAKE(ws->stream));
    loop_timer_free(TAKE(ws->timer));
    websocket_parser_done(&ws->parser);
}

static void ws_leave(struct websocket *ws)
{
    ws->is_busy = false;
    if (ws->is_gone) {
        free(ws);
    }
}

/* From a handler only. */
static void ws_finish(struct websocket *ws)
{
    if (!ws->is_gone) {
        ws_release(ws);
        ws->callbacks.on_closed(ws->arg, ws, ws->close_code);
    }
}

void websocket_free(struct websocket *ws)
{
    if (ws == NULL || ws->is_gone) {
        return;
    }
    ws_release(ws);
    if (!ws->is_busy) {
        free(ws);
    }
}

/* ---- output ---- */

static int
ws_send(struct websocket *ws, enum websocket_opcode opcode, struct span head, struct span body)
{
    uint8_t lead[WEBSOCKET_HEAD_MAX + WEBSOCKET_LEAD_BYTES];
    size_t n = websocket_format_head(lead, opcode, (uint64_t)head.n + body.n, NULL);

    ws->given += n + head.n + body.n;
    if (head.n <= WEBSOCKET_LEAD_BYTES) {
        if (head.n > 0) {
            memcpy(&lead[n], head.p, head.n);
        }
        return byte_stream_write_two(ws->stream, span_make(lead, n + head.n), body);
    }
    (void)byte_stream_write_two(ws->stream, span_make(lead, n), head);
    return byte_stream_write(ws->stream, body);
}

int websocket_send(struct websocket *ws, bool is_text, struct span head, struct span body)
{
    if (ws->is_gone || ws->sent_close) {
        return 0;
    }
    return ws_send(ws, is_text ? WEBSOCKET_TEXT : WEBSOCKET_BINARY, head, body);
}

/* Says the last word; from here on time is short. */
static void ws_send_close(struct websocket *ws, unsigned int code, const char *reason)
{
    _cleanup_buf_ struct buf frame = buf_make(0);

    if (ws->sent_close) {
        return;
    }
    if (code == WEBSOCKET_NO_CODE) {
        websocket_put_frame(&frame, WEBSOCKET_CLOSE, span_make(NULL, 0), NULL);
    } else {
        websocket_put_close(&frame, code, reason, NULL);
    }
    (void)byte_stream_write(ws->stream, buf_span(&frame));
    ws->sent_close = true;
    ws->queued = byte_stream_queued(ws->stream);
    ws->taken_ms = clock_monotonic_ms();
    loop_timer_start(ws->timer, ws->close_ms);
    byte_stream_pause(ws->stream, false); /* its close frame is to be seen */
}

void websocket_close(struct websocket *ws, unsigned int code, const char *reason)
{
    if (!ws->is_gone) {
        ws_send_close(ws, code, reason != NULL ? reason : "");
    }
}

/* ---- input ---- */

static void ws_fail(struct websocket *ws)
{
    ws->has_failed = true;
    if (!ws->got_close) {
        ws->close_code = ws->parser.close_code;
    }
    ws_send_close(ws, ws->parser.close_code, "");
    byte_stream_end(ws->stream);
}

static void ws_got_close(struct websocket *ws, unsigned int code)
{
    ws->got_close = true;
    ws->close_code = code;
    ws_send_close(ws, code, "");
    byte_stream_end(ws->stream);
}

static void ws_take(struct websocket *ws, const struct websocket_message *message)
{
    switch (message->opcode) {
    case WEBSOCKET_TEXT:
    case WEBSOCKET_BINARY:
        if (!ws->sent_close) {
            ws->callbacks.on_message(ws->arg, ws, message->opcode == WEBSOCKET_TEXT,
                                     message->payload);
        }
        break;
    case WEBSOCKET_PING:
        /* Who pings without reading gets no answers that pile up. */
        if (!ws->sent_close && byte_stream_queued(ws->stream) < WEBSOCKET_PONG_QUEUE) {
            (void)ws_send(ws, WEBSOCKET_PONG, message->payload, span_make(NULL, 0));
        }
        break;
    case WEBSOCKET_CLOSE:
        ws_got_close(ws, message->close_code);
        break;
    case WEBSOCKET_PONG:
    case WEBSOCKET_CONTINUATION:
        break;
    }
}

static void ws_feed(struct websocket *ws, struct span bytes)
{
    while (bytes.n > 0 && !ws->is_gone && !ws->has_failed) {
        struct websocket_message message;
        bool has;
        int r;

        if (ws->is_paused && !ws->sent_close) {
            if (byte_stream_unread(ws->stream, bytes) < 0) {
                ws_finish(ws);
            }
            return;
        }
        r = websocket_parser_next(&ws->parser, bytes, &has, &message);
        if (r < 0) {
            ws_fail(ws);
            return;
        }
        bytes = span_skip(bytes, (size_t)r);
        if (has) {
            ws_take(ws, &message);
        }
    }
}

static void on_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct websocket *ws = arg;

    (void)stream;
    ws->is_busy = true;
    ws->heard_ms = clock_monotonic_ms();
    ws_feed(ws, bytes);
    ws_leave(ws);
}

static void on_end(void *arg, struct byte_stream *stream)
{
    struct websocket *ws = arg;

    /* After both close frames our own end is under way; without them it is a cut. */
    if (!ws->got_close && !ws->has_failed) {
        ws->is_busy = true;
        ws_finish(ws);
        ws_leave(ws);
        return;
    }
    byte_stream_end(stream);
}

static void on_drain(void *arg, struct byte_stream *stream)
{
    struct websocket *ws = arg;

    (void)stream;
    if (ws->callbacks.on_drain != NULL && !ws->sent_close) {
        ws->is_busy = true;
        ws->callbacks.on_drain(ws->arg, ws);
        ws_leave(ws);
    }
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct websocket *ws = arg;

    (void)stream;
    (void)err;
    ws->stream = NULL;
    ws->is_busy = true;
    ws_finish(ws);
    ws_leave(ws);
}

void websocket_pause(struct websocket *ws, bool paused)
{
    if (ws->is_gone || ws->is_paused == paused) {
        return;
    }
    ws->is_paused = paused;
    ws->heard_ms = clock_monotonic_ms();
    ws->taken = ws->given - byte_stream_queued(ws->stream);
    if (!ws->sent_close) {
        byte_stream_pause(ws->stream, paused);
    }
}

/* ---- time ---- */

/* Whether a peer to whom we said our last word is still taking what stands before it. */
static bool ws_still_takes(struct websocket *ws, int64_t now_ms)
{
    size_t queued = byte_stream_queued(ws->stream);

    if (ws->queued == 0) {
        return false;
    }
    if (queued < ws->queued) {
        ws->queued = queued;
        ws->taken_ms = now_ms;
    }
    return now_ms - ws->taken_ms < ws->drop_ms;
}

/* Whether a peer that is held back has taken none of what waits for it since the last look. */
static bool ws_takes_nothing(struct websocket *ws)
{
    size_t queued = byte_stream_queued(ws->stream);
    uint64_t before = ws->taken;

    ws->taken = ws->given - queued;
    return queued > 0 && ws->taken == before;
}

/* Returns whether the time is up. */
static bool ws_is_overdue(struct websocket *ws, int64_t now_ms)
{
    if (ws->sent_close) {
        return !ws_still_takes(ws, now_ms);
    }
    if (ws->is_paused && !ws_takes_nothing(ws)) {
        ws->heard_ms = now_ms;
    }
    return now_ms - ws->heard_ms >= ws->drop_ms;
}

static void on_timer(void *arg)
{
    struct websocket *ws = arg;
    int64_t now_ms = clock_monotonic_ms();
    int64_t quiet_ms;

    if (ws_is_overdue(ws, now_ms)) {
        ws->is_busy = true;
        ws_finish(ws);
        ws_leave(ws);
        return;
    }
    if (ws->sent_close) {
        loop_timer_start(ws->timer, ws->close_ms);
        return;
    }
    quiet_ms = now_ms - ws->heard_ms;
    if (quiet_ms < ws->ping_ms) {
        loop_timer_start(ws->timer, ws->ping_ms - quiet_ms);
        return;
    }
    if (byte_stream_queued(ws->stream) < WEBSOCKET_PONG_QUEUE) {
        (void)ws_send(ws, WEBSOCKET_PING, span_make(NULL, 0), span_make(NULL, 0));
    }
    loop_timer_start(ws->timer, ws->ping_ms);
}

/* ---- the handshake ---- */

static int bad_handshake(struct error *err, const char *field, const char *what)
{
    return error_set_code(err, ERROR_INVALID_REQUEST, field, "%s", what);
}

/* Checks the request and computes its answer. */
static int check_handshake(const struct http_exchange *exchange,
                           char accept[WEBSOCKET_ACCEPT_SIZE],
                           struct error *err)
{
    const char *version = http_exchange_header(exchange, "Sec-WebSocket-Version");
    const char *key = http_exchange_header(exchange, "Sec-WebSocket-Key");

    if (strcmp(http_exchange_method(exchange), "GET") != 0 ||
        !http_exchange_wants_upgrade(exchange, "websocket")) {
        return bad_handshake(err, "Upgrade", "this path needs an upgrade to websocket");
    }
    if (version == NULL || strcmp(version, "13") != 0 ||
        http_exchange_header_count(exchange, "Sec-WebSocket-Version") != 1) {
        return bad_handshake(err, "Sec-WebSocket-Version", "Sec-WebSocket-Version must be 13");
    }
    if (key == NULL || !websocket_key_is_valid(key) ||
        http_exchange_header_count(exchange, "Sec-WebSocket-Key") != 1) {
        return bad_handshake(err, "Sec-WebSocket-Key",
                             "Sec-WebSocket-Key must be 16 bytes in base64");
    }
    if (websocket_key_accept(key, accept) < 0) {
        return error_set(err, EIO, "cannot compute Sec-WebSocket-Accept");
    }
    return 0;
}

static struct websocket *ws_new(const struct websocket_options *options)
{
    struct websocket *ws = calloc(1, sizeof(*ws));

    if (ws == NULL) {
        return NULL;
    }
    ws->callbacks = *options->callbacks;
    ws->arg = options->arg;
    ws->close_code = WEBSOCKET_CUT;
    ws->ping_ms = WEBSOCKET_PING_MS;
    ws->drop_ms = WEBSOCKET_DROP_MS;
    ws->close_ms = WEBSOCKET_CLOSE_MS;
    ws->heard_ms = clock_monotonic_ms();
    websocket_parser_init(&ws->parser, true, options->max_message);
    ws->timer = loop_timer_new(options->loop, on_timer, ws);
    if (ws->timer == NULL) {
        free(ws);
        return NULL;
    }
    return ws;
}

int websocket_accept(struct http_exchange *exchange,
                     const struct websocket_options *options,
                     struct websocket **ret_ws,
                     struct error *err)
{
    static const struct byte_stream_callbacks stream_callbacks = {on_data, on_end, on_drain,
                                                                  on_stream_closed};
    char accept[WEBSOCKET_ACCEPT_SIZE];
    const struct http_header headers[] = {
        {"Sec-WebSocket-Accept", accept},
        {"Sec-WebSocket-Protocol", options->subprotocol},
    };
    size_t header_count = options->subprotocol != NULL ? 2 : 1;
    struct websocket *ws;
    int r = check_handshake(exchange, accept, err);

    if (r < 0) {
        return r;
    }
    ws = ws_new(options);
    if (ws != NULL) {
        ws->stream = http_exchange_upgrade(exchange, "websocket", headers, header_count);
    }
    if (ws == NULL || ws->stream == NULL) {
        websocket_free(ws);
        return error_set(err, ENOMEM, "no memory for a WebSocket");
    }
    byte_stream_set_callbacks(ws->stream, &stream_callbacks, ws);
    byte_stream_pause(ws->stream, false);
    loop_timer_start(ws->timer, ws->ping_ms);
    *ret_ws = ws;
    return 0;
}
