#include "node/admission.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct admission roomy(void)
{
    return (struct admission){
        .total_mib = 24000,
        .reserve_mib = 3000,
        .overcommit_percent = 400,
        .available_mib = 20000,
        .admitted_mib = 0,
        .disk_free_mib = 50000,
        .disk_reserve_mib = 1024,
        .sandboxes = 0,
        .max_sandboxes = 1000,
    };
}

static void expect(const struct admission *a, unsigned int mib, enum error_code code)
{
    struct error err = {0};
    int r = admission_check(a, mib, &err);

    assert_int_equal(err.code, code);
    assert_true(code == ERROR_NONE ? r == 0 : r < 0);
}

static void test_limits(void **state)
{
    struct admission a = roomy();

    (void)state;
    assert_int_equal(admission_limit_mib(&a), 84000);
    expect(&a, 512, ERROR_NONE);
    a.admitted_mib = 84000 - 512;
    expect(&a, 512, ERROR_NONE);
    a.admitted_mib++;
    expect(&a, 512, ERROR_CAPACITY_UNAVAILABLE);
    a = roomy();
    a.available_mib = 2999;
    expect(&a, 512, ERROR_CAPACITY_UNAVAILABLE);
    a = roomy();
    a.sandboxes = 1000;
    expect(&a, 512, ERROR_CAPACITY_UNAVAILABLE);
    a = roomy();
    a.disk_free_mib = 1023;
    expect(&a, 512, ERROR_STORAGE_FULL);
    a = roomy();
    a.reserve_mib = 30000; /* more than there is */
    assert_int_equal(admission_limit_mib(&a), 0);
    expect(&a, 128, ERROR_CAPACITY_UNAVAILABLE);
}

static void test_reserve(void **state)
{
    (void)state;
    assert_int_equal(admission_reserve_mib(0, 24000), 3000);
    assert_int_equal(admission_reserve_mib(0, 4000), 1024);
    assert_int_equal(admission_reserve_mib(0, 1600), 800);
    assert_int_equal(admission_reserve_mib(500, 24000), 500);
}

static void test_meminfo(void **state)
{
    uint64_t total = 7;
    uint64_t available = 7;

    (void)state;
    assert_int_equal(admission_parse_meminfo("MemTotal:       24684084 kB\n"
                                             "MemFree:        10000000 kB\n"
                                             "MemAvailable:   20480000 kB\n",
                                             &total, &available),
                     0);
    assert_int_equal(total, 24105);
    assert_int_equal(available, 20000);
    assert_int_equal(admission_parse_meminfo("MemTotal: 1 kB\n", &total, &available), -EBADMSG);
    assert_int_equal(
        admission_parse_meminfo("MemTotal: x kB\nMemAvailable: 1 kB\n", &total, &available),
        -EBADMSG);
    assert_int_equal(total, 24105); /* untouched by failures */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_meminfo),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
