/* The frame parser: a head is gathered byte by byte and judged as soon as each part of it is there,
 * so that a cut changes nothing; then payload is taken in runs. */
#include "wire/websocket.h"

#include <errno.h>

#include "base/utf8.h"

#define KEEP_BYTES  4096U /* of a message buffer between messages */
#define FIN_BIT     0x80U
#define RESERVED    0x70U
#define OPCODE_BITS 0x0fU
#define MASK_BIT    0x80U
#define LENGTH_BITS 0x7fU
#define CONTROL_BIT 0x08U
#define LENGTH_16   126U
#define LENGTH_64   127U

void websocket_parser_init(struct websocket_parser *p, bool is_server, size_t max_message)
{
    *p = (struct websocket_parser){
        .is_server = is_server,
        .max_message = max_message,
        .message = buf_make(0),
    };
}

void websocket_parser_done(struct websocket_parser *p)
{
    buf_done(&p->message);
}

static int fail(struct websocket_parser *p, unsigned int code)
{
    p->close_code = code;
    switch (code) {
    case WEBSOCKET_TOO_LONG:
        return -EMSGSIZE;
    case WEBSOCKET_INTERNAL:
        return -ENOMEM;
    default:
        return -EBADMSG;
    }
}

static bool is_control(uint8_t opcode)
{
    return (opcode & CONTROL_BIT) != 0;
}

static bool is_known(uint8_t opcode)
{
    return opcode <= WEBSOCKET_BINARY || (opcode >= WEBSOCKET_CLOSE && opcode <= WEBSOCKET_PONG);
}

/* ---- heads ---- */

static int judge_first(struct websocket_parser *p, uint8_t c)
{
    p->opcode = c & OPCODE_BITS;
    p->is_final = (c & FIN_BIT) != 0;
    if ((c & RESERVED) != 0 || !is_known(p->opcode) || (is_control(p->opcode) && !p->is_final)) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    if (!is_control(p->opcode) && p->in_message != (p->opcode == WEBSOCKET_CONTINUATION)) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    return 0;
}

static int judge_second(struct websocket_parser *p, uint8_t c)
{
    if (((c & MASK_BIT) != 0) != p->is_server ||
        (is_control(p->opcode) && (c & LENGTH_BITS) > WEBSOCKET_CONTROL_MAX)) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    return 0;
}

static size_t length_bytes(uint8_t second)
{
    switch (second & LENGTH_BITS) {
    case LENGTH_16:
        return 2;
    case LENGTH_64:
        return 8;
    default:
        return 0;
    }
}

/* The payload's length, once all of it is there. */
static int judge_length(struct websocket_parser *p)
{
    size_t extra = length_bytes(p->head[1]);
    uint64_t length = extra == 0 ? p->head[1] & LENGTH_BITS : 0;

    for (size_t i = 0; i < extra; i++) {
        length = length << 8U | p->head[2 + i];
    }
    if ((extra == 2 && length < LENGTH_16) || (extra == 8 && length <= UINT16_MAX) ||
        length > INT64_MAX) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    if (!is_control(p->opcode) && length > p->max_message - (p->in_message ? p->message.n : 0)) {
        return fail(p, WEBSOCKET_TOO_LONG);
    }
    p->left = length;
    p->done = 0;
    return 0;
}

/* Takes one byte of the head. */
static int take_head_byte(struct websocket_parser *p, uint8_t c)
{
    size_t n = ++p->head_bytes;
    size_t mask_start;
    int r = 0;

    p->head[n - 1] = c;
    if (n == 1) {
        return judge_first(p, c);
    }
    if (n == 2) {
        r = judge_second(p, c);
    }
    mask_start = 2 + length_bytes(p->head[1]);
    if (r == 0 && n == mask_start) {
        r = judge_length(p);
    }
    if (r < 0 || n < mask_start + (p->is_server ? WEBSOCKET_MASK_BYTES : 0)) {
        return r;
    }
    if (p->is_server) {
        memcpy(p->mask, &p->head[mask_start], WEBSOCKET_MASK_BYTES);
    }
    p->head_bytes = 0;
    p->in_payload = true;
    if (!is_control(p->opcode)) {
        if (!p->in_message) {
            p->message_opcode = p->opcode;
        }
        p->in_message = true;
    }
    return 0;
}

