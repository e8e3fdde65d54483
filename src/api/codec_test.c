/* gzip and zstd in pieces of every size, broken in every place. */
#include "api/codec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <zstd.h>

#include "base/buf.h"

static const enum codec_format formats[] = {CODEC_GZIP, CODEC_ZSTD};

/* Feeds in pieces of `step` bytes, takes pieces of `room`. 0 or the failure. */
static int convert(
    enum codec_format format, bool packs, struct span in, size_t step, size_t room, struct buf *out)
{
    struct codec *c = codec_new(format, packs);
    uint8_t piece[8192];
    int r = CODEC_HUNGRY;

    assert_non_null(c);
    while (r >= 0 && r != CODEC_DONE) {
        bool last = step >= in.n;
        struct span given = span_head(in, step);

        in = span_skip(in, given.n);
        do {
            size_t n = 0;

            r = codec_run(c, &given, last, piece, room, &n);
            buf_put(out, span_make(piece, n));
        } while (r == CODEC_FULL);
        if (r == CODEC_HUNGRY) {
            assert_int_equal(given.n, 0);
            assert_false(last);
        }
    }
    codec_free(c);
    return r < 0 ? r : 0;
}

static void fill(struct buf *text, size_t lines)
{
    for (size_t i = 0; i < lines; i++) {
        buf_printf(text, "%zu little lines of text %zu\n", i, i * 7919 % 1009);
    }
}

static void test_round_trip(void **state)
{
    static const size_t steps[] = {1, 7, 100, 65536, SIZE_MAX};
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)state;
    fill(&text, 3000);
    for (size_t f = 0; f < 2; f++) {
        for (size_t s = 0; s < 5; s++) {
            _cleanup_buf_ struct buf packed = buf_make(0);
            _cleanup_buf_ struct buf back = buf_make(0);
            size_t room = steps[s] < 100 ? steps[s] : 8192;

            assert_int_equal(convert(formats[f], true, buf_span(&text), steps[s], room, &packed),
                             0);
            assert_true(packed.n < text.n / 3);
            assert_int_equal(convert(formats[f], false, buf_span(&packed), steps[s], room, &back),
                             0);
            assert_true(span_equals(buf_span(&text), buf_span(&back)));
        }
    }
}

static void test_empty(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        _cleanup_buf_ struct buf packed = buf_make(0);
        _cleanup_buf_ struct buf back = buf_make(0);

        assert_int_equal(convert(formats[f], true, span_make(NULL, 0), 1, 1, &packed), 0);
        assert_true(packed.n > 0);
        assert_int_equal(convert(formats[f], false, buf_span(&packed), 1, 1, &back), 0);
        assert_int_equal(back.n, 0);
        /* Nothing at all is no empty file. */
        assert_int_equal(convert(formats[f], false, span_make(NULL, 0), 1, 1, &back), -EBADMSG);
    }
}

/* Every cut, and a byte too many, is told. */
static void test_broken(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)state;
    fill(&text, 20);
    for (size_t f = 0; f < 2; f++) {
        _cleanup_buf_ struct buf packed = buf_make(0);
        _cleanup_buf_ struct buf back = buf_make(0);

        assert_int_equal(convert(formats[f], true, buf_span(&text), 100, 100, &packed), 0);
        for (size_t cut = 0; cut < packed.n; cut++) {
            assert_int_equal(
                convert(formats[f], false, span_head(buf_span(&packed), cut), 64, 64, &back),
                -EBADMSG);
        }
        packed.p[packed.n - 1] ^= 1; /* the checksum, or the length */
        assert_int_equal(convert(formats[f], false, buf_span(&packed), 64, 64, &back), -EBADMSG);
        packed.p[packed.n - 1] ^= 1;
        buf_put_u8(&packed, 0);
        assert_int_equal(convert(formats[f], false, buf_span(&packed), 64, 64, &back), -EBADMSG);
        assert_int_equal(
            convert(formats[f], false, span_of_str("plain text, no more"), 64, 64, &back),
            -EBADMSG);
    }
}

