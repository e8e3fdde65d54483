#include "wire/agent_message.h"

#include <errno.h>

#include "wire/agent_field.h"

bool agent_strings_next(struct span *rest, struct span *ret_string)
{
    struct reader r = reader_make(*rest);
    struct span s = reader_get_block(&r, rest->n);

    if (r.error != 0) {
        return false;
    }
    *rest = r.rest;
    *ret_string = s;
    return true;
}

static bool has_nul(struct span s)
{
    return span_find(s, 0, 0) != s.n;
}

int agent_strings_get(struct reader *r,
                      const struct agent_strings_limits *limits,
                      struct agent_strings *ret)
{
    struct agent_strings list = {.count = reader_get_u32(r)};
    struct span before = r->rest;
    size_t bytes = 0;

    if (list.count > limits->count) {
        return -EBADMSG;
    }
    for (uint32_t i = 0; i < list.count; i++) {
        struct span s = reader_get_block(r, limits->bytes - bytes);

        if (r->error != 0 || has_nul(s) ||
            (limits->assignments && (s.n == 0 || s.p[0] == '=' || span_find(s, 0, '=') == s.n))) {
            return -EBADMSG;
        }
        bytes += s.n;
    }
    list.raw = span_head(before, before.n - r->rest.n);
    *ret = list;
    return 0;
}

void agent_strings_put(struct buf *b,
                       const struct agent_strings *list,
                       const struct agent_strings_limits *limits)
{
    if (list->count > limits->count || list->raw.n > limits->bytes + 4U * (size_t)list->count) {
        b->error = -EMSGSIZE;
        return;
    }
    buf_put_u32(b, list->count);
    buf_put(b, list->raw);
}

struct span agent_text_get(struct reader *r, size_t max)
{
    struct span s = reader_get_block(r, max);

    if (has_nul(s)) {
        r->error = -EBADMSG;
    }
    return s;
}

void agent_text_put(struct buf *b, struct span s, size_t max)
{
    if (s.n > max || has_nul(s)) {
        b->error = -EMSGSIZE;
        return;
    }
    buf_put_block(b, s);
}

static const struct agent_strings_limits identity_env_limits = {AGENT_ENV_MAX,
                                                                AGENT_IDENTITY_ENV_BYTES, true};

static void get_bytes(struct reader *r, uint8_t *out, size_t n)
{
    struct span s = reader_get_bytes(r, n);

    if (s.n == n) {
        memcpy(out, s.p, n);
    }
}

static void get_magic(struct reader *r)
{
    if (!span_equals(reader_get_bytes(r, AGENT_MAGIC_BYTES),
                     span_make(agent_magic, AGENT_MAGIC_BYTES))) {
        r->error = -EBADMSG;
    }
}

/* Frames of the control channel without flags. */
static bool is_plain_control(const struct agent_frame *f)
{
    return f->flags == 0 && f->channel == 0;
}