/* ---- payloads ---- */

/* What was given at the last call is over; a large buffer is not kept for a quiet connection. */
static void forget_given(struct websocket_parser *p)
{
    if (!p->was_given) {
        return;
    }
    p->was_given = false;
    if (p->message.room > KEEP_BYTES) {
        buf_done(&p->message);
    } else {
        buf_clear(&p->message);
    }
}

static int take_payload(struct websocket_parser *p, struct span run)
{
    uint8_t *to;

    if (is_control(p->opcode)) {
        to = &p->control[p->done];
    } else {
        to = buf_reserve(&p->message, run.n);
        if (to == NULL) {
            return fail(p, WEBSOCKET_INTERNAL);
        }
    }
    if (run.n > 0) {
        memcpy(to, run.p, run.n);
    }
    if (p->is_server) {
        websocket_mask(to, run.n, p->mask, p->done);
    }
    if (!is_control(p->opcode)) {
        buf_commit(&p->message, run.n);
    }
    p->done += run.n;
    p->left -= run.n;
    return 0;
}

static int give_close(struct websocket_parser *p, struct websocket_message *ret)
{
    struct span payload = span_make(p->control, (size_t)p->done);

    ret->close_code = WEBSOCKET_NO_CODE;
    p->is_closed = true;
    if (payload.n == 0) {
        return 0;
    }
    ret->close_code = (unsigned int)payload.p[0] << 8U;
    if (payload.n == 1) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    ret->close_code |= payload.p[1];
    ret->payload = span_skip(payload, 2);
    if (!websocket_close_code_is_valid(ret->close_code)) {
        return fail(p, WEBSOCKET_PROTOCOL_ERROR);
    }
    return utf8_is_valid(ret->payload) ? 0 : fail(p, WEBSOCKET_BAD_TEXT);
}

/* The frame is complete. */
static int end_frame(struct websocket_parser *p, bool *ret_has, struct websocket_message *ret)
{
    p->in_payload = false;
    if (is_control(p->opcode)) {
        *ret_has = true;
        *ret = (struct websocket_message){
            .opcode = (enum websocket_opcode)p->opcode,
            .payload = span_make(p->control, (size_t)p->done),
        };
        return p->opcode == WEBSOCKET_CLOSE ? give_close(p, ret) : 0;
    }
    if (!p->is_final) {
        return 0;
    }
    p->in_message = false;
    p->was_given = true;
    *ret_has = true;
    *ret = (struct websocket_message){
        .opcode = (enum websocket_opcode)p->message_opcode,
        .payload = buf_span(&p->message),
    };
    return p->message_opcode == WEBSOCKET_TEXT && !utf8_is_valid(ret->payload)
               ? fail(p, WEBSOCKET_BAD_TEXT)
               : 0;
}

/* A whole message that stands in the input as it is, which our client's end often gets. */
static bool
give_in_place(struct websocket_parser *p, struct span rest, struct websocket_message *ret)
{
    if (p->is_server || is_control(p->opcode) || !p->is_final || p->done > 0 || p->message.n > 0 ||
        p->opcode == WEBSOCKET_CONTINUATION || rest.n < p->left) {
        return false;
    }
    *ret = (struct websocket_message){
        .opcode = (enum websocket_opcode)p->opcode,
        .payload = span_head(rest, (size_t)p->left),
    };
    p->in_payload = false;
    p->in_message = false;
    return true;
}

int websocket_parser_next(struct websocket_parser *p,
                          struct span bytes,
                          bool *ret_has,
                          struct websocket_message *ret_message)
{
    size_t used = 0;
    int r = 0;

