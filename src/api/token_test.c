/* Tokens: their text, and what each opens at space-api against a fake node. */
#include "api/token.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

static const uint8_t secret[TOKEN_SECRET_SIZE] = {7};

/* ---- the text ---- */

static struct token sample(enum token_kind kind)
{
    struct token t = {.kind = kind,
                      .may_write = true,
                      .port = kind == TOKEN_PORT ? 8080 : 0,
                      .key_id = "ky0123456789abcdefgh",
                      .sandbox_id = "sbzyxwvtsrqpnmkjhgfe",
                      .session_id = "",
                      .expires_at = 1800000000123,
                      .renew_until = 1800086400000};

    if (kind == TOKEN_SESSION) {
        memcpy(t.session_id, "sezyxwvtsr0000000000", sizeof(t.session_id));
    }
    return t;
}

static void test_text(void **state)
{
    char text[TOKEN_TEXT_SIZE];

    (void)state;
    for (enum token_kind kind = TOKEN_SANDBOX; kind <= TOKEN_PORT; kind++) {
        struct token t = sample(kind);
        struct token back;

        assert_int_equal(token_format(secret, &t, text), 0);
        assert_true(token_is_token(text));
        assert_int_equal(token_parse(secret, text, &back), 0);
        assert_int_equal(back.kind, kind);
        assert_true(back.may_write);
        assert_int_equal(back.port, t.port);
        assert_string_equal(back.key_id, t.key_id);
        assert_string_equal(back.sandbox_id, t.sandbox_id);
        assert_string_equal(back.session_id, t.session_id);
        assert_int_equal(back.expires_at, t.expires_at);
        assert_int_equal(back.renew_until, t.renew_until);
    }
}

static void test_forged(void **state)
{
    static const uint8_t other[TOKEN_SECRET_SIZE] = {8};
    static const char *const bad[] = {"", "spt_", "spt_A", "spt_====", "SPT_AAAA"};
    struct token t = sample(TOKEN_SESSION);
    struct token back;
    char text[TOKEN_TEXT_SIZE];
    char wrong[TOKEN_TEXT_SIZE + 8];
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(token_parse(secret, bad[i], &back), -EBADMSG);
    }
    assert_int_equal(token_format(secret, &t, text), 0);
    n = strlen(text);
    assert_int_equal(token_parse(other, text, &back), -EBADMSG);
    for (size_t i = 0; i < n; i++) {
        memcpy(wrong, text, n + 1);
        wrong[i] = wrong[i] == 'A' ? 'B' : 'A';
        assert_int_equal(token_parse(secret, wrong, &back), -EBADMSG);
        memcpy(wrong, text, n + 1);
        wrong[i] = '\0';
        assert_int_equal(token_parse(secret, wrong, &back), -EBADMSG);
    }
    (void)snprintf(wrong, sizeof(wrong), "%sA", text);
    assert_int_equal(token_parse(secret, wrong, &back), -EBADMSG);
}

/* ---- at the API ---- */

struct world {
    struct rig *rig;
    char box[21];
    char other[21];
    char session[21];
    char session_token[TOKEN_TEXT_SIZE];
};

static int setup(void **state)
{
    static struct world w;
    _cleanup_answer_ struct answer a = {0};
    char path[160];

    w.rig = rig_new("");
    rig_create(w.rig, "{\"template\": \"base\"}", w.box);
    rig_create(w.rig, "{\"template\": \"base\"}", w.other);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/commands", w.box);
    rig_ask(w.rig, "POST", path, "{\"argv\": [\"cat\"]}", &a);
    assert_int_equal(a.status, 201);
    (void)snprintf(w.session, sizeof(w.session), "%s", answer_text(&a, "session.id"));
    (void)snprintf(w.session_token, sizeof(w.session_token), "%s",
                   answer_text(&a, "session.token"));
    (void)snprintf(path, sizeof(path), "http://test/v1/sessions/%s", w.session);
    assert_string_equal(answer_text(&a, "session.url"), path);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    rig_free(((struct world *)*state)->rig);
    return 0;
}

static void expect(
    const struct world *w, const char *credential, int status, const char *method, const char *path)
{
    struct call call = {.method = method, .path = path, .key = credential};
    _cleanup_answer_ struct answer a = {0};

    call.body = strcmp(method, "POST") == 0 ? "{\"argv\": [\"true\"]}" : NULL;
    client_ask(w->rig->port, &call, &a);
    if (a.status != status) {
        fail_msg("%s %s: %d %s", method, path, a.status, buf_str(&a.body));
    }
}

