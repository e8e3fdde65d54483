/* Ports of sandboxes from outside: who gets in, browsers, upgrades, and the end of access. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "api/ports_rig.h"
#include "base/fd.h"

#define SPEC "{\"template\": \"base\"}"

/* ---- who may ---- */

static void test_access(void **state)
{
    struct ports_fixture *f = *state;
    char token[256];
    char line[320];
    char key[64] = "";
    struct ports_web web = {.host = f->host, .headers = line};
    struct ports_web path = {.host = "localhost", .target = f->path, .headers = line};
    _cleanup_buf_ struct buf text = buf_make(0);
    char file[128];

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    /* Tokens of the sandbox and of the port. */
    ports_make_token(f, ", \"access\": \"write\"", token);
    (void)snprintf(line, sizeof(line), "Authorization: Bearer %s\r\n", token);
    ports_expect(f, &web, 200, "");
    ports_expect(f, &path, 200, "");
    ports_make_port_token(f, token);
    (void)snprintf(line, sizeof(line), "X-Space-Token: %s\r\n", token);
    ports_expect(f, &web, 200, "");
    /* Of another port, or only for reading. */
    ports_make_token(f, ", \"port\": 1, \"access\": \"write\"", token);
    (void)snprintf(line, sizeof(line), "X-Space-Token: %s\r\n", token);
    ports_expect(f, &web, 403, "forbidden");
    ports_make_token(f, ", \"access\": \"read\"", token);
    (void)snprintf(line, sizeof(line), "X-Space-Token: %s\r\n", token);
    ports_expect(f, &web, 403, "forbidden");
    ports_expect(f, &path, 403, "forbidden");
    /* A read key. */
    assert_int_equal(rig_make_key(f->rig, "reader", "read", "reader.key"), 0);
    (void)snprintf(file, sizeof(file), "%s/reader.key", f->rig->dir);
    assert_int_equal(file_read(AT_FDCWD, file, 64, &text), 0);
    assert_int_equal(span_copy_str(span_head(buf_span(&text), 38), key, sizeof(key)), 0);
    (void)snprintf(line, sizeof(line), "X-Space-Token: %s\r\n", key);
    ports_expect(f, &web, 403, "forbidden");
    /* Nonsense, the application's own, none, two. */
    (void)snprintf(line, sizeof(line), "X-Space-Token: nonsense\r\n");
    ports_expect(f, &web, 401, "unauthorized");
    (void)snprintf(line, sizeof(line), "Authorization: Bearer theirs\r\n");
    ports_expect(f, &web, 401, "unauthorized");
    web.headers = NULL;
    ports_expect(f, &web, 401, "unauthorized");
    web.headers = f->auth;
    web.more = f->auth;
    ports_expect(f, &web, 401, "unauthorized");
    /* A key in a URL. */
    (void)snprintf(line, sizeof(line), "/?token=%s", f->rig->key);
    web = (struct ports_web){.host = f->host, .target = line};
    ports_expect(f, &web, 401, "unauthorized");
}

static void test_sandbox_that_does_not_run(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer made = {0};
    char host[96];
    struct ports_web web = {.host = host, .headers = f->auth};

    rig_control(f->rig, "delay_ms 60000\n");
    rig_ask(f->rig, "POST", "/v1/sandboxes?wait=0", SPEC, &made);
    assert_int_equal(made.status, 202);
    (void)snprintf(host, sizeof(host), "80-%s." PORTS_DOMAIN, answer_text(&made, "sandbox.id"));
    ports_expect(f, &web, 409, "failed_precondition");
    rig_control(f->rig, "");
    (void)snprintf(host, sizeof(host), "/v1/sandboxes/%s", answer_text(&made, "sandbox.id"));
    rig_expect(f->rig, 200, "DELETE", host, NULL);
}

