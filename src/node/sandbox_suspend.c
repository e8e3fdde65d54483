/* Suspending: memory, devices and disk are written down, and the VM goes.
 *
 *   journal    steps behind it                                    after a restart
 *   suspending SILENCE that freezes and syncs; output of          `suspended/` is whole and has the
 *              processes and the disk to stable storage; stop;    record's `capture_id`: suspended,
 *              save; capture into `suspended.new`; rename         the VM is reaped. Else made to
 *                                                                 run again, if the VM lives
 *   suspended  onto stable storage; the VM ends, its disk goes    suspended
 *   waking     sandbox_resume.c, from here                        suspended, the new VM is reaped
 *   running    `suspended/` is removed                            runs; removed then
 *
 * The journal's `asleep` says from `suspended` on until `running` that the directory is what
 * counts. A failure before that (no room, a process that cannot be frozen) takes everything back:
 * the VM continues, WAKE thaws. The guest is silent and its processes are frozen in the snapshot,
 * so that none of them runs after a restore before the agent has been told who it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/step.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/capture_gate.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/ram_stage.h"
#include "node/sandbox_capture.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

#define CONSOLE_MS 20000

void sandbox_suspended_path(const struct sandbox *sb, char *out, size_t size)
{
    sandbox_dir_path(sb, "suspended", out, size);
}

bool sandbox_can_wake(const struct sandbox *sb)
{
    char path[SNAPSHOT_PATH_SIZE];
    char disk[SNAPSHOT_PATH_SIZE + 16];

    sandbox_suspended_path(sb, path, sizeof(path));
    (void)snprintf(disk, sizeof(disk), "%s/disk.img", path);
    return (snapshot_exists(path) || snapshot_is_cold(path)) && access(disk, F_OK) == 0;
}

bool sandbox_has_snapshot(const struct sandbox *sb)
{
    char path[SNAPSHOT_PATH_SIZE];

    sandbox_suspended_path(sb, path, sizeof(path));
    return snapshot_exists(path) && snapshot_has_tag(path, sb->info.capture_id);
}

void sandbox_capture_free(struct sandbox_capture *c)
{
    if (c == NULL) {
        return;
    }
    ram_stage_free(c->source.stage);
    if (c->source.proc_fd >= 0) {
        (void)close(c->source.proc_fd);
    }
    if (c->source.state_fd >= 0) {
        (void)close(c->source.state_fd);
    }
    snapshot_room_give_back(c->source.room, c->sizes.promised_bytes);
    capture_gate_leave(c);
    json_decref(c->env);
    free(c);
}

/* A checkpoint that was being made comes to nothing. */
static void free_capture(struct sandbox *sb)
{
    struct sandbox_capture *c = TAKE(sb->capture);
    struct error err = {0};

    if (c != NULL && c->checkpoint != NULL) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL,
                             "the sandbox ended while its checkpoint was made");
        checkpoint_fail(TAKE(c->checkpoint), &err);
    }
    sandbox_capture_free(c);
}

void sandbox_lose_capture(struct sandbox *sb)
{
    if (sb->capture != NULL && !sb->capture->busy) {
        free_capture(sb);
    }
}

void sandbox_free_suspend(struct sandbox *sb)
{
    free_capture(sb);
    sandbox_free_resume(sb);
}

void sandbox_link_ram(struct sandbox *sb, const char *ram_path)
{
    if (ram_path[0] != '\0' && linkat(AT_FDCWD, ram_path, sb->dir_fd, "ram", 0) < 0 &&
        errno != EEXIST) {
        log_warning("ram_not_linked", "sandbox=%s error=%s", sb->info.id, strerror(errno));
    }
}

/* Whether the capture is still what happens to it. */
static bool is_capturing(const struct sandbox *sb)
{
    return sb->capture != NULL && sb->info.state == sb->capture->state && sb->vm != NULL &&
           !sb->node->parts->stopping;
}

void sandbox_submit(struct sandbox *sb, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    sb->jobs++;
    if (loop_submit(sb->node->loop, work, done, arg, false) < 0) {
        work(arg);
        done(arg);
    }
}

/* ---- taking it back ---- */