    *ret_has = false;
    forget_given(p);
    if (bytes.n > INT32_MAX) {
        bytes = span_head(bytes, INT32_MAX);
    }
    if (p->is_closed) {
        return (int)bytes.n;
    }
    while (!*ret_has && r == 0 && (used < bytes.n || (p->in_payload && p->left == 0))) {
        struct span rest = span_skip(bytes, used);

        if (!p->in_payload) {
            r = take_head_byte(p, rest.p[0]);
            used++;
            continue;
        }
        if (give_in_place(p, rest, ret_message)) {
            *ret_has = true;
            if (p->opcode == WEBSOCKET_TEXT && !utf8_is_valid(ret_message->payload)) {
                return fail(p, WEBSOCKET_BAD_TEXT);
            }
            return (int)(used + ret_message->payload.n);
        }
        rest = span_head(rest, rest.n < p->left ? rest.n : (size_t)p->left);
        r = take_payload(p, rest);
        used += rest.n;
        if (r == 0 && p->left == 0) {
            r = end_frame(p, ret_has, ret_message);
        }
    }
    return r < 0 ? r : (int)used;
}

/* ---- formatting ---- */

size_t websocket_format_head(uint8_t out[WEBSOCKET_HEAD_MAX],
                             enum websocket_opcode opcode,
                             uint64_t payload_bytes,
                             const uint8_t *mask)
{
    size_t extra = payload_bytes < LENGTH_16 ? 0 : payload_bytes <= UINT16_MAX ? 2 : 8;
    size_t n = 2;

    out[0] = (uint8_t)(FIN_BIT | (unsigned int)opcode);
    out[1] = extra == 0 ? (uint8_t)payload_bytes : extra == 2 ? LENGTH_16 : LENGTH_64;
    for (size_t i = extra; i > 0; i--) {
        out[n++] = (uint8_t)(payload_bytes >> (8U * (i - 1)));
    }
    if (mask != NULL) {
        out[1] |= MASK_BIT;
        memcpy(&out[n], mask, WEBSOCKET_MASK_BYTES);
        n += WEBSOCKET_MASK_BYTES;
    }
    return n;
}

void websocket_mask(uint8_t *bytes,
                    size_t n,
                    const uint8_t mask[WEBSOCKET_MASK_BYTES],
                    uint64_t offset)
{
    uint8_t wide[sizeof(uint64_t)];
    uint64_t pattern;
    size_t i = 0;

    for (size_t k = 0; k < sizeof(wide); k++) {
        wide[k] = mask[(offset + k) % WEBSOCKET_MASK_BYTES];
    }
    memcpy(&pattern, wide, sizeof(pattern));
    for (; i + sizeof(pattern) <= n; i += sizeof(pattern)) {
        uint64_t word;

        memcpy(&word, &bytes[i], sizeof(word));
        word ^= pattern;
        memcpy(&bytes[i], &word, sizeof(word));
    }
    for (; i < n; i++) {
        bytes[i] ^= wide[i % WEBSOCKET_MASK_BYTES];
    }
}

void websocket_put_frame(struct buf *out,
                         enum websocket_opcode opcode,
                         struct span payload,
                         const uint8_t *mask)
{
    uint8_t head[WEBSOCKET_HEAD_MAX];
    size_t n = websocket_format_head(head, opcode, payload.n, mask);

    if (buf_reserve(out, n + payload.n) == NULL) {
        return;
    }
    buf_put(out, span_make(head, n));
    buf_put(out, payload);
    if (mask != NULL) {
        websocket_mask(&out->p[out->n - payload.n], payload.n, mask, 0);
    }
}

void websocket_put_close(struct buf *out,
                         unsigned int code,
                         const char *reason,
                         const uint8_t *mask)
{
    uint8_t payload[2 + WEBSOCKET_REASON_MAX];
    struct span text = span_of_str(reason);

    if (text.n > WEBSOCKET_REASON_MAX) {
        text = span_head(text, WEBSOCKET_REASON_MAX);
        text = span_head(text, utf8_cut_end(text));
    }
    payload[0] = (uint8_t)(code >> 8U);
    payload[1] = (uint8_t)code;
    memcpy(&payload[2], text.p, text.n);
    websocket_put_frame(out, WEBSOCKET_CLOSE, span_make(payload, 2 + text.n), mask);
}

bool websocket_close_code_is_valid(unsigned int code)
{
    return (code >= 1000 && code <= 1014 && code != 1004 && code != WEBSOCKET_NO_CODE &&
            code != WEBSOCKET_CUT) ||
           (code >= 3000 && code <= 4999);
}
