#include "cli/live.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/id.h"
#include "cli/api.h"
#include "cli/rest.h"
#include "cli/tunnel.h"
#include "io/websocket_key.h"

#define FIRST_PAUSE_MS  100
#define LAST_PAUSE_MS   2000
#define PATIENCE_MS     60000
#define SILENCE_MS      45000 /* three missed pings */
#define MESSAGE_MAX     (1024U * 1024U)
#define READ_STEP       65536U /* then others have a turn: keys, signals */
#define SENDING_MAX     131072U
#define INPUT_FRAME_MAX 32768U

void live_init(struct live *l,
               struct rest *rest,
               const char *session_id,
               uint64_t stdout_offset,
               const struct live_sink *sink,
               void *arg)
{
    *l = (struct live){.rest = rest,
                       .sink = sink,
                       .arg = arg,
                       .patience_ms = PATIENCE_MS,
                       .pause_ms = FIRST_PAUSE_MS};
    follow_init(&l->follow, rest, session_id, 0, &sink->output, arg);
    l->follow.offset[FOLLOW_STDOUT] = stdout_offset;
    l->received = buf_make(0);
    l->sending = buf_make(0);
    l->input = buf_make(0);
    websocket_parser_init(&l->parser, false, MESSAGE_MAX);
}

static void disconnect(struct live *l)
{
    tunnel_free(TAKE(l->tunnel));
    websocket_parser_done(&l->parser);
    websocket_parser_init(&l->parser, false, MESSAGE_MAX);
    buf_clear(&l->received);
    buf_clear(&l->sending);
    l->is_open = false;
    l->may_read = false;
}

void live_done(struct live *l)
{
    disconnect(l);
    follow_done(&l->follow);
    websocket_parser_done(&l->parser);
    buf_done(&l->received);
    buf_done(&l->sending);
    buf_done(&l->input);
    *l = (struct live){0};
}

static void set_state(struct live *l, enum live_state state)
{
    if (l->state != state) {
        l->state = state;
        l->sink->on_state(l->arg, state);
    }
}

/* ---- connecting ---- */

static int begin_connecting(struct live *l, int64_t now_ms, struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(0);
    char fields[128];
    struct tunnel_request q = {.upgrade = "websocket", .fields = fields};

    if (websocket_key_make(l->key) < 0) {
        return error_set(err, EIO, "no random numbers");
    }
    (void)snprintf(fields, sizeof(fields), "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n",
                   l->key);
    buf_printf(&path, "/v1/sessions/%s/attach?stdout=%" PRIu64 "&stderr=%" PRIu64,
               l->follow.session_id, l->follow.offset[FOLLOW_STDOUT],
               l->follow.offset[FOLLOW_STDERR]);
    if (l->attachment_id[0] != '\0') {
        rest_put_query(&path, "replaces", l->attachment_id);
    }
    q.path = buf_str(&path);
    l->heard_at_ms = now_ms;
    return tunnel_new(l->rest, &q, &l->tunnel, err);
}

static int check_handshake(const struct live *l, struct error *err)
{
    char given[TUNNEL_HEADER_SIZE];
    char want[WEBSOCKET_ACCEPT_SIZE];

    tunnel_header(l->tunnel, "Sec-WebSocket-Accept", given);
    if (websocket_key_accept(l->key, want) < 0 || strcmp(given, want) != 0) {
        return error_set(err, EBADMSG, "%.120s does not speak WebSocket", rest_url(l->rest));
    }
    return 0;
}

/* The connection is gone: another one, after a pause, or failure. `why` may be NULL. */
static int plan_retry(struct live *l, int64_t now_ms, const struct error *why, struct error *err)
{
    disconnect(l);
    if (l->lost_since_ms == 0) {
        l->lost_since_ms = now_ms;
        l->pause_ms = FIRST_PAUSE_MS;
        if (l->state == LIVE_ATTACHED) {
            set_state(l, LIVE_LOST);
        }
    }
    if (now_ms - l->lost_since_ms > l->patience_ms && why != NULL) {
        *err = *why;
        return -why->errnum;
    }
    if (now_ms - l->lost_since_ms > l->patience_ms) {
        return error_set(err, ENOTCONN, "no connection to %.120s for %d s", rest_url(l->rest),
                         (int)(l->patience_ms / 1000));
    }
    l->retry_at_ms = now_ms + l->pause_ms;
    l->pause_ms = l->pause_ms * 2 < LAST_PAUSE_MS ? l->pause_ms * 2 : LAST_PAUSE_MS;
    return 0;
}

static int step_connecting(struct live *l, int64_t now_ms, struct error *err)
{
    struct error why = {0};
    int r = tunnel_step(l->tunnel, &why);

    if (r > 0) {
        r = check_handshake(l, &why);
        l->is_open = r == 0;
        l->may_read = r == 0;
        l->heard_at_ms = now_ms;
    }
    if (r == -ENOTCONN || (r < 0 && error_code_is_retryable(why.code) && why.code != ERROR_NONE &&
                           why.code != ERROR_INTERNAL)) {
        return plan_retry(l, now_ms, &why, err);
    }
    if (r < 0) {
        *err = why;
    }
    return r;
}

