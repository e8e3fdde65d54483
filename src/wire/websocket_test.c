#include "wire/websocket.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MAX_MESSAGE 70000U

static const uint8_t a_mask[WEBSOCKET_MASK_BYTES] = {0x37, 0xfa, 0x21, 0x3d};

/* Feeds all in pieces of `step`; what comes out is written down as text. Returns 0 or the error. */
static int
transcript(bool is_server, struct span bytes, size_t step, struct buf *out, unsigned int *ret_code)
{
    struct websocket_parser p;
    int r = 0;

    websocket_parser_init(&p, is_server, MAX_MESSAGE);
    while (bytes.n > 0 && r >= 0) {
        struct websocket_message message;
        bool has;

        r = websocket_parser_next(&p, span_head(bytes, step), &has, &message);
        if (r < 0) {
            break;
        }
        assert_true(r > 0);
        bytes = span_skip(bytes, (size_t)r);
        if (has) {
            buf_printf(out, "%d:", (int)message.opcode);
            if (message.opcode == WEBSOCKET_CLOSE) {
                buf_printf(out, "%u:", message.close_code);
            }
            buf_put(out, message.payload);
            buf_put_str(out, ";");
        }
    }
    *ret_code = p.close_code;
    websocket_parser_done(&p);
    return r < 0 ? r : 0;
}

static void expect(bool is_server, struct span bytes, const char *text, unsigned int code)
{
    for (size_t step = 1; step <= bytes.n; step = step < 8 ? step + 1 : step * 2) {
        _cleanup_buf_ struct buf out = buf_make(0);
        unsigned int got;
        int r = transcript(is_server, bytes, step, &out, &got);

        assert_string_equal(buf_str(&out), text);
        assert_int_equal(got, code);
        assert_int_equal(r < 0, code != 0);
    }
}

#define BYTES(text) span_make((text), sizeof(text) - 1)

