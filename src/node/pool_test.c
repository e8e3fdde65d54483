/* The pool against fake VMs: who gets which, when it refills, what happens when VMs fail. */
#include "node/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/list.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/pool_private.h"
#include "node/vm.h"

#define FAKES_MAX 64

/* ---- fakes ---- */

struct vm {
    struct vm_owner owner;
    void *owner_arg;
    vm_fn ready;
    void *ready_arg;
    vm_fn command; /* load or stop, not answered yet */
    void *command_arg;
    agent_done_fn agent;
    void *agent_arg;
    bool loaded;
    bool running;
    bool ended;
    unsigned int rehearsed;
    bool background;
};

struct base {
    struct base_key key;
    unsigned int refs;
    base_fn fn; /* an answer that is due */
    void *arg;
};

struct world {
    struct node node;
    struct node_parts parts;
    struct vm vms[FAKES_MAX];
    unsigned int started;
    struct base base;
    bool base_ready;
    bool base_fails;
    struct vm *given[FAKES_MAX];
    unsigned int given_count;
    unsigned int errors;
    unsigned int counted;
};

/* The fakes have no context argument of their own; the node leads to the world. */
static struct world *world_of(struct node *node)
{
    return list_entry(node, struct world, node);
}

struct vm *vm_start(struct node *node,
                    const struct vm_spec *spec,
                    const struct vm_owner *owner,
                    void *owner_arg,
                    struct error *err)
{
    struct world *w = world_of(node);
    struct vm *vm = &w->vms[w->started++];

    (void)err;
    vm->owner = *owner;
    vm->owner_arg = owner_arg;
    vm->background = spec->background;
    return vm;
}

void vm_on_ready(struct vm *vm, vm_fn done, void *arg)
{
    vm->ready = done;
    vm->ready_arg = arg;
}

void vm_load(struct vm *vm, int state_fd, vm_fn done, void *arg)
{
    (void)state_fd;
    vm->loaded = true;
    vm->command = done;
    vm->command_arg = arg;
}

void vm_cont(struct vm *vm, vm_fn done, void *arg)
{
    (void)done;
    (void)arg;
    vm->running = true;
}

void vm_stop(struct vm *vm, vm_fn done, void *arg)
{
    vm->running = false;
    vm->command = done;
    vm->command_arg = arg;
}

void vm_end(struct vm *vm, void (*gone)(void *arg), void *gone_arg)
{
    (void)gone;
    (void)gone_arg;
    vm->ended = true;
    vm->owner = (struct vm_owner){NULL};
}

void vm_fail(struct vm *vm, const char *code, const char *message)
{
    struct vm_owner owner = vm->owner;

    vm->ended = true;
    vm->owner = (struct vm_owner){NULL};
    owner.on_end(vm->owner_arg, vm, code, message);
}

struct agent *vm_agent(const struct vm *vm)
{
    return (struct agent *)(uintptr_t)vm;
}

unsigned int vm_slot(const struct vm *vm)
{
    (void)vm;
    return 1;
}

void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message)
{
    (void)vm;
    (void)timeout_ms;
    (void)code;
    (void)message;
}

void vm_set_background(struct vm *vm, bool background)
{
    vm->background = background;
}

static void agent_pend(struct agent *agent, agent_done_fn done, void *arg)
{
    struct vm *vm = (struct vm *)(void *)agent;

    vm->agent = done;
    vm->agent_arg = arg;
}

void agent_begin(
    struct agent *agent, bool known_silent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    assert_true(known_silent);
    (void)deadline_ms;
    agent_pend(agent, done, arg);
}

void agent_rehearse(struct agent *agent,
                    const char *const *argv,
                    const char *user,
                    int64_t timeout_ms,
                    agent_done_fn done,
                    void *arg)
{
    assert_non_null(argv[0]);
    assert_string_equal(user, "user");
    (void)timeout_ms;
    ((struct vm *)(void *)agent)->rehearsed++;
    agent_pend(agent, done, arg);
}

