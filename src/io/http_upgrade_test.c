/* Upgrades on the server's side: real sockets against the rig's echo, plain and under TLS. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/socket.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "io/byte_stream_inner.h"
#include "io/http_conn.h"
#include "io/http_test_rig.h"
#include "io/http_token.h"
#include "io/loop.h"
#include "io/tls_test_rig.h"

#define H        " HTTP/1.1\r\nHost: t\r\n"
#define UPGRADE  "Connection: Upgrade\r\nUpgrade: space-tcp\r\n\r\n"
#define MANY     1000
#define MANY_MAX 4096 /* bytes of ours per idle connection */

static const struct http_server_limits limits = {.max_connections = 1100};

static void test_tokens(void **state)
{
    (void)state;
    assert_true(http_token_is_in("upgrade", "keep-alive, Upgrade"));
    assert_true(http_token_is_in("a", "a"));
    assert_true(http_token_is_in("a", " ,b,,\ta ,"));
    assert_false(http_token_is_in("a", ""));
    assert_false(http_token_is_in("a", "ab, ba, a b"));
    assert_false(http_token_is_in("", "a,,b"));
}

/* Sends, reads the head of the 101, and leaves what came behind it in `left`. */
static void upgrade(int fd, const char *request, struct buf *left)
{
    struct rig_answer answer;

    rig_send(fd, request);
    rig_read_answer(fd, left, false, &answer);
    assert_int_equal(answer.status, 101);
    assert_non_null(strstr(answer.head, "HTTP/1.1 101 Switching Protocols\r\n"));
    assert_non_null(strstr(answer.head, "\r\nUpgrade: space-tcp\r\n"));
    assert_non_null(strstr(answer.head, "\r\nConnection: Upgrade\r\n"));
    assert_non_null(strstr(answer.head, "\r\nX-Fact: upgraded\r\n"));
    assert_non_null(strstr(answer.head, "\r\nDate: "));
    assert_null(strstr(answer.head, "Content-Length"));
    rig_answer_done(&answer);
}

static void read_exactly(int fd, struct buf *left, size_t n)
{
    while (left->n < n) {
        uint8_t *to = buf_reserve(left, n);
        ssize_t got = recv(fd, to, n - left->n, 0);

        assert_true(got > 0);
        buf_commit(left, (size_t)got);
    }
}

static void test_echo_and_end(void **state)
{
    static const char *const requests[] = {
        "GET /upgrade" H UPGRADE,
        "GET /upgrade-later" H UPGRADE,
        "GET /upgrade" H "Connection: keep-alive, Upgrade\r\nUpgrade: x, SPACE-TCP\r\n\r\n",
        "GET /upgrade" H "Content-Length: 0\r\n" UPGRADE,
        "POST /upgrade" H UPGRADE,
        /* What came behind the head is the stream's. */
        "GET /upgrade" H UPGRADE "GET / ",
        "GET /upgrade-later" H UPGRADE "GET / ",
        "GET /" H "\r\nGET /upgrade" H UPGRADE "GET / ",
    };
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    int count = (int)(sizeof(requests) / sizeof(requests[0]));

    (void)state;
    for (int i = 0; i < count; i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf left = buf_make(0);
        const char *request = requests[i];

        if (strncmp(request, "GET / ", 6) == 0) {
            struct rig_answer answer;

            rig_send(fd, request);
            rig_read_answer(fd, &left, false, &answer);
            assert_string_equal(buf_str(&answer.body), "hello");
            rig_answer_done(&answer);
            request = "";
        }
        upgrade(fd, request, &left);
        rig_send(fd, strstr(requests[i], "\r\n\r\nGET / ") != NULL ? "HTTP" : "GET / HTTP");
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        assert_false(rig_read_to_end(fd, &left));
        assert_string_equal(buf_str(&left), "GET / HTTP");
        rig_wait(&rig_counters(rig)->streams_ended, i + 1);
    }
    assert_int_equal(rig_counters(rig)->streams_broken, 0);
    assert_int_equal(rig_counters(rig)->closed_complete, count + 1);
    assert_int_equal(rig_counters(rig)->closed_incomplete, 0);
    rig_stop(rig);
}

