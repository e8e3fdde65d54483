#include "base/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct clock_case {
    const char *text;
    int64_t ms; /* -1: refused */
};

static void test_parse(void **state)
{
    static const struct clock_case cases[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1970-01-01T00:00:00.001Z", 1},
        {"2026-11-29T18:00:00.123Z", 1795975200123},
        {"2026-11-29t18:00:00.123456789z", 1795975200123},
        {"2026-11-29T19:30:00.1+01:30", 1795975200100},
        {"2026-11-29T12:00:00-06:00", 1795975200000},
        {"2024-02-29T00:00:00Z", 1709164800000},
        {"9999-12-31T23:59:59.999Z", 253402300799999},
        {"", -1},
        {"2026-11-29", -1},
        {"2026-11-29T18:00:00", -1},
        {"2026-11-29 18:00:00Z", -1},
        {"2026-11-29T18:00:00Zx", -1},
        {"2026-11-29T18:00:00.Z", -1},
        {"2026-11-29T18:00:00.1234567890Z", -1},
        {"2026-13-01T00:00:00Z", -1},
        {"2026-00-01T00:00:00Z", -1},
        {"2026-01-32T00:00:00Z", -1},
        {"2026-02-30T00:00:00Z", -1},
        {"2025-02-29T00:00:00Z", -1},
        {"2026-04-31T00:00:00Z", -1},
        {"2026-01-01T24:00:00Z", -1},
        {"2026-01-01T00:60:00Z", -1},
        {"2026-01-01T00:00:61Z", -1},
        {"2026-01-01T00:00:00+24:00", -1},
        {"2026-01-01T00:00:00+0100", -1},
        {"26-01-01T00:00:00Z", -1},
        {"+026-01-01T00:00:00Z", -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t ms = -7;
        int r = clock_parse(cases[i].text, &ms);

        if (cases[i].ms < 0 ? r != -EBADMSG : (r != 0 || ms != cases[i].ms)) {
            fail_msg("%s: %d %lld", cases[i].text, r, (long long)ms);
        }
    }
}

static void test_format_round_trips(void **state)
{
    static const int64_t times[] = {0, 1, 999, 1000, 951827696789, 1795975200123, 253402300799999};
    char text[CLOCK_TEXT_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        int64_t again = -1;

        clock_format(times[i], text);
        assert_int_equal(clock_parse(text, &again), 0);
        assert_true(again == times[i]);
    }
    clock_format(1795975200123, text);
    assert_string_equal(text, "2026-11-29T18:00:00.123Z");
    clock_format(-1, text);
    assert_string_equal(text, "1969-12-31T23:59:59.999Z");
    clock_format(INT64_MAX, text);
    assert_string_equal(text, "9999-12-31T23:59:59.999Z");
}

static void test_clocks_run(void **state)
{
    int64_t before = clock_monotonic_ns();

    (void)state;
    assert_true(clock_monotonic_ns() >= before);
    assert_true(clock_monotonic_ms() >= before / 1000000);
    assert_true(clock_real_ms() > 1500000000000);
    assert_true(clock_real_ns() > 1500000000000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_format_round_trips),
        cmocka_unit_test(test_clocks_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
