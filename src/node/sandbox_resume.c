/* Waking a suspended sandbox: a new VM that goes on where the last one was captured. And one in
 * state `error`: a new VM that boots from its disk (sandbox_boot.h).
 *
 * The snapshot is checked whole before a VM is started. Then: spawn over the base image, with a
 * clone of the snapshot's disk; the pages into the VMM's private memory; the devices; and while the
 * guest continues HELLO and IDENTITY of a new epoch. Its processes are frozen until the agent has
 * confirmed every part. The conversation is held (agent_hold.h): no output is taken and no input
 * given before the journal says `running`, so that until then the VM can be thrown away and the
 * sandbox is suspended as before. That is what every failure here leads to, and a restart of this
 * program too. Since processes run by then, the record that says `running` is on the disk in
 * another name before they do: no full disk can take the VM from them.
 *
 * A boot from `error` goes the same way without a snapshot: the VM has a clone of the disk, and
 * only when its guest has confirmed its identity does that become the sandbox's disk. Until then
 * the journal says `waking` and `booting` with the error's reason, and every failure, and a
 * restart, leads back to `error` with the disk as it was. */
#include "node/sandbox_resume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/step.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/agent.h"
#include "node/agent_hold.h"
#include "node/base_files.h"
#include "node/gate.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/sandbox_boot.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_private.h"
#include "node/snapshot.h"
#include "node/vm.h"

struct sandbox_resume {
    struct sandbox *sb;
    struct gate_ticket turn; /* many at once would only starve each other */
    char dir[SNAPSHOT_PATH_SIZE];
    struct snapshot_facts facts;
    struct journal record; /* as it will be, but for what the guest says and when */
    int dir_fd;            /* of the sandbox */
    bool cold;             /* there is a disk to boot from, and no more */
    bool boots;            /* from `error`: `dir` is the sandbox's own directory */
    struct sandbox_boot boot;
    bool ram_is_memfd;
    int ram_memfd;
    int proc_fd;
    int64_t begun_ms;
    int64_t checked_ms;
    int64_t spawned_ms;
    int64_t loaded_ms;
    unsigned int users; /* the sandbox, and a worker */
    int result;
    struct error err;
};

static void release(struct sandbox_resume *m)
{
    if (--m->users > 0) {
        return;
    }
    gate_leave(&m->turn);
    if (m->ram_memfd >= 0) {
        (void)close(m->ram_memfd);
    }
    if (m->proc_fd >= 0) {
        (void)close(m->proc_fd);
    }
    free(m);
}

void sandbox_free_resume(struct sandbox *sb)
{
    struct sandbox_resume *m = TAKE(sb->resume);

    if (m != NULL) {
        release(m);
    }
}

/* One that is created from a checkpoint wakes as well. */
static bool is_coming(const struct sandbox *sb)
{
    return sb->info.state == SANDBOX_STATE_WAKING || sb->info.state == SANDBOX_STATE_CREATING;
}

/* Whether this attempt is still the sandbox's. */
static bool is_waking(const struct sandbox_resume *m)
{
    const struct sandbox *sb = m->sb;

    return is_coming(sb) && sb->resume == m && !sb->node->parts->stopping;
}

static void submit(struct sandbox_resume *m, loop_fn work, loop_fn done)
{
    m->users++;
    m->sb->jobs++;
    if (loop_submit(m->sb->node->loop, work, done, m, false) < 0) {
        work(m);
        done(m);
    }
}

/* ---- failures ---- */

/* Its reason has stayed that of the error. */
static void back_to_error(struct sandbox *sb, const struct error *err)
{
    log_warning("boot_undone", "sandbox=%s error=%s", sb->info.id, LOG_STR(err->message));
    sb->change_err = *err;
    (void)error_wrap(&sb->change_err, "the sandbox could not be started again from its disk");
    sandbox_free_resume(sb);
    sb->info.booting = false;
    if (sandbox_enter(sb, SANDBOX_STATE_ERROR) < 0) {
        sandbox_set_state(sb, SANDBOX_STATE_ERROR); /* as a restart would have it */
    }
}

