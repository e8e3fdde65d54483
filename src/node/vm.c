#include "node/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/log.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/agent.h"
#include "node/cgroup.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/vm_private.h"
#include "node/vmm_spawn.h"

#define CONNECT_TIMEOUT_MS 20000
/* A connection that ends usually means that the VMM is ending; its exit tells more. */
#define EXIT_GRACE_MS 300
#define BACKLOG       128

/* State (deadline; exits):
 *   starting  CONNECT_TIMEOUT_MS from the spawn; -> ready
 *   ready     none (a prepared VM waits);        -> stopped
 *   stopped   none (a warm VM waits);            -> running
 *   running   none;                              -> stopped
 *   failing   the console's, then the kill;      -> ending
 *   ending    cgroup_remove's;                   -> freed
 * Every state but ending may become failing; every state may become ending. */
static const char *const state_names[] = {
    [VM_STATE_STARTING] = "starting", [VM_STATE_READY] = "ready",
    [VM_STATE_STOPPED] = "stopped",   [VM_STATE_RUNNING] = "running",
    [VM_STATE_FAILING] = "failing",   [VM_STATE_ENDING] = "ending",
};

void vm_set_state(struct vm *vm, enum vm_state state)
{
    log_debug("vm_state", "slot=%u pid=%d from=%s to=%s", vm->slot, (int)vm->pid,
              state_names[vm->state], state_names[state]);
    vm->state = state;
}

/* ---- memory ---- */

unsigned int vm_take_slot(struct node *node, struct vm *vm)
{
    struct node_parts *parts = node->parts;

    for (unsigned int i = 1; i < parts->slot_count; i++) {
        if (parts->slots[i] == NULL) {
            parts->slots[i] = vm;
            parts->slot_used++;
            return i;
        }
    }
    return 0;
}

static void close_process(struct vm *vm)
{
    agent_free(TAKE(vm->agent));
    if (vm->control != NULL) {
        vm->node->parts->runtime.ops->detach(TAKE(vm->control));
    }
    vm->control_alive = false;
    if (vm->netns.netns_fd >= 0) {
        (void)close(TAKE_FD(vm->netns.netns_fd));
    }
    if (vm->netns.tap_fd >= 0) {
        (void)close(TAKE_FD(vm->netns.tap_fd));
    }
}

static void free_deferred(void *arg)
{
    free(arg);
}

void vm_free(struct vm *vm)
{
    struct node_parts *parts = vm->node->parts;

    close_process(vm);
    loop_timer_free(vm->timer);
    loop_timer_free(vm->command_timer);
    if (vm->log_fd >= 0) {
        (void)close(vm->log_fd);
    }
    buf_done(&vm->console);
    if (vm->slot != 0) {
        parts->slots[vm->slot] = NULL;
        parts->slot_used--;
    }
    if (loop_defer(vm->node->loop, free_deferred, vm) < 0) {
        free(vm);
    }
}

static void kill_process(struct vm *vm)
{
    /* While a job runs, the fields are the worker's; done_start looks at the state. */
    if (!vm->job_running && !vm->exited && vm->pidfd >= 0) {
        (void)pidfd_send_signal(vm->pidfd, SIGKILL, NULL, 0);
    }
}

static void on_command_timeout(void *arg)
{
    vm_fail(arg, "start_failed", "the VMM did not answer in time");
}

static void on_deadline(void *arg)
{
    struct vm *vm = arg;

    if (vm->state == VM_STATE_FAILING) {
        kill_process(vm); /* the console could not be read in time */
        return;
    }
    vm_fail(vm, vm->timer_code, vm->timer_message);
}

