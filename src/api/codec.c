#include "api/codec.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <zstd.h>
#include <zstd_errors.h>

/* Fast rather than small: the network of most clients is no faster than this. */
#define GZIP_LEVEL  1
#define ZSTD_LEVEL  1
#define GZIP_WINDOW (15 + 16) /* 32 KiB, with gzip's head and tail */
#define GZIP_MEMORY 8
#define PIECE_MAX   (1U << 20) /* of input at once: zlib counts in unsigned int */
#define MAGIC_SIZE  4

struct codec {
    enum codec_format format;
    bool packs;
    bool at_end; /* a whole member or frame has ended, and nothing came after it */
    z_stream z;
    ZSTD_CCtx *zc;
    ZSTD_DCtx *zd;
    uint8_t magic[MAGIC_SIZE]; /* of the frame that begins */
    size_t magic_n;
    bool in_frame;
};

const char *codec_name(enum codec_format format)
{
    static const char *const names[] = {
        [CODEC_NONE] = "none", [CODEC_GZIP] = "gzip", [CODEC_ZSTD] = "zstd"};

    return names[format];
}

int codec_find(const char *name, enum codec_format *ret_format)
{
    for (enum codec_format f = CODEC_NONE; f <= CODEC_ZSTD; f++) {
        if (strcmp(codec_name(f), name) == 0) {
            *ret_format = f;
            return 0;
        }
    }
    return -EINVAL;
}

size_t codec_cost(enum codec_format format, bool packs)
{
    if (format == CODEC_GZIP) {
        return packs ? 280U << 10 : 48U << 10;
    }
    return packs ? 2U << 20 : CODEC_WINDOW_MAX + (512U << 10);
}

static bool start_gzip(struct codec *c)
{
    return c->packs ? deflateInit2(&c->z, GZIP_LEVEL, Z_DEFLATED, GZIP_WINDOW, GZIP_MEMORY,
                                   Z_DEFAULT_STRATEGY) == Z_OK
                    : inflateInit2(&c->z, GZIP_WINDOW) == Z_OK;
}

static bool start_zstd(struct codec *c)
{
    if (c->packs) {
        c->zc = ZSTD_createCCtx();
        return c->zc != NULL &&
               ZSTD_isError(ZSTD_CCtx_setParameter(c->zc, ZSTD_c_compressionLevel, ZSTD_LEVEL)) ==
                   0 &&
               ZSTD_isError(ZSTD_CCtx_setParameter(c->zc, ZSTD_c_checksumFlag, 1)) == 0;
    }
    c->zd = ZSTD_createDCtx();
    return c->zd != NULL && ZSTD_isError(ZSTD_DCtx_setParameter(c->zd, ZSTD_d_windowLogMax,
                                                                CODEC_WINDOW_LOG_MAX)) == 0;
}

struct codec *codec_new(enum codec_format format, bool packs)
{
    struct codec *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    c->format = format;
    c->packs = packs;
    if (!(format == CODEC_GZIP ? start_gzip(c) : start_zstd(c))) {
        codec_free(c);
        return NULL;
    }
    return c;
}

void codec_free(struct codec *codec)
{
    if (codec == NULL) {
        return;
    }
    if (codec->format == CODEC_GZIP) {
        (void)(codec->packs ? deflateEnd(&codec->z) : inflateEnd(&codec->z));
    }
    (void)ZSTD_freeCCtx(codec->zc);
    (void)ZSTD_freeDCtx(codec->zd);
    free(codec);
}

/* ---- gzip ---- */

static void z_set(struct codec *c, struct span in, uint8_t *out, size_t room)
{
    c->z.next_in = (z_const Bytef *)(uintptr_t)in.p; /* zlib only reads it */
    c->z.avail_in = (uInt)in.n;
    c->z.next_out = out;
    c->z.avail_out = (uInt)room;
}

static int run_deflate(struct codec *c, bool last)
{
    int r = deflate(&c->z, last ? Z_FINISH : Z_NO_FLUSH);

    if (r == Z_STREAM_END) {
        return CODEC_DONE;
    }
    if (r != Z_OK && r != Z_BUF_ERROR) {
        return -ENOMEM;
    }
    return c->z.avail_out == 0 ? CODEC_FULL : CODEC_HUNGRY;
}

static int run_inflate(struct codec *c, bool last)
{
    for (;;) {
        int r;

        if (c->at_end && c->z.avail_in == 0) {
            return last ? CODEC_DONE : CODEC_HUNGRY;
        }
        if (c->at_end && inflateReset(&c->z) != Z_OK) {
            return -EBADMSG;
        }
        c->at_end = false;
        r = inflate(&c->z, Z_NO_FLUSH);
        if (r == Z_STREAM_END) {
            c->at_end = true;
            continue;
        }
        if (r == Z_MEM_ERROR) {
            return -ENOMEM;
        }
        if (r != Z_OK && r != Z_BUF_ERROR) {
            return -EBADMSG;
        }
        if (c->z.avail_out == 0) {
            return CODEC_FULL;
        }
        if (c->z.avail_in == 0) {
            return last ? -EBADMSG : CODEC_HUNGRY;
        }
    }
}