static void on_undone(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || sb->info.state != SANDBOX_STATE_SUSPENDING) {
        return; /* the VM's end tells, or the deletion goes on */
    }
    if (sb->info.paused_at_ms != 0) {
        sandbox_end_rest(sb);
    }
    sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
    if (sandbox_enter(sb, SANDBOX_STATE_RUNNING) < 0) {
        sandbox_set_state(sb, SANDBOX_STATE_RUNNING); /* as a restart would have it */
    }
}

/* It runs as before, and its waiters hear why. */
static void undo(struct sandbox *sb, const struct error *err)
{
    struct sandbox_capture *c = sb->capture;
    bool stopped = c->stopped;
    bool was_paused = c->was_paused;

    if (c->checkpoint != NULL) {
        checkpoint_fail(TAKE(c->checkpoint), err);
        free_capture(sb);
        sandbox_checkpoint_resume(sb, stopped, was_paused);
        return;
    }
    log_warning("suspend_undone", "sandbox=%s error=%s", sb->info.id, LOG_STR(err->message));
    sb->change_err = *err;
    if (c->is_clear) {
        (void)snapshot_disown(c->dir); /* before the guest goes on, or it would count */
    }
    free_capture(sb);
    sandbox_drop_snapshot(sb);
    if (stopped) {
        sandbox_continue(sb, on_undone);
    } else {
        agent_wake(vm_agent(sb->vm), CAPTURE_ANSWER_MS, on_undone, sb);
    }
}

/* ---- the end ---- */

static void take_back(struct sandbox *sb, int r)
{
    struct error err = {0};

    (void)sandbox_fail_journal(&err, r);
    undo(sb, &err);
}

/* Its VM ended by itself, and the capture decides. */
static bool is_outliving(const struct sandbox *sb)
{
    return sb->capture != NULL && sb->capture->vm_ended && sb->info.state == sb->capture->state &&
           !sb->node->parts->stopping;
}

/* The snapshot and the journal that says so are on stable storage; or there is no VM to go on with,
 * and a restart would find the snapshot by its name: then the disk stays beside it. */
static void release(struct sandbox *sb)
{
    const struct sandbox_capture *c = sb->capture;
    struct vm *vm = TAKE(sb->vm);
    bool is_safe = c->result == 0;

    log_info("sandbox_suspended",
             "sandbox=%s memory_bytes=%llu data_pages=%llu zero_pages=%llu own_pages=%llu "
             "quiet_ms=%lld disk_us=%lld memory_us=%lld stopped_ms=%lld total_ms=%lld",
             sb->info.id, (unsigned long long)c->sizes.memory_bytes,
             (unsigned long long)c->sizes.data_pages, (unsigned long long)c->sizes.zero_pages,
             (unsigned long long)c->sizes.own_pages, (long long)(c->stopped_ms - c->begun_ms),
             (long long)c->sizes.disk_us, (long long)c->sizes.memory_us,
             (long long)(c->captured_ms - c->stopped_ms),
             (long long)(clock_monotonic_ms() - c->begun_ms));
    sb->info.asleep = true;
    free_capture(sb);
    sandbox_sleep_agent(sb);
    if (vm != NULL) {
        sandbox_end_vm(sb, vm);
    }
    step("release disk");
    if (is_safe) {
        (void)unlinkat(sb->dir_fd, "disk.img", 0);
    }
    sandbox_set_state(sb, SANDBOX_STATE_SUSPENDED);
    sandbox_keep_objects(sb);
}

static void work_sync(void *arg)
{
    struct sandbox_capture *c = arg;

    c->result = journal_sync(c->sb->dir_fd);
}

static void done_sync(void *arg)
{
    struct sandbox_capture *c = arg;
    struct sandbox *sb = c->sb;

    c->busy = false;
    if (!is_capturing(sb) && !is_outliving(sb)) {
        free_capture(sb);
    } else if (c->result < 0 && sb->vm != NULL) {
        /* Where this fails too, the journal still says `suspended`, without a snapshot soon: the
         * next start of this program keeps the disk then. */
        (void)sandbox_write_journal(sb);
        take_back(sb, c->result);
    } else {
        release(sb);
    }
    sandbox_end_job(sb);
}

/* The snapshot is whole: from the journal on it is what counts. The VM and its disk stay until that
 * has reached stable storage. */