static struct vm *
vm_new(struct node *node, const struct vm_owner *owner, void *owner_arg, struct error *err)
{
    struct vm *vm = calloc(1, sizeof(*vm));

    if (vm == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    vm->node = node;
    vm->pidfd = -1;
    vm->log_fd = -1;
    vm->netns = (struct netns_lease){0, -1, -1};
    vm->owner = *owner;
    vm->owner_arg = owner_arg;
    vm->console = buf_make(4U * VM_CONSOLE_BYTES);
    vm->timer = loop_timer_new(node->loop, on_deadline, vm);
    vm->command_timer = loop_timer_new(node->loop, on_command_timeout, vm);
    if (vm->timer == NULL || vm->command_timer == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        vm_free(vm);
        return NULL;
    }
    return vm;
}

/* ---- the end ---- */

static void begin_cleanup(struct vm *vm);

static void work_cleanup(void *arg)
{
    vm_cleanup_job(arg);
}

static void done_cleanup(void *arg)
{
    struct vm *vm = arg;
    void (*gone)(void *arg) = vm->gone;
    void *gone_arg = vm->gone_arg;

    log_debug("vm_gone", "slot=%u", vm->slot);
    vm_free(vm);
    if (gone != NULL) {
        gone(gone_arg);
    }
}

static void begin_cleanup(struct vm *vm)
{
    vm_set_state(vm, VM_STATE_ENDING);
    close_process(vm);
    if (loop_submit(vm->node->loop, work_cleanup, done_cleanup, vm, false) < 0) {
        /* A full queue: the job is small enough to be done here. */
        work_cleanup(vm);
        done_cleanup(vm);
    }
}

static void report_end(struct vm *vm)
{
    struct vm_owner owner = vm->owner;

    vm->owner = (struct vm_owner){NULL};
    log_info("vm_ended", "slot=%u code=%s message=%s", vm->slot, vm->end_code,
             LOG_STR(vm->end_message));
    if (owner.on_end != NULL) {
        owner.on_end(vm->owner_arg, vm, vm->end_code, vm->end_message);
    }
}

static void last_words(const struct vm *vm, char *out, size_t size)
{
    char log[VMM_LOG_BYTES];

    vmm_read_log(vm->log_fd, log, sizeof(log));
    vm->node->parts->runtime.ops->last_words(log, out, size);
}

/* Why did the process end, when nobody asked for it? */
static void explain_exit(struct vm *vm, int wait_status)
{
    char words[160];
    char how[40] = "ended unexpectedly";

    if (!vm->has_answered &&
        accelerator_is_lost(vm->env.accelerator, vm->end_message, sizeof(vm->end_message))) {
        (void)snprintf(vm->end_code, sizeof(vm->end_code), ACCELERATOR_UNAVAILABLE);
        return;
    }
    if (cgroup_was_out_of_memory(&vm->node->parts->cgroup, vm->slot)) {
        (void)snprintf(vm->end_code, sizeof(vm->end_code), "out_of_memory");
        (void)snprintf(vm->end_message, sizeof(vm->end_message),
                       "the VM used more memory than it may");
        return;
    }
    last_words(vm, words, sizeof(words));
    if (vm->end_code[0] != '\0') {
        size_t used = strlen(vm->end_message);

        if (words[0] != '\0') {
            (void)snprintf(&vm->end_message[used], sizeof(vm->end_message) - used,
                           "; the VMM said: %s", words);
        }
        return;
    }
    if (wait_status != -1 && WIFSIGNALED(wait_status)) {
        (void)snprintf(how, sizeof(how), "was ended by signal %d", WTERMSIG(wait_status));
    }
    (void)snprintf(vm->end_code, sizeof(vm->end_code), "vmm_crashed");
    (void)snprintf(vm->end_message, sizeof(vm->end_message), "the VMM %s%s%s", how,
                   words[0] != '\0' ? ": " : "", words);
}

static void on_process_exit(void *arg, pid_t pid, int wait_status)
{
    struct vm *vm = arg;

    (void)pid;
    vm->exited = true;
    vm->watched = false;
    vm->pidfd = -1; /* the loop closed it */
    if (vm->abandoned) {
        return;
    }
    if (vm->state != VM_STATE_ENDING) {
        vm_set_state(vm, VM_STATE_FAILING);
        explain_exit(vm, wait_status);
        loop_timer_stop(vm->timer);
        loop_timer_stop(vm->command_timer);
        vm_forget_commands(vm);
        report_end(vm);
    }
    begin_cleanup(vm);
}

void vm_end(struct vm *vm, void (*gone)(void *arg), void *gone_arg)
{
    vm->owner = (struct vm_owner){NULL};
    vm->gone = gone;
    vm->gone_arg = gone_arg;
    vm_forget_commands(vm);
    if (vm->console_done != NULL) {
        vm_fn done = TAKE(vm->console_done);

        done(vm->console_arg, vm);
    }
    loop_timer_stop(vm->timer);
    loop_timer_stop(vm->command_timer);
    if (vm->job_running) {
        vm->end_wanted = true;
        return;
    }
    vm_set_state(vm, VM_STATE_ENDING);
    close_process(vm);
    kill_process(vm);
    if (!vm->watched) {
        begin_cleanup(vm);
    }
}

void vm_when_gone(struct vm *vm, void (*gone)(void *arg), void *gone_arg)
{
    vm->gone = gone;
    vm->gone_arg = gone_arg;
}

static void kill_after_console(void *arg, struct vm *vm)
{
    (void)arg;
    kill_process(vm);
}

void vm_fail(struct vm *vm, const char *code, const char *message)
{
    if (vm->state == VM_STATE_FAILING || vm->state == VM_STATE_ENDING) {
        return;
    }
    vm_set_state(vm, VM_STATE_FAILING);
    (void)snprintf(vm->end_code, sizeof(vm->end_code), "%s", code);
    (void)snprintf(vm->end_message, sizeof(vm->end_message), "%s", message);
    loop_timer_stop(vm->timer);
    loop_timer_stop(vm->command_timer);
    vm_forget_commands(vm);
    if (vm->control_alive) {
        vm_read_console(vm, kill_after_console, NULL);
    } else {
        kill_process(vm);
    }
}

void vm_abandon(struct vm *vm)
{
    vm->abandoned = true;
    vm->owner = (struct vm_owner){NULL};
    if (vm->job_running) {
        return; /* what it starts is reaped at the next start */
    }
    close_process(vm);
    loop_timer_free(TAKE(vm->timer));
    loop_timer_free(TAKE(vm->command_timer));
    if (vm->log_fd >= 0) {
        (void)close(TAKE_FD(vm->log_fd));
    }
    buf_done(&vm->console);
}

void vm_forget(struct vm *vm)
{
    free(vm);
}

/* ---- control connection and agent ---- */

/* VMMs listen with a backlog of 1. While a VMM does not run (a busy host, a debugger) each restart
 * of this program leaves a connection there, and the next ones would not get in. Whatever a VMM
 * that was taken over has put in those places, listen does nothing to us. */
static void widen_backlogs(const struct vm *vm)
{
    static const int fds[] = {RUNTIME_FD_CONTROL, RUNTIME_FD_AGENT};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        _cleanup_close_ int fd = pidfd_getfd(vm->pidfd, fds[i], 0);

        if (fd < 0 || listen(fd, BACKLOG) < 0) {
            log_debug("vm_backlog", "slot=%u error=%s", vm->slot, strerror(errno));
        }
    }
}

