#include "guest/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_cpu(void **state)
{
    (void)state;
    assert_int_equal(
        metrics_parse_cpu(span_of_str("cpu  1 2 4 100 200 8 16 400 1 2\ncpu0 9 9 9 9\n"), 100),
        31 * 10000000U);
    assert_int_equal(metrics_parse_cpu(span_of_str("cpu 5"), 100), 50000000U);
    assert_int_equal(metrics_parse_cpu(span_of_str("cpu0 5 5"), 100), 0);
    assert_int_equal(metrics_parse_cpu(span_of_str(""), 100), 0);
    assert_int_equal(metrics_parse_cpu(span_of_str("cpu 5"), 0), 0);
}

static void test_memory(void **state)
{
    struct span text = span_of_str("MemTotal:  100 kB\nMemAvailable: 7 kB\nBad: x kB\nCut:");

    (void)state;
    assert_int_equal(metrics_parse_memory(text, "MemTotal:"), 102400);
    assert_int_equal(metrics_parse_memory(text, "MemAvailable:"), 7168);
    assert_int_equal(metrics_parse_memory(text, "Bad:"), 0);
    assert_int_equal(metrics_parse_memory(text, "Cut:"), 0);
    assert_int_equal(metrics_parse_memory(text, "None:"), 0);
}

static void test_this_machine(void **state)
{
    struct service_sample sample;

    (void)state;
    metrics_take(&sample);
    assert_true(sample.cpu_ns > 0);
    assert_true(sample.memory_used_bytes > 0);
    assert_true(sample.memory_used_bytes < sample.memory_total_bytes);
    assert_true(sample.disk_used_bytes <= sample.disk_total_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
