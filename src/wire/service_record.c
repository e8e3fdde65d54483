#include "wire/service_record.h"

#include <errno.h>

#include "wire/agent_field.h"

#define MODE_MAX         07777U
#define IPV4_BYTES       4U
#define LENGTH_AT        1U
#define RECORD_TYPE_LAST SERVICE_RECORD_SAMPLE

int service_record_next(struct span bytes, struct service_record *ret)
{
    struct reader r = reader_make(bytes);
    struct service_record m;
    uint32_t length;

    if (bytes.n == 0) {
        return 0;
    }
    m.type = reader_get_u8(&r);
    if (m.type == 0 || m.type > RECORD_TYPE_LAST) {
        return -EBADMSG;
    }
    if (bytes.n < SERVICE_RECORD_HEAD_BYTES) {
        return 0;
    }
    length = reader_get_u32(&r);
    if (length > SERVICE_RECORD_MAX) {
        return -EBADMSG;
    }
    if (r.rest.n < length) {
        return 0;
    }
    m.payload = reader_get_bytes(&r, length);
    *ret = m;
    return (int)(SERVICE_RECORD_HEAD_BYTES + length);
}

/* Begins a record; returns a mark for record_end, which fills in the length. */
static size_t record_begin(struct buf *b, enum service_record_type type)
{
    size_t mark = b->n;

    buf_put_u8(b, (uint8_t)type);
    buf_put_u32(b, 0);
    return mark;
}

static void record_end(struct buf *b, size_t mark)
{
    size_t length;

    if (buf_error(b) != 0) {
        return;
    }
    length = b->n - mark - SERVICE_RECORD_HEAD_BYTES;
    if (length > SERVICE_RECORD_MAX) {
        b->error = -EMSGSIZE;
        return;
    }
    for (size_t i = 0; i < sizeof(uint32_t); i++) {
        b->p[mark + LENGTH_AT + i] = (uint8_t)(length >> (8U * i));
    }
}

/* A u8 that is 0 or 1. */
static bool get_bool(struct reader *r)
{
    uint8_t value = reader_get_u8(r);

    if (value > 1) {
        r->error = -EBADMSG;
    }
    return value == 1;
}

int service_entry_parse(struct span payload, struct service_entry *ret)
{
    struct reader r = reader_make(payload);
    struct service_entry m = {.path = agent_text_get(&r, SERVICE_PATH_BYTES)};

    m.type = reader_get_u8(&r);
    m.size_bytes = reader_get_u64(&r);
    m.mode = reader_get_u32(&r);
    m.uid = reader_get_u32(&r);
    m.gid = reader_get_u32(&r);
    m.user = agent_text_get(&r, SERVICE_NAME_BYTES);
    m.group = agent_text_get(&r, SERVICE_NAME_BYTES);
    m.modified_ns = reader_get_u64(&r);
    m.symlink_target = agent_text_get(&r, SERVICE_TARGET_BYTES);
    if (reader_finish(&r) < 0 || m.path.n == 0 || m.path.p[0] != '/' ||
        m.type < SERVICE_ENTRY_FILE || m.type > SERVICE_ENTRY_OTHER || m.mode > MODE_MAX) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_entry_format(struct buf *b, const struct service_entry *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_ENTRY);

    agent_text_put(b, m->path, SERVICE_PATH_BYTES);
    buf_put_u8(b, m->type);
    buf_put_u64(b, m->size_bytes);
    buf_put_u32(b, m->mode);
    buf_put_u32(b, m->uid);
    buf_put_u32(b, m->gid);
    agent_text_put(b, m->user, SERVICE_NAME_BYTES);
    agent_text_put(b, m->group, SERVICE_NAME_BYTES);
    buf_put_u64(b, m->modified_ns);
    agent_text_put(b, m->symlink_target, SERVICE_TARGET_BYTES);
    record_end(b, mark);
}

int service_error_parse(struct span payload, struct service_error *ret)
{
    struct reader r = reader_make(payload);
    struct service_error m = {.errnum = reader_get_u32(&r)};

    m.path = agent_text_get(&r, SERVICE_PATH_BYTES);
    if (reader_finish(&r) < 0 || m.errnum == 0 || m.errnum > SERVICE_ERRNO_MAX) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_error_format(struct buf *b, const struct service_error *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_ERROR);

    buf_put_u32(b, m->errnum);
    agent_text_put(b, m->path, SERVICE_PATH_BYTES);
    record_end(b, mark);
}

