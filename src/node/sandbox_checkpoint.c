/* Checkpoints of a sandbox that goes on.
 *
 *   journal   steps behind it                                      after a restart
 *   pausing   as for a suspend: SILENCE that freezes and syncs,    made to run again; what is
 *             stop, save, capture into `<ck>.new`                  in `<ck>.new` is removed
 *   running   WAKE, continue; a worker synchronises `<ck>.new`     runs; a whole checkpoint is
 *             and gives it its name                                there, or none
 *
 * The VM stands still only from the stop to the end of the capture, which is in the page cache
 * then. A paused one runs for its freeze and stays paused, frozen as well, which its wake ends. A
 * suspended one is not touched: its snapshot is copied, which are links and a clone. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/ram_stage.h"
#include "node/sandbox_capture.h"
#include "node/sessions_copy.h"
#include "node/vm.h"

/* ---- the sandbox goes on ---- */

static void enter(struct sandbox *sb, enum sandbox_state state)
{
    if (sandbox_enter(sb, state) < 0) {
        sandbox_set_state(sb, state); /* as a restart would have it */
    }
}

static void on_awake(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || sb->info.state != SANDBOX_STATE_PAUSING || sb->capture != NULL) {
        return; /* the VM's end tells, or the deletion goes on */
    }
    if (sb->info.paused_at_ms != 0) {
        sandbox_end_rest(sb);
    }
    enter(sb, SANDBOX_STATE_RUNNING);
}

static void on_stopped_again(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;

    (void)vm;
    if (sb->info.state == SANDBOX_STATE_PAUSING) {
        enter(sb, SANDBOX_STATE_PAUSED); /* it rests since its silence */
    }
}

void sandbox_checkpoint_resume(struct sandbox *sb, bool stopped, bool was_paused)
{
    if (was_paused && stopped) {
        enter(sb, SANDBOX_STATE_PAUSED);
    } else if (was_paused) {
        vm_stop(sb->vm, on_stopped_again, sb);
    } else if (stopped) {
        sandbox_continue(sb, on_awake);
    } else {
        agent_wake(vm_agent(sb->vm), CAPTURE_ANSWER_MS, on_awake, sb);
    }
}

/* What could not be frozen is paused all the same. */
void sandbox_checkpoint_go_on(struct sandbox *sb, bool was_paused)
{
    if (was_paused) {
        sandbox_pause_loud(sb);
    } else {
        enter(sb, SANDBOX_STATE_RUNNING);
    }
}

/* ---- on workers ---- */

int sandbox_checkpoint_prepare(struct sandbox_capture *c)
{
    char path[SNAPSHOT_PATH_SIZE + 16];
    int r = dir_remove_tree(AT_FDCWD, c->building);

    if (r == 0 && mkdir(c->building, 0700) < 0) {
        r = -errno;
    }
    if (r < 0) {
        return error_set_code(&c->err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                              "the checkpoint's directory cannot be made: %s", strerror(-r));
    }
    (void)snprintf(path, sizeof(path), "%.470s/sessions", c->building);
    if (c->disk_only) {
        return mkdir(path, 0700) < 0 ? error_set(&c->err, errno, "no directory for the sessions")
                                     : 0;
    }
    return sessions_copy(c->sessions_path, path, NULL, &c->err);
}

static void work_commit(void *arg)
{
    struct sandbox_capture *c = arg;

    c->result =
        c->disk_only ? 0 : snapshot_write(c->dir, &c->facts, &c->source, &c->sizes, &c->err);
    ram_stage_free(TAKE(c->source.stage));
    if (c->result == 0) {
        c->result = c->disk_only ? snapshot_commit_cold(c->dir, &c->err)
                                 : snapshot_commit(c->dir, &c->facts, &c->sizes, &c->err);
    }
    if (c->result == 0) {
        c->result = checkpoint_commit(&c->info, c->building, c->env, &c->err);
    }
}

static void end_commit(struct sandbox_capture *c)
{
    if (c->result < 0) {
        checkpoint_fail(TAKE(c->checkpoint), &c->err);
    } else {
        checkpoint_settle(TAKE(c->checkpoint), &c->info);
    }
    sandbox_capture_free(c);
}

/* The sandbox may be gone by now. */
static void done_commit(void *arg)
{
    end_commit(arg);
}

void sandbox_checkpoint_captured(struct sandbox *sb)
{
    struct sandbox_capture *c = TAKE(sb->capture);

    log_info("sandbox_captured",
             "sandbox=%s checkpoint=%s memory_bytes=%llu data_pages=%llu own_pages=%llu "
             "quiet_ms=%lld disk_us=%lld memory_us=%lld stopped_ms=%lld",
             sb->info.id, c->info.id, (unsigned long long)c->sizes.memory_bytes,
             (unsigned long long)c->sizes.data_pages, (unsigned long long)c->sizes.own_pages,
             (long long)(c->stopped_ms - c->begun_ms), (long long)c->sizes.disk_us,
             (long long)c->sizes.memory_us, (long long)(c->captured_ms - c->stopped_ms));
    sandbox_checkpoint_resume(sb, true, c->was_paused);
    if (loop_submit(sb->node->loop, work_commit, done_commit, c, false) < 0) {
        work_commit(c);
        end_commit(c);
    }
}

/* ---- of a suspended one ---- */

