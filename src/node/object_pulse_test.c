/* Signs of life come, and stay away when a call takes too long. */
#include "node/object_pulse.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS 10000

static bool comes(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte = 0;

    if (poll(&p, 1, wait_ms) != 1) {
        return false;
    }
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, ' ');
    return true;
}

static void test_calls(void **state)
{
    struct object_pulse pulse;
    unsigned int calls[OBJECT_PULSE_CALLS];
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(object_pulse_start(&pulse, ends[1], 1), 0);
    assert_true(comes(ends[0], LONG_MS));
    assert_true(comes(ends[0], LONG_MS)); /* nothing is called */
    for (unsigned int i = 0; i < OBJECT_PULSE_CALLS; i++) {
        calls[i] = object_pulse_begin(&pulse);
        assert_true(calls[i] < OBJECT_PULSE_CALLS);
    }
    object_pulse_end(&pulse, object_pulse_begin(&pulse)); /* one more than are watched */
    while (comes(ends[0], 2500)) {
        /* what was on its way */
    }
    for (unsigned int i = 0; i < OBJECT_PULSE_CALLS; i++) {
        object_pulse_end(&pulse, calls[i]);
    }
    assert_true(comes(ends[0], LONG_MS));
    object_pulse_stop(&pulse);
    while (comes(ends[0], 0)) {
        /* and what was written before the end */
    }
    assert_false(comes(ends[0], 1500));
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void test_without_limit(void **state)
{
    struct object_pulse pulse;
    unsigned int call;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(object_pulse_start(&pulse, ends[1], 0), 0);
    call = object_pulse_begin(&pulse);
    for (int i = 0; i < 3; i++) {
        assert_true(comes(ends[0], LONG_MS));
    }
    object_pulse_end(&pulse, call);
    object_pulse_stop(&pulse);
    object_pulse_end(NULL, object_pulse_begin(NULL));
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_without_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
