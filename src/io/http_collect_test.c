/* The limit on all collected bodies together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/http_test_rig.h"

#define H       " HTTP/1.1\r\nHost: t\r\n"
#define LIMIT   100000U
#define BODY    40000U /* which takes 65,536 bytes of memory */
#define CHUNKED "Transfer-Encoding: chunked\r\n\r\n"
#define CROWDED "service_unavailable : too many large request bodies at once; try again"
#define BROKEN  "invalid_request body: a chunk of the body is malformed"

static const struct http_server_limits limits = {.max_connections = 30,
                                                 .max_collected_bytes = LIMIT};
static const uint8_t zeros[BODY];

static void expect(int fd, int status, size_t length, const char *text)
{
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, status);
    assert_int_equal(answer.body.n, length);
    if (text != NULL) {
        assert_string_equal(buf_str(&answer.body), text);
    }
    rig_answer_done(&answer);
}

/* Begins a chunked body of which BODY bytes are there, seen by the server. */
static int begin_at(struct rig *rig, const char *path)
{
    int fd = rig_connect(rig);
    int before = rig_counters(rig)->requests;
    int other;

    rig_send(fd, "POST ");
    rig_send(fd, path);
    rig_send(fd, H CHUNKED);
    rig_wait(&rig_counters(rig)->requests, before + 1);
    rig_send(fd, "9c40\r\n");
    rig_send_bytes(fd, span_make(zeros, sizeof(zeros)));
    rig_send(fd, "\r\n");
    /* What is answered behind it has been read after it. */
    other = rig_connect(rig);
    rig_send(other, "GET /" H "\r\n");
    expect(other, 200, 5, "hello");
    (void)close(other);
    return fd;
}

static int begin(struct rig *rig)
{
    return begin_at(rig, "/echo");
}

static void finish(int fd)
{
    rig_send(fd, "0\r\n\r\n");
    expect(fd, 200, BODY, NULL);
    (void)close(fd);
}

static void expect_crowded_at(struct rig *rig, const char *path, bool is_chunked)
{
    int fd = rig_connect(rig);

    rig_send(fd, "POST ");
    rig_send(fd, path);
    if (is_chunked) {
        rig_send(fd, H CHUNKED "9c40\r\n");
        rig_send_bytes(fd, span_make(zeros, sizeof(zeros)));
    } else {
        rig_send(fd, H "Content-Length: 40000\r\n\r\n"); /* refused before it comes */
    }
    expect(fd, 503, strlen(CROWDED), CROWDED);
    (void)close(fd);
}

static void expect_crowded(struct rig *rig, bool is_chunked)
{
    expect_crowded_at(rig, "/echo", is_chunked);
}

static void expect_room(struct rig *rig)
{
    int fd = begin(rig);

    finish(fd);
}

/* The one that is too much is refused; the others, and whatever is small, go on. */
static void test_limit(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    int first;
    int small;

    (void)state;
    for (int round = 0; round < 3; round++) {
        first = begin(rig);
        /* One that has all is held only as long as it is collected: seen when a small one is
         * answered behind it. */
        small = rig_connect(rig);
        rig_send(small, "POST /echo" H "Content-Length: 5\r\n\r\nsmall");
        expect(small, 200, 5, "small");
        expect_crowded(rig, true);
        expect_crowded(rig, false);
        rig_send(small, "GET /" H "\r\n");
        expect(small, 200, 5, "hello");
        (void)close(small);
        finish(first);
        expect_room(rig);
    }
    rig_stop(rig); /* the server checks that nothing is left */
}