static void test_error_pages(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer page = {0};
    _cleanup_answer_ struct answer text = {0};
    char type[256];
    struct ports_web web = {.host = "80-sb000000000000000000." PORTS_DOMAIN,
                            .headers = "Accept: text/html,*/*;q=0.8\r\n"};

    ports_ask(f, &web, &page);
    assert_int_equal(page.status, 404);
    answer_header(&page, "Content-Type", type);
    assert_string_equal(type, "text/html; charset=utf-8");
    assert_true(buf_contains(&page.body, "there is no sandbox sb000000000000000000"));
    web.headers = "Accept: */*\r\n";
    ports_ask(f, &web, &text);
    assert_string_equal(answer_text(&text, "error.code"), "not_found");
    assert_string_equal(answer_text(&text, "error.details.resource"), "sandbox");
    /* The page that asked may know why. */
    answer_header(&text, "Access-Control-Allow-Origin", type);
    assert_string_equal(type, "*");
    answer_header(&text, "Access-Control-Expose-Headers", type);
    assert_non_null(strstr(type, "X-Space-Error"));
}

/* ---- pages of other origins that have a token ---- */

#define PREFLIGHT                                                                                  \
    "Origin: https://app.example\r\nAccess-Control-Request-Method: PATCH\r\n"                      \
    "Access-Control-Request-Headers: x-a,x-space-token\r\n"

static void expect_header_value(const struct answer *a, const char *name, const char *want)
{
    char value[256];

    answer_header(a, name, value);
    assert_string_equal(value, want);
}

static void test_preflight_of_a_private_port(void **state)
{
    struct ports_fixture *f = *state;
    const struct ports_web webs[] = {
        {.method = "OPTIONS", .host = f->host, .headers = PREFLIGHT},
        {.method = "OPTIONS", .host = "localhost", .target = f->path, .headers = PREFLIGHT},
    };
    unsigned int before = port_app_connections(f->app);

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    for (size_t i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer a = {0};

        ports_ask(f, &webs[i], &a);
        assert_int_equal(a.status, 204);
        expect_header_value(&a, "Access-Control-Allow-Origin", "*");
        expect_header_value(&a, "Access-Control-Allow-Methods", "PATCH");
        expect_header_value(&a, "Access-Control-Allow-Headers", "x-a,x-space-token");
        expect_header_value(&a, "Access-Control-Allow-Credentials", "");
    }
    /* What is no preflight, and a credential that is none, come to nothing. */
    ports_expect(f, &(struct ports_web){.method = "OPTIONS", .host = f->host}, 401, "unauthorized");
    ports_expect(f,
                 &(struct ports_web){.method = "OPTIONS",
                                     .host = f->host,
                                     .headers = PREFLIGHT,
                                     .more = "X-Space-Token: spt_x\r\n"},
                 401, "unauthorized");
    ports_expect(f, &(struct ports_web){.method = "GET", .host = f->host, .headers = PREFLIGHT},
                 401, "unauthorized");
    /* The application has seen none of it. */
    assert_int_equal(port_app_connections(f->app), before);
}

static void test_preflight_of_a_public_port_is_the_applications(void **state)
{
    struct ports_fixture *f = *state;
    const struct ports_web web = {.method = "OPTIONS", .host = f->host, .headers = PREFLIGHT};
    _cleanup_answer_ struct answer a = {0};
    unsigned int before = port_app_connections(f->app);

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_set_public(f, true);
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 200);
    expect_header_value(&a, "Access-Control-Allow-Origin", "");
    assert_int_equal(port_app_connections(f->app), before + 1);
    ports_set_public(f, false);
}

