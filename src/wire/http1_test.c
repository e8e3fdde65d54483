#include "wire/http1.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/buf.h"

#define FIELDS 8

struct head_case {
    const char *text;
    int result; /* 0: the whole text's length */
    enum http1_fault fault;
};

static int parse_whole(struct http1_head *head,
                       struct http1_field *fields,
                       enum http1_kind kind,
                       const char *text)
{
    http1_head_init(head, kind, fields, FIELDS, 512);
    return http1_head_parse(head, span_of_str(text));
}

static int parse_bytewise(struct http1_head *head,
                          struct http1_field *fields,
                          enum http1_kind kind,
                          const char *text)
{
    struct span whole = span_of_str(text);
    int r = 0;

    http1_head_init(head, kind, fields, FIELDS, 512);
    for (size_t n = 1; n <= whole.n && r == 0; n++) {
        r = http1_head_parse(head, span_head(whole, n));
    }
    return r;
}

static void check_cases(const struct head_case *cases, size_t count, enum http1_kind kind)
{
    for (size_t i = 0; i < count; i++) {
        struct http1_field fields[FIELDS];
        struct http1_head head;
        int want = cases[i].result == 0 ? (int)strlen(cases[i].text) : cases[i].result;
        int got = parse_whole(&head, fields, kind, cases[i].text);

        if (got != want || head.fault != cases[i].fault) {
            fail_msg("case %zu %s: got %d fault %d", i, cases[i].text, got, (int)head.fault);
        }
        got = parse_bytewise(&head, fields, kind, cases[i].text);
        if (got != want || head.fault != cases[i].fault) {
            fail_msg("case %zu bytewise: got %d fault %d", i, got, (int)head.fault);
        }
    }
}

#define H "Host: a\r\n"

