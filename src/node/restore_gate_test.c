/* Who has a place, who waits, and who comes next. */
#include "node/restore_gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "node/node_private.h"
#include "node/sandbox_private.h"

#define MANY 200

static unsigned int started;
static struct sandbox *last;

static void go(struct sandbox *sb)
{
    started++;
    last = sb;
}

/* One that fails at once, as from a full disk. */
static void go_and_leave(struct sandbox *sb)
{
    go(sb);
    restore_gate_leave(sb);
}

static void make(struct node_parts *parts, struct node *node, struct sandbox all[MANY])
{
    started = 0;
    node->parts = parts;
    list_init(&parts->restores_waiting);
    for (int i = 0; i < MANY; i++) {
        all[i].node = node;
        list_init(&all[i].gate.link);
    }
}

static void test_as_many_as_fit_and_then_in_order(void **state)
{
    struct node_parts parts = {0};
    struct node node = {0};
    struct sandbox *all = calloc(MANY, sizeof(*all));
    unsigned int places;

    (void)state;
    assert_non_null(all);
    make(&parts, &node, all);
    for (int i = 0; i < MANY; i++) {
        restore_gate_enter(&all[i], go);
    }
    places = started;
    assert_in_range(places, 4, MANY - 10);
    restore_gate_leave(&all[places]); /* deleted while it waited: nobody's place */
    assert_int_equal(started, places);
    restore_gate_leave(&all[0]);
    restore_gate_leave(&all[0]);
    assert_int_equal(started, places + 1);
    assert_ptr_equal(last, &all[places + 1]);
    for (int i = 1; i < MANY; i++) {
        restore_gate_leave(&all[i]);
    }
    assert_int_equal(started, MANY - 1);
    assert_int_equal(parts.restores, 0);
    restore_gate_enter(&all[3], go);
    assert_int_equal(parts.restores, 1);
    free(all);
}

static void test_those_that_fail_at_once(void **state)
{
    struct node_parts parts = {0};
    struct node node = {0};
    struct sandbox *all = calloc(MANY, sizeof(*all));

    (void)state;
    assert_non_null(all);
    make(&parts, &node, all);
    for (int i = 0; i < MANY; i++) {
        restore_gate_enter(&all[i], i < MANY - 1 ? go_and_leave : go);
    }
    assert_int_equal(started, MANY);
    assert_int_equal(parts.restores, 1);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_as_fit_and_then_in_order),
        cmocka_unit_test(test_those_that_fail_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
