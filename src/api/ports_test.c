/* Ports of sandboxes from outside: space-api, a fake node, and an application whose every byte is
 * ours. What passes, and in which form. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/ports_rig.h"

/* ---- the list, and public or private ---- */

/* Two ports on two pages, with two keys each. */
static void page_of_ports(struct ports_fixture *f, struct answer *list)
{
    char path[240];
    int used;

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports?fields=port,public&limit=1", f->id);
    answer_done(list);
    rig_ask(f->rig, "GET", path, NULL, list);
    assert_int_equal(list->status, 200);
    assert_int_equal(json_array_size(answer_find(list, "items")), 1);
    assert_int_equal(json_object_size(answer_find(list, "items.0")), 2);
    assert_int_equal(json_integer_value(answer_find(list, "items.0.port")), 80);
    used = (int)strlen(path);
    (void)snprintf(&path[used], sizeof(path) - (size_t)used, "&cursor=%s",
                   answer_text(list, "next_cursor"));
    answer_done(list);
    rig_ask(f->rig, "GET", path, NULL, list);
    assert_int_equal(json_array_size(answer_find(list, "items")), 1);
    assert_int_equal(json_integer_value(answer_find(list, "items.0.port")), 8080);
    assert_true(json_is_null(answer_find(list, "next_cursor")));
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports?fields=nosuch", f->id);
    rig_expect(f->rig, 400, "GET", path, NULL);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports?limit=0", f->id);
    rig_expect(f->rig, 400, "GET", path, NULL);
}

/* Public ports where nothing listens stand between, before and after the others. */
static void list_silent_ports(struct ports_fixture *f)
{
    static const struct {
        int port;
        bool listens;
    } expected[] = {{79, false}, {80, true}, {81, false}, {8080, true}, {9999, false}};
    _cleanup_answer_ struct answer list = {0};
    char path[160];

    for (int on = 1; on >= 0; on--) {
        for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
            if (!expected[i].listens) {
                (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%d", f->id,
                               expected[i].port);
                rig_expect(f->rig, 200, "PUT", path,
                           on == 1 ? "{\"public\": true}" : "{\"public\": false}");
            }
        }
        if (on == 1) {
            (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports", f->id);
            rig_ask(f->rig, "GET", path, NULL, &list);
        }
    }
    assert_int_equal(json_array_size(answer_find(&list, "items")), 5);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        const json_t *item = json_array_get(answer_find(&list, "items"), i);

        assert_int_equal(json_integer_value(json_object_get(item, "port")), expected[i].port);
        assert_int_equal(json_is_string(json_object_get(item, "address")), expected[i].listens);
        assert_true(expected[i].listens || json_is_true(json_object_get(item, "public")));
    }
}

static void test_list_and_get(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer one = {0};
    char path[160];
    char url[160];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/8080", f->id);
    rig_expect(f->rig, 200, "PUT", path, "{\"public\": true}");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports", f->id);
    rig_ask(f->rig, "GET", path, NULL, &list);
    assert_int_equal(list.status, 200);
    assert_true(json_is_null(answer_find(&list, "next_cursor")));
    assert_int_equal(json_integer_value(answer_find(&list, "items.0.port")), 80);
    assert_true(json_is_false(answer_find(&list, "items.0.public")));
    assert_true(json_is_true(answer_find(&list, "items.1.public")));
    (void)snprintf(url, sizeof(url), "http://8080-%s." PORTS_DOMAIN "/", f->id);
    assert_string_equal(answer_text(&list, "items.1.url"), url); /* the test's Host has no port */
    list_silent_ports(f);
    page_of_ports(f, &list);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u?wait=1.5", f->id,
                   port_app_port(f->app));
    rig_ask(f->rig, "GET", path, NULL, &one);
    assert_int_equal(one.status, 200);
    assert_string_equal(answer_text(&one, "address"), "127.0.0.1");
    assert_true(json_is_false(answer_find(&one, "public")));
}

