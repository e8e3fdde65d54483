/* Commands of a VM against a fake driver: each hears its own answer, whatever was asked before it
 * and before the connection was there. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "io/loop.h"
#include "node/cgroup.h"
#include "node/disk.h"
#include "node/node_private.h"
#include "node/vm_private.h"

struct world {
    struct node node;
    struct node_parts parts;
    struct runtime_ops ops;
    struct vm vm;
    char log[200];
    runtime_done_fn done;
    runtime_status_fn checked;
    void *arg;
};

static void note(struct world *w, const char *word)
{
    size_t n = strlen(w->log);

    (void)snprintf(&w->log[n], sizeof(w->log) - n, "%s%s", n == 0 ? "" : " ", word);
}

static void expect(struct world *w, const char *log)
{
    assert_string_equal(w->log, log);
    w->log[0] = '\0';
}

static struct world *world_of(const struct vm *vm)
{
    return list_entry((struct vm *)(uintptr_t)vm, struct world, vm);
}

/* ---- fakes ---- */

void vm_set_state(struct vm *vm, enum vm_state state)
{
    vm->state = state;
}

void vm_fail(struct vm *vm, const char *code, const char *message)
{
    (void)code;
    (void)message;
    vm->state = VM_STATE_FAILING;
    vm_forget_commands(vm);
    note(world_of(vm), "fail");
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    (void)timer;
    (void)delay_ms;
}

void loop_timer_stop(struct loop_timer *timer)
{
    (void)timer;
}

void cgroup_set_background(const struct cgroup *cg, unsigned int slot, bool background)
{
    (void)cg;
    (void)slot;
    (void)background;
}

int disk_grow(const char *path, uint64_t bytes, struct error *err)
{
    (void)path;
    (void)bytes;
    (void)err;
    return 0;
}

static void given(struct runtime_vm *rvm, const char *word, runtime_done_fn done, void *arg)
{
    struct world *w = (struct world *)(void *)rvm;

    note(w, word);
    assert_null(w->done);
    assert_null(w->checked);
    w->done = done;
    w->arg = arg;
}

static void fake_cont(struct runtime_vm *rvm, runtime_done_fn done, void *arg)
{
    given(rvm, "cont", done, arg);
}

static void fake_stop(struct runtime_vm *rvm, runtime_done_fn done, void *arg)
{
    given(rvm, "stop", done, arg);
}

static void fake_check(struct runtime_vm *rvm, runtime_status_fn done, void *arg)
{
    given(rvm, "check", NULL, arg);
    ((struct world *)(void *)rvm)->checked = done;
}

/* ---- the tests' side ---- */

static void answer(struct world *w, const struct error *err)
{
    runtime_done_fn done = w->done;
    runtime_status_fn checked = w->checked;

    w->done = NULL;
    w->checked = NULL;
    if (checked != NULL) {
        checked(w->arg, RUNTIME_STATUS_RUNNING, err);
    } else {
        assert_non_null(done);
        done(w->arg, err);
    }
}

static void on_stopped(void *arg, struct vm *vm)
{
    (void)vm;
    note(arg, "stopped");
}

static void on_checked(void *arg, struct vm *vm)
{
    (void)vm;
    note(arg, "checked");
}

static void begin(struct world *w, bool connected)
{
    memset(w, 0, sizeof(*w));
    w->ops.cont = fake_cont;
    w->ops.stop = fake_stop;
    w->ops.check = fake_check;
    w->parts.runtime.ops = &w->ops;
    w->node.parts = &w->parts;
    w->vm.node = &w->node;
    w->vm.state = VM_STATE_RUNNING;
    w->vm.control = (struct runtime_vm *)(void *)w;
    w->vm.control_alive = connected;
}

/* ---- tests ---- */