/* The VM, if there was one, is not the sandbox's any more. */
static void back_to_sleep(struct sandbox *sb, const struct error *err)
{
    if (sb->info.booting) {
        back_to_error(sb, err);
        return;
    }
    if (sb->info.state == SANDBOX_STATE_CREATING) {
        const struct error copy = *err;

        sandbox_free_resume(sb);
        sandbox_fail_create(sb, copy.code, copy.message);
        sb->fail_err = copy; /* with its details */
        return;
    }
    log_warning("wake_undone", "sandbox=%s error=%s", sb->info.id, LOG_STR(err->message));
    sb->change_err = *err;
    (void)error_wrap(&sb->change_err, "the sandbox could not be woken and stays suspended");
    sandbox_free_resume(sb);
    if (sandbox_can_wake(sb)) {
        (void)unlinkat(sb->dir_fd, "disk.img", 0);
    }
    journal_drop_prepared(sb->dir_fd);
    if (sandbox_enter(sb, SANDBOX_STATE_SUSPENDED) < 0) {
        sandbox_set_state(sb, SANDBOX_STATE_SUSPENDED); /* as a restart would have it */
    }
    sandbox_keep_objects(sb);
}

/* What ran before an error is lost already. */
static void leave_agent(struct sandbox *sb)
{
    if (sb->info.booting) {
        sandbox_lose_agent(sb, "crashed");
    } else {
        sandbox_sleep_agent(sb);
    }
}

static void give_up(struct sandbox *sb, const struct error *err)
{
    struct vm *vm = TAKE(sb->vm);

    leave_agent(sb);
    if (vm != NULL) {
        sandbox_end_vm(sb, vm);
    }
    back_to_sleep(sb, err);
}

static enum error_code code_of_end(const struct sandbox *sb, const char *code)
{
    if (strcmp(code, "storage_full") == 0) {
        return ERROR_STORAGE_FULL;
    }
    if (strcmp(code, "agent_timeout") == 0) {
        return ERROR_DEADLINE_EXCEEDED;
    }
    /* A guest that ends while it boots has met a disk that it cannot use. */
    return sb->info.booting && strncmp(code, "guest_", 6) == 0 ? ERROR_FAILED_PRECONDITION
                                                               : ERROR_INTERNAL;
}

static const char *field_of_end(enum error_code kind, const char *code)
{
    if (kind == ERROR_FAILED_PRECONDITION) {
        return sandbox_state_name(SANDBOX_STATE_ERROR);
    }
    return strcmp(code, ACCELERATOR_UNAVAILABLE) == 0 ? code : NULL;
}

static void on_vm_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct sandbox *sb = arg;
    enum error_code kind = code_of_end(sb, code);
    struct error err = {0};

    (void)error_set_code(&err, kind, field_of_end(kind, code), "%s: %.250s", code, message);
    sandbox_save_console(sb);
    leave_agent(sb);
    sandbox_change_vm(sb, vm);
    back_to_sleep(sb, &err);
}

/* ---- the end ---- */

static int move_disk(struct sandbox *sb, struct vm *vm, struct error *err)
{
    char path[NODE_PATH_SIZE + 64];
    int r;

    sandbox_dir_path(sb, "disk.img", path, sizeof(path));
    r = vm_move_disk(vm, path);
    return r < 0 ? error_set(err, -r, "the sandbox's disk could not be put in place: %s",
                             strerror(-r))
                 : 0;
}

/* From the journal on it runs, whatever happens. */
static int write_record(struct sandbox *sb)
{
    int r = sandbox_write_journal_as(sb, SANDBOX_STATE_RUNNING);

    if (r < 0 && journal_take_prepared(sb->dir_fd) == 0) {
        return 0;
    }
    journal_drop_prepared(sb->dir_fd);
    return r;
}

static void finish(struct sandbox *sb)
{
    const struct sandbox_resume *m = sb->resume;
    const struct sandbox_info before = sb->info;
    bool cold = m->cold;
    struct error err = {0};
    int r;

    if (m->boots && move_disk(sb, sb->vm, &err) < 0) {
        give_up(sb, &err);
        return;
    }
    sandbox_end_rest(sb);
    sb->info.asleep = false;
    sb->info.booting = false;
    sb->info.capture_id = 0;
    if (m->boots) {
        sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
    }
    sandbox_touch(sb);
    if (sb->info.running_at_ms == 0) {
        sb->info.running_at_ms = clock_real_ms();
    }
    r = write_record(sb);
    if (r < 0) {
        sb->info = before;
        (void)sandbox_fail_journal(&err, r);
        give_up(sb, &err);
        return;
    }
    log_info(m->boots ? "sandbox_booted" : "sandbox_woken",
             "sandbox=%s check_ms=%lld spawn_ms=%lld load_ms=%lld total_ms=%lld", sb->info.id,
             (long long)(m->checked_ms - m->begun_ms), (long long)(m->spawned_ms - m->checked_ms),
             (long long)(m->loaded_ms - m->spawned_ms),
             (long long)(clock_monotonic_ms() - m->begun_ms));
    sandbox_free_resume(sb);
    vm_set_deadline(sb->vm, 0, "", "");
    vm_set_owner(sb->vm, &sandbox_vm_owner, sb);
    sandbox_set_state(sb, SANDBOX_STATE_RUNNING);
    sandbox_leave_objects(sb);
    if (!cold) {
        agent_release(vm_agent(sb->vm));
    }
    sandbox_drop_snapshot(sb);
}