static void test_bad_ports(void **state)
{
    static const struct {
        const char *method;
        const char *rest;
        const char *body;
        int status;
    } cases[] = {
        {"GET", "/1", NULL, 404},
        {"GET", "/0", NULL, 400},
        {"GET", "/65536", NULL, 400},
        {"GET", "/08", NULL, 400},
        {"GET", "/x", NULL, 400},
        {"GET", "/80?wait=-1", NULL, 400},
        {"PUT", "/0", "{\"public\": true}", 400},
        {"PUT", "/80", "{}", 400},
        {"PUT", "/80", "{\"public\": null}", 400},
        {"PUT", "/80", "{\"public\": 1}", 400},
        {"PUT", "/80", "{\"public\": true, \"x\": 1}", 400},
        {"DELETE", "/80", NULL, 405},
        {"GET", "/80/tcp", NULL, 400},
        {"GET", "/x/proxy/", NULL, 400},
    };
    struct ports_fixture *f = *state;
    char path[160];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports%s", f->id, cases[i].rest);
        rig_expect(f->rig, cases[i].status, cases[i].method, path, cases[i].body);
    }
    rig_expect(f->rig, 404, "GET", "/v1/sandboxes/sb000000000000000000/ports", NULL);
    rig_expect(f->rig, 404, "PUT", "/v1/sandboxes/sb000000000000000000/ports/80",
               "{\"public\": true}");
    rig_expect(f->rig, 404, "GET", "/v1/sandboxes/sb000000000000000000/ports/80/proxy/", NULL);
    rig_expect(f->rig, 404, "GET", "/v1/sandboxes/nonsense/ports/80/proxy/", NULL);
}

static void test_public(void **state)
{
    struct ports_fixture *f = *state;
    struct ports_web web = {.host = f->host};
    char path[160];

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_expect(f, &web, 401, "unauthorized");
    ports_set_public(f, true);
    ports_expect(f, &web, 200, "");
    /* A restart keeps it. */
    (void)rig_stop_api(f->rig, SIGKILL);
    rig_start_api(f->rig);
    rig_wait_ready(f->rig);
    ports_expect(f, &web, 200, "");
    ports_set_public(f, false);
    ports_expect(f, &web, 401, "unauthorized");
    /* Before anything listens, and then not. */
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/1", f->id);
    rig_expect(f->rig, 200, "PUT", path, "{\"public\": true}");
    (void)snprintf(path, sizeof(path), "1-%s." PORTS_DOMAIN, f->id);
    web.host = path;
    ports_expect(f, &web, 502, "bad_gateway");
}

/* ---- names ---- */

static void test_names(void **state)
{
    struct ports_fixture *f = *state;
    char host[160];
    struct ports_web web = {.host = host, .target = "/healthz"};
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf seen = buf_make(0);

    (void)snprintf(host, sizeof(host), "www." PORTS_DOMAIN);
    ports_expect(f, &web, 404, "not_found");
    (void)snprintf(host, sizeof(host), "0-%s." PORTS_DOMAIN ":80", f->id);
    ports_expect(f, &web, 404, "not_found");
    (void)snprintf(host, sizeof(host), PORTS_DOMAIN);
    ports_expect(f, &web, 200, "");
    (void)snprintf(host, sizeof(host), "localhost:%d", f->rig->port);
    ports_expect(f, &web, 200, "");
    (void)snprintf(host, sizeof(host), "80-sb000000000000000000." PORTS_DOMAIN);
    ports_expect(f, &web, 404, "not_found");
    /* On a sandbox's name every path is the application's. */
    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    (void)snprintf(host, sizeof(host), "%s.:80", f->host);
    host[0] = f->host[0];
    web.headers = f->auth;
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_str(&a.body), "hello");
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "GET /healthz HTTP/1.1\r\n"));
    assert_true(buf_contains(&seen, host));
}

/* ---- what passes ---- */