/* Good until the next call. */
static const char *at(const char *before, const char *id, const char *rest)
{
    static char path[400];

    (void)snprintf(path, sizeof(path), "%s%s%s", before, id, rest);
    return path;
}

#define BOX(id, rest)     at("/v1/sandboxes/", id, rest)
#define SESSION(id, rest) at("/v1/sessions/", id, rest)
#define KEY(id)           at("/v1/keys/", id, "")

static void make(const struct world *w,
                 const char *credential,
                 const char *more,
                 char ret_token[TOKEN_TEXT_SIZE])
{
    _cleanup_answer_ struct answer a = {0};
    char body[256];

    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"%s}", w->box, more);
    client_ask(w->rig->port, &(struct call){"POST", "/v1/tokens", body, credential, NULL}, &a);
    if (a.status != 201) {
        fail_msg("%s: %d %s", body, a.status, buf_str(&a.body));
    }
    (void)snprintf(ret_token, TOKEN_TEXT_SIZE, "%s", answer_text(&a, "token"));
}

static void expect_make(const struct world *w, const char *credential, int status, const char *body)
{
    _cleanup_answer_ struct answer a = {0};

    client_ask(w->rig->port, &(struct call){"POST", "/v1/tokens", body, credential, NULL}, &a);
    if (a.status != status) {
        fail_msg("%s: %d %s", body, a.status, buf_str(&a.body));
    }
}

static void test_session_token(void **state)
{
    const struct world *w = *state;
    const char *t = w->session_token;
    char path[400];

    expect(w, t, 200, "GET", SESSION(w->session, "/output?stream=stdout"));
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/output", &w->box[2]);
    expect(w, t, 403, "GET", path);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/output", &w->other[2]);
    expect(w, t, 403, "GET", path);
    expect(w, t, 403, "GET", BOX(w->box, ""));
    expect(w, t, 403, "POST", BOX(w->box, "/run"));
    expect(w, t, 403, "DELETE", BOX(w->box, ""));
    expect(w, t, 403, "GET", "/v1/sandboxes");
    expect(w, t, 403, "GET", "/v1/keys");
    expect(w, t, 403, "POST", "/v1/sandboxes");
    expect(w, t, 403, "POST", "/v1/run");
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?stream=stdout&token=%s", w->session,
                   t);
    expect(w, NULL, 200, "GET", path);
    expect(w, w->rig->key, 401, "GET", path); /* two credentials */
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?token=%s&token=%s", w->session, t,
                   t);
    expect(w, NULL, 400, "GET", path);
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?token=%s", w->session, w->rig->key);
    expect(w, NULL, 401, "GET", path); /* a key is not for URLs */
    make(w, w->rig->key, "", path);
    (void)snprintf(&path[strlen(path)], 2, "A");
    expect(w, path, 401, "GET", BOX(w->box, ""));
}

static void test_sandbox_token(void **state)
{
    const struct world *w = *state;
    char reading[TOKEN_TEXT_SIZE];
    char writing[TOKEN_TEXT_SIZE];
    char path[400];

    make(w, w->rig->key, ", \"access\": \"read\"", reading);
    make(w, w->rig->key, "", writing);
    expect(w, reading, 200, "GET", BOX(w->box, ""));
    expect(w, reading, 200, "GET", BOX(w->box, "/processes"));
    expect(w, reading, 200, "GET", SESSION(w->session, "/output"));
    expect(w, reading, 403, "POST", BOX(w->box, "/run"));
    expect(w, reading, 403, "GET", BOX(w->other, ""));
    expect(w, writing, 200, "POST", BOX(w->box, "/run"));
    expect(w, writing, 403, "POST", BOX(w->other, "/run"));
    expect(w, writing, 403, "DELETE", BOX(w->box, ""));
    expect(w, writing, 403, "PATCH", BOX(w->box, ""));
    expect(w, writing, 403, "GET", "/v1/operations");
    /* In a URL only where the contract says so. */
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s?token=%s", w->box, reading);
    expect(w, NULL, 401, "GET", path);
}

