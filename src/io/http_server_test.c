/* The server against well-behaved and ill-behaved clients on real sockets. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "io/http_conn.h"
#include "io/http_test_rig.h"
#include "io/listen.h"

static const struct http_server_limits plain_limits = {.max_connections = 300};

/* Sends a request on a fresh connection and reads the one answer. */
static struct rig_answer ask(const struct rig *rig, const char *request)
{
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    rig_send(fd, request);
    rig_read_answer(fd, &left, strncmp(request, "HEAD", 4) == 0, &answer);
    return answer;
}

static void expect(const struct rig *rig, const char *request, int status, const char *body)
{
    struct rig_answer answer = ask(rig, request);

    if (answer.status != status || (body != NULL && strcmp(buf_str(&answer.body), body) != 0)) {
        fail_msg("%s: got %d %s", request, answer.status, buf_str(&answer.body));
    }
    rig_answer_done(&answer);
}

#define H " HTTP/1.1\r\nHost: t\r\n"

static void test_accessors(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);

    (void)state;
    expect(rig, "GET /" H "\r\n", 200, "hello");
    expect(rig, "GET /facts?a=b?c" H "X-Fact:  one \r\nx-fact: two\r\n\r\n", 200,
           "GET|/facts|a=b?c|one|2|127.0.0.1|0");
    expect(rig, "POST /facts" H "Content-Length: 3\r\n\r\nabc", 200,
           "POST|/facts||(none)|0|127.0.0.1|3");
    expect(rig, "POST /facts" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200,
           "POST|/facts||(none)|0|127.0.0.1|-1");
    rig_wait(&rig_counters(rig)->closed_complete, 4);
    assert_int_equal(rig_counters(rig)->closed_incomplete, 0);
    rig_stop(rig);
}

static void test_answer_heads(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    struct rig_answer answer = ask(rig, "GET /" H "\r\n");

    (void)state;
    assert_non_null(strstr(answer.head, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(answer.head, "\r\nContent-Length: 5\r\n"));
    assert_non_null(strstr(answer.head, " GMT\r\n"));
    assert_null(strstr(answer.head, "Connection:"));
    rig_answer_done(&answer);

    answer = ask(rig, "GET /" H "Connection: close\r\n\r\n");
    assert_non_null(strstr(answer.head, "\r\nConnection: close\r\n"));
    rig_answer_done(&answer);

    answer = ask(rig, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_non_null(strstr(answer.head, "\r\nConnection: keep-alive\r\n"));
    rig_answer_done(&answer);

    answer = ask(rig, "GET /none" H "\r\n");
    assert_int_equal(answer.status, 204);
    assert_null(strstr(answer.head, "Content-Length"));
    rig_answer_done(&answer);

    answer = ask(rig, "GET /split" H "\r\n");
    assert_string_equal(buf_str(&answer.body), "safe");
    assert_null(strstr(answer.head, "Evil"));
    rig_answer_done(&answer);
    rig_stop(rig);
}

static void test_head_requests(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "HEAD /" H "\r\nHEAD /parts" H "\r\nHEAD /file-fixed" H "\r\nGET /" H "\r\n");
    rig_read_answer(fd, &left, true, &answer);
    assert_non_null(strstr(answer.head, "Content-Length: 5\r\n"));
    rig_read_answer(fd, &left, true, &answer);
    assert_non_null(strstr(answer.head, "Transfer-Encoding: chunked\r\n"));
    rig_read_answer(fd, &left, true, &answer);
    assert_non_null(strstr(answer.head, "Content-Length: 8388609\r\n"));
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "hello");
    rig_answer_done(&answer);
    rig_stop(rig);
}