static void on_control_ready(void *arg)
{
    struct vm *vm = arg;
    vm_fn ready = TAKE(vm->ready);

    vm->control_alive = true;
    vm->has_answered = true;
    widen_backlogs(vm);
    loop_timer_stop(vm->command_timer);
    if (vm->state == VM_STATE_STARTING) {
        vm_set_state(vm, VM_STATE_READY);
    }
    if (ready != NULL) {
        ready(vm->ready_arg, vm);
    }
    vm_next_command(vm);
}

static bool console_shows_panic(const struct vm *vm)
{
    static const char *const sign = "Kernel panic";

    return memmem(vm->console.p, vm->console.n, sign, strlen(sign)) != NULL;
}

static void fail_after_reboot(void *arg, struct vm *vm)
{
    (void)arg;
    if (console_shows_panic(vm)) {
        vm_fail(vm, "guest_panic", "the guest's kernel panicked");
    } else {
        vm_fail(vm, "guest_poweroff", "the guest restarted, which ends a sandbox");
    }
}

static void on_control_event(void *arg, enum runtime_event event, const char *message)
{
    struct vm *vm = arg;

    if (event == RUNTIME_EVENT_FAILED) {
        vm->control_alive = false;
        vm->control_lost = true;
        if (vm->console_done != NULL) {
            vm_fn done = TAKE(vm->console_done);

            done(vm->console_arg, vm);
        }
        if (vm->state != VM_STATE_FAILING && vm->state != VM_STATE_ENDING) {
            log_debug("vm_control_lost", "slot=%u error=%s", vm->slot, LOG_STR(message));
            vm_set_deadline(vm, EXIT_GRACE_MS, "vmm_crashed", message);
        }
    } else if (event == RUNTIME_EVENT_POWEROFF) {
        vm_fail(vm, "guest_poweroff", "the guest powered itself off");
    } else {
        vm_read_console(vm, fail_after_reboot, NULL);
    }
}

static void
on_agent_failed(void *arg, struct agent *agent, enum agent_failure failure, const char *message)
{
    struct vm *vm = arg;

    (void)agent;
    if (failure == AGENT_FAILURE_CLOSED) {
        vm_set_deadline(vm, EXIT_GRACE_MS, "vmm_crashed", message);
        return;
    }
    vm_fail(vm, agent_failure_code(failure), message);
}