static void test_answers_to_a_token(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer by_header = {0};
    _cleanup_answer_ struct answer by_url = {0};
    _cleanup_answer_ struct answer own = {0};
    char token[256];
    char line[320];
    char target[320];
    struct ports_web web = {
        .host = f->host, .headers = line, .more = "Origin: https://app.example\r\n"};

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_make_port_token(f, token);
    (void)snprintf(line, sizeof(line), "X-Space-Token: %s\r\n", token);
    ports_ask(f, &web, &by_header);
    assert_int_equal(by_header.status, 200);
    expect_header_value(&by_header, "Access-Control-Allow-Origin", "*");
    (void)snprintf(target, sizeof(target), "/?token=%s", token);
    web = (struct ports_web){.host = f->host, .target = target, .headers = web.more};
    ports_ask(f, &web, &by_url);
    expect_header_value(&by_url, "Access-Control-Allow-Origin", "*");
    /* What the application says stands. */
    port_app_set(f->app, PORT_APP_ANSWER,
                 "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
                 "Access-Control-Allow-Origin: https://b.example\r\n\r\n");
    ports_ask(f, &web, &own);
    expect_header_value(&own, "Access-Control-Allow-Origin", "https://b.example");
}

/* ---- browsers ---- */

static void log_in(struct ports_fixture *f, char cookie[256])
{
    _cleanup_answer_ struct answer a = {0};
    char token[256];
    char target[320];
    char value[256];
    struct ports_web web = {
        .host = f->host, .target = target, .headers = "Sec-Fetch-Mode: navigate\r\n"};
    size_t end;

    ports_make_port_token(f, token);
    (void)snprintf(target, sizeof(target), "//evil.example/?token=%s&a=1", token);
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 303);
    answer_header(&a, "Location", value);
    assert_string_equal(value, "/.//evil.example/?a=1");
    answer_header(&a, "Set-Cookie", value);
    assert_non_null(strstr(value, "; Path=/; HttpOnly; SameSite=Lax; Max-Age="));
    assert_null(strstr(value, "Domain"));
    end = span_find(span_of_str(value), 0, ';');
    (void)snprintf(cookie, 256, "Cookie: x=1; %.*s\r\n", (int)end, value);
}

static void test_login(void **state)
{
    struct ports_fixture *f = *state;
    char cookie[256];
    char host[96];
    char origin[160];
    _cleanup_answer_ struct answer look = {0};
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host, .headers = cookie};

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    log_in(f, cookie);
    ports_expect(f, &web, 200, "");
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "Cookie: x=1\r\n"));
    assert_false(buf_contains(&seen, "spt_"));
    /* Only there. */
    (void)snprintf(host, sizeof(host), "2-%s." PORTS_DOMAIN, f->id);
    web.host = host;
    ports_expect(f, &web, 401, "unauthorized");
    web = (struct ports_web){.host = "localhost", .target = f->path, .headers = cookie};
    ports_expect(f, &web, 401, "unauthorized");
    /* Nothing that another site makes the browser do. */
    web = (struct ports_web){.host = f->host, .headers = cookie, .method = "POST", .body = ""};
    web.more = "Origin: http://1-sb000000000000000000." PORTS_DOMAIN "\r\n";
    ports_expect(f, &web, 403, "forbidden");
    web.more = "Origin: null\r\n";
    ports_expect(f, &web, 403, "forbidden");
    web.more = "Sec-Fetch-Site: same-site\r\n";
    ports_expect(f, &web, 403, "forbidden");
    web.more = NULL;
    ports_expect(f, &web, 200, "");
    (void)snprintf(origin, sizeof(origin), "Origin: http://%s\r\n", f->host);
    web.more = origin;
    ports_expect(f, &web, 200, "");
    /* A look, of which the page learns nothing. */
    web = (struct ports_web){.host = f->host, .headers = cookie, .more = "Origin: http://evil\r\n"};
    ports_ask(f, &web, &look);
    assert_int_equal(look.status, 200);
    assert_false(buf_contains(&look.head, "Access-Control"));
}

