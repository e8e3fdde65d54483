/* Large bodies both ways, many clients beside slow ones, and TLS. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/socket.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "base/fd.h"
#include "io/http_conn.h"
#include "io/http_test_rig.h"
#include "io/tls_test_rig.h"

#define H            " HTTP/1.1\r\nHost: t\r\n"
#define CLIENTS      200
#define UPLOAD_BYTES 50000000U
#define QUEUE_LIMIT  (262144U + 2U * CONN_READ_BYTES)

static const struct http_server_limits limits = {.max_connections = 300};

static void check_pattern(struct span body, uint64_t first, size_t total)
{
    assert_int_equal(body.n, total);
    for (size_t i = 0; i < body.n; i++) {
        if (body.p[i] != rig_pattern(first + i)) {
            fail_msg("byte %zu differs", i);
        }
    }
}

static void test_large_answers(void **state)
{
    static const char *const requests[] = {"GET /big" H "\r\n", "GET /big-fixed" H "\r\n",
                                           "GET /big HTTP/1.0\r\n\r\n"};
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf left = buf_make(0);
        struct rig_answer answer;

        rig_send(fd, requests[i]);
        rig_read_answer(fd, &left, false, &answer);
        assert_int_equal(answer.status, 200);
        check_pattern(buf_span(&answer.body), 0, RIG_BIG_BYTES);
        rig_answer_done(&answer);
    }
    assert_true(rig_counters(rig)->max_queued <= (int)QUEUE_LIMIT);
    rig_stop(rig);
}

static void check_file_answer(const struct rig_answer *answer)
{
    struct span body = buf_span(&answer->body);

    assert_int_equal(answer->status, 200);
    assert_int_equal(body.n, RIG_BIG_BYTES + 1);
    assert_int_equal(body.p[0], '<');
    assert_int_equal(body.p[RIG_BIG_BYTES], '>');
    check_pattern(span_head(span_skip(body, 1), RIG_BIG_BYTES - 1), 1, RIG_BIG_BYTES - 1);
}

static void test_file_answers(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "GET /file" H "\r\nGET /file-fixed" H "\r\n");
    rig_read_answer(fd, &left, false, &answer);
    check_file_answer(&answer);
    rig_answer_done(&answer);
    rig_read_answer(fd, &left, false, &answer);
    check_file_answer(&answer);
    rig_answer_done(&answer);
    rig_wait(&rig_counters(rig)->closed_complete, 2);
    rig_stop(rig);
}

/* Every piece leaves at once: the next one is asked for all the same. */
static void test_file_in_pieces(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "GET /file-pieces" H "\r\n");
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.n, 10000);
    check_pattern(buf_span(&answer.body), 0, 10000);
    rig_answer_done(&answer);
    rig_send(fd, "HEAD /file-pieces" H "\r\n");
    rig_read_answer(fd, &left, true, &answer);
    assert_int_equal(answer.status, 200);
    rig_answer_done(&answer);
    rig_wait(&rig_counters(rig)->closed_complete, 2);
    rig_stop(rig);
}

struct upload {
    int fd;
    bool chunked;
    uint64_t total;
    pthread_t thread;
};

static void *upload_main(void *arg)
{
    const struct upload *upload = arg;
    uint8_t piece[40000];
    char head[32];
    uint64_t position = 0;

    while (position < upload->total) {
        size_t n = 0;

        while (n < sizeof(piece) && position + n < upload->total) {
            piece[n] = rig_pattern(position + n);
            n++;
        }
        position += n;
        if (upload->chunked) {
            (void)snprintf(head, sizeof(head), "%zx\r\n", n);
            rig_send(upload->fd, head);
        }
        rig_send_bytes(upload->fd, span_make(piece, n));
        if (upload->chunked) {
            rig_send(upload->fd, "\r\n");
        }
    }
    if (upload->chunked) {
        rig_send(upload->fd, "0\r\n\r\n");
    }
    return NULL;
}

static void start_upload(struct upload *upload)
{
    assert_int_equal(pthread_create(&upload->thread, NULL, upload_main, upload), 0);
}

static void test_large_requests(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    char want[64];

    (void)state;
    (void)snprintf(want, sizeof(want), "%u 0", UPLOAD_BYTES);
    for (int i = 0; i < 2; i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf left = buf_make(0);
        struct upload upload = {.fd = fd, .chunked = i == 1, .total = UPLOAD_BYTES};
        struct rig_answer answer;

        rig_send(fd, i == 1 ? "PUT /count" H "Transfer-Encoding: chunked\r\n\r\n"
                            : "PUT /count" H "Content-Length: 50000000\r\n\r\n");
        start_upload(&upload);
        rig_read_answer(fd, &left, false, &answer);
        assert_int_equal(pthread_join(upload.thread, NULL), 0);
        assert_string_equal(buf_str(&answer.body), want);
        rig_answer_done(&answer);
    }
    assert_true(rig_counters(rig)->max_ahead <= (int)(CONN_READ_BYTES + CONN_AHEAD_BYTES));
    rig_stop(rig);
}

