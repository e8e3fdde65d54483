#include "wire/http_range.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void expect(const char *header, uint64_t size, int result, uint64_t offset, uint64_t length)
{
    struct http_range range;
    uint64_t got_offset = 0;
    uint64_t got_length = 0;

    assert_int_equal(http_range_parse(span_of_str(header), &range), 0);
    assert_int_equal(http_range_resolve(&range, size, &got_offset, &got_length), result);
    assert_int_equal(got_offset, offset);
    assert_int_equal(got_length, length);
}

static void test_ranges(void **state)
{
    (void)state;
    expect("bytes=0-4", 1000, 0, 0, 5);
    expect("bytes=5-5", 1000, 0, 5, 1);
    expect("Bytes= 990- ", 1000, 0, 990, 10);
    expect("bytes=-3", 1000, 0, 997, 3);
    expect("bytes=-5000", 1000, 0, 0, 1000);
    expect("bytes=995-5000", 1000, 0, 995, 5);
    expect("bytes=0-18446744073709551615", 1000, 0, 0, 1000);
    expect("bytes=1000-", 1000, -ERANGE, 0, 0);
    expect("bytes=-0", 1000, -ERANGE, 0, 0);
    expect("bytes=0-", 0, -ERANGE, 0, 0);
    expect("bytes=-1", 0, -ERANGE, 0, 0);
}

static void test_what_is_ignored(void **state)
{
    static const char *const headers[] = {
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=0-1,4-5",
        "lines=1-2",
        "bytes=a-b",
        "bytes=+1-2",
        "bytes=1--2",
        "bytes=1-2-3",
        "bytes=1 -2",
        "bytes=99999999999999999999-",
    };
    struct http_range range;

    (void)state;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        assert_int_equal(http_range_parse(span_of_str(headers[i]), &range), -EBADMSG);
    }
}

static void test_format(void **state)
{
    static const char *const texts[] = {"0-4", "990-", "-3", "0-18446744073709551615"};
    char header[64];
    char out[HTTP_RANGE_TEXT_SIZE];
    struct http_range range;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        (void)snprintf(header, sizeof(header), "bytes=%s", texts[i]);
        assert_int_equal(http_range_parse(span_of_str(header), &range), 0);
        http_range_format(&range, out);
        assert_string_equal(out, texts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_what_is_ignored),
        cmocka_unit_test(test_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