/* Not an upgrade, or a refused one: what follows is the next request. */
static void test_plain_requests(void **state)
{
    static const char *const requests[] = {
        "GET /upgrade-refused" H UPGRADE,
        "GET /upgrade" H "Upgrade: space-tcp\r\n\r\n",
        "GET /upgrade" H "Connection: Upgrade\r\n\r\n",
        "GET /upgrade" H "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "POST /upgrade" H "Content-Length: 3\r\n" UPGRADE "abc",
        "POST /upgrade" H "Transfer-Encoding: chunked\r\n" UPGRADE "3\r\nabc\r\n0\r\n\r\n",
        "GET /upgrade HTTP/1.0\r\nConnection: Upgrade, keep-alive\r\nUpgrade: space-tcp\r\n\r\n",
    };
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf all = buf_make(0);
        struct rig_answer answer;

        buf_put_str(&all, requests[i]);
        buf_put_str(&all, "GET /" H "\r\n");
        rig_send(fd, buf_str(&all));
        buf_clear(&all);
        rig_read_answer(fd, &all, false, &answer);
        assert_int_equal(answer.status, i == 0 ? 404 : 200);
        assert_string_equal(buf_str(&answer.body), i == 0 ? "not here" : "plain");
        rig_answer_done(&answer);
        rig_read_answer(fd, &all, false, &answer);
        assert_int_equal(answer.status, 200);
        assert_string_equal(buf_str(&answer.body), "hello");
        rig_answer_done(&answer);
    }
    rig_stop(rig);
}

static void send_pattern(int fd, size_t total)
{
    uint8_t piece[30000];

    for (size_t sent = 0; sent < total; sent += sizeof(piece)) {
        for (size_t i = 0; i < sizeof(piece); i++) {
            piece[i] = rig_pattern(sent + i);
        }
        rig_send_bytes(fd, span_make(piece, sizeof(piece)));
    }
}