static void test_bodies(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);

    (void)state;
    expect(rig, "POST /echo" H "Content-Length: 3\r\n\r\nabc", 200, "abc");
    expect(rig, "GET /echo" H "\r\n", 200, "");
    expect(rig, "POST /echo" H "Content-Length: 0\r\n\r\n", 200, "");
    expect(rig,
           "POST /echo" H "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nT: "
           "x\r\n\r\n",
           200, "abc");
    expect(rig, "POST /echo-stream" H "Content-Length: 3\r\n\r\nabc", 200, "abc");
    expect(rig, "GET /echo-stream" H "\r\n", 200, "");
    expect(rig, "POST /count" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, "0 0");
    expect(rig, "POST /echo" H "Content-Length: 1000001\r\n\r\n", 413,
           "payload_too_large body: the request body is larger than 1000000 bytes");
    expect(rig, "POST /echo" H "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400,
           "invalid_request body: a chunk of the body is malformed");
    expect(rig, "POST /count" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX", 400,
           "invalid_request body: a chunk of the body is malformed");
    expect(rig, "POST /echo" H "Transfer-Encoding: chunked\r\n\r\n0\r\n: x\r\n\r\n", 400,
           "invalid_request trailers: the trailers are malformed or too long");
    expect(rig, "GET /parts" H "\r\n", 200, "helloworld");
    expect(rig, "GET /parts-fixed" H "\r\n", 200, "helloworld");
    expect(rig, "GET /parts HTTP/1.0\r\n\r\n", 200, "helloworld");
    expect(rig, "GET /later" H "\r\n", 200, "later");
    rig_stop(rig);
}

/* A cut answer must look cut: fewer bytes than declared, no last chunk, or a reset. */
static void test_broken_answers_look_broken(void **state)
{
    static const char *const paths[] = {"/abort", "/parts-less", "/parts-more", "/file-short"};
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        char request[128];
        struct rig_answer answer;

        (void)snprintf(request, sizeof(request), "GET %s" H "\r\n", paths[i]);
        answer = ask(rig, request);
        assert_true(answer.closed);
        rig_answer_done(&answer);
    }
    rig_wait(&rig_counters(rig)->closed_incomplete, 4);
    for (size_t i = 0; i < 2; i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf all = buf_make(0);

        rig_send(fd, "GET /abort HTTP/1.0\r\n\r\n");
        assert_true(rig_read_to_end(fd, &all)); /* a reset, since the end has no other mark */
    }
    rig_stop(rig);
}

struct refusal {
    const char *request;
    int status;
    const char *field;
};

static void test_malformed_requests_are_refused(void **state)
{
    static const struct refusal cases[] = {
        {"\r\n\r\n", 400, "method"},
        {"GET /\r\n\r\n", 400, "target"},
        {"GET / HTTP/1.1\n\n", 400, "version"},
        {"GET / HTTP/2.0\r\nHost: t\r\n\r\n", 400, "version"},
        {"GET http://t/ HTTP/1.1\r\nHost: t\r\n\r\n", 400, "target"},
        {"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "target"},
        {"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n", 400, "target"},
        {"GET / HTTP/1.1\r\n\r\n", 400, "Host"},
        {"GET / HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n", 400, "Host"},
        {"GET / HTTP/1.1\r\nHost: t\r\n X: y\r\n\r\n", 400, "headers"},
        {"GET / HTTP/1.1\r\nHost: t\r\nX : y\r\n\r\n", 400, "headers"},
        {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400,
         "Content-Length"},
        {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\na", 400, "Content-Length"},
        {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\na", 400,
         "Transfer-Encoding"},
        {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
         400, "Transfer-Encoding"},
        {"POST / HTTP/1.1\r\nHost: t\r\nExpect: x\r\n\r\n", 400, "Expect"},
        {"GET / HTTP/1.1\r\nHost: t\r\nX-Odd: a\x01\r\n\r\n", 400, "X-Odd"},
        {"GET / HTTP/1.1\r\nHost: t\r\nX: a\rb\r\n\r\n", 400, "head"},
        {"\x16\x03\x01\x02\x01 tls", 400, "method"},
        {"GET / HTTP/1.1\r\nHost: t\r\na:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\n\r\n", 413,
         "headers"},
    };
    const struct http_server_limits limits = {
        .max_connections = 300,
        .max_headers = 8,
        .max_head_bytes = 1000,
    };
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    char big[2048];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf left = buf_make(0);
        struct rig_answer answer;
        char begin[128];

        (void)snprintf(
            begin, sizeof(begin), "%s %s: %s",
            cases[i].status == 413 ? "payload_too_large" : "invalid_request", cases[i].field,
            cases[i].status == 413 ? "there are more than 8 headers, a limit without a setting"
                                   : "");
        rig_send(fd, cases[i].request);
        rig_read_answer(fd, &left, false, &answer);
        if (answer.status != cases[i].status || strstr(answer.head, "Connection: close") == NULL ||
            strncmp(buf_str(&answer.body), begin, strlen(begin)) != 0) {
            fail_msg("case %zu: got %d %s", i, answer.status, buf_str(&answer.body));
        }
        rig_answer_done(&answer);
        assert_false(rig_read_to_end(fd, &left));
        assert_int_equal(left.n, 0);
    }
    (void)snprintf(big, sizeof(big), "GET /%01500d" H "\r\n", 0);
    expect(
        rig, big, 413,
        "payload_too_large head: the request line and headers are larger than 1000 bytes, a limit "
        "without a setting");
    assert_int_equal(rig_counters(rig)->requests, 0);
    rig_stop(rig);
}

static void test_requests_in_single_bytes(void **state)
{
    static const char request[] = "POST /echo" H "Transfer-Encoding: chunked\r\n\r\n"
                                  "3\r\nabc\r\n0\r\n\r\nGET /" H "\r\n";
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    for (size_t i = 0; i < sizeof(request) - 1; i++) {
        rig_send_bytes(fd, span_make(&request[i], 1));
        if (i % 3 == 0) {
            (void)usleep(100); /* only to make separate reads likely; nothing depends on it */
        }
    }
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "abc");
    rig_answer_done(&answer);
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "hello");
    rig_answer_done(&answer);
    rig_stop(rig);
}

