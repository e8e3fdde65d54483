#include "wire/sse.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* Writes every event as name|id|data; into a buffer. */
static int record(void *arg, const struct sse_event *event)
{
    struct buf *out = arg;

    buf_printf(out, "%s|%s|", event->name, event->id);
    buf_put(out, event->data);
    buf_put_str(out, ";");
    return span_equals_str(event->data, "stop") ? -ECANCELED : 0;
}

/* Parses text in pieces of `step` bytes. */
static int parse(const char *text, size_t step, struct buf *out)
{
    struct sse_parser p;
    struct span rest = span_of_str(text);
    int r = 0;

    sse_init(&p);
    while (rest.n > 0 && r == 0) {
        r = sse_feed(&p, span_head(rest, step), record, out);
        rest = span_skip(rest, step);
    }
    sse_done(&p);
    return r;
}

static void test_events_come_out_whatever_the_pieces(void **state)
{
    static const char text[] = ": hello\n\nid: 1\nevent: output\ndata: {\"a\":1}\n\n"
                               "data:two\r\ndata: lines\r\n\r\n"
                               "id: 3\rdata\r\revent: lost\n\nretry: 5\ndata: x\n\ndata: cut";
    (void)state;
    for (size_t step = 1; step < sizeof(text); step++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        assert_int_equal(parse(text, step, &out), 0);
        assert_string_equal(buf_str(&out), "output|1|{\"a\":1};message|1|two\nlines;message|3|;"
                                           "message|3|x;");
    }
}

static void test_the_callback_can_stop(void **state)
{
    _cleanup_buf_ struct buf out = buf_make(0);

    (void)state;
    assert_int_equal(parse("data: stop\n\ndata: more\n\n", 100, &out), -ECANCELED);
    assert_string_equal(buf_str(&out), "message||stop;");
}

static void test_limits(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf out = buf_make(0);
    struct sse_parser p;

    (void)state;
    buf_put_str(&text, "event: ");
    for (int i = 0; i < SSE_NAME_SIZE; i++) {
        buf_put_str(&text, "e");
    }
    buf_put_str(&text, "\n");
    assert_int_equal(parse(buf_str(&text), 1000, &out), -EMSGSIZE);

    sse_init(&p);
    for (unsigned int i = 0; i < SSE_MAX_LINE / 1024; i++) {
        char kib[1024];

        memset(kib, 'a', sizeof(kib));
        assert_int_equal(sse_feed(&p, span_make(kib, sizeof(kib)), record, &out), 0);
    }
    assert_int_equal(sse_feed(&p, span_of_str("a"), record, &out), -EMSGSIZE);
    sse_done(&p);
}

static void test_clear_drops_half_an_event_and_keeps_the_id(void **state)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    struct sse_parser p;

    (void)state;
    sse_init(&p);
    assert_int_equal(sse_feed(&p, span_of_str("id: 7\ndata: a\n\ndata: half"), record, &out), 0);
    sse_clear(&p);
    assert_int_equal(sse_feed(&p, span_of_str("data: b\n\n"), record, &out), 0);
    assert_string_equal(buf_str(&out), "message|7|a;message|7|b;");
    sse_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_come_out_whatever_the_pieces),
        cmocka_unit_test(test_the_callback_can_stop),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_clear_drops_half_an_event_and_keeps_the_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