int vm_attach(struct vm *vm, struct error *err)
{
    static const struct runtime_callbacks control_callbacks = {on_control_ready, on_control_event};
    static const struct agent_callbacks agent_callbacks = {on_agent_failed};
    struct node *node = vm->node;
    char path[VM_PATH_SIZE + 16];
    int pidfd = vm->pidfd;
    int r;

    /* The loop owns the watched descriptor; vm->pidfd stays valid until on_process_exit. */
    r = loop_watch_exit(node->loop, pidfd, on_process_exit, vm);
    if (r < 0) {
        vm->pidfd = -1; /* closed; the cleanup kills by cgroup */
        return error_set(err, -r, "cannot watch the VMM: %s", strerror(-r));
    }
    vm->watched = true;
    (void)snprintf(path, sizeof(path), "%s/control", vm->socket_dir);
    vm->control = node->parts->runtime.ops->attach(node->loop, path, &control_callbacks, vm);
    (void)snprintf(path, sizeof(path), "%s/agent", vm->socket_dir);
    vm->agent = agent_new(node->loop, &agent_callbacks, vm);
    if (vm->control == NULL || vm->agent == NULL) {
        return error_set(err, EIO, "cannot reach the VMM's control socket");
    }
    r = agent_connect(vm->agent, path);
    if (r < 0) {
        return error_set(err, -r, "cannot reach the agent's socket: %s", strerror(-r));
    }
    loop_timer_start(vm->command_timer, CONNECT_TIMEOUT_MS);
    return 0;
}

/* ---- start ---- */

struct start_job {
    struct vm *vm;
    int result;
    struct error err;
};

static void work_start(void *arg)
{
    struct start_job *job = arg;

    job->result = vm_start_job(job->vm, &job->err);
}

/* Without a process nothing is watched: report, then clean up what was made. */
static void fail_start(struct vm *vm, const struct error *err)
{
    vm_set_state(vm, VM_STATE_FAILING);
    (void)snprintf(vm->end_code, sizeof(vm->end_code), "%s",
                   err->code == ERROR_STORAGE_FULL ? "storage_full" : "start_failed");
    (void)snprintf(vm->end_message, sizeof(vm->end_message), "%s", err->message);
    if (vm->watched) {
        kill_process(vm);
        return;
    }
    report_end(vm);
    begin_cleanup(vm);
}

static void done_start(void *arg)
{
    struct start_job *job = arg;
    struct vm *vm = job->vm;

    vm->job_running = false;
    if (job->result == 0) {
        job->result = vm_attach(vm, &job->err);
    }
    if (vm->end_wanted) {
        vm_end(vm, vm->gone, vm->gone_arg);
    } else if (job->result < 0) {
        fail_start(vm, &job->err);
    } else if (vm->state == VM_STATE_FAILING) {
        kill_process(vm); /* vm_fail came meanwhile */
    }
    /* The VMM has its own copies by now. */
    if (vm->netns.netns_fd >= 0) {
        (void)close(TAKE_FD(vm->netns.netns_fd));
    }
    if (vm->netns.tap_fd >= 0) {
        (void)close(TAKE_FD(vm->netns.tap_fd));
    }
    free(job);
}

static void on_netns(void *arg, const struct netns_lease *lease, const char *problem)
{
    struct start_job *job = arg;
    struct vm *vm = job->vm;

    vm->netns = *lease;
    if (lease->n == 0) {
        job->result = error_set(&job->err, EIO, "no network namespace: %.200s", problem);
        vm->job_running = false;
        if (vm->end_wanted) {
            vm_end(vm, vm->gone, vm->gone_arg);
        } else {
            fail_start(vm, &job->err);
        }
        free(job);
        return;
    }
    if (loop_submit(vm->node->loop, work_start, done_start, job, vm->spec.background) < 0) {
        work_start(job);
        done_start(job);
    }
}

static void take_netns(void *arg)
{
    struct start_job *job = arg;

    netns_pool_take(job->vm->node->parts->netns, on_netns, job);
}

struct vm *vm_start(struct node *node,
                    const struct vm_spec *spec,
                    const struct vm_owner *owner,
                    void *owner_arg,
                    struct error *err)
{
    struct vm *vm = vm_new(node, owner, owner_arg, err);
    struct start_job *job;

