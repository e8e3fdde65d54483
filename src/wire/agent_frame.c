#include "wire/agent_frame.h"

#include <errno.h>

#define CHECK_SEED 0x5350U
#define TAIL_BYTE  0xa5U

/* HELLO and WELCOME have one length each, so their heads are constant and can be searched for. */
#define HELLO_PAYLOAD_BYTES   (AGENT_MAGIC_BYTES + AGENT_NONCE_BYTES + 4U)
#define WELCOME_PAYLOAD_BYTES (HELLO_PAYLOAD_BYTES + 8U + AGENT_ID_BYTES)
#define PREFIX_BYTES          (AGENT_HEAD_BYTES + AGENT_MAGIC_BYTES)

const uint8_t agent_magic[AGENT_MAGIC_BYTES] = {0xf0, 'S', 'P', 'A', 'C', 'E', '-',  'A',
                                                'G',  'E', 'N', 'T', '/', '1', 0x0d, 0x0a};

struct type_row {
    const char *name;
    bool from_guest;
};

static const struct type_row type_rows[AGENT_TYPE_COUNT] = {
    [AGENT_HELLO] = {"HELLO", false},
    [AGENT_WELCOME] = {"WELCOME", true},
    [AGENT_IDENTITY] = {"IDENTITY", false},
    [AGENT_IDENTITY_OK] = {"IDENTITY_OK", true},
    [AGENT_START] = {"START", false},
    [AGENT_STARTED] = {"STARTED", true},
    [AGENT_START_FAILED] = {"START_FAILED", true},
    [AGENT_STDIN] = {"STDIN", false},
    [AGENT_STDIN_ACK] = {"STDIN_ACK", true},
    [AGENT_OUTPUT] = {"OUTPUT", true},
    [AGENT_OUTPUT_ACK] = {"OUTPUT_ACK", false},
    [AGENT_SIGNAL] = {"SIGNAL", false},
    [AGENT_RESULT] = {"RESULT", true},
    [AGENT_EXITED] = {"EXITED", true},
    [AGENT_FORGET] = {"FORGET", false},
    [AGENT_RESUME_FROM] = {"RESUME_FROM", false},
    [AGENT_PROCESS] = {"PROCESS", true},
    [AGENT_PROCESS_END] = {"PROCESS_END", true},
    [AGENT_SILENCE] = {"SILENCE", false},
    [AGENT_WAKE] = {"WAKE", false},
    [AGENT_POWEROFF] = {"POWEROFF", false},
    [AGENT_PING] = {"PING", false},
    [AGENT_PONG] = {"PONG", true},
    [AGENT_RESET] = {"RESET", false},
    [AGENT_RESIZE] = {"RESIZE", false},
    [AGENT_WRITE_FILE] = {"WRITE_FILE", false},
};

static bool type_is_known(uint8_t type)
{
    return type < AGENT_TYPE_COUNT && type_rows[type].name != NULL;
}

const char *agent_type_name(uint8_t type)
{
    return type_is_known(type) ? type_rows[type].name : "?";
}

bool agent_type_is_from_guest(uint8_t type)
{
    return type_is_known(type) && type_rows[type].from_guest;
}

static uint16_t head_check(uint32_t length, uint8_t type, uint8_t flags, uint32_t channel)
{
    uint32_t v = CHECK_SEED ^ (length & 0xffffU) ^ (length >> 16U) ^
                 (((uint32_t)type << 8U) | flags) ^ (channel & 0xffffU) ^ (channel >> 16U);

    return (uint16_t)v;
}

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (p[1] << 8));
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)load_u16(p) | ((uint32_t)load_u16(&p[2]) << 16U);
}

static void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8U);
}

static void store_u32(uint8_t *p, uint32_t v)
{
    store_u16(p, (uint16_t)v);
    store_u16(&p[2], (uint16_t)(v >> 16U));
}

static void head_store(uint8_t *out, size_t length, uint8_t type, uint8_t flags, uint32_t channel)
{
    store_u32(out, (uint32_t)length);
    out[4] = type;
    out[5] = flags;
    store_u16(&out[6], head_check((uint32_t)length, type, flags, channel));
    store_u32(&out[8], channel);
}