static int copy_disk(struct sandbox_capture *c)
{
    int r = snapshot_begin(c->dir, &c->err);

    if (r == 0) {
        r = snapshot_capture_cold(c->dir, &c->source, &c->sizes, &c->err);
    }
    return r == 0 ? snapshot_commit_cold(c->dir, &c->err) : r;
}

static int copy_all(struct sandbox_capture *c, const char *from)
{
    int r = snapshot_copy(from, c->dir, c->source.reserve_mib, &c->err);

    if (r == 0) {
        r = snapshot_settle(c->dir);
        return r < 0 ? error_set(&c->err, -r, "the snapshot cannot be kept: %s", strerror(-r)) : 0;
    }
    return r;
}

static void work_copy(void *arg)
{
    struct sandbox_capture *c = arg;
    char from[SNAPSHOT_PATH_SIZE];
    char path[SNAPSHOT_PATH_SIZE + 16];

    sandbox_suspended_path(c->sb, from, sizeof(from));
    (void)snprintf(path, sizeof(path), "%.470s/sessions", from);
    if (access(path, F_OK) == 0) { /* rolled back, and not woken since */
        (void)snprintf(c->sessions_path, sizeof(c->sessions_path), "%.470s", path);
    }
    c->info.memory = c->info.memory && !snapshot_is_cold(from);
    c->disk_only = !c->info.memory;
    c->result = sandbox_checkpoint_prepare(c);
    if (c->result == 0) {
        c->result = c->disk_only ? copy_disk(c) : copy_all(c, from);
    }
    if (c->result == 0) {
        c->result = checkpoint_commit(&c->info, c->building, c->env, &c->err);
    }
}

static void done_copy(void *arg)
{
    struct sandbox_capture *c = arg;
    struct sandbox *sb = c->sb;

    end_commit(c);
    sandbox_end_job(sb);
}

/* ---- the verb ---- */

static void fill_info(struct sandbox_capture *c, const struct sandbox *sb, bool memory)
{
    const struct sandbox_info *from = &sb->info;
    struct checkpoint_info *i = &c->info;

    (void)snprintf(i->id, sizeof(i->id), "%s", c->checkpoint->info.id);
    (void)snprintf(i->sandbox_id, sizeof(i->sandbox_id), "%s", from->id);
    (void)snprintf(i->template_name, sizeof(i->template_name), "%s", from->template_name);
    (void)snprintf(i->template_version, sizeof(i->template_version), "%s", from->template_version);
    (void)snprintf(i->base_version, sizeof(i->base_version), "%s", sandbox_base_version(sb));
    (void)snprintf(i->user, sizeof(i->user), "%s", from->user);
    i->vcpus = from->vcpus;
    i->memory_mib = from->memory_mib;
    i->disk_mib = from->disk_mib;
    i->memory = memory;
    i->is_local = c->checkpoint->info.is_local;
    i->created_at_ms = clock_real_ms();
    i->paused_total_ms = sandbox_paused_ms(sb);
    i->identity_epoch = from->identity_epoch;
    c->checkpoint->info = *i;
}

static struct sandbox_capture *
make_capture(struct sandbox *sb, struct checkpoint *ck, bool memory, struct error *err)
{
    struct sandbox_capture *c = sandbox_capture_new(sb);

    if (c != NULL) {
        c->env = json_deep_copy(sb->env);
    }
    if (c == NULL || c->env == NULL) {
        sandbox_capture_free(c);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    c->state = SANDBOX_STATE_PAUSING;
    c->checkpoint = ck;
    c->disk_only = !memory;
    c->was_paused = sb->info.state == SANDBOX_STATE_PAUSED;
    fill_info(c, sb, memory);
    checkpoint_path(ck, ".new", "", c->building, sizeof(c->building));
    checkpoint_path(ck, ".new", "snapshot", c->dir, sizeof(c->dir));
    return c;
}

static int copy_suspended(struct sandbox *sb, struct sandbox_capture *c)
{
    char path[SNAPSHOT_PATH_SIZE];

    sandbox_suspended_path(sb, path, sizeof(path));
    (void)snprintf(c->disk_path, sizeof(c->disk_path), "%.460s/disk.img", path);
    (void)snprintf(c->ram_path, sizeof(c->ram_path), "%.460s/ram", path);
    sandbox_submit(sb, work_copy, done_copy, c);
    return 0;
}

int sandbox_checkpoint(struct sandbox *sb, struct checkpoint *ck, bool memory, struct error *err)
{
    enum sandbox_state before = sb->info.state;
    bool lives = (before == SANDBOX_STATE_RUNNING || before == SANDBOX_STATE_PAUSED) &&
                 sb->vm != NULL && sb->capture == NULL;
    struct sandbox_capture *c;
    int r;

    if (!lives && before != SANDBOX_STATE_SUSPENDED) {
        return sandbox_refuse(sb, "be captured", err);
    }
    r = sandbox_check_capture(sb, err);
    if (r < 0) {
        return r;
    }
    c = make_capture(sb, ck, memory, err);
    if (c == NULL) {
        return -ENOMEM;
    }
    if (!lives) {
        return copy_suspended(sb, c);
    }
    sb->capture = c;
    sb->change_err = (struct error){0};
    r = sandbox_enter(sb, SANDBOX_STATE_PAUSING);
    if (r < 0) {
        sb->capture = NULL;
        c->checkpoint = NULL;
        sandbox_capture_free(c);
        return sandbox_fail_journal(err, r);
    }
    sandbox_capture_start(sb);
    return 0;
}
