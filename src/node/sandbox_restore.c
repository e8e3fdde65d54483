/* Sandboxes that begin at a checkpoint: new ones, and such that are rolled back.
 *
 * Both put a copy of the checkpoint, links and a clone of its disk, into the sandbox's directory
 * as if it had been suspended, with the sessions of its processes under new ids, and then wake it
 * (sandbox_resume.c). For a rollback:
 *
 *   journal     steps behind it                                    after a restart
 *   suspending  or `waking` of a suspended one: the checkpoint is  as it was before; or suspended
 *               checked and copied, and put in place of what       at the checkpoint, if the copy
 *               would be woken                                     is in place
 *   suspended   processes become lost, the VM ends                 suspended, at the checkpoint
 *   waking      as of every suspended one                          suspended, at the checkpoint
 *
 * Until the journal says `suspended` the VM runs on, and every failure leaves it alone. */
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
#include "node/checkpoint.h"
#include "node/node_private.h"
#include "node/restore_gate.h"
#include "node/sandbox_capture.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_private.h"
#include "node/sandbox_resume.h"
#include "node/sessions_copy.h"
#include "node/snapshot.h"
#include "node/vm.h"

struct sandbox_restore {
    struct sandbox *sb;
    struct checkpoint *ck; /* in use */
    bool creating;
    bool replaces; /* a suspended one's snapshot */
    enum sandbox_state before;
    char from[SNAPSHOT_PATH_SIZE];
    char sessions[SNAPSHOT_PATH_SIZE];
    char into[SNAPSHOT_PATH_SIZE];
    char suspended[SNAPSHOT_PATH_SIZE];
    char ram[SNAPSHOT_PATH_SIZE];
    uint64_t reserve_mib;
    uint64_t id; /* of what it makes in place of a VM; 0: none */
    struct snapshot_facts facts;
    int result;
    struct error err;
};

static void free_restore(struct sandbox_restore *m)
{
    if (m->ck != NULL) {
        checkpoint_release(m->ck);
    }
    free(m);
}

void sandbox_free_restore(struct sandbox *sb)
{
    struct sandbox_restore *m = TAKE(sb->restore);

    if (m != NULL) {
        free_restore(m); /* it never came to its worker, which a record outlives */
    }
    if (sb->origin != NULL) {
        checkpoint_release(TAKE(sb->origin));
    }
}

/* ---- on a worker ---- */

static int check(const struct sandbox_restore *m, struct error *err)
{
    return snapshot_is_cold(m->from) ? snapshot_check_cold(m->from, &m->facts, err)
                                     : snapshot_check(m->from, &m->facts, err);
}

/* A name of the base's image for the captures to come; that of a rollback has one. */
static int link_ram(const struct sandbox_restore *m)
{
    char image[SNAPSHOT_PATH_SIZE + 16];

    (void)snprintf(image, sizeof(image), "%.470s/ram", m->from);
    return link(image, m->ram) < 0 && errno != EEXIST ? -errno : 0;
}

static int put_in_place(const struct sandbox_restore *m)
{
    int r = snapshot_settle(m->into);

    if (r == 0 && m->replaces) {
        step("exchange snapshots");
    }
    if (r == 0 && m->replaces &&
        renameat2(AT_FDCWD, m->into, AT_FDCWD, m->suspended, RENAME_EXCHANGE) < 0) {
        r = -errno;
    }
    if (r == 0 && m->replaces) {
        step("exchanged snapshots");
    }
    if (r == 0 && m->replaces && fsync(m->sb->dir_fd) < 0) {
        r = -errno;
    }
    if (r == 0 && m->replaces) {
        r = snapshot_remove(m->into);
    }
    return r;
}

static void work_restore(void *arg)
{
    struct sandbox_restore *m = arg;
    char path[SNAPSHOT_PATH_SIZE + 32];
    int r;

    m->result = check(m, &m->err);
    if (m->result < 0) {
        return;
    }
    /* A wake may just have removed its snapshot, or not have come to it yet. */
    r = sandbox_clear_snapshot(m->sb, m->into);
    if (r < 0) {
        m->result =
            error_set(&m->err, -r, "an earlier snapshot of it cannot be removed: %s", strerror(-r));
        return;
    }
    m->result = snapshot_copy(m->from, m->into, m->reserve_mib, &m->err);
    if (m->result == 0) {
        (void)snprintf(path, sizeof(path), "%.460s.new/sessions", m->into);
        m->result = sessions_copy(m->sessions, path, m->sb->info.id, &m->err);
    }
    if (m->result == 0 && m->id != 0) {
        r = snapshot_tag(m->into, m->id);
        m->result =
            r < 0 ? error_set(&m->err, -r, "the copy cannot be named: %s", strerror(-r)) : 0;
    }
    if (m->result < 0) {
        (void)snapshot_remove(m->into);
        return;
    }
    r = link_ram(m);
    if (r == 0) {
        r = put_in_place(m);
    }
    if (r < 0) {
        m->result = error_set_code(
            &m->err, r == -ENOSPC || r == -EDQUOT ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
            "the checkpoint cannot be put in place: %s", strerror(-r));
    }
}