int agent_hello_parse(const struct agent_frame *f, struct agent_hello *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_hello m = {.flags = 0};

    get_magic(&r);
    get_bytes(&r, m.nonce, sizeof(m.nonce));
    m.version = reader_get_u16(&r);
    m.flags = reader_get_u16(&r);
    if (reader_finish(&r) < 0 || !is_plain_control(f) || m.version != AGENT_VERSION ||
        m.flags != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_hello_format(struct buf *b, const struct agent_hello *m)
{
    size_t mark = agent_frame_begin(b, AGENT_HELLO, 0, 0);

    buf_put(b, span_make(agent_magic, sizeof(agent_magic)));
    buf_put(b, span_make(m->nonce, sizeof(m->nonce)));
    buf_put_u16(b, m->version);
    buf_put_u16(b, m->flags);
    agent_frame_end(b, mark);
}

int agent_welcome_parse(const struct agent_frame *f, struct agent_welcome *ret)
{
    const unsigned int known = AGENT_WELCOME_IDENTITY | AGENT_WELCOME_PROCESSES |
                               AGENT_WELCOME_SILENT | AGENT_WELCOME_TIME;
    struct reader r = reader_make(f->payload);
    struct agent_welcome m = {.flags = 0};

    get_magic(&r);
    get_bytes(&r, m.nonce, sizeof(m.nonce));
    m.version = reader_get_u16(&r);
    m.flags = reader_get_u16(&r);
    m.epoch = reader_get_u64(&r);
    get_bytes(&r, m.boot_id, sizeof(m.boot_id));
    if (reader_finish(&r) < 0 || !is_plain_control(f) || m.version != AGENT_VERSION ||
        (m.flags & ~known) != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_welcome_format(struct buf *b, const struct agent_welcome *m)
{
    size_t mark = agent_frame_begin(b, AGENT_WELCOME, 0, 0);

    buf_put(b, span_make(agent_magic, sizeof(agent_magic)));
    buf_put(b, span_make(m->nonce, sizeof(m->nonce)));
    buf_put_u16(b, m->version);
    buf_put_u16(b, m->flags);
    buf_put_u64(b, m->epoch);
    buf_put(b, span_make(m->boot_id, sizeof(m->boot_id)));
    agent_frame_end(b, mark);
}

int agent_id_parse(const struct agent_frame *f, uint32_t *ret_id)
{
    struct reader r = reader_make(f->payload);
    uint32_t id = reader_get_u32(&r);
    unsigned int allowed =
        f->type == AGENT_SILENCE ? AGENT_SILENCE_FREEZE | AGENT_SILENCE_SYNC : 0U;

    if (reader_finish(&r) < 0 || f->channel != 0 || (f->flags & ~allowed) != 0) {
        return -EBADMSG;
    }
    *ret_id = id;
    return 0;
}

void agent_id_format(struct buf *b, uint8_t type, uint8_t flags, uint32_t id)
{
    size_t mark = agent_frame_begin(b, type, flags, 0);

    buf_put_u32(b, id);
    agent_frame_end(b, mark);
}

int agent_wake_parse(const struct agent_frame *f, struct agent_wake *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_wake m = {.id = reader_get_u32(&r)};

    m.realtime_ns = reader_get_u64(&r);
    if (reader_finish(&r) < 0 || f->channel != 0 || f->flags != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_wake_format(struct buf *b, const struct agent_wake *m)
{
    size_t mark = agent_frame_begin(b, AGENT_WAKE, 0, 0);

    buf_put_u32(b, m->id);
    buf_put_u64(b, m->realtime_ns);
    agent_frame_end(b, mark);
}

int agent_identity_parse(const struct agent_frame *f, struct agent_identity *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_identity m = {.id = reader_get_u32(&r)};

    m.epoch = reader_get_u64(&r);
    m.entropy = reader_get_block(&r, AGENT_ENTROPY_BYTES);
    m.realtime_ns = reader_get_u64(&r);
    m.hostname = agent_text_get(&r, AGENT_HOSTNAME_BYTES);
    get_bytes(&r, m.machine_id, sizeof(m.machine_id));
    get_bytes(&r, m.boot_id, sizeof(m.boot_id));
    if (r.error != 0 || agent_strings_get(&r, &identity_env_limits, &m.env) < 0) {
        return -EBADMSG;
    }
    m.disk_bytes = reader_get_u64(&r);
    if (reader_finish(&r) < 0 || !is_plain_control(f) || m.entropy.n != AGENT_ENTROPY_BYTES ||
        m.hostname.n == 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_identity_format(struct buf *b, const struct agent_identity *m)
{
    size_t mark = agent_frame_begin(b, AGENT_IDENTITY, 0, 0);

    buf_put_u32(b, m->id);
    buf_put_u64(b, m->epoch);
    buf_put_block(b, m->entropy);
    buf_put_u64(b, m->realtime_ns);
    agent_text_put(b, m->hostname, AGENT_HOSTNAME_BYTES);
    buf_put(b, span_make(m->machine_id, sizeof(m->machine_id)));
    buf_put(b, span_make(m->boot_id, sizeof(m->boot_id)));
    agent_strings_put(b, &m->env, &identity_env_limits);
    buf_put_u64(b, m->disk_bytes);
    agent_frame_end(b, mark);
}

int agent_identity_ok_parse(const struct agent_frame *f, struct agent_identity_ok *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_identity_ok m = {.id = reader_get_u32(&r)};

    m.epoch = reader_get_u64(&r);
    m.done = reader_get_u32(&r);
    m.errnum = reader_get_u32(&r);
    if (reader_finish(&r) < 0 || !is_plain_control(f) || (m.done & ~AGENT_IDENTITY_ALL) != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_identity_ok_format(struct buf *b, const struct agent_identity_ok *m)
{
    size_t mark = agent_frame_begin(b, AGENT_IDENTITY_OK, 0, 0);

    buf_put_u32(b, m->id);
    buf_put_u64(b, m->epoch);
    buf_put_u32(b, m->done);
    buf_put_u32(b, m->errnum);
    agent_frame_end(b, mark);
}

int agent_write_file_parse(const struct agent_frame *f, struct agent_write_file *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_write_file m = {.id = reader_get_u32(&r)};

    m.path = agent_text_get(&r, AGENT_PATH_BYTES);
    m.mode = reader_get_u32(&r);
    m.uid = reader_get_u32(&r);
    m.gid = reader_get_u32(&r);
    m.offset = reader_get_u64(&r);
    m.bytes = reader_get_block(&r, AGENT_FILE_DATA_MAX);
    m.create = (f->flags & AGENT_WRITE_FILE_CREATE) != 0;
    if (reader_finish(&r) < 0 || f->channel != 0 || (f->flags & ~AGENT_WRITE_FILE_CREATE) != 0 ||
        m.path.n == 0 || m.path.p[0] != '/' || m.mode > 07777U || m.offset > INT64_MAX) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_write_file_format(struct buf *b, const struct agent_write_file *m)
{
    size_t mark =
        agent_frame_begin(b, AGENT_WRITE_FILE, m->create ? AGENT_WRITE_FILE_CREATE : 0, 0);

    buf_put_u32(b, m->id);
    agent_text_put(b, m->path, AGENT_PATH_BYTES);
    buf_put_u32(b, m->mode);
    buf_put_u32(b, m->uid);
    buf_put_u32(b, m->gid);
    buf_put_u64(b, m->offset);
    if (m->bytes.n > AGENT_FILE_DATA_MAX) {
        b->error = -EMSGSIZE;
    }
    buf_put_block(b, m->bytes);
    agent_frame_end(b, mark);
}