static void test_making(void **state)
{
    const struct world *w = *state;
    const char *key = w->rig->key;
    _cleanup_answer_ struct answer a = {0};
    char body[256];

    expect_make(w, key, 400, "{}");
    expect_make(w, key, 400, "{\"sandbox_id\": \"x\"}");
    expect_make(w, key, 404, "{\"sandbox_id\": \"sb000000000000000000\"}");
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"ttl_seconds\": 86401}", w->box);
    expect_make(w, key, 400, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"port\": 70000}", w->box);
    expect_make(w, key, 400, body);
    (void)snprintf(body, sizeof(body),
                   "{\"sandbox_id\": \"%s\", \"port\": 80, \"session_id\": "
                   "\"%s\"}",
                   w->box, w->session);
    expect_make(w, key, 400, body);
    (void)snprintf(body, sizeof(body),
                   "{\"sandbox_id\": \"%s\", \"port\": 80, \"access\": "
                   "\"read\"}",
                   w->box);
    expect_make(w, key, 400, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"session_id\": \"%s\"}", w->other,
                   w->session);
    expect_make(w, key, 404, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"port\": 8080}", w->box);
    client_ask(w->rig->port, &(struct call){"POST", "/v1/tokens", body, key, NULL}, &a);
    assert_int_equal(a.status, 201);
    (void)snprintf(body, sizeof(body), "http://8080-%s.space.localhost/?token=spt_", w->box);
    assert_memory_equal(answer_text(&a, "url"), body, strlen(body));
    assert_int_equal(strlen(answer_text(&a, "expires_at")), 24);
}

/* A token makes others only within what it is itself. */
static void test_renewal(void **state)
{
    const struct world *w = *state;
    char reading[TOKEN_TEXT_SIZE];
    char again[TOKEN_TEXT_SIZE];
    char body[256];

    make(w, w->rig->key, ", \"access\": \"read\"", reading);
    make(w, reading, "", again);
    expect(w, again, 200, "GET", BOX(w->box, ""));
    (void)snprintf(body, sizeof(body), ", \"session_id\": \"%s\"", w->session);
    make(w, reading, body, again);
    expect(w, again, 200, "GET", SESSION(w->session, "/output"));
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"access\": \"write\"}", w->box);
    expect_make(w, reading, 403, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"port\": 80}", w->box);
    expect_make(w, reading, 403, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"}", w->other);
    expect_make(w, reading, 403, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"}", w->box);
    expect_make(w, w->session_token, 403, body);
    (void)snprintf(body, sizeof(body),
                   "{\"sandbox_id\": \"%s\", \"session_id\": \"%s\", \"access\": \"write\"}",
                   w->box, w->session);
    expect_make(w, w->session_token, 201, body);
}

static void test_expiry(void **state)
{
    const struct world *w = *state;
    char token[TOKEN_TEXT_SIZE];

    make(w, w->rig->key, ", \"ttl_seconds\": 1", token);
    expect(w, token, 200, "GET", BOX(w->box, ""));
    rig_sleep_ms(1050);
    expect(w, token, 401, "GET", BOX(w->box, ""));
}

static void test_read_key(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    char token[TOKEN_TEXT_SIZE];
    char body[256];
    const char *key;

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"r\", \"role\": \"read\"}", &made);
    key = answer_text(&made, "key");
    make(w, key, "", token);
    expect(w, token, 200, "GET", BOX(w->box, ""));
    expect(w, token, 403, "POST", BOX(w->box, "/run"));
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"access\": \"write\"}", w->box);
    expect_make(w, key, 403, body);
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\", \"port\": 80}", w->box);
    expect_make(w, key, 403, body);
}

static void test_revocation(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer events = {0};
    char token[TOKEN_TEXT_SIZE];
    char path[400];
    int64_t began;
    int fd;

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"m\", \"role\": \"member\"}", &made);
    make(w, answer_text(&made, "key"), "", token);
    fd = client_connect(w->rig->port);
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/events?token=%s", w->session, token);
    client_send(fd, &(struct call){"GET", path, NULL, NULL, NULL});
    rig_sleep_ms(200);
    began = clock_monotonic_ms();
    rig_expect(w->rig, 200, "DELETE", KEY(answer_text(&made, "id")), NULL);
    client_read(fd, &events);
    (void)close(fd);
    assert_in_range(clock_monotonic_ms() - began, 0, 3000); /* a busy machine */
    assert_int_equal(events.status, 200);
    assert_true(events.cut);
    expect(w, token, 401, "GET", BOX(w->box, ""));
    expect(w, answer_text(&made, "key"), 401, "GET", BOX(w->box, ""));
}

/* Revoked before anything used it: the store knows. */
static void test_revoked_unseen(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    char token[TOKEN_TEXT_SIZE];

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"m\", \"role\": \"member\"}", &made);
    make(w, answer_text(&made, "key"), "", token);
    (void)rig_stop_api(w->rig, 15);
    rig_start_api(w->rig);
    rig_wait_ready(w->rig);
    expect(w, token, 200, "GET", BOX(w->box, ""));
    rig_expect(w->rig, 200, "DELETE", KEY(answer_text(&made, "id")), NULL);
    (void)rig_stop_api(w->rig, 15);
    rig_start_api(w->rig);
    rig_wait_ready(w->rig);
    expect(w, token, 401, "GET", BOX(w->box, ""));
}

