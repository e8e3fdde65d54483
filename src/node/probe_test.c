/* The choice of the accelerator, against a fake host and a fake test guest. */
#include "node/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/node_private.h"
#include "node/vm.h"

struct vm {
    struct vm_owner owner;
    void *owner_arg;
    vm_fn ready;
    void *ready_arg;
    vm_fn console_done;
    void *console_arg;
    struct buf console;
    bool ended;
};

struct loop_timer {
    loop_fn fn;
    void *arg;
};

struct world {
    struct node node;
    struct node_parts parts;
    struct runtime_ops ops;
    struct vm vm;
    char dir[64];
    int device; /* what opening it comes to */
    unsigned int guests;
    unsigned int timers; /* that there are */
    struct loop_timer *timer;
    unsigned int done;
};

static struct world *the_world; /* for the fakes that are told of nothing */

/* ---- fakes ---- */

int accelerator_open(const char *name)
{
    assert_string_equal(name, "kvm");
    return the_world->device;
}

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct loop_timer *timer = calloc(1, sizeof(*timer));

    (void)loop;
    assert_non_null(timer);
    *timer = (struct loop_timer){fn, arg};
    the_world->timers++;
    the_world->timer = timer;
    return timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    (void)timer;
    assert_true(delay_ms > 0);
}

void loop_timer_free(struct loop_timer *timer)
{
    if (timer != NULL) {
        the_world->timers--;
        free(timer);
    }
}

struct vm *vm_start(struct node *node,
                    const struct vm_spec *spec,
                    const struct vm_owner *owner,
                    void *owner_arg,
                    struct error *err)
{
    struct world *w = the_world;

    (void)err;
    assert_ptr_equal(node, &w->node);
    assert_int_equal(spec->mode, RUNTIME_MODE_PROBE);
    assert_string_equal(spec->accelerator, "kvm");
    w->guests++;
    w->vm.owner = *owner;
    w->vm.owner_arg = owner_arg;
    return &w->vm;
}

void vm_on_ready(struct vm *vm, vm_fn done, void *arg)
{
    vm->ready = done;
    vm->ready_arg = arg;
}

void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message)
{
    (void)vm;
    (void)code;
    (void)message;
    assert_true(timeout_ms > 0);
}

void vm_read_console(struct vm *vm, vm_fn done, void *arg)
{
    vm->console_done = done;
    vm->console_arg = arg;
}

const struct buf *vm_console(const struct vm *vm)
{
    return &vm->console;
}

/* As vm.c: who waits for the console hears of the end. */
void vm_end(struct vm *vm, void (*gone)(void *arg), void *gone_arg)
{
    vm_fn done = vm->console_done;

    (void)gone_arg;
    assert_null(gone);
    assert_false(vm->ended);
    vm->ended = true;
    vm->console_done = NULL;
    if (done != NULL) {
        done(vm->console_arg, vm);
    }
}

static void set_accelerator(struct runtime *rt, const char *accelerator, const char *reason)
{
    (void)snprintf(rt->env.accelerator, sizeof(rt->env.accelerator), "%s", accelerator);
    (void)snprintf(rt->accelerator_reason, sizeof(rt->accelerator_reason), "%s", reason);
}

/* ---- the tests' side ---- */

static void on_done(void *arg)
{
    struct world *w = arg;

    w->done++;
}

static void begin(struct world *w, const char *setting)
{
    memset(w, 0, sizeof(*w));
    the_world = w;
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/probe-test-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->ops.set_accelerator = set_accelerator;
    w->parts.runtime.ops = &w->ops;
    (void)snprintf(w->parts.boot_id, sizeof(w->parts.boot_id), "this-boot");
    (void)snprintf(w->parts.runtime.env.vmm_version, RUNTIME_VERSION_SIZE, "10.0.2");
    w->node.parts = &w->parts;
    (void)snprintf(w->node.settings.data_dir, sizeof(w->node.settings.data_dir), "%s", w->dir);
    (void)snprintf(w->node.settings.node_accelerator, sizeof(w->node.settings.node_accelerator),
                   "%s", setting);
    w->vm.console = buf_make(4096);
}

static void end(struct world *w)
{
    assert_int_equal(w->timers, 0);
    buf_done(&w->vm.console);
    assert_int_equal(dir_remove_tree(AT_FDCWD, w->dir), 0);
}

static struct probe *probe(struct world *w)
{
    return probe_accelerator(&w->node, on_done, w);
}

static void expect(const struct world *w, const char *accelerator, const char *reason)
{
    assert_int_equal(w->done, 1);
    assert_string_equal(w->parts.runtime.env.accelerator, accelerator);
    assert_non_null(strstr(w->parts.runtime.accelerator_reason, reason));
}

/* The console says this. */
static void say(struct world *w, const char *text)
{
    vm_fn done;

    if (w->vm.console_done == NULL) {
        w->timer->fn(w->timer->arg);
    }
    buf_put_str(&w->vm.console, text);
    done = w->vm.console_done;
    w->vm.console_done = NULL;
    done(w->vm.console_arg, &w->vm);
}

/* ---- tests ---- */

/* Before the caller goes on: there is no moment in which it is not known. */
static void test_what_needs_no_guest_is_known_at_once(void **state)
{
    static const char *const settings[] = {"kvm", "tcg", "auto"};
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        begin(&w, settings[i]);
        w.device = -ENOENT;
        assert_null(probe(&w));
        expect(&w, i == 0 ? "kvm" : "tcg", i < 2 ? "set by node.accelerator" : "cannot be opened");
        assert_int_equal(w.guests, 0);
        end(&w);
    }
}

static void test_a_guest_decides_once_for_each_boot(void **state)
{
    struct world w;

    (void)state;
    begin(&w, "auto");
    assert_non_null(probe(&w));
    assert_int_equal(w.done, 0);
    assert_string_equal(w.parts.runtime.env.accelerator, "");
    assert_non_null(strstr(w.parts.runtime.accelerator_reason, "being tried"));
    w.vm.ready(w.vm.ready_arg, &w.vm);
    say(&w, "Linux version 6.1\n");
    assert_int_equal(w.done, 0);
    say(&w, "Run /init as init process\n");
    expect(&w, "kvm", "booted");
    assert_true(w.vm.ended);

    w.done = 0;
    assert_null(probe(&w));
    expect(&w, "kvm", "booted");
    assert_int_equal(w.guests, 1);
    (void)snprintf(w.parts.boot_id, sizeof(w.parts.boot_id), "another-boot");
    w.done = 0;
    w.vm.ended = false;
    assert_non_null(probe(&w));
    assert_int_equal(w.guests, 2);
    w.vm.owner.on_end(w.vm.owner_arg, &w.vm, "probe_timeout", "it said nothing");
    expect(&w, "tcg", "it said nothing");
    end(&w);
}

/* Before it says anything, and while its console is being read. */
static void test_a_guest_goes_with_the_node(void **state)
{
    struct world w;

    (void)state;
    for (int reading = 0; reading < 2; reading++) {
        struct probe *p;

        begin(&w, "auto");
        p = probe(&w);
        assert_non_null(p);
        if (reading == 1) {
            w.vm.ready(w.vm.ready_arg, &w.vm);
            w.timer->fn(w.timer->arg);
            assert_non_null(w.vm.console_done);
        }
        probe_cancel(p);
        assert_true(w.vm.ended);
        assert_int_equal(w.done, 0);
        end(&w);
    }
    probe_cancel(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_needs_no_guest_is_known_at_once),
        cmocka_unit_test(test_a_guest_decides_once_for_each_boot),
        cmocka_unit_test(test_a_guest_goes_with_the_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