/* The examples of RFC 6455, section 5.7. */
static void test_examples(void **state)
{
    (void)state;
    expect(false, BYTES("\x81\x05Hello"), "1:Hello;", 0);
    expect(true, BYTES("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), "1:Hello;", 0);
    expect(false, BYTES("\x01\x03Hel\x80\x02lo"), "1:Hello;", 0);
    expect(false, BYTES("\x89\x05Hello"), "9:Hello;", 0);
    expect(true, BYTES("\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), "10:Hello;", 0);
}

static void test_messages(void **state)
{
    (void)state;
    expect(false, BYTES("\x82\x00\x81\x00"), "2:;1:;", 0);
    expect(true, BYTES("\x82\x80zzzz\x81\x80zzzz"), "2:;1:;", 0);
    /* Control frames between the parts of a message, empty parts too. */
    expect(false, BYTES("\x01\x02He\x89\x01p\x00\x01l\x00\x00\x8a\x00\x80\x02lo\x82\x01x"),
           "9:p;10:;1:Hello;2:x;", 0);
    /* A character may be cut between frames, not at the message's end. */
    expect(false, BYTES("\x01\x01\xc3\x80\x01\xa4"), "1:\xc3\xa4;", 0);
    expect(false, BYTES("\x81\x01\xc3"), "", WEBSOCKET_BAD_TEXT);
    expect(false, BYTES("\x82\x01\xc3"), "2:\xc3;", 0);
    expect(false, BYTES("\x01\x01\xc3\x80\x01z"), "", WEBSOCKET_BAD_TEXT);
    /* Incomplete: nothing comes, and nothing is wrong. */
    expect(false, BYTES("\x01\x05Hello"), "", 0);
    expect(false, BYTES("\x81\x06Hello"), "", 0);
}

static void test_close_frames(void **state)
{
    (void)state;
    expect(false, BYTES("\x88\x00"), "8:1005:;", 0);
    expect(false, BYTES("\x88\x02\x03\xe8"), "8:1000:;", 0);
    expect(false,
           BYTES("\x88\x05\x0f\xa0"
                 "bye"),
           "8:4000:bye;", 0);
    /* What follows is dropped, whatever it is. */
    expect(false, BYTES("\x88\x02\x03\xe8\x81\x01x\xff\xff\xff"), "8:1000:;", 0);
    expect(false, BYTES("\x88\x01\x03"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x88\x02\x03\xed"), "", WEBSOCKET_PROTOCOL_ERROR); /* 1005 */
    expect(false, BYTES("\x88\x02\x03\xee"), "", WEBSOCKET_PROTOCOL_ERROR); /* 1006 */
    expect(false, BYTES("\x88\x02\x03\xec"), "", WEBSOCKET_PROTOCOL_ERROR); /* 1004 */
    expect(false, BYTES("\x88\x02\x03\xf7"), "", WEBSOCKET_PROTOCOL_ERROR); /* 1015 */
    expect(false, BYTES("\x88\x02\x00\x00"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x88\x02\x07\xd0"), "", WEBSOCKET_PROTOCOL_ERROR); /* 2000 */
    expect(false, BYTES("\x88\x02\x13\x88"), "", WEBSOCKET_PROTOCOL_ERROR); /* 5000 */
    expect(false, BYTES("\x88\x03\x03\xe8\xff"), "", WEBSOCKET_BAD_TEXT);
}

static void test_refused_frames(void **state)
{
    (void)state;
    expect(false, BYTES("\xc1\x01x"), "", WEBSOCKET_PROTOCOL_ERROR); /* reserved bits */
    expect(false, BYTES("\xa1\x01x"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x91\x01x"), "", WEBSOCKET_PROTOCOL_ERROR);
    for (uint8_t opcode = 3; opcode < 16; opcode++) {
        const uint8_t frame[] = {0x80U | opcode, 0};

        if (opcode < 8 || opcode > 10) {
            expect(false, span_make(frame, 2), "", WEBSOCKET_PROTOCOL_ERROR);
        }
    }
    expect(true, BYTES("\x81\x01x"), "", WEBSOCKET_PROTOCOL_ERROR); /* masks */
    expect(false, BYTES("\x81\x81zzzzx"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x09\x00"), "", WEBSOCKET_PROTOCOL_ERROR); /* control: cut, long */
    expect(false, BYTES("\x89\x7e\x00\x7e"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x88\x7f"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x80\x01x"), "", WEBSOCKET_PROTOCOL_ERROR); /* continuations */
    expect(false, BYTES("\x01\x01x\x81\x01y"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x81\x01x\x80\x01y"), "1:x;", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x82\x7e\x00\x7d"), "", WEBSOCKET_PROTOCOL_ERROR); /* not the shortest */
    expect(false, BYTES("\x82\x7f\0\0\0\0\0\0\xff\xff"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x82\x7f\x80\0\0\0\0\1\0\0"), "", WEBSOCKET_PROTOCOL_ERROR);
    expect(false, BYTES("\x82\x7f\0\0\0\0\0\1\x11\x71"), "", WEBSOCKET_TOO_LONG);
    expect(false, BYTES("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"), "", WEBSOCKET_TOO_LONG);
}

/* The limit holds for a message, not for its frames. */
static void test_limit_over_fragments(void **state)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    _cleanup_buf_ struct buf out = buf_make(0);
    unsigned int code;
    static uint8_t zeros[MAX_MESSAGE];

    (void)state;
    websocket_put_frame(&bytes, WEBSOCKET_BINARY, span_make(zeros, MAX_MESSAGE), NULL);
    bytes.p[0] &= 0x7fU; /* not the last one */
    assert_int_equal(transcript(false, buf_span(&bytes), 1000, &out, &code), 0);
    buf_put(&bytes, BYTES("\x00\x00\x80\x00"));
    assert_int_equal(transcript(false, buf_span(&bytes), 1000, &out, &code), 0);
    assert_int_equal(out.n, MAX_MESSAGE + 3);
    bytes.n -= 2;
    buf_put(&bytes, BYTES("\x80\x01x"));
    assert_int_equal(transcript(false, buf_span(&bytes), 1000, &out, &code), -EMSGSIZE);
    assert_int_equal(code, WEBSOCKET_TOO_LONG);
}

/* Every length around the borders of its encoding, in both roles. */
static void test_round_trips(void **state)
{
    static const size_t lengths[] = {0,   1,   2,   7,   8,     9,     124,
                                     125, 126, 127, 128, 65535, 65536, 70000};
    static uint8_t payload[MAX_MESSAGE];

    (void)state;
    for (size_t i = 0; i < sizeof(payload); i++) {
        payload[i] = (uint8_t)(i * 7U);
    }
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (int is_server = 0; is_server < 2; is_server++) {
            _cleanup_buf_ struct buf out = buf_make(0);
            struct websocket_parser p;
            struct websocket_message message;
            bool has;

            websocket_put_frame(&out, WEBSOCKET_BINARY, span_make(payload, lengths[i]),
                                is_server ? a_mask : NULL);
            websocket_parser_init(&p, is_server, MAX_MESSAGE);
            assert_int_equal(websocket_parser_next(&p, buf_span(&out), &has, &message), out.n);
            assert_true(has);
            assert_true(span_equals(message.payload, span_make(payload, lengths[i])));
            /* The memory of a long one is not kept. */
            assert_int_equal(websocket_parser_next(&p, span_make(NULL, 0), &has, &message), 0);
            assert_true(p.message.room <= 4096);
            websocket_parser_done(&p);
        }
    }
}

static void test_mask_at_any_offset(void **state)
{
    uint8_t whole[61];
    uint8_t parts[61];

    (void)state;
    for (size_t cut = 0; cut <= sizeof(whole); cut++) {
        memset(whole, 0, sizeof(whole));
        memset(parts, 0, sizeof(parts));
        websocket_mask(whole, sizeof(whole), a_mask, 0);
        websocket_mask(parts, cut, a_mask, 0);
        websocket_mask(&parts[cut], sizeof(parts) - cut, a_mask, cut);
        assert_memory_equal(whole, parts, sizeof(whole));
    }
    for (size_t i = 0; i < sizeof(whole); i++) {
        assert_int_equal(whole[i], a_mask[i % 4]);
    }
}

static void test_close_is_cut_between_characters(void **state)
{
    _cleanup_buf_ struct buf reason = buf_make(0);
    _cleanup_buf_ struct buf out = buf_make(0);
    _cleanup_buf_ struct buf text = buf_make(0);
    unsigned int code;

    (void)state;
    for (int i = 0; i < 100; i++) {
        buf_put_str(&reason, "\xc3\xa4");
    }
    websocket_put_close(&out, 4001, buf_str(&reason), a_mask);
    assert_int_equal(transcript(true, buf_span(&out), 3, &text, &code), 0);
    assert_int_equal(text.n, strlen("8:4001:;") + 122);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_close_frames),
        cmocka_unit_test(test_refused_frames),
        cmocka_unit_test(test_limit_over_fragments),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_mask_at_any_offset),
        cmocka_unit_test(test_close_is_cut_between_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
