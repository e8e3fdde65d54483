/* What a running VM is told, and what it tells about itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <sys/pidfd.h>

#include "base/step.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/cgroup.h"
#include "node/disk.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/vm_private.h"

#define COMMAND_TIMEOUT_MS 20000
#define CONSOLE_TIMEOUT_MS 1000

/* The end of one command; the owner may have ended the VM from inside. */
static void end_command(struct vm *vm)
{
    loop_timer_stop(vm->command_timer);
    vm->commanding = false;
}

static void on_command(void *arg, const struct error *err)
{
    struct vm *vm = arg;
    vm_fn done = TAKE(vm->command);

    end_command(vm);
    if (err != NULL) {
        /* EPIPE: the connection broke, most likely because the VMM ended; its event follows. */
        if (vm->control_alive && err->errnum != EPIPE) {
            vm_fail(vm, "start_failed", err->message);
        }
        return;
    }
    if (done != NULL) {
        done(vm->command_arg, vm);
    }
    vm_next_command(vm);
}

static bool is_over(const struct vm *vm)
{
    return vm->state >= VM_STATE_FAILING || vm->control_lost; /* on_end is on its way */
}

static void give(struct vm *vm, const struct vm_command *command)
{
    vm->commanding = true;
    vm->command = command->done;
    vm->command_arg = command->arg;
    loop_timer_start(vm->command_timer, COMMAND_TIMEOUT_MS);
    command->run(vm);
}

void vm_next_command(struct vm *vm)
{
    struct vm_command next;

    if (is_over(vm) || vm->commanding || !vm->control_alive || vm->waiting_count == 0) {
        return;
    }
    next = vm->waiting[0];
    vm->waiting_count--;
    for (unsigned int i = 0; i < vm->waiting_count; i++) {
        vm->waiting[i] = vm->waiting[i + 1];
    }
    give(vm, &next);
}

void vm_forget_commands(struct vm *vm)
{
    vm->command = NULL;
    vm->saved = NULL;
    vm->ready = NULL;
    vm->waiting_count = 0;
}

/* Answers come in the order of the commands, each to its own. */
static void command(struct vm *vm, void (*run)(struct vm *vm), vm_fn done, void *arg)
{
    if (is_over(vm)) {
        return;
    }
    if (vm->waiting_count == VM_COMMANDS_MAX) {
        vm_fail(vm, "start_failed", "the VMM has not answered any of many commands");
        return;
    }
    vm->waiting[vm->waiting_count++] = (struct vm_command){run, done, arg};
    vm_next_command(vm);
}

/* What uses the caller's descriptor cannot wait; nobody asks for it with another one under way. */
static bool command_now(struct vm *vm, vm_fn done, void *arg)
{
    if (is_over(vm)) {
        return false;
    }
    if (!vm->control_alive || vm->commanding || vm->waiting_count > 0) {
        vm_fail(vm, "start_failed",
                vm->control_alive ? "the VMM is busy with another command"
                                  : "the VMM is not connected");
        return false;
    }
    vm->commanding = true;
    vm->command = done;
    vm->command_arg = arg;
    loop_timer_start(vm->command_timer, COMMAND_TIMEOUT_MS);
    return true;
}

static void on_checked(void *arg, enum runtime_status status, const struct error *err)
{
    struct vm *vm = arg;

    if (err == NULL && status == RUNTIME_STATUS_ENDED) {
        loop_timer_stop(vm->command_timer);
        vm_fail(vm, "guest_poweroff", "the guest powered off");
        return;
    }
    if (err == NULL && vm->state < VM_STATE_FAILING) {
        vm_set_state(vm, status == RUNTIME_STATUS_RUNNING ? VM_STATE_RUNNING : VM_STATE_STOPPED);
    }
    on_command(arg, err);
}

void vm_load(struct vm *vm, int state_fd, vm_fn done, void *arg)
{
    if (command_now(vm, done, arg)) {
        vm_set_state(vm, VM_STATE_STOPPED);
        vm->node->parts->runtime.ops->load(vm->control, state_fd, on_command, vm);
    }
}

static void on_saved(void *arg, const struct error *err)
{
    struct vm *vm = arg;
    vm_result_fn done = TAKE(vm->saved);

    end_command(vm);
    if (done != NULL && (err == NULL || err->errnum != EPIPE)) { /* EPIPE: its end follows */
        done(vm->saved_arg, vm, err);
    }
    vm_next_command(vm);
}

void vm_save(struct vm *vm, int state_fd, vm_result_fn done, void *arg)
{
    if (command_now(vm, NULL, NULL)) {
        vm->saved = done;
        vm->saved_arg = arg;
        vm->node->parts->runtime.ops->save(vm->control, state_fd, on_saved, vm);
    }
}

static void run_cont(struct vm *vm)
{
    vm_set_state(vm, VM_STATE_RUNNING);
    vm->node->parts->runtime.ops->cont(vm->control, on_command, vm);
}

void vm_cont(struct vm *vm, vm_fn done, void *arg)
{
    command(vm, run_cont, done, arg);
}

static void run_stop(struct vm *vm)
{
    vm_set_state(vm, VM_STATE_STOPPED);
    vm->node->parts->runtime.ops->stop(vm->control, on_command, vm);
}