static void on_identity(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct sandbox *sb = arg;
    struct error err = {0};

    if (result < 0 || !is_coming(sb) || sb->resume == NULL) {
        return; /* on_vm_end tells, or the deletion goes on */
    }
    if (result > 0 || answer->done != AGENT_IDENTITY_ALL) {
        (void)error_set(&err, result > 0 ? result : EIO,
                        "the guest could not take its identity (done %#x): %s", answer->done,
                        strerror(result > 0 ? result : EIO));
        give_up(sb, &err);
        return;
    }
    sb->info.identity_done = answer->done;
    sb->info.identity_confirmed_at_ms = clock_real_ms();
    finish(sb);
}

/* ---- the VM ---- */

static int lose_what_ran(struct sandbox *sb, struct error *err)
{
    struct node *node = sb->node;
    int r = node->hooks.on_booted != NULL ? node->hooks.on_booted(node->hooks_ctx, sb) : 0;

    return r < 0
               ? error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                                "the records of what ran in it cannot be written: %s", strerror(-r))
               : 0;
}

static int move_in(struct sandbox *sb, struct vm *vm, struct error *err)
{
    struct node *node = sb->node;
    int r;

    if (sb->resume->boots) {
        return lose_what_ran(sb, err); /* its disk waits for the guest */
    }
    r = move_disk(sb, vm, err);
    if (r == 0 && node->hooks.on_restored != NULL) {
        r = node->hooks.on_restored(node->hooks_ctx, sb, sb->resume->dir);
        if (r < 0) {
            (void)error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                                 "the sessions cannot be put in place: %s", strerror(-r));
        }
    }
    return r;
}

/* Stopped with everything in it; a cold one boots. */
static void on_loaded(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;
    struct node *node = sb->node;
    bool cold = sb->resume->cold;
    struct error err = {0};
    int r = move_in(sb, vm, &err);

    if (r < 0) {
        give_up(sb, &err);
        return;
    }
    sb->resume->loaded_ms = clock_monotonic_ms();
    vm_set_deadline(vm,
                    (int64_t)(cold ? node->settings.node_boot_timeout_ms
                                   : node->settings.node_start_timeout_ms),
                    "agent_timeout", "the guest did not take its identity in time");
    sb->agent_told = true;
    if (node->hooks.on_agent != NULL) {
        node->hooks.on_agent(node->hooks_ctx, sb, true);
    }
    if (!cold) {
        agent_hold(vm_agent(vm));
    }
    r = sandbox_send_identity(sb, !cold, on_identity);
    if (r < 0) {
        (void)error_set(&err, -r, "no identity could be made: %s", strerror(-r));
        give_up(sb, &err);
        return;
    }
    if (!cold) {
        agent_flush(vm_agent(vm));
        vm_cont(vm, NULL, NULL);
    }
}

static void work_fill(void *arg)
{
    struct sandbox_resume *m = arg;

    m->result = snapshot_fill(m->dir, &m->facts, m->proc_fd, m->ram_is_memfd, &m->err);
    step("filled snapshot");
    if (m->result == 0 && m->record.info.state == SANDBOX_STATE_RUNNING) {
        int r = journal_prepare(m->dir_fd, &m->record);

        m->result = r < 0 ? sandbox_fail_journal(&m->err, r) : 0;
    }
}

