/* Who goes when all VMs together are at their limit, against fake control groups, a fake pool and
 * fake VMs. */
#include "node/memory_guard.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/loop.h"
#include "node/node_private.h"
#include "node/pool.h"
#include "node/sandbox_capture.h"
#include "node/vm.h"

#define SLOTS      5U
#define POOL_FIRST 3U /* of the slots: it has those from here on */
#define MIB        1048576ULL

struct vm {
    unsigned int slot;
};

struct world {
    struct node node;
    struct node_parts parts;
    struct sandbox_set set;
    struct sandbox sandboxes[SLOTS];
    struct sandbox_capture captures[SLOTS];
    struct vm vms[SLOTS];
    struct vm *slots[SLOTS];
    uint64_t used_mib[SLOTS]; /* by slot; [0]: all together */
    unsigned int waiting;     /* slot of the VM that the pool can give up; 0: none */
    unsigned int failed;      /* slot of the VM that was ended last */
    unsigned int yields;
    loop_fn tick;
    void *tick_arg;
};

static struct world *the_world; /* for the fakes that are told of nothing */

struct loop_timer {
    int unused;
};

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    static struct loop_timer timer;

    (void)loop;
    the_world->tick = fn;
    the_world->tick_arg = arg;
    return &timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    (void)timer;
    assert_true(delay_ms > 0);
}

void loop_timer_free(struct loop_timer *timer)
{
    (void)timer;
}

int cgroup_read_memory(const struct cgroup *cg, unsigned int slot, struct cgroup_memory *ret)
{
    (void)cg;
    *ret = (struct cgroup_memory){the_world->used_mib[slot] * MIB, 4096 * MIB};
    return 0;
}

bool cgroup_is_memory_near(const struct cgroup *cg, uint64_t (*keep)(uint64_t limit_bytes))
{
    (void)cg;
    return the_world->used_mib[0] * MIB + keep(4096 * MIB) > 4096 * MIB;
}

bool pool_yield(struct pool *pool, unsigned int *ret_slot)
{
    (void)pool;
    the_world->yields++;
    if (the_world->waiting < POOL_FIRST) {
        return false;
    }
    *ret_slot = the_world->waiting--;
    return true;
}

void vm_fail(struct vm *vm, const char *code, const char *message)
{
    assert_string_equal(code, "out_of_memory");
    assert_non_null(message);
    the_world->failed = vm->slot;
}

/* All of them run, the second uses most, and together they are at their limit. */
static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = {0};

    assert_non_null(w);
    the_world = w;
    w->node.parts = &w->parts;
    w->parts.sandboxes = &w->set;
    w->parts.slots = w->slots;
    w->parts.slot_count = SLOTS;
    list_init(&w->set.sandboxes);
    for (unsigned int slot = 1; slot < SLOTS; slot++) {
        w->vms[slot].slot = slot;
        w->slots[slot] = &w->vms[slot];
        w->sandboxes[slot].vm = &w->vms[slot];
        list_append(&w->set.sandboxes, &w->sandboxes[slot].link);
        w->used_mib[slot] = slot == 2 ? 2000 : 600 + slot;
    }
    w->used_mib[0] = 4090;
    w->parts.guard = memory_guard_new(&w->node, &err);
    assert_non_null(w->parts.guard);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    memory_guard_free(w->parts.guard);
    free(w);
    return 0;
}

static void tick(struct world *w)
{
    w->failed = 0;
    w->tick(w->tick_arg);
}

static void gone(struct world *w, unsigned int slot)
{
    w->slots[slot] = NULL;
    list_remove(&w->sandboxes[slot].link);
}

static void test_nobody_goes_before_the_limit(void **state)
{
    struct world *w = *state;

    w->used_mib[0] = 4000;
    tick(w);
    assert_int_equal(w->failed, 0);
    assert_int_equal(w->yields, 0);
}

/* All of the pool at once, then one at a time. */
static void test_the_pool_goes_first(void **state)
{
    struct world *w = *state;

    w->waiting = 4;
    tick(w);
    assert_int_equal(w->failed, 0);
    assert_int_equal(w->yields, 3); /* the third time there was none */
    tick(w);                        /* their memory comes back in a moment */
    assert_int_equal(w->yields, 3);
    gone(w, 4);
    gone(w, 3);
    tick(w);
    assert_int_equal(w->failed, 2);
    tick(w);
    assert_int_equal(w->failed, 0);
    gone(w, 2);
    tick(w);
    assert_int_equal(w->failed, 1);
}

static void capture(struct world *w, unsigned int slot, bool is_silent)
{
    w->captures[slot].is_silent = is_silent;
    w->sandboxes[slot].capture = &w->captures[slot];
}

static void test_what_is_written_down_is_spared(void **state)
{
    struct world *w = *state;

    capture(w, 2, true);
    tick(w);
    assert_int_equal(w->failed, 4);
    gone(w, 4);
    capture(w, 3, false); /* it waits for its turn, and runs */
    tick(w);
    assert_int_equal(w->failed, 3);
}

/* Or the machine would stand still. */
static void test_one_goes_where_all_are_written_down(void **state)
{
    struct world *w = *state;

    for (unsigned int slot = 1; slot < SLOTS; slot++) {
        capture(w, slot, true);
    }
    tick(w);
    assert_int_equal(w->failed, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nobody_goes_before_the_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_pool_goes_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_written_down_is_spared, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_goes_where_all_are_written_down, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