static void finish(struct sandbox *sb)
{
    struct vm *vm = TAKE(sb->vm);
    int r;

    sb->info.asleep = true;
    r = sandbox_write_journal_as(sb, SANDBOX_STATE_SUSPENDED);
    sb->info.asleep = false;
    sb->vm = vm;
    if (r < 0 && vm == NULL) {
        sb->capture->result = r;
        release(sb);
        return;
    }
    if (r < 0) {
        take_back(sb, r);
        return;
    }
    sb->capture->busy = true;
    sandbox_submit(sb, work_sync, done_sync, sb->capture);
}

/* ---- a VM that ends by itself ---- */

bool sandbox_outlive_vm(struct sandbox *sb, struct vm *vm, const char *code, const char *message)
{
    struct sandbox_capture *c = sb->capture;

    if (!is_capturing(sb) || c->checkpoint != NULL || !c->stopped || !c->busy) {
        return false;
    }
    c->vm_ended = true;
    (void)snprintf(c->end_code, sizeof(c->end_code), "%s", code);
    (void)snprintf(c->end_message, sizeof(c->end_message), "%s", message);
    sandbox_sleep_agent(sb); /* its processes are lost only if the capture is */
    sandbox_change_vm(sb, vm);
    return true;
}

/* Neither a VM nor a snapshot. */
static void lose(struct sandbox *sb)
{
    const struct sandbox_capture *c = sb->capture;

    sandbox_set_reason(sb, &(struct sandbox_reason){c->end_code, c->end_message});
    (void)snapshot_disown(c->dir);
    free_capture(sb);
    sb->agent_told = true;
    sandbox_lose_agent(sb, "crashed");
    sandbox_set_state(sb, SANDBOX_STATE_ERROR);
    (void)sandbox_write_journal(sb);
    sandbox_drop_snapshot(sb);
}

/* ---- capture ---- */

static void work_capture(void *arg)
{
    struct sandbox_capture *c = arg;

    if (c->disk_only) {
        c->result = snapshot_capture_cold(c->dir, &c->source, &c->sizes, &c->err);
    } else {
        c->result = snapshot_capture(c->dir, &c->facts, &c->source, &c->sizes, &c->err);
    }
    c->captured_ms = clock_monotonic_ms();
    if (c->result == 0 && c->checkpoint == NULL) {
        int r = snapshot_tag(c->dir, c->id);

        c->result =
            r < 0 ? error_set_code(&c->err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                                   NULL, "the snapshot cannot be named: %s", strerror(-r))
                  : 0;
    }
    if (c->result == 0 && c->checkpoint == NULL) {
        c->result = snapshot_commit(c->dir, &c->facts, &c->sizes, &c->err);
    }
    if (c->result < 0) {
        (void)snapshot_remove(c->dir); /* a guest that goes on needs the room */
    }
}

static void done_capture(void *arg)
{
    struct sandbox_capture *c = arg;
    struct sandbox *sb = c->sb;

    c->busy = false;
    if (is_outliving(sb)) {
        if (c->result < 0) {
            lose(sb);
        } else {
            finish(sb);
        }
    } else if (!is_capturing(sb)) {
        free_capture(sb);
    } else if (c->result < 0) {
        const struct error err = c->err;

        undo(sb, &err);
    } else if (c->checkpoint != NULL) {
        sandbox_checkpoint_captured(sb);
    } else {
        finish(sb);
    }
    sandbox_end_job(sb);
}

static void submit_capture(struct sandbox *sb)
{
    sb->capture->busy = true;
    sandbox_submit(sb, work_capture, done_capture, sb->capture);
}

static int reach_vmm(struct sandbox_capture *c)
{
    if (c->source.proc_fd < 0) {
        c->source.proc_fd = vm_open_process(c->sb->vm);
    }
    return c->source.proc_fd < 0 ? c->source.proc_fd : 0;
}

static void take_memory(struct sandbox *sb)
{
    struct error err = {0};
    int r = reach_vmm(sb->capture);

    if (r < 0) {
        (void)error_set(&err, -r, "the VMM cannot be reached");
        undo(sb, &err);
        return;
    }
    submit_capture(sb);
}

static void on_console(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;

    if (!is_capturing(sb) || sb->vm != vm) {
        return;
    }
    vm_set_deadline(vm, 0, "", "");
    sandbox_save_console(sb);
    take_memory(sb);
}

