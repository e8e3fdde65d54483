#include "cli/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "cli/redact.h"
#include "cli/table.h"

static void test_sizes_and_times(void **state)
{
    uint64_t mib;
    double seconds;

    (void)state;
    assert_int_equal(text_parse_mib("512", "memory", &mib, NULL), 0);
    assert_int_equal(mib, 512);
    assert_int_equal(text_parse_mib("2G", "memory", &mib, NULL), 0);
    assert_int_equal(mib, 2048);
    assert_int_equal(text_parse_mib("3gib", "memory", &mib, NULL), 0);
    assert_int_equal(mib, 3072);
    assert_true(text_parse_mib("", "memory", &mib, NULL) < 0);
    assert_true(text_parse_mib("0", "memory", &mib, NULL) < 0);
    assert_true(text_parse_mib("1k", "memory", &mib, NULL) < 0);
    assert_true(text_parse_mib("-1", "memory", &mib, NULL) < 0);
    assert_int_equal(text_parse_seconds("1.5", "timeout", &seconds, NULL), 0);
    assert_true(seconds > 1.49 && seconds < 1.51);
    assert_int_equal(text_parse_seconds("2h", "timeout", &seconds, NULL), 0);
    assert_true(seconds > 7199 && seconds < 7201);
    assert_true(text_parse_seconds("0", "timeout", &seconds, NULL) < 0);
    assert_true(text_parse_seconds("5x", "timeout", &seconds, NULL) < 0);
    assert_true(text_parse_seconds("1.", "timeout", &seconds, NULL) < 0);
    assert_true(text_parse_seconds("99999999999999999999", "timeout", &seconds, NULL) < 0);
}

static void expect_safe(const char *in, const char *out)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    text_put_safe(&b, span_of_str(in));
    assert_string_equal(buf_str(&b), out);
}

static void test_outside_text_cannot_steer_the_terminal(void **state)
{
    (void)state;
    expect_safe("plain äöü €", "plain äöü €");
    expect_safe("\x1b[2J", "\\x1b[2J");
    expect_safe("a\nb\x7f", "a\\x0ab\\x7f");
    expect_safe("\xc2\x9b"
                "31m",
                "\\xc2\\x9b31m");
    expect_safe("\xff\xc0\xaf", "\\xff\\xc0\\xaf");
    expect_safe("\xed\xa0\x80", "\\xed\\xa0\\x80");
}

static void test_shell_words(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {{"plain-1.0", "plain-1.0"},
                 {"", "''"},
                 {"a b", "'a b'"},
                 {"it's", "'it'\\''s'"},
                 {"$(x)", "'$(x)'"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf b = buf_make(0);

        text_put_shell_word(&b, cases[i].in);
        assert_string_equal(buf_str(&b), cases[i].out);
    }
}

static void test_ages(void **state)
{
    char text[TEXT_SHORT_SIZE];

    (void)state;
    text_format_age(-5, text);
    assert_string_equal(text, "0s");
    text_format_age(119000, text);
    assert_string_equal(text, "119s");
    text_format_age(3600000, text);
    assert_string_equal(text, "60m");
    text_format_age(86400000LL * 3, text);
    assert_string_equal(text, "3d");
    text_format_mib(1536, text);
    assert_string_equal(text, "1.5 GiB");
    text_format_mib(4096, text);
    assert_string_equal(text, "4 GiB");
}

static void put_rows(struct table *t)
{
    table_put(t, "sb1");
    table_put(t, "a-rather-long-name");
    table_printf(t, "%d", 7);
    table_put(t, "sb22");
    table_put(t, NULL);
    table_put(t, "x\ty");
}

static void test_a_table_is_aligned_and_fits(void **state)
{
    static const char *const heads[] = {"ID", "~NAME", "N"};
    _cleanup_table_ struct table *t = table_new(heads, 3);
    _cleanup_buf_ struct buf wide = buf_make(0);
    _cleanup_buf_ struct buf narrow = buf_make(0);

    (void)state;
    put_rows(t);
    assert_int_equal(table_format(t, TABLE_UNLIMITED, &wide), 0);
    assert_string_equal(buf_str(&wide), "ID    NAME                N\n"
                                        "sb1   a-rather-long-name  7\n"
                                        "sb22  -                   x\\x09y\n");
    assert_int_equal(table_format(t, 24, &narrow), 0);
    assert_string_equal(buf_str(&narrow), "ID    NAME        N\n"
                                          "sb1   a-rather-…  7\n"
                                          "sb22  -           x\\x09y\n");
}

static void expect_redacted(const char *in, const char *out)
{
    static const char *const secrets[] = {"", "hunter2hunter2", NULL};
    _cleanup_buf_ struct buf b = buf_make(0);

    redact_text(span_of_str(in), secrets, &b);
    if (strcmp(buf_str(&b), out) != 0) {
        fail_msg("\"%s\" became \"%s\"", in, buf_str(&b));
    }
}

static void test_secrets_go(void **state)
{
    (void)state;
    expect_redacted("api.listen = 127.0.0.1:8700\n", "api.listen = 127.0.0.1:8700\n");
    expect_redacted("api.tls_key = /etc/k.pem\n", "api.tls_key = /etc/k.pem\n");
    expect_redacted("x hunter2hunter2 y", "x [removed] y");
    expect_redacted("a=\"space_abcdefghijklmnop234567\"", "a=\"space_[removed]\"");
    expect_redacted("url x?t=spt_AQIBAAB7KMvzow-_1abc&y", "url x?t=spt_[removed]&y");
    expect_redacted("space_node started", "space_node started");
    expect_redacted("Authorization: Bearer abc def\nnext", "Authorization: [removed]\nnext");
    expect_redacted("sent Bearer abc.def here", "sent Bearer [removed] here");
    expect_redacted("db_password=pw1, next=2", "db_password=[removed], next=2");
    expect_redacted("{\"client_secret\": \"a\\\"b\", \"n\": 1}",
                    "{\"client_secret\": \"[removed]\", \"n\": 1}");
    expect_redacted("GET /x?token=abc&y=1", "GET /x?token=[removed]&y=1");
    expect_redacted("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nafter",
                    "[removed]\nafter");
    expect_redacted("-----BEGIN EC PRIVATE KEY-----\nMIIE", "[removed]");
    expect_redacted("token=", "token=");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_and_times),
        cmocka_unit_test(test_outside_text_cannot_steer_the_terminal),
        cmocka_unit_test(test_shell_words),
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_a_table_is_aligned_and_fits),
        cmocka_unit_test(test_secrets_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