/* ---- making one ---- */

static struct sandbox_restore *make_restore(struct sandbox *sb, struct checkpoint *ck)
{
    struct sandbox_restore *m = calloc(1, sizeof(*m));

    if (m == NULL) {
        return NULL;
    }
    m->sb = sb;
    m->ck = ck;
    m->before = sb->info.state;
    m->replaces = m->before == SANDBOX_STATE_SUSPENDED;
    m->creating = m->before == SANDBOX_STATE_CREATING;
    checkpoint_path(ck, "", "snapshot", m->from, sizeof(m->from));
    checkpoint_path(ck, "", "sessions", m->sessions, sizeof(m->sessions));
    sandbox_suspended_path(sb, m->suspended, sizeof(m->suspended));
    sandbox_dir_path(sb, m->replaces ? "rollback" : "suspended", m->into, sizeof(m->into));
    sandbox_dir_path(sb, "ram", m->ram, sizeof(m->ram));
    m->reserve_mib = sb->node->settings.node_disk_reserve_mib / 2;
    sandbox_snapshot_facts(sb, &m->facts);
    return m;
}

static void fail_create(struct sandbox *sb, const struct error *err)
{
    sandbox_fail_create(sb, err->code, err->message);
    sb->fail_err = *err; /* with its details */
}

static void done_create(void *arg)
{
    struct sandbox_restore *m = arg;
    struct sandbox *sb = m->sb;

    sb->restore = NULL;
    if (sb->info.state == SANDBOX_STATE_CREATING && !sb->node->parts->stopping) {
        if (m->result < 0) {
            fail_create(sb, &m->err);
        } else {
            sandbox_resume_created(sb);
        }
    }
    free_restore(m);
    sandbox_end_job(sb);
}

/* Those that came up while it waited may have taken what the host had; its own memory is counted
 * already. */
static void start_create(struct sandbox *sb)
{
    struct sandbox_restore *m;
    struct error err = {0};

    if (sandbox_check_admission(sb->node, 0, true, &err) < 0) {
        fail_create(sb, &err);
        return;
    }
    m = make_restore(sb, sb->origin);
    if (m == NULL) {
        sandbox_fail_create(sb, ERROR_INTERNAL, "no memory");
        return;
    }
    sb->origin = NULL;
    sb->restore = m;
    sandbox_submit(sb, work_restore, done_create, m);
}

void sandbox_start_restored(struct sandbox *sb)
{
    int r = sandbox_write_journal(sb);

    if (r < 0) {
        sandbox_fail_create(sb, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                            "the sandbox's journal could not be written");
        return;
    }
    restore_gate_enter(sb, start_create);
}

/* ---- rollback ---- */

/* As before: nothing was done to it. */
static void give_up(struct sandbox *sb, enum sandbox_state before, const struct error *err)
{
    log_warning("rollback_undone", "sandbox=%s error=%s", sb->info.id, LOG_STR(err->message));
    sb->change_err = *err;
    if (sandbox_enter(sb, before) < 0) {
        sandbox_set_state(sb, before); /* as a restart would have it */
    }
}

static void lose_processes(struct sandbox *sb)
{
    struct node *node = sb->node;

    if (node->hooks.on_lost != NULL) {
        node->hooks.on_lost(node->hooks_ctx, sb, "rolled_back");
    }
    sb->agent_told = false;
}