static void test_token_of_a_program(void **state)
{
    struct ports_fixture *f = *state;
    char token[256];
    char target[320];
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host, .target = target};

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_make_port_token(f, token);
    (void)snprintf(target, sizeof(target), "/p?token=%s", token);
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 200);
    assert_false(buf_contains(&a.head, "Set-Cookie"));
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "GET /p HTTP/1.1\r\n"));
    answer_done(&a);
    /* A page's script: no redirect either. */
    web.headers = "Accept: text/html\r\nSec-Fetch-Mode: cors\r\n";
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 200);
    answer_done(&a);
    /* The sandbox's token logs in too, with a cookie for this port alone. */
    ports_make_token(f, ", \"access\": \"write\"", token);
    (void)snprintf(target, sizeof(target), "/p?token=%s", token);
    web.headers = "Accept: text/html\r\n";
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 303);
    assert_false(buf_contains(&a.head, token));
}

/* ---- other protocols ---- */

#define UPGRADE "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"
#define SWITCH                                                                                     \
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"            \
    "Sec-WebSocket-Accept: a\r\n\r\n"

static int open_socket(struct ports_fixture *f)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host, .headers = f->auth, .more = UPGRADE};
    int fd;

    port_app_set(f->app, PORT_APP_ECHO, SWITCH);
    fd = ports_open_web(f, &web);
    client_send_text(fd, "early");
    ports_read_until(fd, "early", &seen);
    assert_true(buf_contains(&seen, "HTTP/1.1 101 Switching Protocols\r\n"));
    assert_true(buf_contains(&seen, "Sec-WebSocket-Accept: a\r\n"));
    return fd;
}

static void test_upgrade(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    char cookie[256];
    int fd = open_socket(f);
    struct ports_web web = {
        .host = f->host, .headers = cookie, .more = "Origin: http://e\r\n" UPGRADE};

    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "Upgrade: websocket\r\n"));
    assert_true(buf_contains(&seen, "Sec-WebSocket-Key: k\r\n"));
    buf_clear(&seen);
    client_send_text(fd, "ping");
    ports_read_until(fd, "ping", &seen);
    (void)shutdown(fd, SHUT_WR);
    assert_true(ports_is_ended(fd));
    (void)close(fd);
    port_app_wait_idle(f->app);
    /* A page of another site may not open one with our cookie. */
    log_in(f, cookie);
    ports_expect(f, &web, 403, "forbidden");
    /* An application that does not switch just answers. */
    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    web = (struct ports_web){.host = f->host, .headers = f->auth, .more = UPGRADE};
    {

        fd = ports_open_web(f, &web);
        buf_clear(&seen);
        ports_read_until(fd, "hello", &seen);
        assert_true(buf_contains(&seen, "HTTP/1.1 200 OK\r\n"));
        (void)close(fd);
    }
}

static int open_tcp(struct ports_fixture *f, const char *headers)
{
    char path[128];
    struct ports_web web = {.host = "localhost", .target = path, .headers = headers};

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u/tcp", f->id,
                   port_app_port(f->app));
    web.more = "Connection: Upgrade\r\nUpgrade: space-tcp\r\n";
    return ports_open_web(f, &web);
}

static void test_tcp(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    char line[160];
    int fd;

    (void)snprintf(line, sizeof(line), "Authorization: Bearer %s\r\n", f->rig->key);
    port_app_set(f->app, PORT_APP_PIPE, "");
    fd = open_tcp(f, line);
    client_send_text(fd, "bytes");
    ports_read_until(fd, "bytes", &seen);
    assert_true(buf_contains(&seen, "Upgrade: space-tcp\r\n"));
    (void)shutdown(fd, SHUT_WR);
    assert_true(ports_is_ended(fd));
    (void)close(fd);
    port_app_wait_idle(f->app);
    {
        char path[128];
        struct ports_web web = {.host = "localhost", .target = path, .headers = line};

        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/1/tcp", f->id);
        web.more = "Connection: Upgrade\r\nUpgrade: space-tcp\r\n";
        fd = ports_open_web(f, &web);
        buf_clear(&seen);
        ports_read_until(fd, "bad_gateway", &seen);
        assert_true(buf_contains(&seen, "HTTP/1.1 502 "));
        (void)close(fd);
    }
}