static void on_saved(void *arg, struct vm *vm, const struct error *err)
{
    struct sandbox *sb = arg;

    if (!is_capturing(sb)) {
        return;
    }
    if (err != NULL) {
        const struct error copy = *err;

        undo(sb, &copy);
        return;
    }
    if (sb->capture->checkpoint != NULL) {
        take_memory(sb); /* its VM, and with it the console, stays */
        return;
    }
    vm_set_deadline(vm, CONSOLE_MS, "vmm_crashed", "the VMM did not answer in time");
    vm_read_console(vm, on_console, sb);
}

/* Into a memory file: a full disk is found out where it can be undone. */
static void on_stopped(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;
    struct sandbox_capture *c = sb->capture;
    _cleanup_close_ int out = -1;
    struct error err = {0};
    char path[40];

    if (!is_capturing(sb)) {
        return;
    }
    c->stopped = true;
    c->stopped_ms = clock_monotonic_ms();
    c->info.created_at_ms = clock_real_ms();
    c->info.paused_total_ms = sandbox_paused_ms(sb);
    if (c->disk_only) {
        submit_capture(sb);
        return;
    }
    c->source.state_fd = memfd_create("space-state", MFD_CLOEXEC);
    if (c->source.state_fd >= 0) {
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", c->source.state_fd);
        out = open(path, O_WRONLY | O_CLOEXEC);
    }
    if (out < 0) {
        (void)error_set(&err, errno, "no memory file for the device state: %s", strerror(errno));
        undo(sb, &err);
        return;
    }
    vm_save(vm, out, on_saved, sb);
}

/* ---- before the stop ---- */

/* What a wake has not removed yet. */
static int clear_earlier(struct sandbox_capture *c)
{
    int r = sandbox_clear_snapshot(c->sb, c->dir);

    c->is_clear = r == 0;
    return r == 0 ? 0
                  : error_set(&c->err, -r, "an earlier snapshot of it cannot be removed: %s",
                              strerror(-r));
}

/* Where that cannot be, its memory is written while it stands still. */
static void make_stage(struct sandbox_capture *c)
{
    _cleanup_close_ int image = open(c->ram_path, O_RDONLY | O_CLOEXEC);

    if (image >= 0 && c->source.proc_fd >= 0) {
        c->source.stage = ram_stage_new(c->source.proc_fd, image, c->source.ram_is_memfd,
                                        c->node->parts->reserve_mib);
    }
}

/* Long things come before the stop, so that the window is short. */
static void work_ready(void *arg)
{
    struct sandbox_capture *c = arg;
    int r = sandbox_capture_sync(c);

    if (r < 0) {
        c->result =
            error_set_code(&c->err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                           "the sandbox's files cannot be synchronised: %s", strerror(-r));
        return;
    }
    /* Of a sandbox that an earlier release created. */
    if (access(c->ram_path, F_OK) < 0 && link(c->base_ram_path, c->ram_path) < 0) {
        c->result = error_set(&c->err, errno, "the sandbox's base image is not there any more");
        return;
    }
    c->result = c->checkpoint != NULL ? sandbox_checkpoint_prepare(c) : clear_earlier(c);
    if (c->result == 0) {
        c->result = snapshot_begin(c->dir, &c->err);
    }
    if (c->result == 0 && c->checkpoint != NULL && !c->disk_only) {
        make_stage(c);
    }
}

static void done_ready(void *arg)
{
    struct sandbox_capture *c = arg;
    struct sandbox *sb = c->sb;

    c->busy = false;
    if (!is_capturing(sb)) {
        free_capture(sb);
    } else if (c->result < 0) {
        const struct error err = c->err;

        undo(sb, &err);
    } else {
        vm_stop(sb->vm, on_stopped, sb);
    }
    sandbox_end_job(sb);
}

/* The guest is silent, and there is a place. */
static void write_down(struct sandbox *sb)
{
    struct node *node = sb->node;
    struct error err = {0};
    int r;

    if (!is_capturing(sb)) {
        return;
    }
    r = node->hooks.on_silent != NULL ? node->hooks.on_silent(node->hooks_ctx, sb) : 0;
    if (r < 0) {
        (void)error_set_code(&err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                             "the output of its processes cannot be kept: %s", strerror(-r));
        undo(sb, &err);
        return;
    }
    if (sb->capture->checkpoint != NULL && !sb->capture->disk_only) {
        (void)reach_vmm(sb->capture); /* or later, when it matters */
    }
    sb->capture->busy = true;
    sandbox_submit(sb, work_ready, done_ready, sb->capture);
}

