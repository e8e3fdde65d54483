/* Attachments through space-api: the handshake, bytes both ways, and what ends them. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "api/token.h"
#include "base/clock.h"
#include "base/fd.h"

/* "close": an ordinary answer is the last one. */
#define HANDSHAKE                                                                                  \
    "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"            \
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

struct world {
    struct rig *rig;
    char box[21];
    char session[21];
    char token[TOKEN_TEXT_SIZE];
};

static int setup(void **state)
{
    static struct world w;
    _cleanup_answer_ struct answer a = {0};
    char path[160];

    w.rig = rig_new("");
    rig_create(w.rig, "{\"template\": \"base\"}", w.box);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/commands", w.box);
    rig_ask(w.rig, "POST", path, "{\"argv\": [\"cat\"]}", &a);
    (void)snprintf(w.session, sizeof(w.session), "%s", answer_text(&a, "session.id"));
    (void)snprintf(w.token, sizeof(w.token), "%s", answer_text(&a, "session.token"));
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    rig_free(((struct world *)*state)->rig);
    return 0;
}

/* Sends the head of an attachment and whatever follows it at once. */
static int begin(const struct world *w,
                 const char *query,
                 const char *key,
                 const char *headers,
                 const char *more)
{
    char head[1200];
    char authorization[256] = "";
    int fd = client_connect(w->rig->port);

    assert_true(fd >= 0);
    if (key != NULL) {
        (void)snprintf(authorization, sizeof(authorization), "Authorization: Bearer %s\r\n", key);
    }
    (void)snprintf(head, sizeof(head),
                   "GET /v1/sessions/%s/attach%s HTTP/1.1\r\nHost: a\r\n%s%s\r\n%s", w->session,
                   query, authorization, headers, more);
    client_send_text(fd, head);
    return fd;
}

/* Reads until `end` is there; what came, with a final NUL, in text. */
static void read_until(int fd, const char *end, char *text, size_t size)
{
    size_t n = 0;

    text[0] = '\0';
    while (strstr(text, end) == NULL) {
        ssize_t got = read(fd, &text[n], size - 1 - n);

        if (got <= 0) {
            fail_msg("no %s in %s", end, text);
        }
        n += (size_t)got;
        text[n] = '\0';
    }
}

/* The status of a connection that is refused. */
static void expect_refused(
    const struct world *w, int status, const char *query, const char *key, const char *headers)
{
    _cleanup_answer_ struct answer a = {0};
    int fd = begin(w, query, key, headers, "");

    client_read(fd, &a);
    (void)close(fd);
    if (a.status != status || answer_text(&a, "error.code")[0] == '\0') {
        fail_msg("%s: %d %s", query, a.status, buf_str(&a.body));
    }
}

static void test_echo(void **state)
{
    const struct world *w = *state;
    char text[4096];
    /* The first bytes come with the head, as a client may send them. */
    int fd = begin(w, "?stdout=7&stderr=1", w->rig->key, HANDSHAKE, "early ");

    read_until(fd, "early ", text, sizeof(text));
    assert_memory_equal(text, "HTTP/1.1 101 ", 13);
    assert_non_null(strstr(text, "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAA==\r\n"));
    assert_non_null(strstr(text, "X-Request-Id: rq"));
    assert_non_null(strstr(text, "<stdout=7&stderr=1>"));
    client_send_text(fd, "later.");
    read_until(fd, "later.", text, sizeof(text));
    client_send_text(fd, "bye!");
    read_until(fd, "bye!", text, sizeof(text));
    assert_int_equal(read(fd, text, sizeof(text)), 0); /* the node's end comes through */
    (void)close(fd);
}

static void test_bulk(void **state)
{
    const struct world *w = *state;
    size_t total = 0;
    char text[4096];
    char piece[65536];
    int fd = begin(w, "", w->rig->key, HANDSHAKE, "");
    pid_t writer;

    read_until(fd, "<>", text, sizeof(text));
    memset(piece, 'b', sizeof(piece));
    writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
        for (int i = 0; i < 400; i++) {
            if (fd_write_all(fd, span_make(piece, sizeof(piece))) < 0) {
                _exit(1);
            }
        }
        (void)shutdown(fd, SHUT_WR);
        _exit(0);
    }
    for (;;) {
        ssize_t n = read(fd, piece, sizeof(piece));

        assert_true(n >= 0);
        if (n == 0) {
            break;
        }
        total += (size_t)n;
    }
    assert_int_equal(total, 400 * sizeof(piece));
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    (void)close(fd);
}

