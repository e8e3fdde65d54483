#include "node/gather.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SPOOL 67108864U
#define PIECE 48000U

static void test_only_floods_are_gathered(void **state)
{
    struct gather g = {0};

    (void)state;
    assert_false(gather_wants(&g, PIECE, SPOOL, 0));
    assert_false(gather_wants(&g, PIECE, SPOOL, 1000));
    /* A line, a terminal's piece, a pipe that is not busy. */
    gather_note(&g, 12, 1000);
    gather_note(&g, 4096, 1000);
    gather_note(&g, 8192, 1000);
    assert_false(gather_wants(&g, 12, SPOOL, 1000));
    gather_note(&g, PIECE, 1000);
    assert_true(gather_wants(&g, PIECE, SPOOL, 1000));
    assert_true(gather_wants(&g, PIECE, SPOOL, 1000 + GATHER_MS - 1));
}

static void test_it_ends(void **state)
{
    struct gather g = {0};

    (void)state;
    gather_note(&g, PIECE, 1000);
    /* When it is over, when there is nothing to send, when there is enough. */
    assert_false(gather_wants(&g, PIECE, SPOOL, 1000 + GATHER_MS));
    assert_false(gather_wants(&g, 0, SPOOL, 1000));
    assert_true(gather_wants(&g, 524287, SPOOL, 1000));
    assert_false(gather_wants(&g, 524288, SPOOL, 1000));
    /* Small pieces do not make it last. */
    gather_note(&g, 100, 1000 + GATHER_MS);
    assert_false(gather_wants(&g, PIECE, SPOOL, 1000 + GATHER_MS));
}

static void test_a_small_spool_is_not_waited_full(void **state)
{
    struct gather g = {0};

    (void)state;
    gather_note(&g, PIECE, 1000);
    assert_true(gather_wants(&g, 16383, 65536, 1000));
    assert_false(gather_wants(&g, 16384, 65536, 1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_floods_are_gathered),
        cmocka_unit_test(test_it_ends),
        cmocka_unit_test(test_a_small_spool_is_not_waited_full),
    };

    return cmocka_run_group_tests_name("gather", tests, NULL, NULL);
}