void vm_stop(struct vm *vm, vm_fn done, void *arg)
{
    command(vm, run_stop, done, arg);
}

void vm_resize_disk(struct vm *vm, uint64_t bytes, vm_fn done, void *arg)
{
    struct error err = {0};

    if (disk_grow(vm->disk_path, bytes, &err) < 0) {
        vm_fail(vm, err.code == ERROR_STORAGE_FULL ? "storage_full" : "start_failed", err.message);
        return;
    }
    if (command_now(vm, done, arg)) {
        vm->node->parts->runtime.ops->resize_disk(vm->control, bytes, on_command, vm);
    }
}

static void run_check(struct vm *vm)
{
    vm->node->parts->runtime.ops->check(vm->control, on_checked, vm);
}

void vm_check(struct vm *vm, vm_fn done, void *arg)
{
    command(vm, run_check, done, arg);
}

static void on_console_text(void *arg, const struct buf *text, const struct error *err)
{
    struct vm *vm = arg;
    vm_fn done = TAKE(vm->console_done);

    if (err == NULL) {
        buf_put(&vm->console, buf_span(text));
        if (vm->console.n > VM_CONSOLE_BYTES) {
            buf_consume(&vm->console, vm->console.n - VM_CONSOLE_BYTES);
        }
    }
    if (done != NULL) {
        done(vm->console_arg, vm);
    }
}

void vm_read_console(struct vm *vm, vm_fn done, void *arg)
{
    vm_fn other = TAKE(vm->console_done);

    if (other != NULL) { /* one reader at a time: the earlier one gets what is there */
        other(vm->console_arg, vm);
    }
    vm->console_done = done;
    vm->console_arg = arg;
    if (!vm->control_alive) {
        (void)TAKE(vm->console_done);
        done(arg, vm);
        return;
    }
    vm->node->parts->runtime.ops->read_console(vm->control, on_console_text, vm);
    if (vm->state == VM_STATE_FAILING) {
        loop_timer_start(vm->timer, CONSOLE_TIMEOUT_MS);
    }
}

void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message)
{
    if (vm->state >= VM_STATE_FAILING) {
        return;
    }
    if (timeout_ms == 0) {
        loop_timer_stop(vm->timer);
        return;
    }
    (void)snprintf(vm->timer_code, sizeof(vm->timer_code), "%s", code);
    (void)snprintf(vm->timer_message, sizeof(vm->timer_message), "%s", message);
    loop_timer_start(vm->timer, timeout_ms);
}

void vm_set_background(struct vm *vm, bool background)
{
    cgroup_set_background(&vm->node->parts->cgroup, vm->slot, background);
}

/* ---- facts ---- */

bool vm_is_stopped(const struct vm *vm)
{
    return vm->state == VM_STATE_STOPPED;
}

unsigned int vm_slot(const struct vm *vm)
{
    return vm->slot;
}

pid_t vm_pid(const struct vm *vm)
{
    return vm->pid;
}

int vm_open_process(const struct vm *vm)
{
    char path[32];
    _cleanup_close_ int fd = -1;

    if (vm->exited || vm->pidfd < 0) {
        return -ESRCH;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d", (int)vm->pid);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    /* It lived after the directory was opened: so the directory is its own. */
    return pidfd_send_signal(vm->pidfd, 0, NULL, 0) < 0 ? -errno : TAKE_FD(fd);
}

const char *vm_ram_path(const struct vm *vm)
{
    return vm->spec.ram_path;
}

struct agent *vm_agent(const struct vm *vm)
{
    return vm->agent;
}

const struct buf *vm_console(const struct vm *vm)
{
    return &vm->console;
}

void vm_seed_console(struct vm *vm, struct span text)
{
    buf_put(&vm->console, text);
}

const struct runtime_env *vm_environment(const struct vm *vm)
{
    const struct node_parts *parts = vm->node->parts;

    if (vm->env.driver[0] != '\0') {
        return &vm->env;
    }
    return parts->environment_known ? &parts->runtime.env : NULL;
}

bool vm_ram_is_memfd(const struct vm *vm)
{
    return vm->ram_is_memfd;
}

void vm_describe(const struct vm *vm, struct journal_vm *out)
{
    const struct runtime_env *env = vm_environment(vm);

    *out = (struct journal_vm){
        .slot = vm->slot,
        .netns = vm->netns.n,
        .pid = vm->pid,
        .start_time = vm->start_time,
    };
    (void)snprintf(out->boot_id, sizeof(out->boot_id), "%s", vm->node->parts->boot_id);
    (void)snprintf(out->binary, sizeof(out->binary), "%s", vm->binary);
    if (env != NULL) {
        out->env = *env;
        out->ram_is_memfd = vm->ram_is_memfd;
    }
}

int vm_move_disk(struct vm *vm, const char *path)
{
    step("move disk");
    if (rename(vm->disk_path, path) < 0) {
        return -errno;
    }
    step("moved disk");
    (void)snprintf(vm->disk_path, sizeof(vm->disk_path), "%s", path);
    vm->disk_moved = true;
    return 0;
}

unsigned int vm_count(const struct node *node)
{
    return node->parts->slot_used;
}
