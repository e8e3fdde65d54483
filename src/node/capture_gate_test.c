/* Who is captured when, with guests that are busy. */
#include "node/capture_gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "io/loop.h"
#include "node/node_private.h"
#include "node/sandbox_capture.h"

/* ---- fakes ---- */

struct loop_timer {
    loop_fn fn;
    void *arg;
    int64_t delay_ms; /* 0: not running */
};

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct loop_timer *timer = calloc(1, sizeof(*timer));

    (void)loop;
    assert_non_null(timer);
    timer->fn = fn;
    timer->arg = arg;
    return timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    timer->delay_ms = delay_ms;
}

void loop_timer_stop(struct loop_timer *timer)
{
    timer->delay_ms = 0;
}

void loop_timer_free(struct loop_timer *timer)
{
    free(timer);
}

static void lose_patience(struct sandbox_capture *c)
{
    assert_int_equal(c->patience->delay_ms, CAPTURE_PATIENCE_MS);
    c->patience->delay_ms = 0;
    c->patience->fn(c->patience->arg);
}

/* ---- the node ---- */

#define COUNT 6U

struct world {
    struct node node;
    struct node_parts parts;
    struct sandbox sandboxes[COUNT];
    struct sandbox_capture captures[COUNT];
};

static void on_asked(struct sandbox *sb)
{
    capture_gate_ask(sb->capture);
}

static void on_written(struct sandbox *sb)
{
    sb->capture->busy = true;
}

static bool is_asked(const struct world *w, size_t i)
{
    return w->captures[i].patience->delay_ms != 0;
}

static void enter(struct world *w, size_t i, bool is_urgent)
{
    w->captures[i] = (struct sandbox_capture){.is_urgent = is_urgent};
    w->sandboxes[i].capture = &w->captures[i];
    assert_int_equal(capture_gate_init(&w->captures[i], &w->sandboxes[i]), 0);
    capture_gate_enter(&w->captures[i], on_asked);
}

static struct world *begin(void)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->node.parts = &w->parts;
    list_init(&w->parts.captures_waiting);
    for (size_t i = 0; i < COUNT; i++) {
        w->sandboxes[i].node = &w->node;
    }
    return w;
}

static void end(struct world *w)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (w->sandboxes[i].capture != NULL) {
            capture_gate_leave(&w->captures[i]);
        }
    }
    assert_int_equal(w->parts.captures, 0);
    assert_true(list_is_empty(&w->parts.captures_waiting));
    free(w);
}

/* ---- tests ---- */

/* What stands still then goes before all that run on. */
static void test_a_busy_guest_keeps_no_place(void **state)
{
    struct world *w = begin();

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        enter(w, i, true);
        assert_int_equal(is_asked(w, i), i < CAPTURES_MAX);
    }
    lose_patience(&w->captures[0]);
    assert_true(is_asked(w, 2));
    assert_int_equal(w->parts.captures, CAPTURES_MAX);
    capture_gate_answered(&w->captures[1], on_written);
    assert_true(w->captures[1].busy);
    assert_false(is_asked(w, 1));
    capture_gate_answered(&w->captures[0], on_written);
    assert_false(w->captures[0].busy);
    capture_gate_leave(&w->captures[1]);
    w->sandboxes[1].capture = NULL;
    assert_true(w->captures[0].busy);
    assert_false(is_asked(w, 3));
    lose_patience(&w->captures[2]);
    assert_true(is_asked(w, 3));
    capture_gate_leave(&w->captures[2]); /* it gives up, and has no place to give */
    w->sandboxes[2].capture = NULL;
    assert_int_equal(w->parts.captures, CAPTURES_MAX);
    assert_false(is_asked(w, 4));
    end(w);
}

static void test_one_that_was_busy_goes_behind_others(void **state)
{
    struct world *w = begin();

    (void)state;
    enter(w, 0, true);
    enter(w, 1, true);
    enter(w, 2, false);
    w->sandboxes[3].was_loud = true;
    enter(w, 3, true);
    enter(w, 4, true);
    lose_patience(&w->captures[0]);
    assert_true(is_asked(w, 4));
    lose_patience(&w->captures[1]);
    assert_true(is_asked(w, 2));
    assert_false(is_asked(w, 3));
    lose_patience(&w->captures[4]);
    assert_true(is_asked(w, 3));
    end(w);
}

/* With a place free again nobody waits. */
static void test_an_answer_finds_a_free_place(void **state)
{
    struct world *w = begin();

    (void)state;
    enter(w, 0, true);
    lose_patience(&w->captures[0]);
    assert_int_equal(w->parts.captures, 0);
    capture_gate_answered(&w->captures[0], on_written);
    assert_true(w->captures[0].busy);
    assert_int_equal(w->parts.captures, 1);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_busy_guest_keeps_no_place),
        cmocka_unit_test(test_one_that_was_busy_goes_behind_others),
        cmocka_unit_test(test_an_answer_finds_a_free_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
