/* The pieces of the proxy that need no server: names, cookies, queries, headers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "api/port_cookie.h"
#include "api/port_headers.h"
#include "api/port_host.h"
#include "api/port_query.h"

#define ID    "sb0123456789abcdefgh"
#define KEY   "space_0123456789abcdefghjkmnpqrstvwxyz"
#define TOKEN "spt_AQIDBA-_x"

/* ---- names ---- */

static void test_hosts(void **state)
{
    static const struct {
        const char *host;
        const char *domain;
        enum port_host_kind kind;
    } cases[] = {
        {"8080-" ID ".space.localhost", "space.localhost", PORT_HOST_PORT},
        {"8080-" ID ".space.localhost:7070", "space.localhost", PORT_HOST_PORT},
        {"8080-" ID ".space.localhost.:7070", "space.localhost", PORT_HOST_PORT},
        {"8080-SB0123456789ABCDEFGH.Space.LOCALHOST", "space.localhost", PORT_HOST_PORT},
        {"8080-" ID ".space.localhost", "SPACE.localhost.", PORT_HOST_PORT},
        {"space.localhost", "space.localhost", PORT_HOST_OUTSIDE},
        {"localhost:7070", "space.localhost", PORT_HOST_OUTSIDE},
        {"xspace.localhost", "space.localhost", PORT_HOST_OUTSIDE},
        {"127.0.0.1", "space.localhost", PORT_HOST_OUTSIDE},
        {"[::1]:7070", "space.localhost", PORT_HOST_OUTSIDE},
        {"8080-" ID ".other.example", "space.localhost", PORT_HOST_OUTSIDE},
        {"8080-" ID ".space.localhost", "", PORT_HOST_OUTSIDE},
        {"", "space.localhost", PORT_HOST_OUTSIDE},
        {".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"www.space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"a.8080-" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"0-" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"08080-" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"65536-" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"-" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"8080-sb0123456789abcdefg.space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"8080-se0123456789abcdefgh.space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"8080_" ID ".space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
        {"8080-" ID "..space.localhost", "space.localhost", PORT_HOST_UNKNOWN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct port_host found = {0};
        enum port_host_kind kind =
            port_host_parse(span_of_str(cases[i].host), cases[i].domain, &found);

        if (kind != cases[i].kind) {
            fail_msg("%s: %d", cases[i].host, kind);
        }
        if (kind == PORT_HOST_PORT) {
            assert_int_equal(found.port, 8080);
            assert_string_equal(found.sandbox_id, ID);
        }
    }
}

static void test_origins(void **state)
{
    static const struct {
        const char *origin;
        bool own;
    } cases[] = {
        {"https://8080-" ID ".d.example", true},
        {"http://8080-" ID ".D.example:7070", true},
        {"http://8081-" ID ".d.example", false},
        {"http://8080-sb0123456789abcdefgg.d.example", false},
        {"http://d.example", false},
        {"http://evil.example", false},
        {"ftp://8080-" ID ".d.example", false},
        {"http:8080-" ID ".d.example", false},
        {"null", false},
        {"", false},
    };
    const struct port_host host = {8080, ID};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (port_host_is_origin(&host, span_of_str(cases[i].origin), "d.example") != cases[i].own) {
            fail_msg("%s", cases[i].origin);
        }
    }
}

static void test_api_below_the_domain(void **state)
{
    (void)state;
    assert_true(port_host_is_below(span_of_str("https://api.d.example:1/"), "d.example"));
    assert_true(port_host_is_below(span_of_str("https://8080-" ID ".d.example"), "D.example"));
    assert_false(port_host_is_below(span_of_str("https://d.example/x.d.example"), "d.example"));
    assert_false(port_host_is_below(span_of_str("https://api.example"), "d.example"));
    assert_false(port_host_is_below(span_of_str("https://api.example"), ""));
    assert_false(port_host_is_below(span_of_str(""), "d.example"));
}

/* ---- cookies ---- */

static void test_cookie_strip(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"a=1; b=2", "a=1; b=2"},
        {"a=1;b=2 ;  c", "a=1;b=2 ;  c"},
        {"space_port_token=x", ""},
        {"space_port_token=x; a=1", "a=1"},
        {"a=1; space_port_token=x; b=2", "a=1; b=2"},
        {"a=1; __Host-space_port_token=x", "a=1"},
        {"__host-SPACE_port_token=x;a=1", "a=1"},
        {" space_port_token =x; space_port_token=y; space_port_token; a", "a"},
        {"xspace_port_token=x", "xspace_port_token=x"},
        {"", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        port_cookie_strip(span_of_str(cases[i].in), &out);
        assert_string_equal(buf_str(&out), cases[i].out);
    }
}

