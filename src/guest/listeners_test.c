#include "guest/listeners.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define TAIL " 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100"

static int parse(const char *text, uint8_t family, struct listener *ret)
{
    return listener_parse(span_of_str(text), family, ret);
}

static void test_lines(void **state)
{
    static const uint8_t loopback[16] = {127, 0, 0, 1};
    static const uint8_t loopback6[16] = {[15] = 1};
    struct listener l;

    (void)state;
    assert_int_equal(parse("   0: 0100007F:1F90 00000000:0000 0A" TAIL, 4, &l), 1);
    assert_int_equal(l.record.port, 8080);
    assert_int_equal(l.record.family, 4);
    assert_memory_equal(l.record.address, loopback, 16);
    assert_int_equal(l.inode, 4711);
    assert_int_equal(parse("  12: 00000000000000000000000001000000:0016 "
                           "00000000000000000000000000000000:0000 0A" TAIL,
                           6, &l),
                     1);
    assert_int_equal(l.record.port, 22);
    assert_memory_equal(l.record.address, loopback6, 16);
    assert_int_equal(parse("   1: 0100007F:1F90 0100007F:C001 01" TAIL, 4, &l), 0);
}

static void test_bad_lines(void **state)
{
    static const char *const bad[] = {
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid",
        "",
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        "
        "0",
        "   0: 0100007F:1F90 00000000:0000 0G" TAIL,
        "   0: 0100007F:123456789 00000000:0000 0A" TAIL,
        "   0: 0100007F1F90 00000000:0000 0A" TAIL,
        "   0: 0100007x:1F90 00000000:0000 0A" TAIL,
    };
    struct listener l;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(bad[i], 4, &l), -EBADMSG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_bad_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