/* One that is being created is thrown away when its record cannot be written. */
static void make_record(struct sandbox_resume *m)
{
    const struct sandbox *sb = m->sb;
    struct sandbox_info *i = &m->record.info;

    if (sb->info.state != SANDBOX_STATE_WAKING) {
        return;
    }
    *i = sb->info;
    i->state = SANDBOX_STATE_RUNNING;
    i->asleep = false;
    i->capture_id = 0;
    i->paused_total_ms = sandbox_paused_ms(sb);
    i->paused_at_ms = 0;
    i->identity_epoch++;
    i->identity_done = AGENT_IDENTITY_ALL;
    i->active_at_ms = clock_real_ms();
    i->identity_confirmed_at_ms = i->active_at_ms;
    vm_describe(sb->vm, &m->record.vm);
}

static void load(struct sandbox_resume *m)
{
    char path[SNAPSHOT_PATH_SIZE + 16];
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/state", m->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        (void)error_set(&m->err, errno, "the device state cannot be read: %s", strerror(errno));
        give_up(m->sb, &m->err);
        return;
    }
    vm_load(m->sb->vm, fd, on_loaded, m->sb);
}

static void done_fill(void *arg)
{
    struct sandbox_resume *m = arg;
    struct sandbox *sb = m->sb;

    gate_leave(&m->turn);
    if (is_waking(m) && sb->vm != NULL) {
        if (m->result < 0) {
            give_up(sb, &m->err);
        } else {
            load(m);
        }
    }
    release(m);
    sandbox_end_job(sb);
}

static void on_spawned(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;
    struct sandbox_resume *m = sb->resume;

    sandbox_seed_console(sb);
    m->spawned_ms = clock_monotonic_ms();
    if (m->cold) {
        if (!m->boots) {
            gate_leave(&m->turn);
        }
        on_loaded(sb, vm);
        return;
    }
    m->proc_fd = vm_open_process(vm);
    if (m->proc_fd < 0) {
        (void)error_set(&m->err, -m->proc_fd, "the VMM cannot be reached");
        give_up(sb, &m->err);
        return;
    }
    make_record(m);
    submit(m, work_fill, done_fill);
}

static void spawn(struct sandbox_resume *m)
{
    static const struct vm_owner owner = {on_vm_end};
    struct sandbox *sb = m->sb;
    struct vm_spec spec = {
        .mode = m->cold ? RUNTIME_MODE_COLD : RUNTIME_MODE_RESTORE,
        .vcpus = sb->info.vcpus,
        .memory_mib = sb->info.memory_mib,
        .ram_memfd = m->ram_memfd,
    };

    (void)snprintf(spec.ram_path, sizeof(spec.ram_path), "%s/ram", m->dir);
    (void)snprintf(spec.disk_source, sizeof(spec.disk_source), "%s/disk.img", m->dir);
    sb->vm = vm_start(sb->node, &spec, &owner, sb, &m->err);
    if (sb->vm == NULL) {
        const struct error err = m->err;

        back_to_sleep(sb, &err);
        return;
    }
    vm_on_ready(sb->vm, on_spawned, sb);
}

/* ---- the snapshot ---- */

static void work_check(void *arg)
{
    struct sandbox_resume *m = arg;

    step("check snapshot");
    m->cold = m->boots || snapshot_is_cold(m->dir);
    m->result = m->boots  ? sandbox_boot_check(&m->boot, &m->err)
                : m->cold ? snapshot_check_cold(m->dir, &m->facts, &m->err)
                          : snapshot_check(m->dir, &m->facts, &m->err);
    if (m->result == 0 && m->ram_is_memfd) {
        struct base_files files = {.ram_bytes = (uint64_t)m->facts.memory_mib * 1048576U};

        (void)snprintf(files.dir, sizeof(files.dir), "%.470s", m->dir);
        m->ram_memfd = base_files_copy_ram(&files);
        if (m->ram_memfd < 0) {
            m->result = error_set(&m->err, -m->ram_memfd, "no memory file for the base image");
        }
    }
}

static void done_check(void *arg)
{
    struct sandbox_resume *m = arg;
    struct sandbox *sb = m->sb;

    if (is_waking(m)) {
        m->checked_ms = clock_monotonic_ms();
        if (m->result < 0) {
            const struct error err = m->err;

            back_to_sleep(sb, &err);
        } else {
            spawn(m);
        }
    }
    release(m);
    sandbox_end_job(sb);
}

static void begin_check(void *arg)
{
    struct sandbox_resume *m = arg;

    if (is_waking(m)) {
        submit(m, work_check, done_check);
    }
}