static void test_cookie_find(void **state)
{
    struct span rest = span_of_str("a=1; space_port_token=x; __Host-space_port_token=s;"
                                   "space_port_token= y=z ");
    struct span all = rest;
    struct span value;

    (void)state;
    assert_true(port_cookie_next(&rest, false, &value));
    assert_true(span_equals_str(value, "x"));
    assert_true(port_cookie_next(&rest, false, &value));
    assert_true(span_equals_str(value, "y=z"));
    assert_false(port_cookie_next(&rest, false, &value));
    assert_true(port_cookie_next(&all, true, &value));
    assert_true(span_equals_str(value, "s"));
    assert_false(port_cookie_next(&all, true, &value));
}

static void test_set_cookie(void **state)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: dropped */
    } cases[] = {
        {"a=1; Path=/; HttpOnly", "a=1; Path=/; HttpOnly"},
        {"a=1; Domain=d.example; Secure", "a=1; Secure"},
        {"a=1;domain=.d.example;DOMAIN = x; Path=/", "a=1; Path=/"},
        {"domain=d.example; Path=/", "domain=d.example; Path=/"},
        {"a=1; Domain", "a=1"},
        {"a=1;", "a=1"},
        {"space_port_token=x; Path=/", NULL},
        {"SPACE_PORT_TOKEN=x", NULL},
        {" __Host-space_port_token =x; Secure", NULL},
        {"=space_port_token=x", NULL},
        {" = =\tspace_port_token=x", NULL},
        {"space_port_token", NULL},
        {"a=space_port_token=x", "a=space_port_token=x"},
        {"", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);
        bool kept = port_cookie_filter_set(span_of_str(cases[i].in), &out);

        assert_int_equal(kept, cases[i].out != NULL);
        assert_string_equal(buf_str(&out), kept ? cases[i].out : "");
    }
}

/* ---- queries ---- */

static void test_queries(void **state)
{
    static const struct {
        const char *in;
        const char *out;
        const char *token;
    } cases[] = {
        {"", "", ""},
        {"a=1&b", "a=1&b", ""},
        {"a&&b=%zz&", "a&&b=%zz&", ""},
        {"token=" TOKEN, "", TOKEN},
        {"token=" TOKEN "&a=1", "a=1", TOKEN},
        {"a=1&token=" TOKEN "&b=2&token=spt_other", "a=1&b=2", TOKEN},
        {"t%6fken=s%70t_x", "", "spt_x"},
        {"token=" KEY, "", KEY},
        {"token=jupyter&a", "token=jupyter&a", ""},
        {"token=&token", "token=&token", ""},
        {"xtoken=" TOKEN, "xtoken=" TOKEN, ""},
        {"token=spt_%zz", "token=spt_%zz", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);
        char token[PORT_TOKEN_SIZE];
        bool stripped = port_query_strip(span_of_str(cases[i].in), &out, token);

        assert_int_equal(stripped, cases[i].token[0] != '\0');
        assert_string_equal(token, cases[i].token);
        assert_string_equal(buf_str(&out), cases[i].out);
    }
}