static void test_request_as_the_guest_sees_it(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf headers = buf_make(0);
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_buf_ struct buf wanted = buf_make(0);
    _cleanup_answer_ struct answer a = {0};
    struct ports_web web = {.method = "PATCH",
                            .host = f->host,
                            .target = "/a//b/../%2e?q=1&token=theirs&q=2",
                            .body = "body"};

    buf_printf(&headers,
               "X-Space-Token: %s\r\nAuthorization: Basic dTpw\r\nX-A: 1\r\nTE: trailers\r\n"
               "Cookie: a=1; space_port_token=spt_x; b=2\r\nx-a: 2\r\nAuthorization: Bearer %s\r\n"
               "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: gopher\r\nX-A: 1\r\n",
               f->rig->key, f->rig->key);
    web.headers = buf_str(&headers);
    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 200);
    port_app_last(f->app, &seen);
    buf_printf(&wanted,
               "PATCH /a//b/../%%2e?q=1&token=theirs&q=2 HTTP/1.1\r\nHost: %s\r\n"
               "Authorization: Basic dTpw\r\nX-A: 1\r\nCookie: a=1; b=2\r\nx-a: 2\r\nX-A: 1\r\n"
               "X-Forwarded-For: 192.0.2.7, 127.0.0.1\r\nX-Forwarded-Proto: http\r\n"
               "X-Forwarded-Host: %s\r\n",
               f->host, f->host);
    if (!buf_contains(&seen, buf_str(&wanted))) {
        fail_msg("%s\nbut wanted\n%s", buf_str(&seen), buf_str(&wanted));
    }
    assert_true(buf_contains(&seen, "Content-Length: 4\r\n"));
    assert_true(buf_contains(&seen, "\r\n\r\nbody"));
    assert_false(buf_contains(&seen, "chunked"));
}

static void test_by_path(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf target = buf_make(0);
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_answer_ struct answer a = {0};
    char token[256];
    char host[64];
    char value[256];
    struct ports_web web = {.host = "api.example", .headers = "Cookie: a=1\r\n"};

    ports_make_port_token(f, token);
    buf_printf(&target, "%s/x/y?a=1&token=%s&b", f->path, token);
    web.target = buf_str(&target);
    port_app_set(f->app, PORT_APP_ANSWER,
                 "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n"
                 "Set-Cookie: a=1\r\nService-Worker-Allowed: /\r\nX-Space-Error: no\r\n"
                 "Content-Security-Policy: default-src *\r\n\r\n");
    ports_ask(f, &web, &a);
    assert_int_equal(a.status, 302);
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "GET /x/y?a=1&b HTTP/1.1\r\n"));
    (void)snprintf(host, sizeof(host), "Host: localhost:%u\r\n", port_app_port(f->app));
    assert_true(buf_contains(&seen, host));
    assert_true(buf_contains(&seen, "X-Forwarded-Host: api.example\r\n"));
    assert_false(buf_contains(&seen, "Cookie"));
    assert_false(buf_contains(&seen, "spt_"));
    answer_header(&a, "Location", value);
    assert_string_equal(value, "http://127.0.0.1:1/");
    assert_true(buf_contains(&a.head, "Content-Security-Policy: default-src *\r\n"));
    assert_true(buf_contains(&a.head, "Content-Security-Policy: sandbox\r\n"));
    assert_true(buf_contains(&a.head, "X-Content-Type-Options: nosniff\r\n"));
    assert_true(buf_contains(&a.head, "Referrer-Policy: no-referrer\r\n"));
    assert_false(buf_contains(&a.head, "Set-Cookie"));
    assert_false(buf_contains(&a.head, "Service-Worker-Allowed"));
    assert_false(buf_contains(&a.head, "X-Space-Error"));
    /* No service worker for the API's own name. */
    web.headers = "Service-Worker: script\r\n";
    ports_expect(f, &web, 403, "forbidden");
    /* Without a slash it is the root. */
    web = (struct ports_web){.host = "api.example", .target = f->path, .headers = f->auth};
    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    ports_expect(f, &web, 200, "");
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "GET / HTTP/1.1\r\n"));
}

static void test_cookies_of_a_page(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    struct ports_web web = {.host = f->host, .headers = f->auth};

    port_app_set(
        f->app, PORT_APP_ANSWER,
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: a=1; Path=/; Domain=" PORTS_DOMAIN
        "\r\nSet-Cookie: space_port_token=evil\r\nSet-Cookie: b=2\r\n"
        "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n");
    ports_ask(f, &web, &a);
    assert_true(buf_contains(&a.head, "Set-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\n"));
    assert_false(buf_contains(&a.head, "evil"));
    assert_true(buf_contains(&a.head, "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"));
    assert_false(buf_contains(&a.head, "Content-Security-Policy"));
}