static const struct head_case request_cases[] = {
    {"GET / HTTP/1.1\r\n" H "\r\n", 0, HTTP1_FAULT_NONE},
    {"GET / HTTP/1.0\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"GET /a?b=c%20[]{}| HTTP/1.1\r\n" H "\r\n", 0, HTTP1_FAULT_NONE},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", 0, HTTP1_FAULT_NONE},
    {"GET http://a:80/x HTTP/1.1\r\n" H "\r\n", 0, HTTP1_FAULT_NONE},
    {"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 9223372036854775807\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"POST / HTTP/1.1\r\n" H "transfer-encoding:  Chunked \r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"GET / HTTP/1.1\r\n" H "X: \x80\xff\t.\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"GET / HTTP/1.1\r\n" H "Empty:\r\n\r\n", 0, HTTP1_FAULT_NONE},

    {"\r\nGET / HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_METHOD},
    {" / HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_METHOD},
    {"G(T / HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_METHOD},
    {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1\r\n", -EBADMSG, HTTP1_FAULT_METHOD},
    {"GET  / HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET /\x01 HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET /a#b HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET a HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET * HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET http:///x HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET http://u@h/x HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET ftp://h/x HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"CONNECT / HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"CONNECT a HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"CONNECT a:65536 HTTP/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET /\r\n\r\n", -EBADMSG, HTTP1_FAULT_TARGET},
    {"GET / HTTP/2.0\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / HTTP/1.2\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / http/1.1\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / HTTP/1.10\r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / HTTP/1.1 \r\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / HTTP/1.1\n" H "\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"GET / HTTP/1.1\r" H "\r\n", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"GET / HTTP/1.1\r\nHost: a\n\r\n", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"GET / HTTP/1.1\r\nHost: a\r\r\n", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"GET / HTTP/1.1\r\n" H "\n", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"GET / HTTP/1.1\r\n" H "\r\r", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"GET / HTTP/1.1\r\n" H " folded\r\n\r\n", -EBADMSG, HTTP1_FAULT_FOLDED},
    {"GET / HTTP/1.1\r\n\tX: y\r\n\r\n", -EBADMSG, HTTP1_FAULT_FOLDED},
    {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", -EBADMSG, HTTP1_FAULT_FIELD_NAME},
    {"GET / HTTP/1.1\r\n: a\r\n\r\n", -EBADMSG, HTTP1_FAULT_FIELD_NAME},
    {"GET / HTTP/1.1\r\nHost\r\n\r\n", -EBADMSG, HTTP1_FAULT_FIELD_NAME},
    {"GET / HTTP/1.1\r\n" H "X: a\x01\r\n\r\n", -EBADMSG, HTTP1_FAULT_FIELD_VALUE},
    {"GET / HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n", -EBADMSG, HTTP1_FAULT_FIELD_VALUE},
    {"GET / HTTP/1.1\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\n" H H "\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.0\r\n" H H "\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\nHost:\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\nHost: a:\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", -EBADMSG, HTTP1_FAULT_HOST},
    {"POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n", -EBADMSG, HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length: +1\r\n\r\n", -EBADMSG, HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1, 1\r\n\r\n", -EBADMSG, HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 0x1\r\n\r\n", -EBADMSG, HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", -EBADMSG, HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 9223372036854775808\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_CONTENT_LENGTH},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_TRANSFER_ENCODING},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_TRANSFER_ENCODING},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
     -EBADMSG, HTTP1_FAULT_TRANSFER_ENCODING},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_TRANSFER_ENCODING},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_FRAMING},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_FRAMING},
    {"POST / HTTP/1.1\r\n" H "Expect: magic\r\n\r\n", -EBADMSG, HTTP1_FAULT_EXPECT},
    {"GET / HTTP/1.1\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\n\r\n", -EMSGSIZE,
     HTTP1_FAULT_FIELD_COUNT},
};

static void test_requests(void **state)
{
    (void)state;
    check_cases(request_cases, sizeof(request_cases) / sizeof(request_cases[0]), HTTP1_REQUEST);
}

static const struct head_case response_cases[] = {
    {"HTTP/1.1 200 OK\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"HTTP/1.0 404 Not\tFound \xe4\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"HTTP/1.1 200 \r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"HTTP/1.1 200\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"HTTP/1.1 200 OK\r\nHost: one\r\nHost: two words\r\n\r\n", 0, HTTP1_FAULT_NONE},
    {"HTTP/1.1 99 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1 600 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1 2000 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1 2x0 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1  200 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1 200 O\x01K\r\n\r\n", -EBADMSG, HTTP1_FAULT_STATUS},
    {"HTTP/1.1 200 OK\n\r\n", -EBADMSG, HTTP1_FAULT_LINE_END},
    {"HTTP/3.0 200 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"ICY 200 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"HTTP/1.1\t200 OK\r\n\r\n", -EBADMSG, HTTP1_FAULT_VERSION},
    {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", -EBADMSG,
     HTTP1_FAULT_FRAMING},
};

static void test_responses(void **state)
{
    (void)state;
    check_cases(response_cases, sizeof(response_cases) / sizeof(response_cases[0]), HTTP1_RESPONSE);
}

static void test_results_are_told(void **state)
{
    static const char text[] = "POST /p/q?x=1 HTTP/1.1\r\nHost: h:8\r\nContent-Length: 12\r\n"
                               "EXPECT: 100-Continue\r\nConnection: foo, Upgrade\r\n"
                               "upgrade:  websocket\t \r\n\r\nbody";
    struct span bytes = span_of_str(text);
    struct http1_field fields[FIELDS];
    struct http1_head head;

    (void)state;
    assert_int_equal(parse_whole(&head, fields, HTTP1_REQUEST, text), (int)(bytes.n - 4));
    assert_true(span_equals_str(http1_slice_span(bytes, head.method), "POST"));
    assert_true(span_equals_str(http1_slice_span(bytes, head.target), "/p/q?x=1"));
    assert_true(span_equals_str(http1_slice_span(bytes, head.host), "h:8"));
    assert_int_equal(head.target_form, HTTP1_TARGET_ORIGIN);
    assert_int_equal(head.content_length, 12);
    assert_int_equal(head.minor, 1);
    assert_int_equal(head.field_count, 5);
    assert_true(span_equals_str(http1_slice_span(bytes, fields[4].name), "upgrade"));
    assert_true(span_equals_str(http1_slice_span(bytes, fields[4].value), "websocket"));
    assert_true(head.is_keep_alive);
    assert_true(head.expects_continue);
    assert_true(head.wants_upgrade);
    assert_int_equal(http1_head_body(&head, false), HTTP1_BODY_LENGTH);
}

static bool keeps_alive(const char *text)
{
    struct http1_field fields[FIELDS];
    struct http1_head head;

    assert_true(parse_whole(&head, fields, HTTP1_REQUEST, text) > 0);
    return head.is_keep_alive;
}

static void test_keep_alive(void **state)
{
    (void)state;
    assert_true(keeps_alive("GET / HTTP/1.1\r\n" H "\r\n"));
    assert_false(keeps_alive("GET / HTTP/1.1\r\n" H "Connection: x , CLOSE\r\n\r\n"));
    assert_false(keeps_alive("GET / HTTP/1.0\r\n\r\n"));
    assert_true(keeps_alive("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    assert_false(keeps_alive("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"));
}

static enum http1_body body_of(const char *text, bool is_bodiless)
{
    struct http1_field fields[FIELDS];
    struct http1_head head;

    assert_true(parse_whole(&head, fields, HTTP1_RESPONSE, text) > 0);
    return http1_head_body(&head, is_bodiless);
}

static void test_response_framing(void **state)
{
    (void)state;
    assert_int_equal(body_of("HTTP/1.1 200 OK\r\n\r\n", false), HTTP1_BODY_UNTIL_CLOSE);
    assert_int_equal(body_of("HTTP/1.1 200 OK\r\n\r\n", true), HTTP1_BODY_NONE);
    assert_int_equal(body_of("HTTP/1.1 204 OK\r\n\r\n", false), HTTP1_BODY_NONE);
    assert_int_equal(body_of("HTTP/1.1 304 OK\r\nContent-Length: 5\r\n\r\n", false),
                     HTTP1_BODY_NONE);
    assert_int_equal(body_of("HTTP/1.1 100 OK\r\n\r\n", false), HTTP1_BODY_NONE);
    assert_int_equal(body_of("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
                     HTTP1_BODY_NONE);
    assert_int_equal(body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
                     HTTP1_BODY_CHUNKED);
}

static void test_head_size_limit(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct http1_field fields[FIELDS];
    struct http1_head head;

    (void)state;
    buf_put_str(&text, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    while (text.n < 508) {
        buf_put_u8(&text, 'x');
    }
    buf_put_str(&text, "\r\n\r\n");
    assert_int_equal(parse_whole(&head, fields, HTTP1_REQUEST, buf_str(&text)), 512);
    buf_clear(&text);
    buf_put_str(&text, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    while (text.n < 509) {
        buf_put_u8(&text, 'x');
    }
    buf_put_str(&text, "\r\n\r\n");
    assert_int_equal(parse_whole(&head, fields, HTTP1_REQUEST, buf_str(&text)), -EMSGSIZE);
    assert_int_equal(head.fault, HTTP1_FAULT_HEAD_SIZE);
    assert_int_equal(parse_bytewise(&head, fields, HTTP1_REQUEST, buf_str(&text)), -EMSGSIZE);
    assert_int_equal(http1_head_parse(&head, buf_span(&text)), -EMSGSIZE);
}

/* A NUL can't be in the tables' strings. */
static void test_nul_bytes_are_refused(void **state)
{
    static const char in_value[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n";
    static const char in_target[] = "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n";
    struct http1_field fields[FIELDS];
    struct http1_head head;

    (void)state;
    http1_head_init(&head, HTTP1_REQUEST, fields, FIELDS, 512);
    assert_int_equal(http1_head_parse(&head, span_make(in_value, sizeof(in_value) - 1)), -EBADMSG);
    http1_head_init(&head, HTTP1_REQUEST, fields, FIELDS, 512);
    assert_int_equal(http1_head_parse(&head, span_make(in_target, sizeof(in_target) - 1)),
                     -EBADMSG);
}

/* ---- chunks ---- */

/* Decodes text in pieces of `step` bytes; the body goes to out. */
static int decode(const char *text, size_t step, struct buf *out, size_t *ret_used)
{
    struct span rest = span_of_str(text);
    struct http1_chunks chunks;

    buf_clear(out);
    *ret_used = 0;
    http1_chunks_init(&chunks);
    while (rest.n > 0 && !http1_chunks_is_done(&chunks)) {
        struct span piece = span_head(rest, step);
        struct span data;
        int r = http1_chunks_next(&chunks, piece, &data);

        if (r < 0) {
            return r;
        }
        assert_true(r > 0);
        buf_put(out, data);
        *ret_used += (size_t)r;
        rest = span_skip(rest, (size_t)r);
    }
    return http1_chunks_is_done(&chunks) ? 1 : 0;
}

struct chunk_case {
    const char *text;
    int result; /* 1: complete */
    const char *body;
    size_t left; /* bytes after the body */
};

static void test_chunks(void **state)
{
    static const struct chunk_case cases[] = {
        {"0\r\n\r\n", 1, "", 0},
        {"5\r\nhello\r\n0\r\n\r\nGET", 1, "hello", 3},
        {"005\r\nhello\r\n3;a=b;c=\"d\"\r\nabc\r\n000\r\n\r\n", 1, "helloabc", 0},
        {"A\r\n0123456789\r\n0\r\nT: x\r\nU:\r\n\r\n", 1, "0123456789", 0},
        {"5\r\nhel", 0, "hel", 0},
        {"\r\n", -EBADMSG, "", 0},
        {"g\r\n", -EBADMSG, "", 0},
        {"0x5\r\nhello", -EBADMSG, "", 0},
        {"-5\r\nhello", -EBADMSG, "", 0},
        {" 5\r\nhello", -EBADMSG, "", 0},
        {"5 \r\nhello", -EBADMSG, "", 0},
        {"5\nhello", -EBADMSG, "", 0},
        {"5\r\rhello", -EBADMSG, "", 0},
        {"5\r\nhelloX\n0\r\n\r\n", -EBADMSG, "hello", 0},
        {"5\r\nhello\n0\r\n\r\n", -EBADMSG, "hello", 0},
        {"5\r\nhello\r0\r\n\r\n", -EBADMSG, "hello", 0},
        {"1000000000000000\r\n", -EBADMSG, "", 0},
        {"fffffffffffffffff\r\n", -EBADMSG, "", 0},
        {"5;\x01\r\n", -EBADMSG, "", 0},
        {"5;a\nb\r\n", -EBADMSG, "", 0},
        {"0\r\nT : x\r\n\r\n", -EBADMSG, "", 0},
        {"0\r\n T: x\r\n\r\n", -EBADMSG, "", 0},
        {"0\r\nT: x\n\r\n", -EBADMSG, "", 0},
        {"0\r\n\rX", -EBADMSG, "", 0},
    };
    _cleanup_buf_ struct buf body = buf_make(0);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t step = 1; step < 64; step++) {
            size_t used;
            int r = decode(cases[i].text, step, &body, &used);

            if (r != cases[i].result || strcmp(buf_str(&body), cases[i].body) != 0) {
                fail_msg("case %zu step %zu: %d %s", i, step, r, buf_str(&body));
            }
            if (r == 1) {
                assert_int_equal(strlen(cases[i].text) - used, cases[i].left);
            }
        }
    }
}

static void
check_repeated(const char *start, const char *part, size_t times, const char *end, int result)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf body = buf_make(0);
    size_t used;

    buf_put_str(&text, start);
    for (size_t i = 0; i < times; i++) {
        buf_put_str(&text, part);
    }
    buf_put_str(&text, end);
    assert_int_equal(decode(buf_str(&text), 7, &body, &used), result);
    assert_int_equal(decode(buf_str(&text), 1U << 20U, &body, &used), result);
}

static void test_chunk_limits(void **state)
{
    (void)state;
    check_repeated("1;", "x", 256, "\r\na\r\n0\r\n\r\n", 1);
    check_repeated("1;", "x", 257, "\r\na\r\n0\r\n\r\n", -EMSGSIZE);
    check_repeated("", "1;0123456789abcdef0123456789abcdef\r\na\r\n", 128, "0\r\n\r\n", 1);
    check_repeated("", "1;0123456789abcdef0123456789abcdef\r\na\r\n", 129, "0\r\n\r\n", -EMSGSIZE);
    check_repeated("0\r\n", "T: x\r\n", 64, "\r\n", 1);
    check_repeated("0\r\n", "T: x\r\n", 65, "\r\n", -EMSGSIZE);
    check_repeated("0\r\nT: ", "x", 8185, "\r\n\r\n", 1);
    check_repeated("0\r\nT: ", "x", 8186, "\r\n\r\n", -EMSGSIZE);
}

/* ---- formatting ---- */

static void test_format(void **state)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    char head[HTTP1_CHUNK_HEAD_SIZE];

    (void)state;
    assert_int_equal(http1_put_request_line(&out, span_of_str("GET"), span_of_str("/a?b")), 0);
    assert_int_equal(http1_put_field(&out, span_of_str("X-Y"), span_of_str("v w")), 0);
    http1_put_end(&out);
    assert_string_equal(buf_str(&out), "GET /a?b HTTP/1.1\r\nX-Y: v w\r\n\r\n");
    assert_int_equal(http1_put_field(&out, span_of_str("X"), span_of_str("a\r\nB: c")), -EBADMSG);
    assert_int_equal(http1_put_field(&out, span_of_str("X:"), span_of_str("a")), -EBADMSG);
    assert_int_equal(http1_put_field(&out, span_of_str(""), span_of_str("a")), -EBADMSG);
    assert_int_equal(http1_put_request_line(&out, span_of_str("G T"), span_of_str("/")), -EBADMSG);
    assert_int_equal(http1_put_request_line(&out, span_of_str("GET"), span_of_str("/ x")),
                     -EBADMSG);
    assert_int_equal(http1_put_status_line(&out, 42), -EBADMSG);
    buf_clear(&out);
    assert_int_equal(http1_put_status_line(&out, 413), 0);
    assert_string_equal(buf_str(&out), "HTTP/1.1 413 Content Too Large\r\n");
    assert_int_equal(http1_format_chunk_head(0, head), 3);
    assert_memory_equal(head, "0\r\n", 3);
    assert_int_equal(http1_format_chunk_head(0x1f0, head), 5);
    assert_memory_equal(head, "1f0\r\n", 5);
    assert_int_equal(http1_format_chunk_head(UINT64_MAX, head), 18);
    assert_string_equal(http1_status_text(299), "");
    assert_string_equal(http1_fault_text((enum http1_fault)999), http1_fault_text(0));
    for (int i = HTTP1_FAULT_METHOD; i <= HTTP1_FAULT_TRAILER; i++) {
        assert_true(http1_fault_field((enum http1_fault)i)[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_results_are_told),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_response_framing),
        cmocka_unit_test(test_head_size_limit),
        cmocka_unit_test(test_nul_bytes_are_refused),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_chunk_limits),
        cmocka_unit_test(test_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
