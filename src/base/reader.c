#include "base/reader.h"

#include <errno.h>

struct span reader_get_bytes(struct reader *r, size_t n)
{
    struct span got;

    if (r->error != 0 || n > r->rest.n) {
        r->error = -EBADMSG;
        return span_make(NULL, 0);
    }
    got = span_head(r->rest, n);
    r->rest = span_skip(r->rest, n);
    return got;
}

static uint64_t reader_get_le(struct reader *r, size_t n)
{
    struct span s = reader_get_bytes(r, n);
    uint64_t value = 0;

    for (size_t i = 0; i < s.n; i++) {
        value |= (uint64_t)s.p[i] << (8U * i);
    }
    return value;
}

uint8_t reader_get_u8(struct reader *r)
{
    return (uint8_t)reader_get_le(r, 1);
}

uint16_t reader_get_u16(struct reader *r)
{
    return (uint16_t)reader_get_le(r, 2);
}

uint32_t reader_get_u32(struct reader *r)
{
    return (uint32_t)reader_get_le(r, 4);
}

uint64_t reader_get_u64(struct reader *r)
{
    return reader_get_le(r, 8);
}

struct span reader_get_block(struct reader *r, size_t max)
{
    uint32_t n = reader_get_u32(r);

    if (n > max) {
        r->error = -EBADMSG;
        return span_make(NULL, 0);
    }
    return reader_get_bytes(r, n);
}

int reader_finish(const struct reader *r)
{
    return (r->error != 0 || r->rest.n != 0) ? -EBADMSG : 0;
}