/* ---- the end of access ---- */

static void test_made_private(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host};
    int held;
    int tunnel;
    int known;

    ports_set_public(f, true);
    port_app_set(f->app, PORT_APP_HOLD, "HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n");
    held = ports_open_web(f, &web);
    ports_read_until(held, "data: 1\n\n", &seen);
    port_app_set(f->app, PORT_APP_ECHO, SWITCH);
    web.more = UPGRADE;
    tunnel = ports_open_web(f, &web);
    ports_read_until(tunnel, "Sec-WebSocket-Accept: a", &seen);
    ports_set_public(f, false);
    known = open_socket(f);
    assert_true(ports_is_ended(held));
    assert_true(ports_is_ended(tunnel));
    /* Who came with a key stays. */
    ports_set_public(f, true);
    ports_set_public(f, false);
    buf_clear(&seen);
    client_send_text(known, "still");
    ports_read_until(known, "still", &seen);
    (void)close(held);
    (void)close(tunnel);
    (void)close(known);
    port_app_wait_idle(f->app);
}

static void test_revoked_key(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_buf_ struct buf seen = buf_make(0);
    char line[160];
    char path[160];
    struct ports_web web = {.host = f->host, .headers = line};
    int held;
    int tunnel;
    int tcp;

    rig_ask(f->rig, "POST", "/v1/keys", "{\"name\": \"short\", \"role\": \"member\"}", &made);
    assert_int_equal(made.status, 201);
    (void)snprintf(line, sizeof(line), "Authorization: Bearer %s\r\n", answer_text(&made, "key"));
    port_app_set(f->app, PORT_APP_HOLD, "HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n");
    held = ports_open_web(f, &web);
    ports_read_until(held, "data: 1\n\n", &seen);
    port_app_set(f->app, PORT_APP_ECHO, SWITCH);
    web.more = UPGRADE;
    tunnel = ports_open_web(f, &web);
    ports_read_until(tunnel, "Sec-WebSocket-Accept: a", &seen);
    port_app_set(f->app, PORT_APP_PIPE, "");
    tcp = open_tcp(f, line);
    ports_read_until(tcp, "Upgrade: space-tcp\r\n", &seen);
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", answer_text(&made, "id"));
    rig_expect(f->rig, 200, "DELETE", path, NULL);
    assert_true(ports_is_ended(held));
    assert_true(ports_is_ended(tunnel));
    assert_true(ports_is_ended(tcp));
    (void)close(held);
    (void)close(tunnel);
    (void)close(tcp);
    port_app_wait_idle(f->app);
}

static void test_stop_with_open_connections(void **state)
{
    struct ports_fixture *f = *state;
    int tunnel = open_socket(f);
    int status = rig_stop_api(f->rig, SIGTERM);

    assert_true(ports_is_ended(tunnel));
    (void)close(tunnel);
    assert_int_equal(status, 0);
    port_app_wait_idle(f->app);
    rig_start_api(f->rig);
    rig_wait_ready(f->rig);
}

/* ---- what is written down ---- */

static void test_log_has_no_secrets(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf log = buf_make(0);
    char file[128];

    (void)snprintf(file, sizeof(file), "%s/api.log", f->rig->dir);
    assert_int_equal(file_read(AT_FDCWD, file, 1U << 26, &log), 0);
    assert_false(buf_contains(&log, "spt_"));
    assert_false(buf_contains(&log, f->rig->key));
    assert_false(buf_contains(&log, "?"));
    assert_true(buf_contains(&log, "route=/v1/sandboxes/{}/ports/{}/proxy/"));
    assert_true(buf_contains(&log, "route={port}-{id}.{domain}/"));
}

