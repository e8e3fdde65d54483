/* The transcoder on a real loop with workers: order, back-pressure both ways, ends, early frees. */
#include "api/transcoder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "io/loop.h"

#define CONTENT_BYTES (3U << 20)

struct flow {
    struct transcoder_pool *pool;
    struct transcoder *t;
    struct span rest; /* still to be written */
    struct buf out;
    struct loop_timer *timer;
    bool stalls;        /* takes one piece, then waits for the timer */
    bool ended;         /* on_end came */
    bool frees_early;   /* in the first output */
    size_t most_unread; /* written while the sink was stalled */
    bool stalled;
    struct error err;
};

static void feed(struct flow *f)
{
    while (f->rest.n > 0) {
        struct span piece = span_head(f->rest, 40000);

        f->rest = span_skip(f->rest, piece.n);
        if (f->stalled) {
            f->most_unread += piece.n;
        }
        if (transcoder_write(f->t, piece) == 0) {
            return;
        }
    }
    transcoder_end(f->t);
}

static int on_output(void *arg, struct span bytes)
{
    struct flow *f = arg;

    assert_false(f->stalled);
    buf_put(&f->out, bytes);
    if (f->frees_early) {
        transcoder_free(TAKE(f->t));
        loop_stop(f->pool->loop);
        return 1;
    }
    if (f->stalls) {
        f->stalled = true;
        f->most_unread = 0;
        loop_timer_start(f->timer, 1);
        return 0;
    }
    return 1;
}

static void on_timer(void *arg)
{
    struct flow *f = arg;

    assert_true(f->most_unread <= 400000);
    f->stalled = false;
    transcoder_resume(f->t);
}

static void on_drain(void *arg)
{
    feed(arg);
}

static void on_end(void *arg, const struct error *err)
{
    struct flow *f = arg;

    f->ended = true;
    f->err = err == NULL ? (struct error){0} : *err;
    loop_stop(f->pool->loop);
}

static const struct transcoder_callbacks callbacks = {on_output, on_drain, on_end};

static void run(struct flow *f, enum codec_format format, bool packs, struct span in)
{
    struct loop *loop = loop_new(2);
    struct transcoder_pool pool = {.loop = loop};
    struct error err;

    assert_non_null(loop);
    f->pool = &pool;
    f->rest = in;
    f->out = buf_make(0);
    f->timer = loop_timer_new(loop, on_timer, f);
    f->t = transcoder_new(&pool, format, packs, &callbacks, f, &err);
    assert_non_null(f->t);
    assert_true(pool.used > 0);
    feed(f);
    assert_int_equal(loop_run(loop), 0);
    transcoder_free(f->t);
    loop_timer_free(f->timer);
    loop_finish_work(loop);
    assert_int_equal(pool.used, 0);
    loop_free(loop);
}

static void content(struct buf *out)
{
    uint32_t x = 1;

    while (out->n < CONTENT_BYTES) {
        x = x * 1664525U + 1013904223U;
        buf_printf(out, "%x ", x >> 16U);
    }
}

static void test_there_and_back(void **state)
{
    static const enum codec_format formats[] = {CODEC_GZIP, CODEC_ZSTD};
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)state;
    content(&text);
    for (int i = 0; i < 4; i++) {
        struct flow pack = {.stalls = i % 2 == 1};
        struct flow unpack = {.stalls = i % 2 == 1};

        run(&pack, formats[i / 2], true, buf_span(&text));
        assert_true(pack.ended && pack.err.code == ERROR_NONE);
        assert_true(pack.out.n < text.n * 3 / 4);
        run(&unpack, formats[i / 2], false, buf_span(&pack.out));
        assert_true(unpack.ended && unpack.err.code == ERROR_NONE);
        assert_true(span_equals(buf_span(&text), buf_span(&unpack.out)));
        buf_done(&pack.out);
        buf_done(&unpack.out);
    }
}

static void test_broken(void **state)
{
    struct flow f = {0};

    (void)state;
    run(&f, CODEC_GZIP, false, span_of_str("no gzip at all, and long enough to be told"));
    assert_true(f.ended);
    assert_int_equal(f.err.code, ERROR_INVALID_REQUEST);
    assert_string_equal(f.err.field, "body");
    buf_done(&f.out);
}

static void test_early_free(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct flow f = {.frees_early = true};

    (void)state;
    content(&text);
    run(&f, CODEC_ZSTD, true, buf_span(&text));
    assert_false(f.ended);
    buf_done(&f.out);
}

/* While a job is under way. */
static void test_free_at_work(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct loop *loop = loop_new(1);
    struct transcoder_pool pool = {.loop = loop};
    struct flow f = {.pool = &pool};
    struct error err;

    (void)state;
    content(&text);
    f.t = transcoder_new(&pool, CODEC_GZIP, true, &callbacks, &f, &err);
    assert_non_null(f.t);
    f.rest = buf_span(&text);
    feed(&f);
    transcoder_free(f.t);
    loop_finish_work(loop);
    assert_int_equal(pool.used, 0);
    loop_free(loop);
}

static void test_budget(void **state)
{
    struct loop *loop = loop_new(1);
    struct transcoder_pool pool = {.loop = loop};
    struct transcoder *all[64] = {NULL};
    struct flow f = {.pool = &pool};
    struct error err = {0};
    size_t n = 0;

    (void)state;
    while (n < 64 &&
           (all[n] = transcoder_new(&pool, CODEC_ZSTD, false, &callbacks, &f, &err)) != NULL) {
        n++;
    }
    assert_in_range(n, 16, 40);
    assert_int_equal(err.code, ERROR_CAPACITY_UNAVAILABLE);
    for (size_t i = 0; i < n; i++) {
        transcoder_free(all[i]);
    }
    assert_int_equal(pool.used, 0);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_early_free),     cmocka_unit_test(test_free_at_work),
        cmocka_unit_test(test_budget),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