static void on_silent(void *arg, int result)
{
    struct sandbox *sb = arg;
    struct error err = {0};

    if (result < 0 || !is_capturing(sb)) {
        return; /* the VM's end tells, or the deletion goes on */
    }
    sb->was_loud = result > 0;
    if (result > 0) {
        sandbox_fail_silence(&err, result);
        if (sb->capture->checkpoint != NULL) {
            bool was_paused = sb->capture->was_paused;

            checkpoint_fail(TAKE(sb->capture->checkpoint), &err);
            free_capture(sb);
            sandbox_end_rest(sb);
            sandbox_checkpoint_go_on(sb, was_paused);
            return;
        }
        sb->change_err = err;
        free_capture(sb);
        on_undone(sb, 0);
        return;
    }
    capture_gate_answered(sb->capture, write_down);
}

/* Its processes stand still from some moment of this on. */
static void silence(struct sandbox *sb)
{
    sandbox_begin_rest(sb);
    agent_silence(vm_agent(sb->vm), AGENT_SILENCE_FREEZE | AGENT_SILENCE_SYNC,
                  (int64_t)sb->node->settings.node_silence_timeout_ms, on_silent, sb);
}

/* One that was paused runs: only so can its processes be frozen. */
static void on_continued(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || !is_capturing(sb)) {
        return;
    }
    sandbox_end_rest(sb);
    silence(sb);
}

/* ---- the verb ---- */

const char *sandbox_base_version(const struct sandbox *sb)
{
    return sb->info.base_version[0] != '\0' ? sb->info.base_version : sb->info.template_version;
}

void sandbox_snapshot_facts(const struct sandbox *sb, struct snapshot_facts *f)
{
    const struct runtime *rt = &sb->node->parts->runtime;

    *f = (struct snapshot_facts){.vcpus = sb->info.vcpus, .memory_mib = sb->info.memory_mib};
    (void)snprintf(f->template_version, sizeof(f->template_version), "%s",
                   sandbox_base_version(sb));
    f->env = rt->env;
}

int sandbox_check_capture(const struct sandbox *sb, struct error *err)
{
    if (!node_is_ready(sb->node)) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "the node is starting");
    }
    return sb->vm != NULL && vm_environment(sb->vm) == NULL ? node_check_start(sb->node, err) : 0;
}

struct sandbox_capture *sandbox_capture_new(struct sandbox *sb)
{
    const struct node_parts *parts = sb->node->parts;
    struct sandbox_capture *c = calloc(1, sizeof(*c));

    if (c == NULL || capture_gate_init(c, sb) < 0) {
        free(c);
        return NULL;
    }
    c->is_urgent = true;
    c->state = SANDBOX_STATE_SUSPENDING;
    sandbox_suspended_path(sb, c->dir, sizeof(c->dir));
    sandbox_dir_path(sb, "ram", c->ram_path, sizeof(c->ram_path));
    sandbox_dir_path(sb, "disk.img", c->disk_path, sizeof(c->disk_path));
    sandbox_dir_path(sb, "sessions", c->sessions_path, sizeof(c->sessions_path));
    (void)snprintf(c->base_ram_path, sizeof(c->base_ram_path), "%.400s/bases/%s-%u-%u/ram",
                   parts->volume, sandbox_base_version(sb), sb->info.vcpus, sb->info.memory_mib);
    sandbox_snapshot_facts(sb, &c->facts);
    c->source = (struct snapshot_source){
        .proc_fd = -1,
        .state_fd = -1,
        .ram_path = c->ram_path,
        .disk_path = c->disk_path,
        .reserve_mib = sb->node->settings.node_disk_reserve_mib / 2,
        .room = &sb->node->parts->room,
    };
    if (sb->vm != NULL) {
        const struct runtime_env *env = vm_environment(sb->vm);

        if (env != NULL) {
            c->facts.env = *env;
        }
        c->source.ram_is_memfd = vm_ram_is_memfd(sb->vm);
    }
    c->begun_ms = clock_monotonic_ms();
    return c;
}

