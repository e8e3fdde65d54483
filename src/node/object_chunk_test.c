/* Stored objects and manifests: what comes back, and what is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "node/object_manifest.h"

static void fill(uint8_t *p, size_t n, unsigned int seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1103515245U + 12345U;
        p[i] = (uint8_t)(seed >> 16U);
    }
}

static void check_round(struct span raw, bool shrinks)
{
    _cleanup_buf_ struct buf stored = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    struct object_sum sum;

    assert_int_equal(object_sum_of(raw, &sum), 0);
    assert_int_equal(object_pack(raw, &stored), 0);
    assert_true(stored.n <= raw.n + OBJECT_HEAD_BYTES);
    assert_int_equal(stored.n < raw.n, shrinks);
    assert_int_equal(object_open(buf_span(&stored), &sum, OBJECT_CHUNK_MAX, &again), 0);
    assert_true(span_equals(buf_span(&again), raw));
}

static void test_round(void **state)
{
    _cleanup_free_ uint8_t *noise = malloc(OBJECT_CHUNK_MAX);
    _cleanup_free_ uint8_t *zeroes = calloc(1, OBJECT_CHUNK_MAX);

    (void)state;
    assert_non_null(noise);
    assert_non_null(zeroes);
    fill(noise, OBJECT_CHUNK_MAX, 7);
    check_round(span_make(noise, OBJECT_CHUNK_MAX), false);
    check_round(span_make(zeroes, OBJECT_CHUNK_MAX), true);
    check_round(span_make(noise, 1), false);
    check_round(span_make(noise, 0), false);
}

/* Every byte of a stored object, and every length of it. */
static void test_damage(void **state)
{
    _cleanup_buf_ struct buf stored = buf_make(0);
    uint8_t raw[300];
    struct object_sum sum;

    (void)state;
    memset(raw, 'a', sizeof(raw));
    fill(raw, 40, 3);
    assert_int_equal(object_sum_of(span_make(raw, sizeof(raw)), &sum), 0);
    assert_int_equal(object_pack(span_make(raw, sizeof(raw)), &stored), 0);
    for (size_t i = 0; i < stored.n; i++) {
        _cleanup_buf_ struct buf again = buf_make(0);
        _cleanup_buf_ struct buf part = buf_make(0);
        int r;

        stored.p[i] ^= 0x10U;
        r = object_open(buf_span(&stored), &sum, OBJECT_CHUNK_MAX, &again);
        /* A frame has bits that say nothing of the content. */
        assert_true(r == -EBADMSG || span_equals(buf_span(&again), span_make(raw, sizeof(raw))));
        stored.p[i] ^= 0x10U;
        r = object_open(span_head(buf_span(&stored), i), &sum, OBJECT_CHUNK_MAX, &part);
        assert_int_equal(r, -EBADMSG);
    }
}

/* A head may promise more than there may be. */
static void test_limit(void **state)
{
    _cleanup_buf_ struct buf stored = buf_make(0);
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_free_ uint8_t *zeroes = calloc(1, OBJECT_CHUNK_MAX + 1);

    (void)state;
    assert_non_null(zeroes);
    assert_int_equal(object_pack(span_make(zeroes, OBJECT_CHUNK_MAX + 1), &stored), 0);
    assert_int_equal(object_unpack(buf_span(&stored), OBJECT_CHUNK_MAX, &raw), -EBADMSG);
    assert_int_equal(raw.room, 0);
}