/* A client that sends and does not read is stopped; nothing is lost when it reads. */
static void test_back_pressure(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_close_ int fd = rig_connect(rig);
    _cleanup_buf_ struct buf left = buf_make(0);
    uint8_t piece[30000] = {0};
    size_t sent = 0;

    (void)state;
    upgrade(fd, "GET /upgrade" H UPGRADE, &left);
    for (int quiet = 0; quiet < 20;) {
        ssize_t n;

        for (size_t i = 0; i < sizeof(piece); i++) {
            piece[i] = rig_pattern(sent + i);
        }
        n = send(fd, piece, sizeof(piece), MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        quiet = n > 0 ? 0 : quiet + 1;
        if (n < 0) {
            (void)usleep(5000);
        }
        assert_true(sent < 100000000U);
    }
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_false(rig_read_to_end(fd, &left));
    assert_int_equal(left.n, sent);
    for (size_t i = 0; i < sent; i++) {
        if (left.p[i] != rig_pattern(i)) {
            fail_msg("byte %zu differs", i);
        }
    }
    assert_true(rig_counters(rig)->max_queued < (int)(STREAM_HIGH_BYTES + 2 * LOOP_SCRATCH_BYTES));
    assert_true(rig_counters(rig)->drains > 0);
    rig_wait(&rig_counters(rig)->streams_ended, 1);
    rig_stop(rig);
}

static void test_a_cut_is_seen(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    _cleanup_buf_ struct buf left = buf_make(0);
    const struct linger now = {.l_onoff = 1};
    int fd = rig_connect(rig);

    (void)state;
    upgrade(fd, "GET /upgrade" H UPGRADE, &left);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    (void)close(fd);
    rig_wait(&rig_counters(rig)->streams_broken, 1);
    rig_stop(rig);
}

static void test_the_server_closes_them(void **state)
{
    char path[] = "/tmp/http-upgrade-XXXXXX";
    char unix_path[64];
    struct rig *rig;
    int fds[3];
    _cleanup_buf_ struct buf left = buf_make(0);

    (void)state;
    assert_non_null(mkdtemp(path));
    (void)snprintf(unix_path, sizeof(unix_path), "%s/s", path);
    rig = rig_start(&limits, unix_path, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        fds[i] = i == 0 ? rig_connect_unix(unix_path) : rig_connect(rig);
        upgrade(fds[i], i == 1 ? "GET /upgrade-later" H UPGRADE : "GET /upgrade" H UPGRADE, &left);
    }
    rig_stop(rig);
    for (int i = 0; i < 3; i++) {
        (void)rig_read_to_end(fds[i], &left);
        (void)close(fds[i]);
    }
    assert_int_equal(left.n, 0);
    assert_int_equal(rmdir(path), 0);
}

/* ---- TLS ---- */

/* Reads the head and says how many bytes of the stream came with it. */
static void tls_upgrade(SSL *ssl, const char *request, struct buf *left)
{
    const char *end;

    assert_int_equal(SSL_write(ssl, request, (int)strlen(request)), (int)strlen(request));
    while ((end = strstr(buf_str(left), "\r\n\r\n")) == NULL) {
        uint8_t *to = buf_reserve(left, 1000);
        int n = SSL_read(ssl, to, 1000);

        assert_true(n > 0);
        buf_commit(left, (size_t)n);
    }
    assert_memory_equal(left->p, "HTTP/1.1 101 ", 13);
    buf_consume(left, (size_t)(end - buf_str(left)) + 4);
}

static void test_tls(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    struct tls_files files;
    struct rig *rig;

    (void)state;
    tls_files_make(&files);
    rig = rig_start(&limits, NULL, files.certificate, files.key);
    for (int i = 0; i < 4; i++) {
        _cleanup_close_ int fd = rig_connect(rig);
        _cleanup_buf_ struct buf left = buf_make(0);
        uint8_t piece[20000];
        size_t sent = 0;
        SSL *ssl;

        assert_int_equal(
            SSL_CTX_set_max_proto_version(context, i % 2 == 0 ? TLS1_2_VERSION : TLS1_3_VERSION),
            1);
        ssl = tls_connect(context, fd);
        tls_upgrade(
            ssl, i < 2 ? "GET /upgrade" H UPGRADE "first" : "GET /upgrade-later" H UPGRADE "first",
            &left);
        for (; sent < 2000000; sent += sizeof(piece)) {
            memset(piece, (int)(sent / sizeof(piece)), sizeof(piece));
            assert_int_equal(SSL_write(ssl, piece, sizeof(piece)), sizeof(piece));
            while (left.n < 5 + sent) {
                uint8_t *to = buf_reserve(&left, 65536);
                int n = SSL_read(ssl, to, 65536);

                assert_true(n > 0);
                buf_commit(&left, (size_t)n);
            }
        }
        (void)SSL_shutdown(ssl);
        tls_read_to_end(ssl, &left);
        assert_int_equal(left.n, 5 + sent);
        assert_memory_equal(left.p, "first", 5);
        for (size_t at = 0; at < sent; at += 999) {
            assert_int_equal(left.p[5 + at], (at / sizeof(piece)) & 0xff);
        }
        rig_wait(&rig_counters(rig)->streams_ended, i + 1);
        SSL_free(ssl);
    }
    assert_int_equal(rig_counters(rig)->streams_broken, 0);
    rig_stop(rig);
    SSL_CTX_free(context);
    tls_files_remove(&files);
}

/* Without TLS's goodbye an end is a cut. */
static void test_tls_truncation(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    struct tls_files files;
    struct rig *rig;
    _cleanup_close_ int fd = -1;
    _cleanup_buf_ struct buf left = buf_make(0);
    SSL *ssl;

    (void)state;
    tls_files_make(&files);
    rig = rig_start(&limits, NULL, files.certificate, files.key);
    fd = rig_connect(rig);
    ssl = tls_connect(context, fd);
    tls_upgrade(ssl, "GET /upgrade" H UPGRADE, &left);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    rig_wait(&rig_counters(rig)->streams_broken, 1);
    SSL_free(ssl);
    rig_stop(rig);
    SSL_CTX_free(context);
    tls_files_remove(&files);
}

/* ---- what an idle one costs ---- */

static size_t allocated(void)
{
    return mallinfo2().uordblks;
}

static void test_many_idle_ones(void **state)
{
    struct rig *rig = rig_start(&limits, NULL, NULL, NULL);
    static int fds[MANY];
    _cleanup_buf_ struct buf left = buf_make(0);
    size_t before = 0;

    (void)state;
    for (int i = 0; i < MANY; i++) {
        fds[i] = rig_connect(rig);
        upgrade(fds[i], "GET /upgrade" H UPGRADE, &left);
        /* Each has moved some bytes. */
        send_pattern(fds[i], 30000);
        read_exactly(fds[i], &left, 30000);
        buf_clear(&left);
        if (i == 9) {
            before = allocated();
        }
    }
    rig_wait(&rig_counters(rig)->closed_complete, MANY);
    print_message("%zu bytes per idle stream\n", (allocated() - before) / (MANY - 10));
    assert_true(allocated() - before < (size_t)(MANY - 10) * MANY_MAX);
    for (int i = 0; i < MANY; i++) {
        (void)close(fds[i]);
    }
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_echo_and_end),
        cmocka_unit_test(test_plain_requests),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_a_cut_is_seen),
        cmocka_unit_test(test_the_server_closes_them),
        cmocka_unit_test(test_tls),
        cmocka_unit_test(test_tls_truncation),
        cmocka_unit_test(test_many_idle_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