/* ---- what the server says ---- */

/* How far the session has our input, when a connection begins. */
static void take_attached(struct live *l, const json_t *event)
{
    const json_t *offset = json_object_get(event, "stdin_offset");
    uint64_t accepted = json_is_integer(offset) ? (uint64_t)json_integer_value(offset) : 0;

    (void)snprintf(l->attachment_id, sizeof(l->attachment_id), "%s",
                   api_text(event, "attachment_id"));
    if (!l->input_is_based) {
        l->input_is_based = true;
        l->input_base = accepted;
        l->input_sent = accepted;
    } else if (accepted > l->input_base + l->input.n) {
        /* The end of a terminal's input counts as one; else somebody else has written. */
        buf_clear(&l->input);
        l->input_base = accepted;
        l->input_sent = accepted;
    } else {
        l->end_sent = false;
        l->input_sent = accepted > l->input_base ? accepted : l->input_base;
    }
    l->lost_since_ms = 0;
    set_state(l, LIVE_ATTACHED);
}

/* The command has consumed input: it need not be kept. */
static void take_consumed(struct live *l, const json_t *event)
{
    const json_t *offset = json_object_get(event, "offset");
    uint64_t consumed = json_is_integer(offset) ? (uint64_t)json_integer_value(offset) : 0;

    if (consumed > l->input_sent) {
        consumed = l->input_sent;
    }
    if (consumed > l->input_base) {
        buf_consume(&l->input, (size_t)(consumed - l->input_base));
        l->input_base = consumed;
    }
}

static int take_text(struct live *l, struct span text)
{
    _cleanup_json_ json_t *event = json_loadb((const char *)text.p, text.n, JSON_ALLOW_NUL, NULL);
    const char *type = api_text(event, "type");

    if (!json_is_object(event)) {
        return -EBADMSG;
    }
    if (strcmp(type, "attached") == 0) {
        take_attached(l, event);
        return 0;
    }
    if (strcmp(type, "stdin") == 0) {
        take_consumed(l, event);
        return 0;
    }
    if (strcmp(type, "error") == 0) {
        l->sink->on_error(l->arg, api_text(event, "message"));
        return 0;
    }
    return follow_message(&l->follow, type, event);
}

static int take_binary(struct live *l, struct span bytes)
{
    if (bytes.n < 1 || (bytes.p[0] != 1 && bytes.p[0] != 2)) {
        return -EBADMSG;
    }
    return follow_output(&l->follow, bytes.p[0] == 1 ? FOLLOW_STDOUT : FOLLOW_STDERR,
                         span_skip(bytes, 1));
}

static void put_frame(struct live *l, enum websocket_opcode opcode, struct span payload)
{
    uint8_t mask[WEBSOCKET_MASK_BYTES] = {0};

    /* The mask keeps proxies from misreading; without random numbers the frame is valid still. */
    (void)random_bytes(mask, sizeof(mask));
    websocket_put_frame(&l->sending, opcode, payload, mask);
}

/* 1 when the server closes the connection. */
static int take_message(struct live *l, const struct websocket_message *m)
{
    switch (m->opcode) {
    case WEBSOCKET_TEXT:
        return take_text(l, m->payload);
    case WEBSOCKET_BINARY:
        return take_binary(l, m->payload);
    case WEBSOCKET_PING:
        put_frame(l, WEBSOCKET_PONG, m->payload);
        return 0;
    case WEBSOCKET_CLOSE:
        return 1;
    case WEBSOCKET_PONG:
    case WEBSOCKET_CONTINUATION:
        return 0;
    }
    return 0;
}

/* Parses what came. 1: the connection is over; negative: the sink's result or a broken peer. */
static int parse_received(struct live *l)
{
    struct span rest = buf_span(&l->received);
    int r = 0;

    while (r == 0 && rest.n > 0) {
        struct websocket_message m;
        bool has = false;
        int used = websocket_parser_next(&l->parser, rest, &has, &m);

        if (used < 0) {
            return 1; /* as if it had broken: the next one starts afresh */
        }
        if (used == 0 && !has) {
            break;
        }
        rest = span_skip(rest, (size_t)used);
        if (has) {
            r = take_message(l, &m);
        }
    }
    buf_consume(&l->received, l->received.n - rest.n);
    return r;
}

/* 1: the connection is over. */
static int receive(struct live *l, int64_t now_ms)
{
    uint8_t *to = buf_reserve(&l->received, READ_STEP);
    ssize_t n = to != NULL ? tunnel_read(l->tunnel, to, READ_STEP) : -ENOMEM;

    l->may_read = n > 0;
    if (n == -EAGAIN) {
        return 0;
    }
    if (n <= 0) {
        return n == -ENOMEM ? -ENOMEM : 1;
    }
    l->heard_at_ms = now_ms;
    buf_commit(&l->received, (size_t)n);
    return parse_received(l);
}

