/* Which base snapshots are built at once, against fake VMs that boot for as long as the test wants,
 * and fake timers. */
#include "node/base_snapshot.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/loop.h"
#include "node/agent.h"
#include "node/base_files.h"
#include "node/node_private.h"
#include "node/vm.h"

#define VMS_MAX   16
#define DEFER_MAX 32

struct vm {
    struct vm_owner owner;
    void *owner_arg;
    vm_fn ready;
    void *ready_arg;
    bool ended;
    bool background;
};

struct loop_timer {
    loop_fn fn;
    void *arg;
    bool set;
};

struct world {
    struct node node;
    struct node_parts parts;
    struct vm vms[VMS_MAX];
    unsigned int started;
    loop_fn deferred[DEFER_MAX];
    void *deferred_args[DEFER_MAX];
    unsigned int deferred_count;
    struct loop_timer *timers[VMS_MAX];
    unsigned int timer_count;
    unsigned int timers_freed;
    unsigned int failures; /* told to those who asked */
    char did[64];          /* of the agent, a letter each */
};

static struct world *the_world; /* for the fakes that are told of nothing */

/* ---- fakes: the loop ---- */

int loop_defer(struct loop *loop, loop_fn fn, void *arg)
{
    struct world *w = the_world;

    (void)loop;
    assert_true(w->deferred_count < DEFER_MAX);
    w->deferred[w->deferred_count] = fn;
    w->deferred_args[w->deferred_count++] = arg;
    return 0;
}

/* The work is done at once, its end comes in the next turn. */
int loop_submit(struct loop *loop, loop_fn work, loop_fn done, void *arg, bool background)
{
    (void)background;
    work(arg);
    return loop_defer(loop, done, arg);
}

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct world *w = the_world;
    struct loop_timer *timer = calloc(1, sizeof(*timer));

    (void)loop;
    assert_non_null(timer);
    assert_true(w->timer_count < VMS_MAX);
    timer->fn = fn;
    timer->arg = arg;
    w->timers[w->timer_count++] = timer;
    return timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    assert_true(delay_ms > 1000 && delay_ms < 60000);
    timer->set = true;
}

void loop_timer_free(struct loop_timer *timer)
{
    struct world *w = the_world;

    for (unsigned int i = 0; timer != NULL && i < w->timer_count; i++) {
        if (w->timers[i] == timer) {
            w->timers[i] = NULL;
            w->timers_freed++;
        }
    }
    free(timer);
}

/* ---- fakes: files ---- */

void base_files_sweep(const char *volume)
{
    (void)volume;
}

int base_files_init(struct base_files *files,
                    const char *volume,
                    const struct base_key *key,
                    struct error *err)
{
    (void)volume;
    (void)key;
    (void)err;
    *files = (struct base_files){.ram_bytes = 0};
    return 0;
}

bool base_files_check(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env)
{
    (void)files;
    (void)key;
    (void)env;
    return false;
}

int base_files_begin(const struct base_files *files, const struct base_key *key, struct error *err)
{
    (void)files;
    (void)key;
    (void)err;
    return 0;
}

int base_files_finish(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env,
                      struct error *err)
{
    (void)files;
    (void)key;
    (void)env;
    return error_set(err, EIO, "not here");
}

void base_files_evict(const char *volume,
                      const char *template_name,
                      unsigned int keep,
                      const char *const *pinned)
{
    (void)volume;
    (void)template_name;
    (void)keep;
    (void)pinned;
}

int base_files_copy_ram(const struct base_files *files)
{
    (void)files;
    return -EIO;
}

int template_disk_path(const char *volume, const struct template_info *t, char *out, size_t size)
{
    (void)volume;
    (void)snprintf(out, size, "%s", t->version);
    return 0;
}

/* ---- fakes: VMs ---- */

struct vm *vm_start(struct node *node,
                    const struct vm_spec *spec,
                    const struct vm_owner *owner,
                    void *owner_arg,
                    struct error *err)
{
    struct world *w = the_world;
    struct vm *vm = &w->vms[w->started++];

    (void)node;
    (void)err;
    vm->background = spec->background;
    vm->owner = *owner;
    vm->owner_arg = owner_arg;
    return vm;
}