/* The answer stops the request: a client that sends without reading is held back. */
static void test_echo_is_held_back_both_ways(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    struct upload upload = {.fd = fd, .chunked = true, .total = UPLOAD_BYTES};
    struct rig_answer answer;

    (void)state;
    rig_send(fd, "PUT /echo-stream" H "Transfer-Encoding: chunked\r\n\r\n");
    start_upload(&upload);
    rig_wait(&rig_counters(rig)->max_queued, 262144);
    rig_read_answer(fd, &left, false, &answer);
    assert_int_equal(pthread_join(upload.thread, NULL), 0);
    assert_true(rig_counters(rig)->drains > 0);
    check_pattern(buf_span(&answer.body), 0, UPLOAD_BYTES);
    rig_answer_done(&answer);
    assert_true(rig_counters(rig)->max_queued <= (int)QUEUE_LIMIT);
    assert_true(rig_counters(rig)->max_ahead <= (int)(CONN_READ_BYTES + CONN_AHEAD_BYTES));
    rig_stop(rig);
}

/* Beside clients that send a byte at a time and clients that never read, others are served. */
static void test_slow_clients_disturb_nobody(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    int fds[CLIENTS];
    struct buf left[CLIENTS];
    struct rig_answer answer;
    const int small = 4096;

    (void)state;
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = rig_connect(rig);
        left[i] = buf_make(0);
        if (i % 20 == 0) {
            rig_send(fds[i], "GE");
        } else if (i % 20 == 1) {
            assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
            rig_send(fds[i], "GET /big" H "\r\n");
        }
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < CLIENTS; i++) {
            if (i % 20 > 1) {
                rig_send(fds[i], "POST /echo" H "Content-Length: 3\r\n\r\nabc");
            }
        }
        for (int i = 0; i < CLIENTS; i++) {
            if (i % 20 > 1) {
                rig_read_answer(fds[i], &left[i], false, &answer);
                assert_string_equal(buf_str(&answer.body), "abc");
                rig_answer_done(&answer);
            }
        }
        rig_send(fds[0], round == 0 ? "T /aaaa" : "a");
    }
    rig_send(fds[0], H "\r\n");
    rig_read_answer(fds[0], &left[0], false, &answer);
    assert_string_equal(buf_str(&answer.body), "hello");
    rig_answer_done(&answer);
    for (int i = 0; i < CLIENTS; i++) {
        (void)close(fds[i]);
        buf_done(&left[i]);
    }
    rig_stop(rig);
}

/* ---- TLS ---- */

static void test_tls_files_that_cannot_be_read(void **state)
{
    struct ssl_ctx_st *context = NULL;
    struct tls_files files;
    struct error err = {0};

    (void)state;
    tls_files_make(&files);
    assert_int_equal(unlink(files.key), 0);
    assert_true(tls_context_new(files.certificate, files.key, &context, &err) < 0);
    assert_non_null(strstr(err.message, files.key));
    assert_non_null(strstr(err.message, "No such file or directory"));
    tls_files_remove(&files);
}

static void test_tls(void **state)
{
    struct tls_files files;
    struct rig *rig;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());

    (void)state;
    tls_files_make(&files);
    rig = rig_start(&limits, NULL, files.certificate, files.key);
    for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf all = buf_make(0);
        static const char request[] =
            "GET /" H "\r\nPOST /echo" H "Content-Length: 3\r\n\r\nabcGET /file-fixed" H
            "Connection: close\r\n\r\n";
        struct span body;
        SSL *ssl;

        assert_int_equal(SSL_CTX_set_max_proto_version(context, version), 1);
        ssl = tls_connect(context, fd);
        assert_int_equal(SSL_write(ssl, request, sizeof(request) - 1), sizeof(request) - 1);
        tls_read_to_end(ssl, &all);
        assert_non_null(strstr(buf_str(&all), "\r\n\r\nhello"));
        assert_non_null(strstr(buf_str(&all), "\r\n\r\nabc"));
        assert_true(all.n > RIG_BIG_BYTES);
        body = span_skip(buf_span(&all), all.n - RIG_BIG_BYTES);
        check_pattern(span_head(body, RIG_BIG_BYTES - 1), 1, RIG_BIG_BYTES - 1);
        SSL_free(ssl);
    }
    rig_stop(rig);
    SSL_CTX_free(context);
    tls_files_remove(&files);
}