void agent_reset(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    (void)deadline_ms;
    agent_pend(agent, done, arg);
}

void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    (void)flags;
    (void)deadline_ms;
    agent_pend(agent, done, arg);
}

void base_get(struct node *node, const struct base_key *key, base_fn fn, void *arg)
{
    struct world *w = world_of(node);

    w->base.key = *key;
    w->base.fn = fn;
    w->base.arg = arg;
}

struct base *base_find(struct node *node, const struct base_key *key)
{
    struct world *w = world_of(node);

    (void)key;
    w->base.refs++;
    return &w->base;
}

void base_unref(struct base *base)
{
    assert_true(base->refs > 0);
    base->refs--;
}

const struct base_key *base_key_of(const struct base *base)
{
    return &base->key;
}

bool base_key_equals(const struct base_key *a, const struct base_key *b)
{
    return a->vcpus == b->vcpus && a->memory_mib == b->memory_mib;
}

int base_open_state(const struct base *base)
{
    (void)base;
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void base_fill_spec(const struct base *base, struct vm_spec *spec)
{
    (void)base;
    (void)spec;
}

int template_load(const char *volume,
                  const char *name,
                  const char *version,
                  struct template_info *ret,
                  struct error *err)
{
    (void)volume;
    (void)version;
    (void)err;
    *ret = (struct template_info){.vcpus = 1, .memory_mib = 512, .disk_mib = 4096};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    (void)snprintf(ret->version, sizeof(ret->version), "tm1");
    (void)snprintf(ret->user, sizeof(ret->user), "user");
    return 0;
}

json_t *template_prime_list(const char *volume, const char *name, const char *version)
{
    (void)volume;
    (void)name;
    (void)version;
    return json_pack("[[s], [s, s]]", "true", "sh", "-c");
}

bool template_name_is_valid(const char *text)
{
    return text[0] >= 'a' && text[0] <= 'z';
}

/* ---- driving ---- */

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = {0};

    settings_init(&w->node.settings);
    (void)snprintf(w->node.settings.node_warm_pools, sizeof(w->node.settings.node_warm_pools),
                   "base=2");
    w->node.settings.node_prepared_pool = 1;
    w->node.loop = loop_new(0);
    w->node.parts = &w->parts;
    w->parts.total_mib = 24000;
    w->parts.runtime.restores_cold = true;
    w->parts.pool = pool_new(&w->node, &err);
    assert_non_null(w->parts.pool);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    pool_free(w->parts.pool);
    loop_free(w->node.loop);
    free(w);
    return 0;
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* Lets deferred work run. */
static void turn(struct world *w)
{
    struct loop_timer *timer = loop_timer_new(w->node.loop, stop, w->node.loop);

    loop_timer_start(timer, 1);
    assert_int_equal(loop_run(w->node.loop), 0);
    loop_timer_free(timer);
}

static void answer_base(struct world *w)
{
    base_fn fn = w->base.fn;
    struct error err = {0};

    if (fn == NULL) {
        return;
    }
    w->base.fn = NULL;
    if (w->base_fails) {
        (void)error_set(&err, EIO, "no base");
        fn(w->base.arg, NULL, &err);
    } else {
        w->base.refs++;
        fn(w->base.arg, &w->base, NULL);
    }
}

/* One step of one VM: whatever it waits for happens. False when it waits for nothing. */
static bool step(struct vm *vm)
{
    vm_fn fn;
    agent_done_fn agent;

    if (vm->ended) {
        return false;
    }
    if (vm->ready != NULL) {
        fn = vm->ready;
        vm->ready = NULL;
        fn(vm->ready_arg, vm);
    } else if (vm->command != NULL) {
        fn = vm->command;
        vm->command = NULL;
        fn(vm->command_arg, vm);
    } else if (vm->agent != NULL) {
        agent = vm->agent;
        vm->agent = NULL;
        agent(vm->agent_arg, 0);
    } else {
        return false;
    }
    return true;
}

/* Everything that can happen happens. */
static void settle(struct world *w)
{
    bool moved = true;

    turn(w);
    while (moved) {
        moved = w->base.fn != NULL;
        answer_base(w);
        for (unsigned int i = 0; i < w->started; i++) {
            moved = step(&w->vms[i]) || moved;
        }
        turn(w);
    }
}

static void on_given(void *arg, struct vm *vm, bool counted, const struct error *err)
{
    struct world *w = arg;

    if (err != NULL) {
        assert_null(vm);
        w->errors++;
        return;
    }
    assert_true(vm->loaded);
    assert_false(vm->running);
    w->given[w->given_count++] = vm;
    w->counted += counted;
}

static struct base_key default_key(void)
{
    struct base_key key = {.vcpus = 1, .memory_mib = 512};

    (void)template_load("", "base", NULL, &key.template_info, NULL);
    return key;
}

static void test_fills_one_at_a_time(void **state)
{
    struct world *w = *state;

    pool_start(w->parts.pool);
    answer_base(w);
    turn(w);
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 1);
    assert_true(w->vms[0].background);
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 1); /* not before the first is done */
    settle(w);
    assert_int_equal(w->started, 3); /* two warm, one prepared */
    assert_int_equal(w->vms[0].rehearsed, 2);
    assert_int_equal(w->vms[1].rehearsed, 2);
    assert_false(w->vms[2].loaded);
    assert_false(w->vms[0].background); /* while it waits it costs nothing, once taken it counts */
    assert_int_equal(pool_prepared(w->parts.pool), 1);
}