static void test_kinds_of_answers(void **state)
{
    static const struct {
        const char *method;
        const char *answer;
        int status;
        const char *body;
        const char *head; /* a line that must be there */
    } cases[] = {
        {"GET", "HTTP/1.1 200 OK\r\n\r\nuntil close", 200, "until close", "chunked\r\n"},
        {"GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nold", 200, "old", "chunked\r\n"},
        {"GET",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3;x=y\r\nabc\r\n"
         "2\r\nde\r\n0\r\nX: 1\r\n\r\n",
         200, "abcde", "chunked\r\n"},
        {"GET",
         "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1"
         "\r\n\r\nx",
         201, "x", "Content-Length: 1\r\n"},
        {"GET", "HTTP/1.1 204 No\r\nX-A: 1\r\n\r\n", 204, "", "X-A: 1\r\n"},
        {"GET", "HTTP/1.1 304 Not\r\nETag: \"a\"\r\nContent-Length: 9\r\n\r\n", 304, "",
         "ETag: \"a\"\r\n"},
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", 200, "",
         "Content-Length: 900\r\n"},
        {"DELETE", "HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", 500, "no", "X-Request-Id: "},
        {"PURGE", "HTTP/1.1 418 I\r\nContent-Length: 0\r\nWWW-Authenticate: Basic\r\n\r\n", 418, "",
         "WWW-Authenticate: Basic\r\n"},
    };
    struct ports_fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer a = {0};
        struct ports_web web = {.method = cases[i].method, .host = f->host, .headers = f->auth};

        port_app_set(f->app, PORT_APP_ANSWER, cases[i].answer);
        ports_ask(f, &web, &a);
        if (a.status != cases[i].status || strcmp(buf_str(&a.body), cases[i].body) != 0 ||
            !buf_contains(&a.head, cases[i].head) || buf_contains(&a.head, "Trailer")) {
            fail_msg("%zu: %d %s%s", i, a.status, buf_str(&a.head), buf_str(&a.body));
        }
    }
}

static void test_broken_answers(void **state)
{
    static const char *const answers[] = {
        "",
        "SSH-2.0-OpenSSH_9\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\nX: a\n\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\x01\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a",
    };
    struct ports_fixture *f = *state;
    struct ports_web web = {.host = f->host, .headers = f->auth};

    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        port_app_set(f->app, PORT_APP_ANSWER, answers[i]);
        ports_expect(f, &web, 502, "bad_gateway");
    }
    {
        _cleanup_answer_ struct answer a = {0};

        /* What has begun can only be cut. */
        port_app_set(f->app, PORT_APP_ANSWER, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        ports_ask(f, &web, &a);
        assert_int_equal(a.status, 200);
        assert_true(a.cut);
    }
}

static void test_smuggling(void **state)
{
    static const char *const bad[] = {
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "Transfer-Encoding: identity\r\n\r\n",
        "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "X: a\n\r\n",
        "Host: other\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n",
    };
    struct ports_fixture *f = *state;
    unsigned int before;

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    before = port_app_connections(f->app);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_answer_ struct answer a = {0};
        _cleanup_buf_ struct buf text = buf_make(0);
        int fd = client_connect(f->rig->port);

        buf_printf(&text, "POST / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s%s", f->host,
                   f->auth, bad[i]);
        client_send_text(fd, buf_str(&text));
        client_read(fd, &a);
        (void)close(fd);
        if (a.status != 400) {
            fail_msg("%s: %d", bad[i], a.status);
        }
    }
    /* Only the last one's head was good; its body broke the call. */
    assert_true(port_app_connections(f->app) - before <= 1);
}

/* ---- bodies ---- */

static void test_large_upload(void **state)
{
    enum {
        SIZE = 50000000
    };
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf body = buf_make(0);
    struct ports_web web = {.method = "PUT", .host = f->host, .headers = f->auth};
    char wanted[64];

    memset(buf_reserve(&body, SIZE), 'u', SIZE);
    buf_commit(&body, SIZE);
    web.body = buf_str(&body);
    port_app_set(f->app, PORT_APP_SINK, "");
    ports_ask(f, &web, &a);
    (void)snprintf(wanted, sizeof(wanted), "%d %llu", SIZE, (unsigned long long)SIZE * 'u');
    assert_string_equal(buf_str(&a.body), wanted);
}