/* Members and frames one after another are one content, as `cat a.gz b.gz` makes. */
static void test_joined(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        for (size_t step = 1; step < 40; step++) {
            _cleanup_buf_ struct buf packed = buf_make(0);
            _cleanup_buf_ struct buf back = buf_make(0);

            assert_int_equal(convert(formats[f], true, span_of_str("one "), 9, 99, &packed), 0);
            assert_int_equal(convert(formats[f], true, span_of_str("two"), 9, 99, &packed), 0);
            assert_int_equal(convert(formats[f], false, buf_span(&packed), step, 16, &back), 0);
            assert_string_equal(buf_str(&back), "one two");
        }
    }
}

/* A frame may not choose how much memory it takes, nor an old decoder. */
static void test_windows(void **state)
{
    static const uint8_t old_magic[] = {0x27, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0};
    ZSTD_CCtx *big = ZSTD_createCCtx();
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf packed = buf_make(0);
    _cleanup_buf_ struct buf back = buf_make(0);

    (void)state;
    fill(&text, 1000);
    (void)ZSTD_CCtx_setParameter(big, ZSTD_c_windowLog, CODEC_WINDOW_LOG_MAX + 1);
    (void)ZSTD_CCtx_setParameter(big, ZSTD_c_contentSizeFlag, 0);
    {
        ZSTD_inBuffer in = {text.p, text.n, 0};
        ZSTD_outBuffer out = {buf_reserve(&packed, 1U << 20), 1U << 20, 0};

        assert_true(ZSTD_compressStream2(big, &out, &in, ZSTD_e_continue) < (1U << 20));
        assert_int_equal(ZSTD_compressStream2(big, &out, &in, ZSTD_e_end), 0);
        buf_commit(&packed, out.pos);
    }
    (void)ZSTD_freeCCtx(big);
    assert_int_equal(convert(CODEC_ZSTD, false, buf_span(&packed), 4096, 4096, &back), -EMSGSIZE);
    assert_int_equal(
        convert(CODEC_ZSTD, false, span_make(old_magic, sizeof(old_magic)), 1, 16, &back),
        -EBADMSG);
}

/* A bomb comes out in pieces; each call makes no more than asked for. */
static void test_bomb(void **state)
{
    _cleanup_free_ uint8_t *zeros = calloc(1, 16U << 20);

    (void)state;
    assert_non_null(zeros);
    for (size_t f = 0; f < 2; f++) {
        _cleanup_buf_ struct buf packed = buf_make(0);
        struct codec *c = codec_new(formats[f], false);
        struct span in;
        uint8_t out[4096];
        size_t total = 0;
        int r = CODEC_FULL;

        assert_int_equal(
            convert(formats[f], true, span_make(zeros, 16U << 20), 65536, 8192, &packed), 0);
        assert_true(packed.n < 100000);
        in = buf_span(&packed);
        while (r != CODEC_DONE) {
            size_t n = 0;

            r = codec_run(c, &in, true, out, sizeof(out), &n);
            assert_true(r >= 0 && n <= sizeof(out));
            total += n;
        }
        assert_int_equal(total, 16U << 20);
        codec_free(c);
    }
}

static void test_names(void **state)
{
    enum codec_format f = CODEC_ZSTD;

    (void)state;
    assert_int_equal(codec_find("none", &f), 0);
    assert_int_equal(f, CODEC_NONE);
    assert_int_equal(codec_find("gzip", &f), 0);
    assert_int_equal(f, CODEC_GZIP);
    assert_int_equal(codec_find("GZIP", &f), -EINVAL);
    assert_int_equal(codec_find("", &f), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_empty),
        cmocka_unit_test(test_broken),     cmocka_unit_test(test_joined),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
