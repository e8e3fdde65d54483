/* error, span, buf, reader, id, utf8: the parts that only compute. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"
#include "base/list.h"
#include "base/log.h"
#include "base/reader.h"
#include "base/span.h"
#include "base/utf8.h"

/* ---- error ---- */

static void test_every_code_has_a_name_and_a_status(void **state)
{
    (void)state;
    for (int i = ERROR_INVALID_REQUEST; i < ERROR_CODE_COUNT; i++) {
        enum error_code code = (enum error_code)i;
        int status = error_code_status(code);

        assert_int_equal(error_code_find(error_code_name(code)), code);
        assert_true(status >= 400 && status <= 507);
    }
    assert_int_equal(error_code_find("nothing"), ERROR_NONE);
    assert_string_equal(error_code_name((enum error_code)999), "internal");
    assert_int_equal(error_code_status((enum error_code) - 1), 500);
    assert_true(error_code_is_retryable(ERROR_RATE_LIMITED));
    assert_false(error_code_is_retryable(ERROR_CONFLICT));
    assert_string_equal(error_code_detail_key(ERROR_NOT_FOUND), "resource");
    assert_string_equal(error_code_detail_key(ERROR_INTERNAL), "reason");
    assert_null(error_code_detail_key(ERROR_STORAGE_FULL));
}

static void test_error_is_filled_and_wrapped(void **state)
{
    struct error err;

    (void)state;
    assert_int_equal(error_set(&err, ENOSPC, "no room for %s\nat all", "it"), -ENOSPC);
    assert_int_equal(err.code, ERROR_INTERNAL);
    assert_string_equal(err.message, "no room for it at all");
    assert_int_equal(error_wrap(&err, "saving %d", 7), -ENOSPC);
    assert_string_equal(err.message, "saving 7: no room for it at all");
    assert_int_equal(error_set_code(&err, ERROR_NOT_FOUND, "sandbox", "no %s", "x"), -ENOENT);
    assert_string_equal(err.field, "sandbox");
    assert_int_equal(error_set_code(&err, ERROR_INVALID_REQUEST, NULL, "bad"), -EINVAL);
    assert_string_equal(err.field, "");
    assert_int_equal(error_set(NULL, EIO, "unheard"), -EIO);
    assert_int_equal(error_set_code(NULL, ERROR_GONE, NULL, "unheard"), -ESTALE);
    assert_int_equal(error_wrap(NULL, "unheard"), -EIO);
}

static void test_long_messages_are_cut(void **state)
{
    struct error err;
    char text[1000];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)error_set(&err, EIO, "%s", text);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
    (void)error_wrap(&err, "%s", text);
    assert_true(strlen(err.message) < sizeof(err.message));
    (void)error_set_code(&err, ERROR_CONFLICT, text, "x");
    assert_int_equal(strlen(err.field), sizeof(err.field) - 1);
}

/* ---- span ---- */

static void test_span_basics(void **state)
{
    struct span s = span_of_str("hello");
    char out[6];

    (void)state;
    assert_true(span_equals_str(span_skip(s, 1), "ello"));
    assert_int_equal(span_skip(s, 5).n, 0);
    assert_int_equal(span_skip(s, 99).n, 0);
    assert_true(span_equals_str(span_head(s, 2), "he"));
    assert_true(span_equals(span_head(s, 99), s));
    assert_int_equal(span_find(s, 0, 'l'), 2);
    assert_int_equal(span_find(s, 3, 'l'), 3);
    assert_int_equal(span_find(s, 4, 'l'), 5);
    assert_int_equal(span_find(s, 50, 'l'), 5);
    assert_int_equal(span_find(span_make(NULL, 0), 0, 'l'), 0);
    assert_true(span_equals(span_make(NULL, 0), span_of_str("")));
    assert_true(span_equals_nocase(span_of_str("Content-LENGTH"), "content-length"));
    assert_false(span_equals_nocase(span_of_str("a"), "ab"));
    assert_false(span_equals_nocase(span_of_str("@"), "`"));
    assert_int_equal(span_copy_str(s, out, sizeof(out)), 0);
    assert_string_equal(out, "hello");
    assert_int_equal(span_copy_str(s, out, 5), -EMSGSIZE);
    assert_int_equal(span_copy_str(span_make("a\0b", 3), out, sizeof(out)), -EBADMSG);
    assert_int_equal(span_copy_str(span_make(NULL, 0), out, 1), 0);
}