int service_body_parse(struct span payload, struct service_body *ret)
{
    struct reader r = reader_make(payload);
    struct service_body m = {.offset = reader_get_u64(&r)};
    uint64_t end;

    m.length = reader_get_u64(&r);
    if (reader_finish(&r) < 0) {
        return -EBADMSG;
    }
    if (m.length != SERVICE_LENGTH_UNKNOWN && __builtin_add_overflow(m.offset, m.length, &end)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_body_format(struct buf *b, const struct service_body *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_BODY);

    buf_put_u64(b, m->offset);
    buf_put_u64(b, m->length);
    record_end(b, mark);
}

int service_done_parse(struct span payload, struct service_done *ret)
{
    struct reader r = reader_make(payload);
    struct service_done m = {.count = reader_get_u64(&r)};

    m.more = get_bool(&r);
    if (reader_finish(&r) < 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_done_format(struct buf *b, const struct service_done *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_DONE);

    buf_put_u64(b, m->count);
    buf_put_u8(b, m->more ? 1 : 0);
    record_end(b, mark);
}

int service_change_parse(struct span payload, struct service_change *ret)
{
    struct reader r = reader_make(payload);
    struct service_change m = {.kind = reader_get_u8(&r)};

    m.is_directory = get_bool(&r);
    m.path = agent_text_get(&r, SERVICE_PATH_BYTES);
    m.from = agent_text_get(&r, SERVICE_PATH_BYTES);
    if (reader_finish(&r) < 0 || m.kind < SERVICE_CHANGE_CREATED ||
        m.kind > SERVICE_CHANGE_OVERFLOW || (m.from.n > 0) != (m.kind == SERVICE_CHANGE_MOVED)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_change_format(struct buf *b, const struct service_change *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_CHANGE);

    buf_put_u8(b, m->kind);
    buf_put_u8(b, m->is_directory ? 1 : 0);
    agent_text_put(b, m->path, SERVICE_PATH_BYTES);
    agent_text_put(b, m->from, SERVICE_PATH_BYTES);
    record_end(b, mark);
}

/* An IPv4 address leaves the other bytes zero. */
static bool is_address(const struct service_listener *m)
{
    if (m->family == 6) {
        return true;
    }
    for (size_t i = IPV4_BYTES; i < sizeof(m->address); i++) {
        if (m->address[i] != 0) {
            return false;
        }
    }
    return m->family == 4;
}

int service_listener_parse(struct span payload, struct service_listener *ret)
{
    struct reader r = reader_make(payload);
    struct service_listener m = {.port = reader_get_u16(&r)};
    struct span address;

    m.family = reader_get_u8(&r);
    address = reader_get_bytes(&r, sizeof(m.address));
    m.pid = reader_get_u32(&r);
    if (reader_finish(&r) < 0 || m.port == 0) {
        return -EBADMSG;
    }
    memcpy(m.address, address.p, sizeof(m.address));
    if (!is_address(&m)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_listener_format(struct buf *b, const struct service_listener *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_LISTENER);

    buf_put_u16(b, m->port);
    buf_put_u8(b, m->family);
    buf_put(b, span_make(m->address, sizeof(m->address)));
    buf_put_u32(b, m->pid);
    record_end(b, mark);
}

int service_sample_parse(struct span payload, struct service_sample *ret)
{
    struct reader r = reader_make(payload);
    struct service_sample m = {.cpu_ns = reader_get_u64(&r)};

    m.memory_total_bytes = reader_get_u64(&r);
    m.memory_used_bytes = reader_get_u64(&r);
    m.disk_total_bytes = reader_get_u64(&r);
    m.disk_used_bytes = reader_get_u64(&r);
    m.processes = reader_get_u32(&r);
    if (reader_finish(&r) < 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void service_sample_format(struct buf *b, const struct service_sample *m)
{
    size_t mark = record_begin(b, SERVICE_RECORD_SAMPLE);

    buf_put_u64(b, m->cpu_ns);
    buf_put_u64(b, m->memory_total_bytes);
    buf_put_u64(b, m->memory_used_bytes);
    buf_put_u64(b, m->disk_total_bytes);
    buf_put_u64(b, m->disk_used_bytes);
    buf_put_u32(b, m->processes);
    record_end(b, mark);
}
