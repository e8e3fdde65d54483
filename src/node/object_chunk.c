#include "node/object_chunk.h"

#include <errno.h>

#include <zstd.h>

#include "base/reader.h"

#define MAGIC     0x4B4E4843U /* CHNK */
#define VERSION   1U
#define KIND_RAW  0U
#define KIND_ZSTD 1U
/* Fast, and within a tenth of what slower ones reach on memory pages. */
#define LEVEL 3

static void put_word(uint8_t *at, uint32_t value)
{
    for (unsigned int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (8U * i));
    }
}

static void format_head(uint8_t *at, uint32_t kind, size_t raw, size_t stored)
{
    put_word(&at[0], MAGIC);
    put_word(&at[4], VERSION | kind << 16U);
    put_word(&at[8], (uint32_t)raw);
    put_word(&at[12], (uint32_t)stored);
}

int object_pack(struct span raw, struct buf *out)
{
    size_t room = ZSTD_compressBound(raw.n);
    uint8_t *to;
    uint32_t kind = KIND_ZSTD;
    size_t n;

    if (raw.n > OBJECT_MANIFEST_MAX) {
        return -EMSGSIZE;
    }
    to = buf_reserve(out, OBJECT_HEAD_BYTES + room);
    if (to == NULL) {
        return buf_error(out);
    }
    n = ZSTD_compress(&to[OBJECT_HEAD_BYTES], room, raw.p, raw.n, LEVEL);
    if (ZSTD_isError(n) || n >= raw.n) {
        kind = KIND_RAW;
        n = raw.n;
        if (n > 0) {
            memcpy(&to[OBJECT_HEAD_BYTES], raw.p, n);
        }
    }
    format_head(to, kind, raw.n, n);
    buf_commit(out, OBJECT_HEAD_BYTES + n);
    return buf_error(out);
}

static int unpack_frame(struct span frame, size_t raw, struct buf *ret)
{
    uint8_t *to = buf_reserve(ret, raw);
    size_t n;

    if (to == NULL) {
        return buf_error(ret);
    }
    n = ZSTD_decompress(to, raw, frame.p, frame.n);
    if (ZSTD_isError(n) || n != raw) {
        return -EBADMSG;
    }
    buf_commit(ret, n);
    return 0;
}

int object_unpack(struct span stored, size_t max, struct buf *ret_raw)
{
    struct reader r = reader_make(stored);
    uint32_t magic = reader_get_u32(&r);
    uint16_t version = reader_get_u16(&r);
    uint16_t kind = reader_get_u16(&r);
    uint32_t raw = reader_get_u32(&r);
    uint32_t n = reader_get_u32(&r);
    struct span body = reader_get_bytes(&r, n);

    if (reader_finish(&r) < 0 || magic != MAGIC || version != VERSION || raw > max) {
        return -EBADMSG;
    }
    if (kind == KIND_ZSTD && n < raw) {
        return unpack_frame(body, raw, ret_raw);
    }
    if (kind != KIND_RAW || n != raw) {
        return -EBADMSG;
    }
    buf_put(ret_raw, body);
    return buf_error(ret_raw);
}

int object_open(struct span stored, const struct object_sum *name, size_t max, struct buf *ret_raw)
{
    struct object_sum sum;
    int r = object_unpack(stored, max, ret_raw);

    if (r == 0) {
        r = object_sum_of(buf_span(ret_raw), &sum);
    }
    return r == 0 && !object_sum_equals(&sum, name) ? -EBADMSG : r;
}