static void go(struct sandbox *sb)
{
    if (!is_capturing(sb)) {
        return;
    }
    sb->capture->begun_ms = clock_monotonic_ms();
    capture_gate_ask(sb->capture);
    if (sb->capture->was_paused) {
        sandbox_continue(sb, on_continued);
    } else {
        silence(sb);
    }
}

static void start(struct sandbox *sb)
{
    if (is_capturing(sb)) {
        capture_gate_enter(sb->capture, go);
    }
}

/* What the last one left is still being removed, or the VMM has yet to say where it is. */
void sandbox_capture_start(struct sandbox *sb)
{
    sb->when_idle = start;
    sandbox_tell_idle(sb);
}

int sandbox_name_capture(struct sandbox *sb, struct error *err)
{
    int r = random_bytes(&sb->info.capture_id, sizeof(sb->info.capture_id));

    if (r < 0) {
        return error_set(err, -r, "no random bytes for the snapshot's name");
    }
    sb->info.capture_id = sb->info.capture_id >> 1U | 1U; /* as JSON has it, and not zero */
    return 0;
}

/* What a restart would need: the journal of the wake from it may not be on stable storage. */
static bool has_older(const struct sandbox *sb)
{
    char path[SNAPSHOT_PATH_SIZE];

    sandbox_suspended_path(sb, path, sizeof(path));
    return sb->snapshot_stays && snapshot_exists(path);
}

static int begin(struct sandbox *sb, const struct sandbox_reason *reason, struct error *err)
{
    const struct sandbox_info before = sb->info;
    int r = sandbox_check_capture(sb, err);

    if (r < 0) {
        return r;
    }
    if (has_older(sb)) {
        sandbox_drop_snapshot(sb);
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "what it was woken from could not be removed yet");
    }
    r = sandbox_name_capture(sb, err);
    if (r < 0) {
        sb->info = before;
        return r;
    }
    sb->capture = sandbox_capture_new(sb);
    if (sb->capture == NULL) {
        sb->info = before;
        return error_set(err, ENOMEM, "no memory");
    }
    sb->capture->id = sb->info.capture_id;
    sb->capture->is_urgent = reason->code[0] == '\0';
    sb->change_err = (struct error){0};
    sandbox_set_reason(sb, reason);
    r = sandbox_enter(sb, SANDBOX_STATE_SUSPENDING);
    if (r < 0) {
        sb->info = before;
        free_capture(sb);
        return sandbox_fail_journal(err, r);
    }
    sb->capture->was_paused = before.state == SANDBOX_STATE_PAUSED;
    sandbox_capture_start(sb);
    return 0;
}

int sandbox_suspend(struct sandbox *sb,
                    const struct sandbox_reason *reason,
                    sandbox_wait_fn fn,
                    void *arg,
                    struct error *err)
{
    bool begins =
        (sb->info.state == SANDBOX_STATE_RUNNING || sb->info.state == SANDBOX_STATE_PAUSED) &&
        sb->vm != NULL;
    int r = 0;

    if (!begins && sb->info.state != SANDBOX_STATE_SUSPENDING &&
        sb->info.state != SANDBOX_STATE_SUSPENDED) {
        return sandbox_refuse(sb, "be suspended", err);
    }
    if (begins) {
        r = begin(sb, reason, err);
        if (r < 0) {
            return r;
        }
    }
    r = sandbox_add_waiter(sb->node, sb, WAITER_SUSPENDED, fn, arg);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}

/* ---- after a restart of this program ---- */

void sandbox_adopt_suspended(struct sandbox *sb)
{
    char path[SNAPSHOT_PATH_SIZE];

    sb->info.state = SANDBOX_STATE_SUSPENDED;
    sb->info.asleep = true;
    sandbox_suspended_path(sb, path, sizeof(path));
    objects_read_marker(path, sb->manifest);
    if (sb->info.paused_at_ms == 0) {
        sandbox_begin_rest(sb);
    } else {
        sandbox_continue_rest(sb);
    }
    (void)unlinkat(sb->dir_fd, "disk.img", 0);
    if (sandbox_write_journal(sb) < 0) {
        log_warning("journal_stale", "sandbox=%s",
                    sb->info.id); /* it says the same, by its files */
    }
}