static void test_replay(void **state)
{
    const struct world *w = *state;
    char path[400];
    char old[TOKEN_TEXT_SIZE] = "";
    char body[256];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/commands", w->box);
    for (int i = 0; i < 2; i++) {
        struct call call = {"POST", path, "{\"argv\": [\"cat\"]}", w->rig->key,
                            "Idempotency-Key: again\r\n"};
        _cleanup_answer_ struct answer a = {0};
        char value[256];

        client_ask(w->rig->port, &call, &a);
        assert_int_equal(a.status, 201);
        answer_header(&a, "Idempotency-Replayed", value);
        assert_string_equal(value, i == 0 ? "" : "true");
        assert_string_not_equal(answer_text(&a, "session.token"), old);
        (void)snprintf(old, sizeof(old), "%s", answer_text(&a, "session.token"));
        (void)snprintf(body, sizeof(body), "/v1/sessions/%s/output", answer_text(&a, "session.id"));
        expect(w, old, 200, "GET", body);
        rig_sleep_ms(5);
    }
    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"}", w->box);
    for (int i = 0; i < 2; i++) {
        struct call call = {"POST", "/v1/tokens", body, w->rig->key, "Idempotency-Key: token\r\n"};
        _cleanup_answer_ struct answer a = {0};

        client_ask(w->rig->port, &call, &a);
        assert_int_equal(a.status, 201);
        expect(w, answer_text(&a, "token"), 200, "GET", BOX(w->box, ""));
    }
}

static void test_cors(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer preflight = {0};
    _cleanup_answer_ struct answer good = {0};
    _cleanup_answer_ struct answer refused = {0};
    _cleanup_answer_ struct answer closed = {0};
    char value[256];
    char path[400];

    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?stream=stdout", w->session);
    client_ask(w->rig->port, &(struct call){.method = "OPTIONS", .path = path}, &preflight);
    assert_int_equal(preflight.status, 204);
    answer_header(&preflight, "Access-Control-Allow-Origin", value);
    assert_string_equal(value, "*");
    answer_header(&preflight, "Access-Control-Allow-Methods", value);
    assert_string_equal(value, "GET");
    answer_header(&preflight, "Access-Control-Allow-Credentials", value);
    assert_string_equal(value, "");
    client_ask(w->rig->port, &(struct call){"GET", path, NULL, w->session_token, NULL}, &good);
    answer_header(&good, "Access-Control-Allow-Origin", value);
    assert_string_equal(value, "*");
    assert_non_null(strstr(buf_str(&good.head), "X-Space-Next-Offset"));
    client_ask(w->rig->port, &(struct call){"GET", path, NULL, NULL, NULL}, &refused);
    assert_int_equal(refused.status, 401);
    answer_header(&refused, "Access-Control-Allow-Origin", value);
    assert_string_equal(value, "*"); /* a page may read why */
    client_ask(w->rig->port, &(struct call){.method = "OPTIONS", .path = "/v1/keys"}, &closed);
    assert_int_equal(closed.status, 405);
    answer_header(&closed, "Access-Control-Allow-Origin", value);
    assert_string_equal(value, "");
}

static void expect_absent(const struct world *w, const char *name)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/%s", w->rig->dir, name);
    if (file_read(AT_FDCWD, path, 1U << 26, &text) < 0) {
        return; /* the store's log may be gone */
    }
    for (size_t i = 0; i + 8 < text.n; i++) {
        assert_false(memcmp(&text.p[i], "spt_A", 5) == 0);
        assert_false(memcmp(&text.p[i], w->session_token, 20) == 0);
    }
}

/* Neither in a log, ours or the node's, nor in the store. */
static void test_nowhere_else(void **state)
{
    const struct world *w = *state;
    char path[400];

    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?nosuch=1&token=%s", w->session,
                   w->session_token);
    expect(w, NULL, 400, "GET", path);
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/output?%%74oken=%s", w->session,
                   w->session_token);
    expect(w, NULL, 200, "GET", path);
    expect_absent(w, "api.log");
    expect_absent(w, "node.log");
    expect_absent(w, "store/space.db");
    expect_absent(w, "store/space.db-wal");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),          cmocka_unit_test(test_forged),
        cmocka_unit_test(test_session_token), cmocka_unit_test(test_sandbox_token),
        cmocka_unit_test(test_making),        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_expiry),        cmocka_unit_test(test_read_key),
        cmocka_unit_test(test_revocation),    cmocka_unit_test(test_revoked_unseen),
        cmocka_unit_test(test_replay),        cmocka_unit_test(test_cors),
        cmocka_unit_test(test_nowhere_else),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
