/* Frames of the agent protocol: heads, tails, and finding one's place in a stream.
 *
 * Pure functions over spans for an end that has its own buffer, and struct agent_reader for one
 * that has not. Nothing here allocates except through struct buf. */
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "base/span.h"
#include "wire/agent_limits.h"

enum agent_type {
    AGENT_HELLO = 1,
    AGENT_WELCOME = 2,
    AGENT_IDENTITY = 3,
    AGENT_IDENTITY_OK = 4,
    AGENT_START = 5,
    AGENT_STARTED = 6,
    AGENT_START_FAILED = 7,
    AGENT_STDIN = 8,
    AGENT_STDIN_ACK = 9,
    AGENT_OUTPUT = 10,
    AGENT_OUTPUT_ACK = 11,
    AGENT_SIGNAL = 12,
    AGENT_RESULT = 13,
    AGENT_EXITED = 14,
    AGENT_FORGET = 15,
    AGENT_RESUME_FROM = 16,
    AGENT_PROCESS = 17,
    AGENT_PROCESS_END = 18,
    AGENT_SILENCE = 19,
    AGENT_WAKE = 20,
    AGENT_POWEROFF = 21,
    AGENT_PING = 22,
    AGENT_PONG = 23,
    AGENT_RESET = 24,
    AGENT_RESIZE = 25,
    AGENT_WRITE_FILE = 26,
    AGENT_TYPE_COUNT /* one past the last */
};

struct agent_frame {
    uint8_t type;
    uint8_t flags;
    uint32_t channel;
    struct span payload; /* borrowed from the input */
};

/* AGENT_MAGIC of the protocol page. */
extern const uint8_t agent_magic[AGENT_MAGIC_BYTES];

/* "HELLO", "OUTPUT", …; "?" for a number that is no type. */
const char *agent_type_name(uint8_t type);
/* Whether frames of this type go from the guest to the host. */
bool agent_type_is_from_guest(uint8_t type);

/* Reads one frame at the start of `in`. Returns the bytes used, 0 when more are needed, -EBADMSG
 * for a bad head (length, unknown type, check) or a bad tail. */
int agent_frame_parse(struct span in, struct agent_frame *ret_frame) _must_check_;

/* Looks for a whole HELLO or WELCOME frame (type says which) with the magic and, unless nonce is
 * NULL, with this nonce, anywhere in `in`. Returns the bytes up to the end of that frame, or 0 when
 * there is none yet: then the first *ret_skip bytes are of no use and may be discarded. */
size_t agent_frame_find(struct span in,
                        uint8_t type,
                        const uint8_t *nonce,
                        struct agent_frame *ret_frame,
                        size_t *ret_skip);

/* Writes the 12 bytes of a head. */
void agent_head_format(uint8_t out[AGENT_HEAD_BYTES], const struct agent_frame *frame);
/* The byte that ends every frame. */
uint8_t agent_tail(void);
/* Appends a whole frame (head, frame->payload, tail). */
void agent_frame_format(struct buf *b, const struct agent_frame *frame);

/* Begins a frame whose payload the caller then appends to b; returns a mark for agent_frame_end,
 * which completes it (a payload over AGENT_PAYLOAD_MAX makes b fail with -EMSGSIZE). */
size_t agent_frame_begin(struct buf *b, uint8_t type, uint8_t flags, uint32_t channel);
void agent_frame_end(struct buf *b, size_t mark);

/* An incremental reader with a buffer of its own, two frames long.
 *
 * Loop: read bytes into agent_reader_space, agent_reader_commit, then agent_reader_next until it
 * returns 0. It begins unsynchronised: then only a frame that agent_frame_find accepts is returned,
 * which synchronises it. A bad head or tail makes it unsynchronised by itself when `resync` was
 * set (the guest's end), else agent_reader_next returns -EBADMSG for ever (the host's end, which
 * drops the connection). */
struct agent_reader {
    uint8_t *bytes; /* AGENT_READER_BYTES */
    size_t start;
    size_t end;
    bool resync;
    bool synchronised;
    bool failed;
    uint8_t expect; /* AGENT_HELLO or AGENT_WELCOME */
    bool has_nonce;
    uint8_t nonce[AGENT_NONCE_BYTES];
};

#define AGENT_READER_BYTES (2U * AGENT_FRAME_MAX)

/* Allocates the buffer. 0 or -ENOMEM. */
int agent_reader_init(struct agent_reader *r, uint8_t expect, bool resync) _must_check_;
void agent_reader_done(struct agent_reader *r);
/* Accept only this nonce when synchronising (the host's end; call it for each HELLO sent). */
void agent_reader_set_nonce(struct agent_reader *r, const uint8_t nonce[AGENT_NONCE_BYTES]);
/* Forgets position and, if discard, all buffered bytes (a new connection). */
void agent_reader_desynchronise(struct agent_reader *r, bool discard);
/* Where the next bytes go; *ret_room is at least AGENT_FRAME_MAX after agent_reader_next gave 0. */
uint8_t *agent_reader_space(struct agent_reader *r, size_t *ret_room);
void agent_reader_commit(struct agent_reader *r, size_t n);
/* 1 with a frame (its payload is valid until the next call of space), 0 when more bytes are
 * needed, -EBADMSG as above. */
int agent_reader_next(struct agent_reader *r, struct agent_frame *ret_frame) _must_check_;