static void test_pipelining_keeps_order(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    for (int i = 0; i < 50; i++) {
        rig_send(fd, "GET /later" H "\r\nPOST /echo" H "Content-Length: 2\r\n\r\nxyPOST /" H
                     "Content-Length: 4\r\n\r\nlostGET /none" H "\r\n");
    }
    for (int i = 0; i < 50; i++) {
        rig_read_answer(fd, &left, false, &answer);
        assert_string_equal(buf_str(&answer.body), "later");
        rig_answer_done(&answer);
        rig_read_answer(fd, &left, false, &answer);
        assert_string_equal(buf_str(&answer.body), "xy");
        rig_answer_done(&answer);
        rig_read_answer(fd, &left, false, &answer);
        assert_string_equal(buf_str(&answer.body), "hello");
        rig_answer_done(&answer);
        rig_read_answer(fd, &left, false, &answer);
        assert_int_equal(answer.status, 204);
    }
    rig_wait(&rig_counters(rig)->closed_complete, 200);
    rig_stop(rig);
}

static void test_expect_continue(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "POST /echo" H "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, 100);
    rig_send(fd, "abc");
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "abc");
    rig_answer_done(&answer);
    /* A final answer without the body: the connection can't go on. */
    rig_send(fd, "POST /" H "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "Connection: close\r\n"));
    rig_answer_done(&answer);
    assert_false(rig_read_to_end(fd, &left));
    (void)close(fd);
    /* Too large is known before the body is asked for. */
    fd = rig_connect(rig);
    rig_send(fd, "POST /echo" H "Content-Length: 3000000\r\nExpect: 100-continue\r\n\r\n");
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, 413);
    rig_answer_done(&answer);
    (void)close(fd);
    rig_stop(rig);
}

static void test_unread_bodies(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    _cleanup_buf_ struct buf body = buf_make(0);
    struct rig_answer answer;

    (void)state;
    while (body.n < 200000) {
        buf_put_str(&body, "0123456789");
    }
    /* A small one is read and dropped, and the connection goes on. */
    rig_send(fd, "POST /" H "Content-Length: 200000\r\n\r\n");
    rig_send_bytes(fd, buf_span(&body));
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "hello");
    rig_answer_done(&answer);
    /* A large one is not worth it: the answer arrives whole, then the connection ends. */
    rig_send(fd, "POST /" H "Content-Length: 100000000\r\n\r\n");
    rig_send_bytes(fd, buf_span(&body));
    rig_read_answer(fd, &left, false, &answer);
    assert_string_equal(buf_str(&answer.body), "hello");
    rig_answer_done(&answer);
    assert_false(rig_read_to_end(fd, &left));
    rig_stop(rig);
}

static void test_clients_that_leave(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    struct rig_counters *counters = rig_counters(rig);
    int fd = rig_connect(rig);

    (void)state;
    rig_send(fd, "GET /hang" H "\r\n");
    rig_wait(&counters->requests, 1);
    (void)close(fd);
    rig_wait(&counters->closed_incomplete, 1);
    fd = rig_connect(rig);
    rig_send(fd, "POST /echo" H "Content-Length: 10\r\n\r\nabc");
    rig_wait(&counters->requests, 2);
    (void)close(fd);
    rig_wait(&counters->closed_incomplete, 2);
    fd = rig_connect(rig);
    rig_send(fd, "GET /big" H "\r\n");
    rig_wait(&counters->requests, 3);
    (void)close(fd);
    rig_wait(&counters->closed_incomplete, 3);
    assert_int_equal(counters->closed_complete, 0);
    rig_stop(rig);
}