static void test_sum(void **state)
{
    static const char text[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    char again[OBJECT_SUM_TEXT];
    struct object_sum a;
    struct object_sum b;

    (void)state;
    assert_int_equal(object_sum_of(span_of_str("abc"), &a), 0);
    object_sum_format(&a, again);
    assert_string_equal(again, text);
    assert_int_equal(object_sum_parse(span_of_str(text), &b), 0);
    assert_true(object_sum_equals(&a, &b));
    assert_int_equal(object_sum_parse(span_of_str("BA"), &b), -EBADMSG);
    again[5] = 'F';
    assert_int_equal(object_sum_parse(span_of_str(again), &b), -EBADMSG);
}

static void test_names(void **state)
{
    static const char *const good[] = {"ram", "disk.img", "sessions/se0.json", "a-b_c.1"};
    static const char *const bad[] = {"",     "/",    "/a", "a/",   "a/b/c", ".",  "..",
                                      "../a", "a/..", ".a", "a/.b", "a b",   "a\n"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(object_name_is_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(object_name_is_valid(bad[i]));
    }
}

static void make_manifest(struct object_manifest *m,
                          struct object_file files[2],
                          struct object_piece pieces[2],
                          struct object_ref chunks[2])
{
    *m = (struct object_manifest){
        .owner = "sb000000000000000000", .has_base = true, .file_count = 2, .files = files};
    memset(m->base.bytes, 9, sizeof(m->base.bytes));
    pieces[0] = (struct object_piece){4096, 8192};
    pieces[1] = (struct object_piece){40960, 4096};
    chunks[0] = (struct object_ref){.bytes = 10000};
    chunks[1] = (struct object_ref){.bytes = 2288};
    files[0] = (struct object_file){.name = "disk.img",
                                    .over = OBJECT_OVER_TEMPLATE,
                                    .bytes = 65536,
                                    .time_ns = 5,
                                    .piece_count = 2,
                                    .chunk_count = 2,
                                    .pieces = pieces,
                                    .chunks = chunks};
    files[1] = (struct object_file){
        .name = "capture", .bytes = 5, .is_inline = true, .content = span_of_str("hello")};
}

static void check_refused(const struct object_manifest *m)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct object_manifest again;

    assert_int_equal(object_manifest_format(m, &bytes), 0);
    assert_int_equal(object_manifest_parse(buf_span(&bytes), &again), -EBADMSG);
}

static void test_manifest(void **state)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct object_manifest m;
    struct object_manifest again;
    struct object_file files[2];
    struct object_piece pieces[2];
    struct object_ref chunks[2];

    (void)state;
    make_manifest(&m, files, pieces, chunks);
    assert_int_equal(object_manifest_format(&m, &bytes), 0);
    assert_int_equal(object_manifest_parse(buf_span(&bytes), &again), 0);
    assert_string_equal(again.owner, m.owner);
    assert_true(object_sum_equals(&again.base, &m.base));
    assert_int_equal(object_manifest_find(&again, "disk.img")->pieces[1].offset, 40960);
    assert_true(span_equals_str(object_manifest_find(&again, "capture")->content, "hello"));
    assert_null(object_manifest_find(&again, "memory"));
    object_manifest_done(&again);
    for (size_t i = 0; i < bytes.n; i++) {
        assert_int_equal(object_manifest_parse(span_head(buf_span(&bytes), i), &again), -EBADMSG);
    }
    buf_put_u8(&bytes, 0);
    assert_int_equal(object_manifest_parse(buf_span(&bytes), &again), -EBADMSG);
}

static void test_bad_manifest(void **state)
{
    struct object_manifest m;
    struct object_file files[2];
    struct object_piece pieces[2];
    struct object_ref chunks[2];

    (void)state;
    make_manifest(&m, files, pieces, chunks);
    chunks[1].bytes++; /* more than the pieces */
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    pieces[1].offset = 8192; /* overlaps */
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    pieces[1].offset = 65536; /* beyond the end */
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    pieces[1] = (struct object_piece){UINT64_MAX - 4095, 4096};
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    (void)memcpy(files[1].name, "../etc", 7);
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    files[1].bytes = 6; /* not what stands there */
    check_refused(&m);
    make_manifest(&m, files, pieces, chunks);
    chunks[0].bytes = OBJECT_CHUNK_MAX + 1;
    check_refused(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_limit),        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_bad_manifest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