static void test_chunked_upload(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_answer_ struct answer a = {0};
    struct ports_web web = {.method = "POST",
                            .host = f->host,
                            .headers = f->auth,
                            .more = "Connection: close\r\nTransfer-Encoding: chunked\r\n"
                                    "Expect: 100-continue\r\n"};
    int fd;

    port_app_set(f->app, PORT_APP_ANSWER, PORTS_HELLO);
    fd = ports_open_web(f, &web);
    ports_read_until(fd, "HTTP/1.1 100 Continue\r\n\r\n", &seen);
    client_send_text(fd, "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer-X: 1\r\n\r\n");
    client_read(fd, &a);
    (void)close(fd);
    assert_int_equal(a.status, 200);
    port_app_last(f->app, &seen);
    assert_true(buf_contains(&seen, "Transfer-Encoding: chunked\r\n"));
    assert_true(buf_contains(&seen, "\r\nabc\r\n"));
    assert_false(buf_contains(&seen, "Trailer-X"));
    assert_false(buf_contains(&seen, "ext=1"));
    assert_false(buf_contains(&seen, "Expect"));
}

static void test_large_download(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    struct ports_web web = {.host = f->host, .headers = f->auth};

    port_app_set_flood(f->app, 50000000);
    port_app_set(f->app, PORT_APP_FLOOD, "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n");
    ports_ask(f, &web, &a);
    assert_int_equal(a.body.n, 50000000);
    assert_false(a.cut);
    answer_done(&a);
    port_app_set(f->app, PORT_APP_FLOOD, "HTTP/1.1 200 OK\r\n\r\n");
    ports_ask(f, &web, &a);
    assert_int_equal(a.body.n, 50000000);
    assert_false(a.cut);
}

/* An endless answer costs nothing while its reader does not read, and ends with the reader. */
static void test_slow_reader(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host, .headers = f->auth};
    int fd;

    port_app_set_flood(f->app, UINT64_MAX);
    port_app_set(f->app, PORT_APP_FLOOD, "HTTP/1.1 200 OK\r\n\r\n");
    fd = ports_open_web(f, &web);
    ports_read_until(fd, "ffff", &seen);
    rig_sleep_ms(300);
    (void)close(fd);
    port_app_wait_idle(f->app);
}

static void test_answer_before_the_body(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    struct ports_web web = {.method = "POST",
                            .host = f->host,
                            .headers = f->auth,
                            .more = "Connection: close\r\nContent-Length: 100000000\r\n"};
    int fd;

    port_app_set(f->app, PORT_APP_EARLY,
                 "HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
    fd = ports_open_web(f, &web);
    client_read(fd, &a);
    (void)close(fd);
    assert_int_equal(a.status, 413);
    assert_string_equal(buf_str(&a.body), "no");
}

static void test_events_are_not_buffered(void **state)
{
    struct ports_fixture *f = *state;
    _cleanup_buf_ struct buf seen = buf_make(0);
    struct ports_web web = {.host = f->host, .headers = f->auth};
    int fd;

    port_app_set(f->app, PORT_APP_HOLD,
                 "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n");
    fd = ports_open_web(f, &web);
    ports_read_until(fd, "data: 1\n\n", &seen);
    (void)close(fd);
    port_app_wait_idle(f->app);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_and_get),
        cmocka_unit_test(test_bad_ports),
        cmocka_unit_test(test_public),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_request_as_the_guest_sees_it),
        cmocka_unit_test(test_by_path),
        cmocka_unit_test(test_cookies_of_a_page),
        cmocka_unit_test(test_kinds_of_answers),
        cmocka_unit_test(test_broken_answers),
        cmocka_unit_test(test_smuggling),
        cmocka_unit_test(test_large_upload),
        cmocka_unit_test(test_chunked_upload),
        cmocka_unit_test(test_large_download),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_answer_before_the_body),
        cmocka_unit_test(test_events_are_not_buffered),
    };
    int r = rig_main(argc, argv);

    if (r >= 0) {
        return r;
    }
    r = cmocka_run_group_tests_name("ports", tests, ports_set_up, ports_tear_down);
    return r;
}