static void test_span_numbers(void **state)
{
    uint64_t v = 7;

    (void)state;
    assert_int_equal(span_parse_u64(span_of_str("0"), 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(span_parse_u64(span_of_str("18446744073709551615"), UINT64_MAX, &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(span_parse_u64(span_of_str("18446744073709551616"), UINT64_MAX, &v), -ERANGE);
    assert_int_equal(span_parse_u64(span_of_str("11"), 10, &v), -ERANGE);
    assert_int_equal(span_parse_u64(span_of_str("000000000000000000001"), 10, &v), -EBADMSG);
    assert_int_equal(span_parse_u64(span_of_str(""), 10, &v), -EBADMSG);
    assert_int_equal(span_parse_u64(span_of_str("-1"), 10, &v), -EBADMSG);
    assert_int_equal(span_parse_u64(span_of_str("+1"), 10, &v), -EBADMSG);
    assert_int_equal(span_parse_u64(span_of_str(" 1"), 10, &v), -EBADMSG);
    assert_int_equal(span_parse_u64(span_of_str("1 "), 10, &v), -EBADMSG);
    assert_true(v == UINT64_MAX); /* failures leave it alone */
}

/* ---- buf ---- */

static void test_buf_grows_and_consumes(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)state;
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 1000; i++) {
        buf_printf(&b, "%03d,", i);
    }
    assert_int_equal(b.n, 4000);
    assert_int_equal(b.p[b.n], 0);
    buf_consume(&b, 3992);
    assert_string_equal(buf_str(&b), "998,999,");
    buf_consume(&b, 100);
    assert_int_equal(b.n, 0);
    assert_string_equal(buf_str(&b), "");
    buf_put(&b, span_make(NULL, 0));
    buf_put_str(&b, "x");
    buf_put_u8(&b, 'y');
    assert_string_equal(buf_str(&b), "xy");
}

static void test_buf_cap_sticks(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(4);

    (void)state;
    buf_put_str(&b, "abcd");
    assert_int_equal(buf_error(&b), 0);
    buf_put_str(&b, "e");
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    buf_consume(&b, 2);
    buf_put_str(&b, "f");
    assert_string_equal(buf_str(&b), "cd");
    buf_clear(&b);
    buf_put_str(&b, "g");
    assert_int_equal(buf_error(&b), 0);
    assert_string_equal(buf_str(&b), "g");
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_int_equal(buf_error(&b), -EMSGSIZE);
}

/* ---- reader ---- */

static void test_reader_reads_what_buf_wrote(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct reader r;

    (void)state;
    buf_put_u8(&b, 0xab);
    buf_put_u16(&b, 0x1234);
    buf_put_u32(&b, 0xdeadbeef);
    buf_put_u64(&b, 0x0123456789abcdef);
    buf_put_block(&b, span_of_str("block"));
    buf_put_str(&b, "rest");
    assert_int_equal(b.p[1], 0x34); /* little-endian */
    r = reader_make(buf_span(&b));
    assert_int_equal(reader_get_u8(&r), 0xab);
    assert_int_equal(reader_get_u16(&r), 0x1234);
    assert_int_equal(reader_get_u32(&r), 0xdeadbeef);
    assert_true(reader_get_u64(&r) == 0x0123456789abcdef);
    assert_true(span_equals_str(reader_get_block(&r, 5), "block"));
    assert_int_equal(reader_finish(&r), -EBADMSG); /* something is left */
    assert_true(span_equals_str(reader_get_bytes(&r, 4), "rest"));
    assert_int_equal(reader_finish(&r), 0);
}

static void test_reader_failure_sticks(void **state)
{
    struct reader r = reader_make(span_make("\x01\x02\x03", 3));

    (void)state;
    assert_int_equal(reader_get_u32(&r), 0);
    assert_int_equal(reader_get_u8(&r), 0); /* although there is one */
    assert_int_equal(reader_finish(&r), -EBADMSG);
    r = reader_make(span_make("\x05\0\0\0hello", 9));
    assert_int_equal(reader_get_block(&r, 4).n, 0);
    assert_int_equal(reader_finish(&r), -EBADMSG);
    r = reader_make(span_make("\xff\xff\xff\xffhello", 9));
    assert_int_equal(reader_get_block(&r, SIZE_MAX).n, 0);
    assert_int_equal(reader_finish(&r), -EBADMSG);
    r = reader_make(span_make(NULL, 0));
    assert_int_equal(reader_finish(&r), 0);
    assert_int_equal(reader_get_bytes(&r, 0).n, 0);
    assert_int_equal(reader_finish(&r), 0);
}

/* ---- id ---- */

static void test_ids(void **state)
{
    char a[ID_SIZE];
    char b[ID_SIZE];

    (void)state;
    assert_int_equal(id_make("sb", a), 0);
    assert_int_equal(id_make("sb", b), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), ID_LENGTH);
    assert_true(id_is_valid(a, "sb"));
    assert_false(id_is_valid(a, "op"));
    assert_int_equal(id_make_within("pr", a, b), 0);
    assert_true(id_is_valid(b, "pr"));
    assert_memory_equal(&a[2], &b[2], ID_SHARD_CHARS);
    assert_false(id_is_valid("", "sb"));
    assert_false(id_is_valid("sb", "sb"));
    assert_false(id_is_valid("sb0123456789abcdefg", "sb"));
    assert_true(id_is_valid("sb0123456789abcdefgh", "sb"));
    assert_false(id_is_valid("sb0123456789abcdefghj", "sb"));
    assert_false(id_is_valid("sb0123456789abcdefgu", "sb"));
    assert_false(id_is_valid("sb0123456789ABCDEFGH", "sb"));
    assert_false(id_is_valid("sb0123456789abc/efgh", "sb"));
}

/* ---- list ---- */

struct item {
    int value;
    struct list link;
};

static void test_list(void **state)
{
    struct item items[3] = {{.value = 0}, {.value = 1}, {.value = 2}};
    struct list head;
    struct list *it;
    struct list *following;
    int sum = 0;

    (void)state;
    list_init(&head);
    assert_true(list_is_empty(&head));
    for (int i = 0; i < 3; i++) {
        list_append(&head, &items[i].link);
    }
    list_foreach(it, following, &head)
    {
        struct item *item = list_entry(it, struct item, link);

        assert_int_equal(item->value, sum++);
        if (item->value == 1) {
            list_remove(it);
        }
    }
    assert_int_equal(sum, 3);
    list_remove(&items[1].link); /* harmless */
    assert_ptr_equal(head.next->next, &items[2].link);
}

/* ---- log ---- */

static void test_log_quoting(void **state)
{
    char out[LOG_TEXT_SIZE];
    char text[2000];
    enum log_level level = LOG_LEVEL_ERROR;

    (void)state;
    assert_string_equal(log_quote("a\"b\\c\n\x7f\xe4", out), "\"a\\\"b\\\\c\\x0a\\x7f\\xe4\"");
    memset(text, 1, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_true(strlen(log_quote(text, out)) < LOG_TEXT_SIZE);
    assert_int_equal(log_level_parse("debug", &level), 0);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_int_equal(log_level_parse("loud", &level), -EINVAL);
}

/* ---- utf8 ---- */

static void test_utf8_validity(void **state)
{
    static const char *const good[] = {
        "",
        "plain",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
        "eight chars, then \xc3\xa4 and eight more",
    };
    static const char *const bad[] = {
        "\x80",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc3",
        "\xc3(",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xe2\x82",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "eight chars, then \xa4 and eight more",
        "and at the end \xf0\x90\x80",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(utf8_is_valid(span_of_str(good[i])));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(utf8_is_valid(span_of_str(bad[i])));
    }
}

static void test_utf8_cuts(void **state)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    static const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};

    (void)state;
    for (size_t n = 0; n <= 10; n++) {
        assert_int_equal(utf8_cut_end(span_make(text, n)), ends[n]);
    }
    assert_int_equal(utf8_cut_end(span_of_str("\x80\x80\x80\x80")), 4);
    assert_int_equal(utf8_skip_begin(span_of_str("\x82\xac"
                                                 "b")),
                     2);
    assert_int_equal(utf8_skip_begin(span_of_str("\x80\x80\x80\x80")), 3);
    assert_int_equal(utf8_skip_begin(span_of_str("abc")), 0);
    assert_int_equal(utf8_skip_begin(span_make(NULL, 0)), 0);
}

static void test_utf8_repair(void **state)
{
    static const char *const cases[][2] = {
        {"", ""},
        {"plain \xe2\x82\xac", "plain \xe2\x82\xac"},
        {"\xff", "\xef\xbf\xbd"},
        {"a\xc3", "a\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80"
         "x",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x82z", "\xef\xbf\xbd\xef\xbf\xbdz"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        utf8_repair(span_of_str(cases[i][0]), &out);
        assert_string_equal(buf_str(&out), cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_has_a_name_and_a_status),
        cmocka_unit_test(test_error_is_filled_and_wrapped),
        cmocka_unit_test(test_long_messages_are_cut),
        cmocka_unit_test(test_span_basics),
        cmocka_unit_test(test_span_numbers),
        cmocka_unit_test(test_buf_grows_and_consumes),
        cmocka_unit_test(test_buf_cap_sticks),
        cmocka_unit_test(test_reader_reads_what_buf_wrote),
        cmocka_unit_test(test_reader_failure_sticks),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_log_quoting),
        cmocka_unit_test(test_utf8_validity),
        cmocka_unit_test(test_utf8_cuts),
        cmocka_unit_test(test_utf8_repair),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