static void test_urls(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"http://h/p?token=" TOKEN, "http://h/p"},
        {"http://h/p?a=1&token=" TOKEN, "http://h/p?a=1"},
        {"http://h/p?a=1", "http://h/p?a=1"},
        {"http://h/p?", "http://h/p?"},
        {"http://h/p", "http://h/p"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        (void)port_url_strip(span_of_str(cases[i].in), &out);
        assert_string_equal(buf_str(&out), cases[i].out);
    }
}

/* ---- headers ---- */

static void put_all(const struct port_headers *headers, char *out, size_t size)
{
    size_t n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < headers->count; i++) {
        n += (size_t)snprintf(&out[n], size - n, "%s=%s|", headers->items[i].name,
                              headers->items[i].value);
        assert_true(n < size);
    }
}

static const struct http_header request[] = {
    {"Host", "h"},
    {"Connection", "keep-alive, X-Hop , Upgrade"},
    {"X-Hop", "1"},
    {"x-a", "1"},
    {"Authorization", "Bearer " KEY},
    {"authorization", "bearer  " TOKEN},
    {"Authorization", "Bearer theirs"},
    {"X-Space-Token", "anything"},
    {"x-a", "2"},
    {"Cookie", "a=1; space_port_token=x"},
    {"Cookie", "space_port_token=x"},
    {"Referer", "http://h/?token=" TOKEN},
    {"TE", "trailers"},
    {"Transfer-Encoding", "chunked"},
    {"Expect", "100-continue"},
    {"Upgrade", "websocket"},
    {"X-Forwarded-For", "192.0.2.1"},
    {"X-Forwarded-For", "192.0.2.2"},
    {"X-Forwarded-Proto", "gopher"},
    {"Proxy-Authorization", "Basic x"},
    {"Content-Type", "text/plain"},
};

#define REQUEST_COUNT (sizeof(request) / sizeof(request[0]))
#define FORWARDED                                                                                  \
    "X-Forwarded-For=192.0.2.1, 192.0.2.2, 192.0.2.3|X-Forwarded-Proto=https|X-Forwarded-Host=h|"

static void test_request_headers(void **state)
{
    struct port_request_facts facts = {false, "192.0.2.3", "https", "h"};
    char text[1024];

    (void)state;
    {
        _cleanup_port_headers_ struct port_headers out = {0};

        port_headers_of_request(request, REQUEST_COUNT, &facts, &out);
        put_all(&out, text, sizeof(text));
        assert_string_equal(text, "x-a=1|Authorization=Bearer theirs|x-a=2|Cookie=a=1|"
                                  "Referer=http://h/|Content-Type=text/plain|" FORWARDED);
    }
    facts.by_path = true;
    {
        _cleanup_port_headers_ struct port_headers out = {0};

        port_headers_of_request(request, REQUEST_COUNT, &facts, &out);
        put_all(&out, text, sizeof(text));
        assert_string_equal(text, "x-a=1|Authorization=Bearer theirs|x-a=2|"
                                  "Referer=http://h/|Content-Type=text/plain|" FORWARDED);
    }
}

static const struct http_header answer[] = {
    {"Content-Type", "text/html"},
    {"Set-Cookie", "a=1; Domain=d.example"},
    {"Set-Cookie", "space_port_token=x"},
    {"Set-Cookie", "b=2"},
    {"X-Space-Error", "not_found"},
    {"Connection", "close, x-hop"},
    {"X-Hop", "1"},
    {"Content-Length", "5"},
    {"Clear-Site-Data", "\"*\""},
    {"Alt-Svc", "h2=\":1\""},
    {"Strict-Transport-Security", "max-age=1"},
    {"Service-Worker-Allowed", "/"},
    {"Content-Security-Policy", "default-src *"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "unsafe-url"},
    {"Access-Control-Allow-Origin", "*"},
    {"WWW-Authenticate", "Basic"},
    {"Keep-Alive", "timeout=5"},
};

#define ANSWER_COUNT (sizeof(answer) / sizeof(answer[0]))