static void fill(struct world *w)
{
    pool_start(w->parts.pool);
    answer_base(w);
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    settle(w);
}

static void test_warm_then_prepared_then_new(void **state)
{
    struct world *w = *state;
    struct base_key key = default_key();
    struct vm *first;
    struct vm *second;

    fill(w);
    first = pool_take_warm(&w->node, &key);
    second = pool_take_warm(&w->node, &key);
    assert_non_null(first);
    assert_non_null(second);
    assert_ptr_not_equal(first, second); /* never two owners */
    assert_null(pool_take_warm(&w->node, &key));
    for (int i = 0; i < 2; i++) {
        assert_non_null(pool_ask(&w->node, &key, on_given, w));
        answer_base(w);
    }
    turn(w);
    while (w->given_count < 2) {
        for (unsigned int i = 0; i < w->started; i++) {
            (void)step(&w->vms[i]);
        }
        turn(w);
    }
    assert_int_equal(w->errors, 0);
    assert_int_equal(w->counted, 2);
    assert_ptr_equal(w->given[0], &w->vms[2]); /* the prepared one was first */
    assert_int_equal(w->vms[3].rehearsed, 0);  /* a new one for a waiting create is not primed */
    assert_false(w->vms[3].background);
    /* No refill until the creates are through. */
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 4);
    pool_settle(w->parts.pool);
    pool_settle(w->parts.pool);
    turn(w);
    settle(w);
    assert_int_equal(w->started, 7);
}

static void test_other_size_is_no_match(void **state)
{
    struct world *w = *state;
    struct base_key key = default_key();

    fill(w);
    key.memory_mib = 1024;
    assert_null(pool_take_warm(&w->node, &key));
}

static void test_failures(void **state)
{
    struct world *w = *state;
    struct base_key key = default_key();
    struct pool_request *request;

    /* The base cannot be built. */
    w->base_fails = true;
    assert_non_null(pool_ask(&w->node, &key, on_given, w));
    answer_base(w);
    turn(w);
    assert_int_equal(w->errors, 1);
    w->base_fails = false;
    /* The VM dies on its way. */
    assert_non_null(pool_ask(&w->node, &key, on_given, w));
    answer_base(w);
    turn(w);
    assert_int_equal(w->started, 1);
    vm_fail(&w->vms[0], "vmm_crashed", "gone");
    turn(w);
    assert_int_equal(w->errors, 2);
    /* The client goes away: its VM ends, nobody hears. */
    request = pool_ask(&w->node, &key, on_given, w);
    answer_base(w);
    turn(w);
    assert_int_equal(w->started, 2);
    pool_cancel(request);
    turn(w);
    assert_true(w->vms[1].ended);
    /* And while it waits for the base. */
    request = pool_ask(&w->node, &key, on_given, w);
    pool_cancel(request);
    answer_base(w);
    turn(w);
    assert_int_equal(w->started, 2);
    assert_int_equal(w->errors, 2);
    assert_int_equal(w->given_count, 0);
    assert_int_equal(w->base.refs, 0);
    assert_int_equal(w->parts.pool->spawning, 0);
}