static void test_half_closed_client_gets_its_answer(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf all = buf_make(0);

    (void)state;
    rig_send(fd, "GET /file-fixed" H "\r\n");
    (void)shutdown(fd, SHUT_WR);
    assert_false(rig_read_to_end(fd, &all));
    assert_true(all.n > RIG_BIG_BYTES);
    rig_wait(&rig_counters(rig)->closed_complete, 1);
    rig_stop(rig);
}

static void test_open_exchanges_end_with_the_server(void **state)
{
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_close_ int other = rig_connect(rig);
    _cleanup_buf_ struct buf all = buf_make(0);

    (void)state;
    rig_send(fd, "GET /hang" H "\r\n");
    rig_send(other, "GET /later" H "Connec");
    rig_wait(&rig_counters(rig)->requests, 1);
    rig_stop(rig);
    (void)rig_read_to_end(fd, &all);
    assert_int_equal(all.n, 0);
}

static void test_too_many_connections(void **state)
{
    const struct http_server_limits limits = {.max_connections = 2};
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int first = rig_connect(rig);
    _cleanup_close_ int second = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(first, "GET /hang" H "\r\n");
    rig_send(second, "GET /hang" H "\r\n");
    rig_wait(&rig_counters(rig)->requests, 2);
    for (int i = 0; i < 3; i++) {
        int third = rig_connect(rig);

        rig_send(third, "GET /" H "\r\n");
        rig_read_answer(third, &left, false, &answer);
        assert_int_equal(answer.status, 503);
        rig_answer_done(&answer);
        assert_false(rig_read_to_end(third, &left));
        (void)close(third);
    }
    assert_int_equal(rig_counters(rig)->requests, 2);
    assert_int_equal(rig_counters(rig)->refused, 3);
    rig_stop(rig);
}

static void test_idle_connections_make_room(void **state)
{
    const struct http_server_limits limits = {.max_connections = 2};
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int busy = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    int fds[5];

    (void)state;
    rig_send(busy, "GET /hang" H "\r\n");
    rig_wait(&rig_counters(rig)->requests, 1);
    for (int i = 0; i < 5; i++) {
        struct rig_answer answer;

        fds[i] = rig_connect(rig);
        rig_send(fds[i], "GET /" H "\r\n");
        rig_read_answer(fds[i], &left, false, &answer);
        assert_int_equal(answer.status, 200);
        rig_answer_done(&answer);
    }
    for (int i = 0; i < 5; i++) {
        if (i < 4) {
            (void)rig_read_to_end(fds[i], &left);
        }
        (void)close(fds[i]);
    }
    assert_int_equal(left.n, 0);
    rig_stop(rig);
}

static const struct http_server_limits hasty_limits = {
    .max_connections = 300,
    .header_timeout_ms = 60,
    .idle_timeout_ms = 80,
};

static void test_slow_heads_are_refused(void **state)
{
    struct rig *rig = rig_start(&hasty_limits, NULL, NULL, NULL);
    _cleanup_close_ int slow = rig_connect(rig);
    _cleanup_close_ int silent = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;
    int64_t start_ms = clock_monotonic_ms();

    (void)state;
    rig_send(slow, "GET / HTTP/1.1\r\nHos");
    rig_read_answer(slow, &left, false, &answer);
    assert_int_equal(answer.status, 400);
    assert_non_null(strstr(buf_str(&answer.body), "invalid_request head: "));
    assert_true(clock_monotonic_ms() - start_ms >= 55);
    rig_answer_done(&answer);
    assert_false(rig_read_to_end(slow, &left));
    assert_false(rig_read_to_end(silent, &left));
    assert_int_equal(left.n, 0);
    rig_stop(rig);
}

static void test_idle_connections_end(void **state)
{
    struct rig *rig = rig_start(&hasty_limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "GET /" H "\r\n");
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, 200);
    rig_answer_done(&answer);
    assert_false(rig_read_to_end(fd, &left));
    assert_int_equal(left.n, 0);
    rig_stop(rig);
}

