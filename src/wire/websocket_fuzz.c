/* WebSocket frames. The first byte chooses the role, the limit and the size of the pieces. Whole
 * and piecewise feeding must give the same messages and the same error; what was accepted must come
 * out of the formatter as something that is accepted and says the same; memory stays in
 * proportion to the limit. */
#include "wire/websocket.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Formats a message and reads it back in the same role. */
static void check_round_trip(bool is_server, const struct websocket_message *message)
{
    static const uint8_t mask[WEBSOCKET_MASK_BYTES] = {0x12, 0x34, 0x56, 0x78};
    _cleanup_buf_ struct buf out = buf_make(0);
    _cleanup_buf_ struct buf payload = buf_make(0);
    struct websocket_parser p;
    struct websocket_message again;
    bool has;

    if (message->opcode == WEBSOCKET_CLOSE && message->close_code != WEBSOCKET_NO_CODE) {
        buf_put_u8(&payload, (uint8_t)(message->close_code >> 8U));
        buf_put_u8(&payload, (uint8_t)message->close_code);
    }
    buf_put(&payload, message->payload);
    websocket_put_frame(&out, message->opcode, buf_span(&payload), is_server ? mask : NULL);
    websocket_parser_init(&p, is_server, payload.n);
    require(websocket_parser_next(&p, buf_span(&out), &has, &again) == (int)out.n);
    require(has && again.opcode == message->opcode && again.close_code == message->close_code &&
            span_equals(again.payload, message->payload));
    websocket_parser_done(&p);
}

/* Returns 0 or the error; what was given is recorded. */
static int parse(bool is_server, size_t max, struct span bytes, size_t step, struct buf *record)
{
    struct websocket_parser p;
    int r = 0;

    websocket_parser_init(&p, is_server, max);
    while (bytes.n > 0 && r >= 0) {
        struct websocket_message message = {0};
        bool has;

        r = websocket_parser_next(&p, span_head(bytes, step), &has, &message);
        if (r < 0) {
            buf_put_u32(record, p.close_code);
            break;
        }
        require(r > 0 && (size_t)r <= bytes.n);
        require(p.message.room <= 2 * (max + 64));
        bytes = span_skip(bytes, (size_t)r);
        if (has) {
            buf_put_u8(record, (uint8_t)message.opcode);
            buf_put_u32(record, message.close_code);
            buf_put_block(record, message.payload);
            require(message.payload.n <=
                    (max > WEBSOCKET_CONTROL_MAX ? max : WEBSOCKET_CONTROL_MAX));
            check_round_trip(is_server, &message);
        }
    }
    websocket_parser_done(&p);
    return r < 0 ? r : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span bytes = span_skip(span_make(data, size), 1);
    _cleanup_buf_ struct buf whole = buf_make(0);
    _cleanup_buf_ struct buf pieces = buf_make(0);
    bool is_server;
    size_t max;
    int r;

    if (bytes.n == 0) {
        return 0;
    }
    is_server = (data[0] & 1U) != 0;
    max = (data[0] & 2U) != 0 ? 70000 : 200;
    r = parse(is_server, max, bytes, bytes.n, &whole);
    require(parse(is_server, max, bytes, (size_t)(data[0] >> 2U) % 16U + 1U, &pieces) == r);
    require(span_equals(buf_span(&whole), buf_span(&pieces)));
    return 0;
}