void vm_on_ready(struct vm *vm, vm_fn done, void *arg)
{
    vm->ready = done;
    vm->ready_arg = arg;
}

void vm_set_background(struct vm *vm, bool background)
{
    vm->background = background;
}

void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message)
{
    (void)vm;
    (void)timeout_ms;
    (void)code;
    (void)message;
}

int vm_move_disk(struct vm *vm, const char *path)
{
    (void)vm;
    (void)path;
    return -EIO;
}

void vm_save(struct vm *vm, int state_fd, vm_result_fn done, void *arg)
{
    (void)vm;
    (void)state_fd;
    (void)done;
    (void)arg;
}

void vm_stop(struct vm *vm, vm_fn done, void *arg)
{
    (void)vm;
    (void)done;
    (void)arg;
}

void vm_end(struct vm *vm, void (*gone)(void *arg), void *gone_arg)
{
    (void)vm;
    (void)gone;
    (void)gone_arg;
}

void vm_fail(struct vm *vm, const char *code, const char *message)
{
    (void)vm;
    (void)code;
    (void)message;
}

struct agent *vm_agent(const struct vm *vm)
{
    (void)vm;
    return NULL;
}

static void note(char what)
{
    size_t n = strlen(the_world->did);

    assert_true(n + 1 < sizeof(the_world->did));
    the_world->did[n] = what;
}

void agent_begin(
    struct agent *agent, bool known_silent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    (void)agent;
    (void)deadline_ms;
    assert_false(known_silent);
    note('b');
    done(arg, 0);
}

/* The template has no second program. */
void agent_rehearse(struct agent *agent,
                    const char *const *argv,
                    const char *user,
                    int64_t timeout_ms,
                    agent_done_fn done,
                    void *arg)
{
    (void)agent;
    assert_string_equal(user, "me");
    assert_true(timeout_ms > 0);
    note(argv[0][0]);
    done(arg, argv[0][0] == '2' ? ENOENT : 0);
}

json_t *template_prime_list(const char *volume, const char *name, const char *version)
{
    (void)volume;
    (void)name;
    (void)version;
    return json_pack("[[s], [], [s, s], [i], s, [s]]", "1", "2", "x", 7, "none", "3");
}

void agent_reset(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    (void)agent;
    (void)deadline_ms;
    note('r');
    done(arg, 0);
}

void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    (void)agent;
    (void)flags;
    (void)deadline_ms;
    (void)done;
    (void)arg;
    note('s');
}

/* ---- driving ---- */

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = {0};

    assert_non_null(w);
    the_world = w;
    w->node.parts = &w->parts;
    w->parts.bases = base_set_new(&w->node, &err);
    assert_non_null(w->parts.bases);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    base_set_free(w->parts.bases);
    assert_int_equal(w->timers_freed, w->timer_count);
    free(w);
    return 0;
}

static void nothing(void *arg)
{
    (void)arg;
}

static void turn(struct world *w)
{
    for (unsigned int i = 0; i < w->deferred_count; i++) {
        w->deferred[i](w->deferred_args[i]); /* may add to them */
    }
    w->deferred_count = 0;
}

static void on_base(void *arg, struct base *base, const struct error *err)
{
    struct world *w = arg;

    assert_null(base);
    assert_non_null(err);
    w->failures++;
}

/* made: from a checkpoint, not by set-up. */
static void ask(struct world *w, bool made, unsigned int version, unsigned int memory_mib)
{
    struct base_key key = {.vcpus = 1, .memory_mib = memory_mib};

    (void)snprintf(key.template_info.name, sizeof(key.template_info.name), "t%u", version);
    (void)snprintf(key.template_info.version, sizeof(key.template_info.version), "tm%u", version);
    (void)snprintf(key.template_info.user, sizeof(key.template_info.user), "me");
    if (made) {
        (void)snprintf(key.template_info.checkpoint_id, sizeof(key.template_info.checkpoint_id),
                       "ck1");
    }
    base_get(&w->node, &key, on_base, w);
    turn(w);
}

static void end(struct world *w, unsigned int i)
{
    struct vm *vm = &w->vms[i];

    assert_false(vm->ended);
    vm->ended = true;
    vm->owner.on_end(vm->owner_arg, vm, "agent_timeout", "it did not come up in time");
    turn(w);
}