/* Whatever ends a body gives its memory back. */
static void test_every_path_frees(void **state)
{
    static const char *const ends[] = {
        NULL,        /* the client leaves */
        "zz\r\n",    /* a broken chunk */
        "fffff\r\n", /* and then too much, see below */
    };
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        int closed = rig_counters(rig)->closed_complete + rig_counters(rig)->closed_incomplete;
        int fd = begin(rig);

        if (ends[i] != NULL) {
            rig_send(fd, ends[i]);
        }
        if (i == 1) {
            expect(fd, 400, strlen(BROKEN), BROKEN);
        } else if (i == 2) {
            rig_send_bytes(fd, span_make(zeros, sizeof(zeros)));
            expect(fd, 503, strlen(CROWDED), CROWDED);
        }
        (void)close(fd);
        while (rig_counters(rig)->closed_complete + rig_counters(rig)->closed_incomplete ==
               closed) {
            (void)usleep(1000);
        }
        expect_room(rig);
    }
    rig_stop(rig);
}

/* Its bodies take a quarter at most, but that the first may take more; others have the rest. */
static void test_payers(void **state)
{
    static const struct http_server_limits wide = {.max_connections = 30,
                                                   .max_collected_bytes = 262144};
    struct rig *rig = rig_start(&wide, NULL, NULL, NULL);
    int first;
    int fd;

    (void)state;
    first = begin_at(rig, "/paid");
    expect_crowded_at(rig, "/paid", true);
    expect_crowded_at(rig, "/paid", false);
    finish(begin_at(rig, "/paid-by-another"));
    finish(begin(rig));
    fd = rig_connect(rig);
    rig_send(fd, "POST /paid" H "Content-Length: 5\r\n\r\nsmall");
    expect(fd, 200, 5, "small");
    (void)close(fd);
    finish(first);
    fd = rig_connect(rig);
    rig_send(fd, "POST /paid" H "Content-Length: 120000\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        rig_send_bytes(fd, span_make(zeros, sizeof(zeros)));
    }
    expect(fd, 200, (size_t)3 * BODY, NULL);
    (void)close(fd);
    rig_stop(rig);
}

/* A body of the largest that is accepted has its place. */
static void test_the_largest(void **state)
{
    static const struct http_server_limits large = {.max_connections = 30,
                                                    .max_body_bytes = 1U << 30};
    struct rig *rig = rig_start(&large, NULL, NULL, NULL);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;
    int fd = rig_connect(rig);

    (void)state;
    rig_send(fd, "POST /large" H "Expect: 100-continue\r\nContent-Length: 1073741824\r\n\r\n");
    rig_read_answer(fd, &left, true, &answer);
    assert_int_equal(answer.status, 100);
    rig_answer_done(&answer);
    (void)close(fd);
    rig_stop(rig);
}

/* A request that waits for the go-ahead is refused instead. */
static void test_expect_continue(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    int first = begin(rig);
    int fd = rig_connect(rig);

    (void)state;
    rig_send(fd, "POST /echo" H "Expect: 100-continue\r\nContent-Length: 90000\r\n\r\n");
    expect(fd, 503, strlen(CROWDED), CROWDED);
    (void)close(fd);
    finish(first);
    rig_stop(rig);
}

/* One body that could never fit, and the limit's default. */
static void test_default(void **state)
{
    static const struct http_server_limits none = {.max_connections = 30};
    static uint8_t body[900000];
    struct rig *rig = rig_start(&none, NULL, NULL, NULL);
    int fds[20];

    (void)state;
    for (int i = 0; i < 20; i++) {
        fds[i] = rig_connect(rig);
        rig_send(fds[i], "POST /echo" H "Content-Length: 900001\r\n\r\n");
        rig_send_bytes(fds[i], span_make(body, sizeof(body)));
    }
    for (int i = 0; i < 20; i++) {
        rig_send(fds[i], "x");
        expect(fds[i], 200, sizeof(body) + 1, NULL);
        (void)close(fds[i]);
    }
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit),           cmocka_unit_test(test_every_path_frees),
        cmocka_unit_test(test_payers),          cmocka_unit_test(test_the_largest),
        cmocka_unit_test(test_expect_continue), cmocka_unit_test(test_default),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