static void test_each_hears_its_own_answer(void **state)
{
    struct world w;

    (void)state;
    begin(&w, true);
    vm_check(&w.vm, on_checked, &w);
    vm_cont(&w.vm, NULL, NULL);
    vm_stop(&w.vm, on_stopped, &w);
    expect(&w, "check");
    answer(&w, NULL);
    expect(&w, "checked cont");
    answer(&w, NULL);
    expect(&w, "stop");
    assert_true(vm_is_stopped(&w.vm));
    answer(&w, NULL);
    expect(&w, "stopped");
}

static void test_the_connection_is_waited_for(void **state)
{
    struct world w;

    (void)state;
    begin(&w, false);
    vm_stop(&w.vm, on_stopped, &w);
    expect(&w, "");
    w.vm.control_alive = true;
    vm_next_command(&w.vm);
    answer(&w, NULL);
    expect(&w, "stop stopped");
}

static void test_nothing_is_heard_after_the_end(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, true);
    (void)error_set(&err, EIO, "no");
    vm_cont(&w.vm, NULL, NULL);
    vm_stop(&w.vm, on_stopped, &w);
    answer(&w, &err);
    expect(&w, "cont fail");
    vm_stop(&w.vm, on_stopped, &w);
    expect(&w, "");

    begin(&w, true);
    w.vm.control_alive = false;
    w.vm.control_lost = true;
    vm_stop(&w.vm, on_stopped, &w); /* on_end is on its way */
    expect(&w, "");

    begin(&w, false);
    for (unsigned int i = 0; i <= VM_COMMANDS_MAX; i++) {
        vm_stop(&w.vm, on_stopped, &w);
    }
    expect(&w, "fail");

    begin(&w, false);
    vm_save(&w.vm, -1, NULL, NULL); /* its descriptor cannot wait */
    expect(&w, "fail");
}

/* An adopted VM is described before the accelerator is known, and after it has changed. */
static void test_it_is_described_by_the_program_that_it_runs(void **state)
{
    struct world w;
    struct journal_vm record;

    (void)state;
    begin(&w, true);
    (void)snprintf(w.parts.runtime.binary, sizeof(w.parts.runtime.binary), "/usr/bin/another");
    (void)snprintf(w.vm.binary, sizeof(w.vm.binary), "/usr/bin/its-own");
    vm_describe(&w.vm, &record);
    assert_string_equal(record.binary, "/usr/bin/its-own");
}

static void set_accelerator(struct runtime_env *env, const char *accelerator)
{
    (void)snprintf(env->driver, sizeof(env->driver), "a driver");
    (void)snprintf(env->accelerator, sizeof(env->accelerator), "%s", accelerator);
}

/* A record without it is an earlier release's, and a guess is written down once, not anew after
 * each restart. */
static void test_it_is_described_by_what_it_was_started_under(void **state)
{
    struct world w;
    struct journal_vm record;

    (void)state;
    begin(&w, true);
    set_accelerator(&w.parts.runtime.env, "tcg");
    assert_null(vm_environment(&w.vm));
    vm_describe(&w.vm, &record);
    assert_string_equal(record.env.driver, "");
    w.parts.environment_known = true;
    assert_string_equal(vm_environment(&w.vm)->accelerator, "tcg");
    vm_describe(&w.vm, &record);
    assert_string_equal(record.env.accelerator, "tcg");

    set_accelerator(&w.vm.env, "kvm");
    w.vm.ram_is_memfd = true;
    for (int known = 0; known < 2; known++) {
        w.parts.environment_known = known == 1;
        assert_string_equal(vm_environment(&w.vm)->accelerator, "kvm");
        assert_true(vm_ram_is_memfd(&w.vm));
        vm_describe(&w.vm, &record);
        assert_string_equal(record.env.accelerator, "kvm");
        assert_true(record.ram_is_memfd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_described_by_the_program_that_it_runs),
        cmocka_unit_test(test_it_is_described_by_what_it_was_started_under),
        cmocka_unit_test(test_each_hears_its_own_answer),
        cmocka_unit_test(test_the_connection_is_waited_for),
        cmocka_unit_test(test_nothing_is_heard_after_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