static void take_turn(struct sandbox_resume *m)
{
    struct node_parts *parts = m->sb->node->parts;

    if (gate_enter(m->boots ? &parts->boots : &parts->wakes, &m->turn, begin_check, m) < 0) {
        begin_check(m);
    }
}

static struct sandbox_resume *make_resume(struct sandbox *sb)
{
    const struct runtime *rt = &sb->node->parts->runtime;
    struct sandbox_resume *m = calloc(1, sizeof(*m));

    if (m == NULL) {
        return NULL;
    }
    m->sb = sb;
    m->dir_fd = sb->dir_fd;
    m->users = 1;
    m->ram_memfd = -1;
    m->proc_fd = -1;
    m->begun_ms = clock_monotonic_ms();
    m->ram_is_memfd = !rt->ops->maps_ram_file(rt);
    m->boots = sb->info.state == SANDBOX_STATE_ERROR;
    sandbox_dir_path(sb, m->boots ? "" : "suspended", m->dir, sizeof(m->dir));
    sandbox_boot_describe(sb, &m->boot);
    sandbox_snapshot_facts(sb, &m->facts);
    return m;
}

int sandbox_begin_resume(struct sandbox *sb, struct error *err)
{
    int r = node_check_start(sb->node, err);

    if (r == 0) {
        r = sandbox_check_admission(sb->node, sb->info.memory_mib, true, err);
    }
    return r < 0 ? r : sandbox_resume_admitted(sb, err);
}

int sandbox_resume_admitted(struct sandbox *sb, struct error *err)
{
    const struct sandbox_info before = sb->info;
    int r;

    sb->resume = make_resume(sb);
    if (sb->resume == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    sb->change_err = (struct error){0};
    sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
    r = sandbox_enter(sb, SANDBOX_STATE_WAKING);
    if (r < 0) {
        sb->info = before;
        sandbox_free_resume(sb);
        return sandbox_fail_journal(err, r);
    }
    take_turn(sb->resume);
    return 0;
}

/* ---- from `error` ---- */

static int refuse_boot(const struct sandbox *sb, struct error *err)
{
    int r = node_check_start(sb->node, err);

    if (r < 0) {
        return r;
    }
    if (strcmp(sb->info.reason_code, SANDBOX_JOURNAL_DAMAGED) == 0) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, sandbox_state_name(sb->info.state),
                              "the node's record of the sandbox is damaged: what it needs to start "
                              "is not known");
    }
    if (sb->capture != NULL || sb->restore != NULL || sb->resume != NULL) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "what was being made of the sandbox has not ended yet");
    }
    return sandbox_check_admission(sb->node, sb->info.memory_mib, true, err);
}

/* What an adoption or a capture that came to nothing was to do yet is done with. */
static void forget_vm(struct sandbox *sb)
{
    sb->settling = false;
    sb->stop_wanted = false;
    sb->greet_wanted = false;
    sb->when_idle = NULL;
    journal_drop_prepared(sb->dir_fd);
    if (sb->info.paused_at_ms != 0) {
        sandbox_continue_rest(sb);
    }
}

static int begin_boot(struct sandbox *sb, struct error *err)
{
    int r = refuse_boot(sb, err);

    if (r < 0) {
        return r;
    }
    sb->resume = make_resume(sb);
    if (sb->resume == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    forget_vm(sb);
    sb->change_err = (struct error){0};
    sb->info.booting = true;
    r = sandbox_enter(sb, SANDBOX_STATE_WAKING);
    if (r < 0) {
        sb->info.booting = false;
        sandbox_free_resume(sb);
        return sandbox_fail_journal(err, r);
    }
    take_turn(sb->resume);
    return 0;
}

int sandbox_boot(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err)
{
    int r;

    if (sb->info.state != SANDBOX_STATE_ERROR) {
        return sandbox_wake(sb, fn, arg, err);
    }
    r = begin_boot(sb, err);
    if (r < 0) {
        return r;
    }
    r = sandbox_add_waiter(sb->node, sb, WAITER_AWAKE, fn, arg);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}

void sandbox_resume_created(struct sandbox *sb)
{
    sb->resume = make_resume(sb);
    if (sb->resume == NULL) {
        sandbox_fail_create(sb, ERROR_INTERNAL, "no memory");
        return;
    }
    take_turn(sb->resume);
}