/* ---- what we say ---- */

static void put_control(struct live *l, json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT);

    if (text != NULL) {
        put_frame(l, WEBSOCKET_TEXT, span_of_str(text));
    }
    free(text);
    json_decref(message);
}

static void put_controls(struct live *l)
{
    if (l->resize_due) {
        l->resize_due = false;
        put_control(l, json_pack("{s:s, s:i, s:i}", "type", "resize", "cols", (int)l->size.cols,
                                 "rows", (int)l->size.rows));
    }
    if (l->signal_due != 0) {
        char name[16];

        (void)snprintf(name, sizeof(name), "SIG%s", sigabbrev_np(l->signal_due));
        l->signal_due = 0;
        put_control(l, json_pack("{s:s, s:s}", "type", "signal", "signal", name));
    }
}

static void put_input(struct live *l)
{
    uint8_t frame[1 + INPUT_FRAME_MAX];

    while (l->sending.n < SENDING_MAX) {
        struct span left = span_skip(buf_span(&l->input), (size_t)(l->input_sent - l->input_base));
        struct span piece = span_head(left, INPUT_FRAME_MAX);

        if (piece.n == 0) {
            break;
        }
        frame[0] = 0;
        memcpy(&frame[1], piece.p, piece.n);
        put_frame(l, WEBSOCKET_BINARY, span_make(frame, piece.n + 1));
        l->input_sent += piece.n;
    }
    if (l->input_ended && !l->end_sent && l->input_sent == l->input_base + l->input.n) {
        l->end_sent = true;
        put_control(l, json_pack("{s:s}", "type", "eof"));
    }
}

/* 1: the connection is over. */
static int transmit(struct live *l)
{
    if (l->state == LIVE_ATTACHED) {
        put_controls(l);
        put_input(l);
    }
    while (l->sending.n > 0) {
        ssize_t n = tunnel_write(l->tunnel, buf_span(&l->sending));

        if (n == -EAGAIN) {
            return 0;
        }
        if (n < 0) {
            return 1;
        }
        buf_consume(&l->sending, (size_t)n);
    }
    return buf_error(&l->sending) < 0 ? buf_error(&l->sending) : 0;
}

int live_step(struct live *l, int64_t now_ms, struct error *err)
{
    int r;

    if (l->follow.end != FOLLOW_END_NONE) {
        return 1;
    }
    if (l->tunnel == NULL) {
        return now_ms >= l->retry_at_ms ? begin_connecting(l, now_ms, err) : 0;
    }
    if (!l->is_open) {
        r = step_connecting(l, now_ms, err);
        if (r < 0 || !l->is_open) {
            return r;
        }
    }
    r = receive(l, now_ms);
    if (l->follow.end != FOLLOW_END_NONE) {
        return 1;
    }
    if (r == 0) {
        r = transmit(l);
    }
    if (r == -EBADMSG) {
        return error_set(err, EBADMSG, "%.120s sent what is no event", rest_url(l->rest));
    }
    if (r < 0) {
        return error_set(err, -r, "cannot pass the output on: %s", strerror(-r));
    }
    return r > 0 || now_ms - l->heard_at_ms > SILENCE_MS ? plan_retry(l, now_ms, NULL, err) : 0;
}

int live_wait(const struct live *l, int64_t now_ms, int *ret_fd, short *ret_events)
{
    int64_t until_ms = l->heard_at_ms + SILENCE_MS + 1;

    *ret_fd = -1;
    *ret_events = 0;
    if (l->follow.end != FOLLOW_END_NONE || l->may_read) {
        return 0;
    }
    if (l->tunnel == NULL) {
        until_ms = l->retry_at_ms;
    } else {
        *ret_fd = tunnel_fd(l->tunnel);
        *ret_events = POLLIN;
        if (!l->is_open) {
            *ret_events = tunnel_wants(l->tunnel);
        }
        if (l->is_open && l->sending.n > 0) {
            *ret_events = (short)(*ret_events | POLLOUT);
        }
    }
    return until_ms > now_ms ? (int)(until_ms - now_ms) : 0;
}

size_t live_input_room(const struct live *l)
{
    return l->input_ended || l->input.n >= LIVE_INPUT_MAX ? 0 : LIVE_INPUT_MAX - l->input.n;
}

void live_put_input(struct live *l, struct span bytes)
{
    buf_put(&l->input, bytes);
}

void live_end_input(struct live *l)
{
    l->input_ended = true;
}

void live_resize(struct live *l, struct tty_size size)
{
    l->size = size;
    l->resize_due = true;
}

void live_signal(struct live *l, int number)
{
    l->signal_due = number;
}