static void test_answer_headers(void **state)
{
    struct port_answer_facts facts = {.by_token = true};
    char text[1024];

    (void)state;
    {
        _cleanup_port_headers_ struct port_headers out = {0};

        port_headers_of_answer(answer, ANSWER_COUNT, &facts, &out);
        put_all(&out, text, sizeof(text));
        assert_string_equal(text,
                            "Content-Type=text/html|Set-Cookie=a=1|Set-Cookie=b=2|"
                            "Strict-Transport-Security=max-age=1|Service-Worker-Allowed=/|"
                            "Content-Security-Policy=default-src *|X-Content-Type-Options=nosniff|"
                            "Referrer-Policy=unsafe-url|Access-Control-Allow-Origin=*|"
                            "WWW-Authenticate=Basic|");
    }
    facts = (struct port_answer_facts){.by_path = true, .had_token = true};
    {
        _cleanup_port_headers_ struct port_headers out = {0};

        port_headers_of_answer(answer, ANSWER_COUNT, &facts, &out);
        put_all(&out, text, sizeof(text));
        assert_string_equal(text, "Content-Type=text/html|Content-Security-Policy=default-src *|"
                                  "Access-Control-Allow-Origin=*|WWW-Authenticate=Basic|"
                                  "Referrer-Policy=no-referrer|"
                                  "Content-Security-Policy=sandbox|"
                                  "X-Content-Type-Options=nosniff|");
    }
}

/* An application that says nothing: whoever has the token may read, a cookie opens nothing. */
static void test_answers_to_pages_with_a_token(void **state)
{
    static const struct http_header plain[] = {{"A", "b"}};
    char text[256];

    (void)state;
    for (int by_token = 0; by_token < 2; by_token++) {
        const struct port_answer_facts facts = {.by_token = by_token == 1};
        _cleanup_port_headers_ struct port_headers out = {0};

        port_headers_of_answer(plain, 1, &facts, &out);
        put_all(&out, text, sizeof(text));
        assert_string_equal(text, by_token == 1 ? "A=b|Access-Control-Allow-Origin=*|" : "A=b|");
    }
}

static void test_too_many_headers(void **state)
{
    struct http_header many[PORT_HEADERS_MAX];
    struct port_request_facts facts = {false, "p", "http", "h"};
    _cleanup_port_headers_ struct port_headers out = {0};

    (void)state;
    for (size_t i = 0; i < PORT_HEADERS_MAX; i++) {
        many[i] = (struct http_header){"x", "y"};
    }
    port_headers_of_request(many, 100, &facts, &out);
    assert_int_equal(out.error, 0);
    port_headers_done(&out);
    port_headers_of_request(many, PORT_HEADERS_MAX, &facts, &out);
    assert_int_equal(out.error, -EMSGSIZE);
    port_headers_done(&out);
    out.error = 0;
    /* Nor does a long Connection make work. */
    many[0] = (struct http_header){"Connection", ",,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,"};
    port_headers_of_answer(many, 1, &(struct port_answer_facts){.by_path = false}, &out);
    assert_int_equal(out.error, -EMSGSIZE);
}

static void test_accept(void **state)
{
    static const struct {
        const char *accept;
        bool html;
    } cases[] = {
        {NULL, false},
        {"", false},
        {"*/*", false},
        {"text/html", true},
        {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true},
        {"application/json, text/html", false},
        {"application/json;q=0.5, text/html;q=0.7", true},
        {"text/html;level=1;q=0, */*", false},
        {"TEXT/HTML ; Q=1.0", true},
        {"text/html;q=9", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (port_accepts_html(cases[i].accept) != cases[i].html) {
            fail_msg("%s", cases[i].accept);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_api_below_the_domain),
        cmocka_unit_test(test_cookie_strip),
        cmocka_unit_test(test_cookie_find),
        cmocka_unit_test(test_set_cookie),
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_request_headers),
        cmocka_unit_test(test_answer_headers),
        cmocka_unit_test(test_answers_to_pages_with_a_token),
        cmocka_unit_test(test_too_many_headers),
        cmocka_unit_test(test_accept),
    };

    return cmocka_run_group_tests_name("port_pieces", tests, NULL, NULL);
}