static void test_refusals(void **state)
{
    static const char plain[] = "Connection: close\r\n";
    static const char old[] =
        "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "
        "8\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    static const char short_key[] = "Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
                                    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n";
    const struct world *w = *state;
    struct world none = *w;

    expect_refused(w, 400, "", w->rig->key, plain);
    expect_refused(w, 400, "", w->rig->key, old);
    expect_refused(w, 400, "", w->rig->key, short_key);
    expect_refused(w, 400, "?stdout=-1", w->rig->key, HANDSHAKE);
    expect_refused(w, 400, "?read_only=false", w->rig->key, HANDSHAKE);
    expect_refused(w, 401, "", NULL, HANDSHAKE);
    expect_refused(w, 401, "?token=spt_AAAA", NULL, HANDSHAKE);
    /* The node's own refusal, as it is. */
    expect_refused(w, 410, "?stdout=404", w->rig->key, HANDSHAKE);
    (void)snprintf(none.session, sizeof(none.session), "se000000000000000000");
    expect_refused(&none, 404, "", w->rig->key, HANDSHAKE);
}

static void test_tokens(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    char body[160];
    char query[TOKEN_TEXT_SIZE + 16];
    char text[4096];
    int fd;

    (void)snprintf(query, sizeof(query), "?token=%s", w->token);
    fd = begin(w, query, NULL, HANDSHAKE "Origin: https://any.example\r\n", "");
    read_until(fd, "<>", text, sizeof(text)); /* the node sees no token */
    (void)close(fd);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"access\": \"read\"}", w->box);
    rig_ask(w->rig, "POST", "/v1/tokens", body, &made);
    fd = begin(w, "?stdout=3", answer_text(&made, "token"), HANDSHAKE, "");
    read_until(fd, "<stdout=3&read_only=true>", text, sizeof(text));
    (void)close(fd);
}

static void test_read_key(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    char text[4096];
    int fd;

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"r\", \"role\": \"read\"}", &made);
    fd = begin(w, "", answer_text(&made, "key"), HANDSHAKE, "");
    read_until(fd, "<read_only=true>", text, sizeof(text));
    (void)close(fd);
}

static void test_revocation(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer token = {0};
    char body[160];
    char path[64];
    char text[4096];
    int64_t began;
    int by_key;
    int by_token;

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"m\", \"role\": \"member\"}", &made);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"}", w->box);
    client_ask(w->rig->port,
               &(struct call){"POST", "/v1/tokens", body, answer_text(&made, "key"), NULL}, &token);
    by_key = begin(w, "", answer_text(&made, "key"), HANDSHAKE, "");
    by_token = begin(w, "", answer_text(&token, "token"), HANDSHAKE, "");
    read_until(by_key, ">", text, sizeof(text));
    read_until(by_token, ">", text, sizeof(text));
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", answer_text(&made, "id"));
    began = clock_monotonic_ms();
    rig_expect(w->rig, 200, "DELETE", path, NULL);
    assert_true(read(by_key, text, sizeof(text)) <= 0);
    assert_true(read(by_token, text, sizeof(text)) <= 0);
    assert_in_range(clock_monotonic_ms() - began, 0, 3000); /* a busy machine */
    (void)close(by_key);
    (void)close(by_token);
}

/* Attachments count among the streams of their key, for as long as they are open. */
static void test_limit(void **state)
{
    struct world w = {.rig = rig_new("api.key_streams = 2\n")};
    char text[4096];
    int fds[2];
    int status = 429;

    (void)state;
    rig_create(w.rig, "{\"template\": \"base\"}", w.box);
    (void)snprintf(w.session, sizeof(w.session), "se%.8s0000000000", &w.box[2]);
    for (int i = 0; i < 2; i++) {
        fds[i] = begin(&w, "", w.rig->key, HANDSHAKE, "");
        read_until(fds[i], "<>", text, sizeof(text));
    }
    expect_refused(&w, 429, "", w.rig->key, HANDSHAKE);
    (void)close(fds[0]);
    for (int i = 0; i < 100 && status == 429; i++) {
        int fd = begin(&w, "", w.rig->key, HANDSHAKE, "");

        read_until(fd, "\r\n\r\n", text, sizeof(text));
        status = strncmp(text, "HTTP/1.1 101", 12) == 0 ? 101 : 429;
        (void)close(fd);
        rig_sleep_ms(10);
    }
    assert_int_equal(status, 101);
    /* A stop waits for none of them. */
    assert_int_equal(rig_stop_api(w.rig, SIGTERM), 0);
    while (read(fds[1], text, sizeof(text)) > 0) {
    }
    (void)close(fds[1]);
    rig_start_api(w.rig);
    rig_wait_ready(w.rig);
    rig_free(w.rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo),     cmocka_unit_test(test_bulk),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_read_key), cmocka_unit_test(test_revocation),
        cmocka_unit_test(test_limit),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