static void test_tls_upload(void **state)
{
    struct tls_files files;
    struct rig *rig;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    _cleanup_close_ int fd = -1;
    _cleanup_buf_ struct buf all = buf_make(0);
    static uint8_t body[1000000];
    SSL *ssl;
    static const char head[] =
        "PUT /count" H "Connection: close\r\nContent-Length: 1000000\r\n\r\n";

    (void)state;
    tls_files_make(&files);
    rig = rig_start(&limits, NULL, files.certificate, files.key);
    fd = rig_connect(rig);
    ssl = tls_connect(context, fd);
    for (size_t i = 0; i < sizeof(body); i++) {
        body[i] = rig_pattern(i);
    }
    assert_int_equal(SSL_write(ssl, head, sizeof(head) - 1), sizeof(head) - 1);
    assert_int_equal(SSL_write(ssl, body, sizeof(body)), sizeof(body));
    tls_read_to_end(ssl, &all);
    assert_non_null(strstr(buf_str(&all), "\r\n\r\n1000000 0"));
    SSL_free(ssl);
    rig_stop(rig);
    SSL_CTX_free(context);
    tls_files_remove(&files);
}

static int send_held(const struct rig *rig)
{
    static const uint8_t body[100000];
    int fd = rig_connect(rig);

    rig_send(fd, "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n");
    rig_send_bytes(fd, span_make(body, sizeof(body)));
    return fd;
}

/* Of two clients whose bodies are held back one leaves: a look finds it, since nothing is read. */
static void test_held_back_client_leaves(void **state)
{
    const struct http_server_limits watchful = {.max_connections = 300, .probe_ms = 20};
    struct rig *rig = rig_start(&watchful, NULL, NULL, NULL);
    int stays = send_held(rig);
    int leaves = send_held(rig);

    (void)state;
    rig_wait(&rig_counters(rig)->held, 2);
    (void)close(leaves);
    rig_wait(&rig_counters(rig)->closed_incomplete, 1);
    assert_int_equal(rig_counters(rig)->closed_incomplete, 1);
    (void)close(stays);
    rig_wait(&rig_counters(rig)->closed_incomplete, 2);
    rig_stop(rig);
}

static void test_tls_refusals(void **state)
{
    const struct http_server_limits hasty = {.max_connections = 300, .header_timeout_ms = 50};
    struct tls_files files;
    struct rig *rig;
    struct error err;
    struct ssl_ctx_st *none = NULL;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    _cleanup_buf_ struct buf all = buf_make(0);
    SSL *ssl;
    int fd;

    (void)state;
    tls_files_make(&files);
    rig = rig_start(&hasty, NULL, files.certificate, files.key);
    /* Old versions. */
    fd = rig_connect(rig);
    ssl = SSL_new(context);
    SSL_set_security_level(ssl, 0);
    assert_int_equal(SSL_set_max_proto_version(ssl, TLS1_1_VERSION), 1);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    assert_true(SSL_connect(ssl) <= 0);
    SSL_free(ssl);
    (void)close(fd);
    /* Plain HTTP, and a handshake that never comes. */
    fd = rig_connect(rig);
    rig_send(fd, "GET /" H "\r\n");
    (void)rig_read_to_end(fd, &all);
    (void)close(fd);
    fd = rig_connect(rig);
    assert_false(rig_read_to_end(fd, &all));
    (void)close(fd);
    assert_int_equal(rig_counters(rig)->requests, 0);
    rig_stop(rig);
    /* Files that don't fit. */
    assert_int_equal(tls_context_new("/nonexistent", files.key, &none, &err), -EINVAL);
    assert_non_null(strstr(err.message, "/nonexistent"));
    assert_int_equal(tls_context_new(files.certificate, files.certificate, &none, &err), -EINVAL);
    SSL_CTX_free(context);
    tls_files_remove(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_answers),
        cmocka_unit_test(test_file_answers),
        cmocka_unit_test(test_file_in_pieces),
        cmocka_unit_test(test_large_requests),
        cmocka_unit_test(test_echo_is_held_back_both_ways),
        cmocka_unit_test(test_slow_clients_disturb_nobody),
        cmocka_unit_test(test_held_back_client_leaves),
        cmocka_unit_test(test_tls_files_that_cannot_be_read),
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_tls_upload),
        cmocka_unit_test(test_tls_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
