/* base64. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "node/base64.h"

static void test_base64_round_trip(void **state)
{
    static const char *const cases[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"\xff\xfe\xfd", "//79"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_buf_ struct buf text = buf_make(0);
        _cleanup_buf_ struct buf bytes = buf_make(0);

        base64_format(span_of_str(cases[i][0]), &text);
        assert_string_equal(buf_str(&text), cases[i][1]);
        assert_int_equal(base64_parse(buf_span(&text), &bytes), 0);
        assert_string_equal(buf_str(&bytes), cases[i][0]);
    }
}

static void test_base64_refuses(void **state)
{
    static const char *const bad[] = {"Z",    "Zg",   "Zg=",  "Zh==",  "Zm9=", "Zg==Zg==",
                                      "Z===", "====", "Zm 9", "Zm9\n", "Zm_v", "=Zm9"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_buf_ struct buf bytes = buf_make(0);

        assert_int_equal(base64_parse(span_of_str(bad[i]), &bytes), -EBADMSG);
    }
    {
        _cleanup_buf_ struct buf small = buf_make(2);

        assert_int_equal(base64_parse(span_of_str("Zm9v"), &small), -EMSGSIZE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64_round_trip),
        cmocka_unit_test(test_base64_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
