/* Hostile compressed bytes: the result does not depend on how they are cut into pieces, and no call
 * makes more than it was asked for. The first byte chooses format, pieces and room. */
#include "api/codec.h"

#include <stdlib.h>

#include "base/buf.h"

#define OUT_MAX (1U << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int
convert(enum codec_format format, struct span in, size_t step, size_t room, struct buf *out)
{
    struct codec *c = codec_new(format, false);
    uint8_t piece[4096];
    int r = CODEC_HUNGRY;

    if (c == NULL) {
        abort();
    }
    while (r >= 0 && r != CODEC_DONE && out->n < OUT_MAX) {
        bool last = step >= in.n;
        struct span given = span_head(in, step);

        in = span_skip(in, given.n);
        do {
            size_t n = 0;

            r = codec_run(c, &given, last, piece, room, &n);
            if (n > room) {
                abort();
            }
            buf_put(out, span_make(piece, n));
        } while (r == CODEC_FULL && out->n < OUT_MAX);
        if (r == CODEC_HUNGRY && (last || given.n > 0)) {
            abort();
        }
    }
    codec_free(c);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span in = span_skip(span_make(data, size), 1);
    enum codec_format format;
    _cleanup_buf_ struct buf whole = buf_make(0);
    _cleanup_buf_ struct buf cut = buf_make(0);
    size_t step;
    int a;
    int b;

    if (size == 0) {
        return 0;
    }
    format = (data[0] & 1U) != 0 ? CODEC_GZIP : CODEC_ZSTD;
    step = 1 + (data[0] >> 1U);
    a = convert(format, in, SIZE_MAX, 4096, &whole);
    b = convert(format, in, step, 1 + step * 31, &cut);
    if (whole.n < OUT_MAX && cut.n < OUT_MAX && (a < 0) != (b < 0)) {
        abort();
    }
    /* What comes out before a fault may differ, never in content. */
    if (!span_equals(span_head(buf_span(&whole), cut.n), span_head(buf_span(&cut), whole.n))) {
        abort();
    }
    return 0;
}