/* The checkpoint is what counts from the journal on. */
static int take_over(struct sandbox *sb, const struct sandbox_restore *m, struct error *err)
{
    const struct sandbox_info before = sb->info;
    struct vm *vm = TAKE(sb->vm);
    int r;

    sb->info.asleep = true;
    sb->info.paused_total_ms = m->ck->info.paused_total_ms;
    sb->info.paused_at_ms = m->ck->info.created_at_ms;
    sandbox_continue_rest(sb);
    r = sandbox_write_journal_as(sb, SANDBOX_STATE_SUSPENDED);
    if (r < 0 && !m->replaces) {
        sb->info = before;
        sb->vm = vm;
        (void)sandbox_fail_journal(err, r);
        return r;
    }
    lose_processes(sb);
    sandbox_forget_objects(sb); /* what it was before */
    if (vm != NULL) {
        sandbox_end_vm(sb, vm); /* its disk is replaced by the wake that follows */
    }
    sandbox_set_state(sb, SANDBOX_STATE_SUSPENDED);
    log_info("sandbox_rolled_back", "sandbox=%s checkpoint=%s", sb->info.id, m->ck->info.id);
    return 0;
}

static bool is_restoring(const struct sandbox_restore *m)
{
    const struct sandbox *sb = m->sb;

    return sb->info.state == SANDBOX_STATE_SUSPENDING || sb->info.state == SANDBOX_STATE_WAKING;
}

static void done_rollback(void *arg)
{
    struct sandbox_restore *m = arg;
    struct sandbox *sb = m->sb;
    struct error err = m->err;

    sb->restore = NULL;
    if (sb->node->parts->stopping) {
        free_restore(m); /* its files say the rest */
        sandbox_end_job(sb);
        return;
    }
    if (!is_restoring(m)) {
        sandbox_drop_snapshot(sb); /* it ended by itself, or is being deleted */
    } else if (m->result < 0) {
        give_up(sb, m->before, &err);
    } else if (take_over(sb, m, &err) < 0) {
        sandbox_drop_snapshot(sb);
        give_up(sb, m->before, &err);
    } else if (sandbox_resume_admitted(sb, &err) < 0) {
        sb->change_err = err;
    }
    sandbox_notify(sb->node);
    free_restore(m);
    sandbox_end_job(sb);
}

static void start_rollback(struct sandbox *sb)
{
    struct sandbox_restore *m = sb->restore;

    sandbox_submit(sb, work_restore, done_rollback, m);
}

/* Nothing is written down yet. */
static int refuse(const struct sandbox *sb,
                  const char *checkpoint_id,
                  struct checkpoint **ret_ck,
                  struct error *err)
{
    bool lives =
        (sb->info.state == SANDBOX_STATE_RUNNING || sb->info.state == SANDBOX_STATE_PAUSED) &&
        sb->vm != NULL && sb->capture == NULL;
    int r;

    if ((!lives && sb->info.state != SANDBOX_STATE_SUSPENDED) || sb->restore != NULL) {
        return sandbox_refuse(sb, "be rolled back", err);
    }
    r = node_check_start(sb->node, err);
    if (r == 0 && !lives) {
        r = sandbox_check_admission(sb->node, sb->info.memory_mib, true, err);
    }
    if (r == 0) {
        r = checkpoint_use(sb->node, checkpoint_id, ret_ck, err);
    }
    if (r == 0 && strcmp((*ret_ck)->info.sandbox_id, sb->info.id) != 0) {
        checkpoint_release(TAKE(*ret_ck));
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "checkpoint",
                              "checkpoint %.20s is of another sandbox: create one from it",
                              checkpoint_id);
    }
    return r;
}

static int enter(struct sandbox *sb, struct sandbox_restore *m, struct error *err)
{
    int r = 0;

    if (!m->replaces) {
        r = sandbox_name_capture(sb, err);
        m->id = sb->info.capture_id;
    }
    if (r < 0) {
        return r;
    }
    r = sandbox_enter(sb, m->replaces ? SANDBOX_STATE_WAKING : SANDBOX_STATE_SUSPENDING);
    return r < 0 ? sandbox_fail_journal(err, r) : 0;
}

int sandbox_rollback(
    struct sandbox *sb, const char *checkpoint_id, sandbox_wait_fn fn, void *arg, struct error *err)
{
    struct checkpoint *ck = NULL;
    int r = refuse(sb, checkpoint_id, &ck, err);

    if (r < 0) {
        return r;
    }
    sb->change_err = (struct error){0};
    sb->restore = make_restore(sb, ck);
    if (sb->restore == NULL) {
        checkpoint_release(ck);
        return error_set(err, ENOMEM, "no memory");
    }
    r = enter(sb, sb->restore, err);
    if (r < 0) {
        free_restore(TAKE(sb->restore));
        return r;
    }
    sb->when_idle = start_rollback; /* what the last change left may still be being removed */
    sandbox_tell_idle(sb);
    r = sandbox_add_waiter(sb->node, sb, WAITER_ROLLED_BACK, fn, arg);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}
