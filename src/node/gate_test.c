#include "node/gate.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/loop.h"

struct client {
    struct gate_ticket ticket;
    struct loop *loop;
    int called;
};

static void on_in(void *arg)
{
    struct client *client = arg;

    client->called++;
}

/* A turn of the loop in which timers of 0 ms fire. */
static void stop(void *arg)
{
    loop_stop(arg);
}

static void turn(struct loop *loop)
{
    struct loop_timer *timer = loop_timer_new(loop, stop, loop);

    loop_timer_start(timer, 20);
    assert_int_equal(loop_run(loop), 0);
    loop_timer_free(timer);
}

static void test_order_and_limits(void **state)
{
    struct loop *loop = loop_new(0);
    struct client clients[4] = {0};
    struct gate gate;

    (void)state;
    assert_int_equal(gate_init(&gate, loop, 1, 2), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gate_enter(&gate, &clients[i].ticket, on_in, &clients[i]), 0);
    }
    assert_int_equal(gate_enter(&gate, &clients[3].ticket, on_in, &clients[3]), -EDQUOT);
    assert_int_equal(clients[0].called, 0); /* never from inside */
    turn(loop);
    assert_int_equal(clients[0].called, 1);
    assert_int_equal(clients[1].called, 0);
    gate_leave(&clients[1].ticket); /* does not want any more */
    gate_leave(&clients[0].ticket);
    gate_leave(&clients[0].ticket);
    turn(loop);
    assert_int_equal(clients[1].called, 0);
    assert_int_equal(clients[2].called, 1);
    assert_int_equal(gate_enter(&gate, &clients[3].ticket, on_in, &clients[3]), 0);
    gate_done(&gate);
    assert_int_equal(clients[3].called, 1);
    gate_leave(&clients[3].ticket); /* its gate is gone */
    gate_leave(&clients[2].ticket);
    loop_free(loop);
}

static void test_flush(void **state)
{
    struct loop *loop = loop_new(0);
    struct client clients[3] = {0};
    struct gate gate;

    (void)state;
    assert_int_equal(gate_init(&gate, loop, 1, 10), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gate_enter(&gate, &clients[i].ticket, on_in, &clients[i]), 0);
    }
    gate_flush(&gate);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(clients[i].called, 1);
        gate_leave(&clients[i].ticket);
    }
    gate_done(&gate);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_limits),
        cmocka_unit_test(test_flush),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