static void test_streams_per_key(void **state)
{
    struct ports_fixture *f = *state;
    struct ports_web web = {.host = f->host, .headers = f->auth, .more = UPGRADE};
    int first = open_socket(f);
    int second = open_socket(f);

    ports_expect(f, &web, 429, "rate_limited");
    (void)close(first);
    (void)close(second);
    port_app_wait_idle(f->app);
    /* The service sees its end a moment before space-api counts it. */
    for (bool is_let_in = false; !is_let_in;) {
        _cleanup_buf_ struct buf seen = buf_make(0);
        int fd = ports_open_web(f, &web);

        ports_read_until(fd, "\r\n\r\n", &seen);
        is_let_in = buf_contains(&seen, "HTTP/1.1 101 ");
        assert_true(is_let_in || buf_contains(&seen, "HTTP/1.1 429 "));
        (void)close(fd);
    }
}

static int set_up_narrow(void **state)
{
    struct ports_fixture *f;

    (void)ports_set_up(state);
    f = *state;
    rig_free(f->rig);
    f->rig = rig_new("api.key_streams = 2\napi.domain = D.Example\n"
                     "api.public_url = https://d.example:444/\n");
    rig_create(f->rig, SPEC, f->id);
    (void)snprintf(f->host, sizeof(f->host), "%u-%s.d.example:444", port_app_port(f->app), f->id);
    (void)snprintf(f->auth, sizeof(f->auth), "X-Space-Token: %s\r\n", f->rig->key);
    return 0;
}

/* Behind a proxy that ends TLS. */
static void test_secure_cookie(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer url = {0};
    char token[256];
    char target[320];
    char value[256];
    char line[300];
    char path[128];
    struct ports_web web = {.host = f->host, .target = target, .headers = "Accept: text/html\r\n"};

    ports_make_port_token(f, token);
    (void)snprintf(target, sizeof(target), "/?token=%s", token);
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 303);
    answer_header(&a, "Set-Cookie", value);
    assert_memory_equal(value, "__Host-space_port_token=spt_", 28);
    assert_non_null(strstr(value, "; Secure"));
    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    (void)snprintf(line, sizeof(line), "Cookie: %.*s\r\n",
                   (int)span_find(span_of_str(value), 0, ';'), value);
    web = (struct ports_web){.host = f->host, .headers = line};
    ports_expect(f, &web, 200, "");
    (void)snprintf(line, sizeof(line), "Cookie: space_port_token=%s\r\n", token);
    ports_expect(f, &web, 401, "unauthorized");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u", f->id, port_app_port(f->app));
    rig_ask(f->rig, "GET", path, NULL, &url);
    (void)snprintf(target, sizeof(target), "https://%u-%s.D.Example:444/", port_app_port(f->app),
                   f->id);
    assert_string_equal(answer_text(&url, "url"), target);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access),
        cmocka_unit_test(test_sandbox_that_does_not_run),
        cmocka_unit_test(test_error_pages),
        cmocka_unit_test(test_preflight_of_a_private_port),
        cmocka_unit_test(test_preflight_of_a_public_port_is_the_applications),
        cmocka_unit_test(test_answers_to_a_token),
        cmocka_unit_test(test_login),
        cmocka_unit_test(test_token_of_a_program),
        cmocka_unit_test(test_upgrade),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_made_private),
        cmocka_unit_test(test_revoked_key),
        cmocka_unit_test(test_stop_with_open_connections),
        cmocka_unit_test(test_log_has_no_secrets),
    };
    const struct CMUnitTest narrow[] = {
        cmocka_unit_test(test_streams_per_key),
        cmocka_unit_test(test_secure_cookie),
    };
    int r = rig_main(argc, argv);

    if (r >= 0) {
        return r;
    }
    r = cmocka_run_group_tests_name("ports, access", tests, ports_set_up, ports_tear_down);
    return r + cmocka_run_group_tests_name("ports, access, narrow", narrow, set_up_narrow,
                                           ports_tear_down);
}