static void test_stalled_bodies_and_readers_end(void **state)
{
    struct rig *rig = rig_start(&hasty_limits, NULL, NULL, NULL);
    struct rig_counters *counters = rig_counters(rig);
    const int small = 65536;
    int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);

    (void)state;
    rig_send(fd, "POST /echo" H "Content-Length: 10\r\n\r\nabc");
    assert_false(rig_read_to_end(fd, &left));
    assert_int_equal(left.n, 0);
    (void)close(fd);
    rig_wait(&counters->closed_incomplete, 1);
    /* Asks for much and never reads; the kernel must not hold it all. */
    fd = rig_connect(rig);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    rig_send(fd, "GET /big" H "\r\n");
    rig_wait(&counters->closed_incomplete, 2);
    assert_true(counters->max_queued <= 262144 + 65536);
    (void)close(fd);
    rig_stop(rig);
}

static void test_thinking_is_not_stalling(void **state)
{
    const struct http_server_limits limits = {
        .max_connections = 10,
        .header_timeout_ms = 2000,
        .idle_timeout_ms = 2,
    };
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);

    (void)state;
    expect(rig, "GET /later" H "\r\n", 200, "later"); /* takes 5 ms */
    rig_stop(rig);
}

static void test_unix_socket(void **state)
{
    char directory[] = "/tmp/http-unix-XXXXXX";
    char path[128];
    char want[128];
    struct rig *rig;
    struct error err;
    struct stat st;
    int fd;
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof(path), "%s/s", directory);
    fd = listen_unix(path, 0600, (gid_t)-1, &err);
    assert_true(fd >= 0);
    assert_int_equal(listen_unix(path, 0600, (gid_t)-1, &err), -EADDRINUSE);
    (void)close(fd); /* a stale socket stays behind */
    rig = rig_start(&plain_limits, path, NULL, NULL);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    fd = rig_connect_unix(path);
    rig_send(fd, "GET /facts" H "\r\n");
    rig_read_answer(fd, &left, false, &answer);
    (void)snprintf(want, sizeof(want), "GET|/facts||(none)|0|unix:%u|0", geteuid());
    assert_string_equal(buf_str(&answer.body), want);
    rig_answer_done(&answer);
    (void)close(fd);
    rig_stop(rig);
    assert_int_equal(stat(path, &st), -1);
    assert_int_equal(rmdir(directory), 0);
}

static void test_listen_errors(void **state)
{
    static const char *const bad[] = {"",      "127.0.0.1", "127.0.0.1:", "localhost:1",
                                      "[::1]", "[::1:80",   ":80x",       "127.0.0.1:70000"};
    struct rig *rig = rig_start(&plain_limits, NULL, NULL, NULL);
    char address[64];
    char path[256];
    struct error err;
    int fd;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        fd = listen_tcp(bad[i], &err);
        if (fd >= 0) {
            fail_msg("listened on %s", bad[i]);
        }
    }
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", rig_port(rig));
    assert_int_equal(listen_tcp(address, &err), -EADDRINUSE);
    assert_non_null(strstr(err.message, address));
    fd = listen_tcp("[::1]:0", &err);
    assert_true(fd >= 0 || err.errnum == EADDRNOTAVAIL);
    if (fd >= 0) {
        (void)close(fd);
    }
    (void)snprintf(path, sizeof(path), "/%0200d", 0);
    assert_int_equal(listen_unix(path, 0600, (gid_t)-1, &err), -ENAMETOOLONG);
    assert_int_equal(listen_unix("/nonexistent/s", 0600, (gid_t)-1, &err), -ENOENT);
    rig_stop(rig);
}

static void test_idle_connections_are_small(void **state)
{
    (void)state;
    assert_true(sizeof(struct http_conn) <= 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accessors),
        cmocka_unit_test(test_answer_heads),
        cmocka_unit_test(test_head_requests),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_broken_answers_look_broken),
        cmocka_unit_test(test_malformed_requests_are_refused),
        cmocka_unit_test(test_requests_in_single_bytes),
        cmocka_unit_test(test_pipelining_keeps_order),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_unread_bodies),
        cmocka_unit_test(test_clients_that_leave),
        cmocka_unit_test(test_half_closed_client_gets_its_answer),
        cmocka_unit_test(test_open_exchanges_end_with_the_server),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_idle_connections_make_room),
        cmocka_unit_test(test_slow_heads_are_refused),
        cmocka_unit_test(test_idle_connections_end),
        cmocka_unit_test(test_stalled_bodies_and_readers_end),
        cmocka_unit_test(test_thinking_is_not_stalling),
        cmocka_unit_test(test_unix_socket),
        cmocka_unit_test(test_listen_errors),
        cmocka_unit_test(test_idle_connections_are_small),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