static void test_background_failure_backs_off(void **state)
{
    struct world *w = *state;

    pool_start(w->parts.pool);
    answer_base(w);
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 1);
    vm_fail(&w->vms[0], "agent_timeout", "silent");
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 1); /* not at once again */
    w->parts.pool->lines[0].retry_at_ms = 0;
    loop_timer_start(w->parts.pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, 2);
}

static void test_burst_is_bounded(void **state)
{
    struct world *w = *state;
    struct base_key key = default_key();
    unsigned int max = w->parts.pool->spawning_max;

    for (unsigned int i = 0; i < max + 5; i++) {
        assert_non_null(pool_ask(&w->node, &key, on_given, w));
        answer_base(w);
    }
    turn(w);
    assert_int_equal(w->started, max);
    settle(w);
    assert_int_equal(w->given_count, max);
    /* One more for each that is up. */
    pool_settle(w->parts.pool);
    settle(w);
    assert_int_equal(w->given_count, max + 1);
    for (unsigned int i = 1; i < max + 5; i++) {
        pool_settle(w->parts.pool);
        settle(w);
    }
    assert_int_equal(w->given_count, max + 5);
    assert_int_equal(w->parts.pool->spawning, 0);
}

static unsigned int count_ended(const struct world *w)
{
    unsigned int n = 0;

    for (unsigned int i = 0; i < w->started; i++) {
        n += w->vms[i].ended;
    }
    return n;
}

/* At the limit of memory: what waits goes, what is on its way there too, and nothing new comes. */
static void test_it_yields(void **state)
{
    struct world *w = *state;
    struct pool *pool = w->parts.pool;
    unsigned int slot = 0;
    unsigned int filled;

    pool_start(pool);
    settle(w);
    loop_timer_start(pool->tick, 0);
    settle(w);
    filled = w->started;
    assert_int_equal(filled, 3);
    for (unsigned int i = 0; i < filled; i++) {
        assert_true(pool_yield(pool, &slot));
        assert_int_equal(slot, 1);
        assert_int_equal(count_ended(w), i + 1);
    }
    assert_false(pool_yield(pool, &slot));
    loop_timer_start(pool->tick, 0);
    turn(w);
    settle(w);
    assert_int_equal(w->started, filled);
    pool->yields_until_ms = 0;
    loop_timer_start(pool->tick, 0);
    turn(w);
    assert_int_equal(w->started, filled + 1);
    assert_true(pool_yield(pool, &slot)); /* not there yet */
    assert_int_equal(count_ended(w), filled + 1);
}

static void test_settings(void **state)
{
    struct world *w = *state;
    static const char *const bad[] = {"base", "base=x", "=3", "base=1,,", "BASE=1"};
    struct error err = {0};
    struct pool *pool;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(w->node.settings.node_warm_pools, 64, "%s", bad[i]);
        assert_null(pool_new(&w->node, &err));
        assert_string_equal(err.field, "node.warm_pools");
    }
    (void)snprintf(w->node.settings.node_warm_pools, 64, "base=3, python=1");
    pool = pool_new(&w->node, &err);
    assert_non_null(pool);
    assert_int_equal(pool->line_count, 2);
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fills_one_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_warm_then_prepared_then_new, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_size_is_no_match, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_background_failure_backs_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_burst_is_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_it_yields, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_settings, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