/* The patience of all that are being built is over. */
static void lose_patience(struct world *w)
{
    for (unsigned int i = 0; i < w->timer_count; i++) {
        if (w->timers[i] != NULL && w->timers[i]->set) {
            w->timers[i]->set = false;
            w->timers[i]->fn(w->timers[i]->arg);
        }
    }
    turn(w);
}

static void test_one_of_set_up_at_a_time(void **state)
{
    struct world *w = *state;

    ask(w, false, 1, 512);
    ask(w, false, 1, 1024);
    ask(w, false, 2, 512);
    assert_int_equal(w->started, 1);
    lose_patience(w);
    assert_int_equal(w->started, 1);
    end(w, 0);
    assert_int_equal(w->failures, 1);
    assert_int_equal(w->started, 2);
    end(w, 1);
    end(w, 2);
    assert_int_equal(w->failures, 3);
}

/* However many of them are asked for, and however long they take. */
static void test_made_ones_hold_up_none_of_set_up(void **state)
{
    struct world *w = *state;

    for (unsigned int version = 1; version < 8; version++) {
        ask(w, true, version, 512);
    }
    assert_int_equal(w->started, 1);
    ask(w, false, 9, 512);
    assert_int_equal(w->started, 2);
    end(w, 1);
    assert_int_equal(w->failures, 1);
    assert_int_equal(w->started, 2); /* the first one has its time */
}

static void test_a_slow_one_is_overtaken(void **state)
{
    struct world *w = *state;

    ask(w, true, 1, 512);
    ask(w, true, 1, 1024); /* the same version */
    ask(w, true, 2, 512);
    assert_int_equal(w->started, 1);
    assert_false(w->vms[0].background);
    lose_patience(w);
    assert_true(w->vms[0].background);
    assert_int_equal(w->started, 2);
    end(w, 1);
    assert_int_equal(w->failures, 1);
    assert_int_equal(w->started, 2);
    end(w, 0);
    assert_int_equal(w->started, 3);
    assert_false(w->vms[2].background);
    end(w, 2);
    assert_int_equal(w->failures, 3);
}

/* The copy of a large disk takes all its time, and the VM comes later. */
static void test_one_that_is_slow_to_start_is_in_the_background(void **state)
{
    struct world *w = *state;
    struct base_key key = {
        .vcpus = 1, .memory_mib = 512, .template_info = {.checkpoint_id = "ck1", .user = "me"}};

    base_get(&w->node, &key, on_base, w);
    for (unsigned int i = 0; w->timer_count == 0; i++) {
        assert_true(i < w->deferred_count);
        w->deferred[i](w->deferred_args[i]);
        w->deferred[i] = nothing;
    }
    assert_int_equal(w->started, 0);
    lose_patience(w);
    assert_int_equal(w->started, 1);
    assert_true(w->vms[0].background);
    w->vms[0].background = false; /* it had no control group yet */
    w->vms[0].ready(w->vms[0].ready_arg, &w->vms[0]);
    assert_true(w->vms[0].background);
    end(w, 0);
}

/* What typical programs read is in the base, and nothing else of them. */
static void test_the_template_rehearses_before_it_is_saved(void **state)
{
    struct world *w = *state;

    ask(w, false, 1, 512);
    w->vms[0].ready(w->vms[0].ready_arg, &w->vms[0]);
    assert_string_equal(w->did, "b123rs");
    end(w, 0);
}

static void test_few_are_slow_at_once(void **state)
{
    struct world *w = *state;

    for (unsigned int version = 1; version < 8; version++) {
        ask(w, true, version, 512);
        lose_patience(w);
    }
    assert_int_equal(w->started, 4);
    end(w, 2);
    assert_int_equal(w->started, 5);
    lose_patience(w);
    assert_int_equal(w->started, 5);
    end(w, 4);
    end(w, 0);
    assert_int_equal(w->started, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_of_set_up_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_made_ones_hold_up_none_of_set_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_slow_one_is_overtaken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_that_is_slow_to_start_is_in_the_background, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_the_template_rehearses_before_it_is_saved, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_few_are_slow_at_once, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
