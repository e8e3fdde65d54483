#include "guest/killed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static pid_t parse(const char *text)
{
    return killed_parse_record(span_of_str(text));
}

static void test_record(void **state)
{
    (void)state;
    assert_int_equal(
        parse("3,812,5031112,-;Out of memory: Killed process 412 (a) b) total-vm:9kB\n"), 412);
    /* Whoever writes to /dev/kmsg is no kernel, whatever the line says. */
    assert_int_equal(parse("11,812,5031112,-;Out of memory: Killed process 412 (a) total-vm\n"), 0);
    /* A limit that the user set himself is none of the sandbox. */
    assert_int_equal(parse("3,1,2,-;Memory cgroup out of memory: Killed process 412 (a)\n"), 0);
    assert_int_equal(parse("3,1,2,-;Out of memory: Killed process "), 0);
    assert_int_equal(parse("3,1,2,-;Out of memory: Killed process x (a)"), 0);
    assert_int_equal(parse("3,1,2,-;Out of memory: Killed process 99999999999 (a)"), 0);
    assert_int_equal(parse("Out of memory: Killed process 412 (a)"), 0);
    assert_int_equal(parse(""), 0);
}

static uint32_t group(const char *text)
{
    return killed_parse_group(span_of_str(text));
}

static void test_group(void **state)
{
    (void)state;
    assert_int_equal(group("0::/space/17\n"), 17);
    assert_int_equal(group("0::/space/17/deeper/18\n"), 17);
    assert_int_equal(group("0::/space-services\n"), 0);
    assert_int_equal(group("0::/space/\n"), 0);
    assert_int_equal(group("0::/space/17x\n"), 0);
    assert_int_equal(group("0::/space/99999999999\n"), 0);
    assert_int_equal(group("0::/\n"), 0);
    assert_int_equal(group(""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
