/* WebSocket frames (RFC 6455), both roles: a strict incremental parser, and the formatter of what
 * it accepts. No extensions. Nothing here does I/O.
 *
 * The parser is fed with pieces of any size and gives whole messages and control frames. It refuses
 * what two implementations could read differently: reserved bits, unknown opcodes, a mask where the
 * role forbids it or none where it demands one, lengths that are not written in the shortest way,
 * cut or long control frames, continuations of nothing, close codes that may not be sent, text that
 * is not UTF-8. */
#pragma once

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/span.h"

#define WEBSOCKET_HEAD_MAX    14U
#define WEBSOCKET_CONTROL_MAX 125U
#define WEBSOCKET_REASON_MAX  123U
#define WEBSOCKET_MASK_BYTES  4U

enum websocket_opcode {
    WEBSOCKET_CONTINUATION = 0,
    WEBSOCKET_TEXT = 1,
    WEBSOCKET_BINARY = 2,
    WEBSOCKET_CLOSE = 8,
    WEBSOCKET_PING = 9,
    WEBSOCKET_PONG = 10,
};

enum websocket_close_code {
    WEBSOCKET_NORMAL = 1000,
    WEBSOCKET_GOING_AWAY = 1001,
    WEBSOCKET_PROTOCOL_ERROR = 1002,
    WEBSOCKET_NO_CODE = 1005, /* never sent: the close frame had none */
    WEBSOCKET_CUT = 1006,     /* never sent: there was no close frame */
    WEBSOCKET_BAD_TEXT = 1007,
    WEBSOCKET_REFUSED = 1008,
    WEBSOCKET_TOO_LONG = 1009,
    WEBSOCKET_INTERNAL = 1011,
};

/* A whole message or control frame. */
struct websocket_message {
    enum websocket_opcode opcode; /* never CONTINUATION */
    struct span payload;          /* of CLOSE: the reason; valid until the next call */
    unsigned int close_code;      /* of CLOSE: its code, WEBSOCKET_NO_CODE without one */
};

struct websocket_parser {
    bool is_server; /* the peer is a client: its frames are masked */
    size_t max_message;
    unsigned int close_code; /* after an error: what to close with */

    /* The machine's own. */
    uint8_t head[WEBSOCKET_HEAD_MAX];
    uint8_t head_bytes;
    bool in_payload;
    bool in_message; /* its last frame is still to come */
    bool was_given;  /* `message` was returned and may be cleared */
    bool is_closed;  /* a close frame came: what follows is dropped */
    uint8_t opcode;  /* of the frame */
    bool is_final;
    uint8_t message_opcode;
    uint8_t mask[WEBSOCKET_MASK_BYTES];
    uint64_t left; /* of the frame's payload */
    uint64_t done; /* before it */
    uint8_t control[WEBSOCKET_CONTROL_MAX];
    struct buf message;
};

/* `is_server`: the role of our end. */
void websocket_parser_init(struct websocket_parser *p, bool is_server, size_t max_message);
void websocket_parser_done(struct websocket_parser *p);
/* Reads up to and including the next message or control frame. Returns the bytes used, and *ret_has
 * says whether ret_message was filled. Errors, after which it is of no more use: -EBADMSG,
 * -EMSGSIZE (over max_message), -ENOMEM; close_code then says why. */
int websocket_parser_next(struct websocket_parser *p,
                          struct span bytes,
                          bool *ret_has,
                          struct websocket_message *ret_message) _must_check_;

/* The head of a frame that is a whole message, with this mask (NULL: the server's end, none);
 * returns its length. The payload follows, masked with websocket_mask. */
size_t websocket_format_head(uint8_t out[WEBSOCKET_HEAD_MAX],
                             enum websocket_opcode opcode,
                             uint64_t payload_bytes,
                             const uint8_t *mask);
/* Masks or unmasks n bytes that stand `offset` bytes into a payload. */
void websocket_mask(uint8_t *bytes,
                    size_t n,
                    const uint8_t mask[WEBSOCKET_MASK_BYTES],
                    uint64_t offset);
/* Appends a whole frame. */
void websocket_put_frame(struct buf *out,
                         enum websocket_opcode opcode,
                         struct span payload,
                         const uint8_t *mask);
/* Appends a close frame; the reason is cut at WEBSOCKET_REASON_MAX bytes, between characters. */
void websocket_put_close(struct buf *out,
                         unsigned int code,
                         const char *reason,
                         const uint8_t *mask);
/* Whether this code may stand in a close frame. */
bool websocket_close_code_is_valid(unsigned int code);
