#include "guest/pressure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_short(void **state)
{
    (void)state;
    assert_false(pressure_is_short(span_of_str("MemTotal: 800 kB\nMemAvailable: 100 kB\n")));
    assert_true(pressure_is_short(span_of_str("MemTotal: 800 kB\nMemAvailable: 99 kB\n")));
    assert_false(pressure_is_short(span_of_str("")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