static int
run_gzip(struct codec *c, struct span *in, bool last, uint8_t *out, size_t room, size_t *ret_n)
{
    size_t given = in->n;
    int r;

    z_set(c, *in, out, room);
    r = c->packs ? run_deflate(c, last) : run_inflate(c, last);
    *in = span_skip(*in, given - c->z.avail_in);
    *ret_n = room - c->z.avail_out;
    return r;
}

/* ---- zstd ---- */

static int zstd_fault(size_t result)
{
    ZSTD_ErrorCode code = ZSTD_getErrorCode(result);

    if (code == ZSTD_error_memory_allocation) {
        return -ENOMEM;
    }
    return code == ZSTD_error_frameParameter_windowTooLarge ? -EMSGSIZE : -EBADMSG;
}

static int pack_zstd(struct codec *c, ZSTD_inBuffer *in, ZSTD_outBuffer *out, bool last)
{
    size_t left = ZSTD_compressStream2(c->zc, out, in, last ? ZSTD_e_end : ZSTD_e_continue);

    if (ZSTD_isError(left) != 0) {
        return zstd_fault(left);
    }
    if (last && left == 0) {
        return CODEC_DONE;
    }
    return out->pos == out->size ? CODEC_FULL : CODEC_HUNGRY;
}

/* The library would also take the formats of before 1.0, whose decoders keep to no window: a frame
 * begins with the magic of today's or of a skippable one. 1 when it has begun, 0 for more input. */
static int begin_frame(struct codec *c, ZSTD_inBuffer *in, ZSTD_outBuffer *out)
{
    const uint8_t *bytes = in->src;
    ZSTD_inBuffer magic = {c->magic, MAGIC_SIZE, 0};
    uint32_t value = 0;
    size_t left;

    while (c->magic_n < MAGIC_SIZE && in->pos < in->size) {
        c->magic[c->magic_n++] = bytes[in->pos++];
        c->at_end = false;
    }
    if (c->magic_n < MAGIC_SIZE) {
        return 0;
    }
    for (size_t i = 0; i < MAGIC_SIZE; i++) {
        value |= (uint32_t)c->magic[i] << (8 * i);
    }
    if (value != ZSTD_MAGICNUMBER &&
        (value & ZSTD_MAGIC_SKIPPABLE_MASK) != ZSTD_MAGIC_SKIPPABLE_START) {
        return -EBADMSG;
    }
    left = ZSTD_decompressStream(c->zd, out, &magic);
    if (ZSTD_isError(left) != 0 || magic.pos != MAGIC_SIZE) {
        return -EBADMSG;
    }
    c->magic_n = 0;
    c->in_frame = true;
    return 1;
}

static int unpack_zstd(struct codec *c, ZSTD_inBuffer *in, ZSTD_outBuffer *out, bool last)
{
    while (out->pos < out->size && (c->in_frame || in->pos < in->size)) {
        size_t before = in->pos + out->pos;
        int begun = c->in_frame ? 1 : begin_frame(c, in, out);
        size_t left;

        if (begun <= 0) {
            if (begun < 0) {
                return begun;
            }
            break;
        }
        left = ZSTD_decompressStream(c->zd, out, in);
        if (ZSTD_isError(left) != 0) {
            return zstd_fault(left);
        }
        c->in_frame = left != 0;
        c->at_end = left == 0;
        if (in->pos + out->pos == before) {
            break;
        }
    }
    if (out->pos == out->size) {
        return CODEC_FULL;
    }
    if (!last || in->pos < in->size) {
        return CODEC_HUNGRY;
    }
    return c->at_end ? CODEC_DONE : -EBADMSG;
}

static int
run_zstd(struct codec *c, struct span *in, bool last, uint8_t *out, size_t room, size_t *ret_n)
{
    ZSTD_inBuffer input = {in->p, in->n, 0};
    ZSTD_outBuffer output = {.size = room};
    int r;

    output.dst = out;
    r = c->packs ? pack_zstd(c, &input, &output, last) : unpack_zstd(c, &input, &output, last);

    *in = span_skip(*in, input.pos);
    *ret_n = output.pos;
    return r;
}

int codec_run(
    struct codec *codec, struct span *in, bool last, uint8_t *out, size_t room, size_t *ret_n)
{
    struct span piece = span_head(*in, PIECE_MAX);
    size_t given = piece.n;
    int r;

    *ret_n = 0;
    last = last && given == in->n;
    r = codec->format == CODEC_GZIP ? run_gzip(codec, &piece, last, out, room, ret_n)
                                    : run_zstd(codec, &piece, last, out, room, ret_n);
    *in = span_skip(*in, given - piece.n);
    return r == CODEC_HUNGRY && in->n > 0 ? CODEC_FULL : r;
}