int agent_frame_parse(struct span in, struct agent_frame *ret_frame)
{
    uint32_t length;
    struct agent_frame f;
    size_t total;

    if (in.n < AGENT_HEAD_BYTES) {
        return 0;
    }
    length = load_u32(in.p);
    f.type = in.p[4];
    f.flags = in.p[5];
    f.channel = load_u32(&in.p[8]);
    if (length > AGENT_PAYLOAD_MAX || !type_is_known(f.type) ||
        load_u16(&in.p[6]) != head_check(length, f.type, f.flags, f.channel)) {
        return -EBADMSG;
    }
    total = AGENT_HEAD_BYTES + length + AGENT_TAIL_BYTES;
    if (in.n < total) {
        return 0;
    }
    if (in.p[total - 1] != TAIL_BYTE) {
        return -EBADMSG;
    }
    f.payload = span_make(&in.p[AGENT_HEAD_BYTES], length);
    *ret_frame = f;
    return (int)total;
}

size_t agent_frame_find(struct span in,
                        uint8_t type,
                        const uint8_t *nonce,
                        struct agent_frame *ret_frame,
                        size_t *ret_skip)
{
    uint8_t prefix[PREFIX_BYTES];
    size_t length = type == AGENT_HELLO ? HELLO_PAYLOAD_BYTES : WELCOME_PAYLOAD_BYTES;
    size_t at = 0;

    head_store(prefix, length, type, 0, 0);
    memcpy(&prefix[AGENT_HEAD_BYTES], agent_magic, AGENT_MAGIC_BYTES);
    while (in.n - at >= PREFIX_BYTES) {
        const uint8_t *hit = memmem(&in.p[at], in.n - at, prefix, PREFIX_BYTES);
        struct agent_frame f;
        int used;

        if (hit == NULL) {
            at = in.n - (PREFIX_BYTES - 1);
            break;
        }
        at = (size_t)(hit - in.p);
        used = agent_frame_parse(span_skip(in, at), &f);
        if (used == 0) {
            break;
        }
        if (used > 0 && (nonce == NULL ||
                         memcmp(&f.payload.p[AGENT_MAGIC_BYTES], nonce, AGENT_NONCE_BYTES) == 0)) {
            *ret_frame = f;
            *ret_skip = at;
            return at + (size_t)used;
        }
        at++;
    }
    *ret_skip = at;
    return 0;
}

void agent_head_format(uint8_t out[AGENT_HEAD_BYTES], const struct agent_frame *frame)
{
    head_store(out, frame->payload.n, frame->type, frame->flags, frame->channel);
}

uint8_t agent_tail(void)
{
    return TAIL_BYTE;
}

void agent_frame_format(struct buf *b, const struct agent_frame *frame)
{
    size_t mark = agent_frame_begin(b, frame->type, frame->flags, frame->channel);

    buf_put(b, frame->payload);
    agent_frame_end(b, mark);
}

size_t agent_frame_begin(struct buf *b, uint8_t type, uint8_t flags, uint32_t channel)
{
    size_t mark = b->n;
    uint8_t *head = buf_reserve(b, AGENT_HEAD_BYTES);

    if (head != NULL) {
        head_store(head, 0, type, flags, channel);
        buf_commit(b, AGENT_HEAD_BYTES);
    }
    return mark;
}

void agent_frame_end(struct buf *b, size_t mark)
{
    const uint8_t tail = TAIL_BYTE;
    size_t length;
    uint8_t *head;

    if (buf_error(b) != 0) {
        return;
    }
    length = b->n - mark - AGENT_HEAD_BYTES;
    if (length > AGENT_PAYLOAD_MAX) {
        b->error = -EMSGSIZE;
        return;
    }
    head = &b->p[mark];
    head_store(head, length, head[4], head[5], load_u32(&head[8]));
    buf_put(b, span_make(&tail, 1));
}