    if (vm == NULL) {
        return NULL;
    }
    vm->spec = *spec;
    vm->env = node->parts->runtime.env;
    vm->ram_is_memfd = spec->ram_memfd >= 0;
    vm->slot = vm_take_slot(node, vm);
    if (vm->slot == 0) {
        (void)error_set_code(err, ERROR_CAPACITY_UNAVAILABLE, NULL,
                             "no free user id for a VM (node.vmm_uid_count)");
        vm_free(vm);
        return NULL;
    }
    job = calloc(1, sizeof(*job));
    if (job == NULL || vm_set_paths(vm, err) < 0) {
        free(job);
        vm_free(vm);
        return NULL;
    }
    job->vm = vm;
    vm->job_running = true;
    if (loop_defer(node->loop, take_netns, job) < 0) {
        free(job);
        vm_free(vm);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    return vm;
}

void vm_on_ready(struct vm *vm, vm_fn done, void *arg)
{
    vm->ready = done;
    vm->ready_arg = arg;
}

void vm_set_owner(struct vm *vm, const struct vm_owner *owner, void *owner_arg)
{
    vm->owner = *owner;
    vm->owner_arg = owner_arg;
}

/* ---- adoption ---- */

/* The link is read in the VMM's mount namespace: where this program's own root is a directory of
 * the host's (a chroot), the path has more in front. An upgrade of the package removes the file
 * under a running VMM, which shows as a suffix. */
static bool runs_binary(pid_t pid, const char *binary)
{
    static const char deleted[] = " (deleted)";
    char path[64];
    char target[VM_PATH_SIZE];
    size_t want = strlen(binary);
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0) {
        return false;
    }
    target[n] = '\0';
    if ((size_t)n > sizeof(deleted) &&
        strcmp(&target[(size_t)n - (sizeof(deleted) - 1)], deleted) == 0) {
        n -= (ssize_t)sizeof(deleted) - 1;
        target[n] = '\0';
    }
    if ((size_t)n < want || strcmp(&target[(size_t)n - want], binary) != 0) {
        log_warning("vm_runs_other_program", "pid=%d exe=%s want=%s", (int)pid, LOG_STR(target),
                    LOG_STR(binary));
        return false;
    }
    return true;
}

/* Opens what refers to the process, then checks that it is still the one of the journal. */
static bool adopt_process(struct vm *vm, const struct journal_vm *record)
{
    const struct runtime *rt = &vm->node->parts->runtime;
    char path[64];

    vm->pid = record->pid;
    vm->start_time = record->start_time;
    (void)snprintf(vm->binary, sizeof(vm->binary), "%s", record->binary);
    vm->env = record->env;
    vm->has_answered = true;
    vm->ram_is_memfd =
        record->env.driver[0] != '\0' ? record->ram_is_memfd : !rt->ops->maps_ram_file(rt);
    vm->pidfd = pidfd_open(record->pid, 0);
    if (vm->pidfd < 0 || vmm_start_time(record->pid) != record->start_time ||
        !runs_binary(record->pid, record->binary)) {
        return false;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/2", (int)record->pid);
    vm->log_fd = open(path, O_RDONLY | O_CLOEXEC);
    return true;
}

struct vm *vm_adopt(struct node *node,
                    const struct journal_vm *record,
                    const char *disk_path,
                    const struct vm_owner *owner,
                    void *owner_arg)
{
    struct node_parts *parts = node->parts;
    struct error err = {0};
    struct vm *vm;

    if (record->slot == 0 || record->slot >= parts->slot_count ||
        parts->slots[record->slot] != NULL) {
        return NULL;
    }
    vm = vm_new(node, owner, owner_arg, &err);
    if (vm == NULL) {
        return NULL;
    }
    vm->slot = record->slot;
    parts->slots[vm->slot] = vm;
    parts->slot_used++;
    vm->netns.n = record->netns;
    vm_set_state(vm, VM_STATE_RUNNING);
    if (vm_set_paths(vm, &err) < 0 || !adopt_process(vm, record)) {
        if (vm->pidfd >= 0) {
            (void)close(TAKE_FD(vm->pidfd));
        }
        vm_free(vm);
        return NULL;
    }
    (void)snprintf(vm->disk_path, sizeof(vm->disk_path), "%s", disk_path);
    vm->disk_moved = true;
    if (vm_attach(vm, &err) < 0) {
        log_warning("vm_adopt", "slot=%u error=%s", vm->slot, LOG_STR(err.message));
        kill_process(vm); /* its exit is told to the owner as a crash */
        if (!vm->watched) {
            vm_free(vm);
            return NULL;
        }
    }
    return vm;
}
