/* After a start: what an earlier run left.
 *
 * Every sandbox directory is read. Running ones whose VMM still lives (pid, start time and program
 * as in the journal) are adopted: control connection and agent are connected again, processes and
 * output go on; one that is paused stays so. Half-made and half-deleted ones are removed; those
 * whose VMM is gone become errors with the reason. Then a worker reaps what bears this
 * installation's name and belongs to nobody, in the order processes, control groups, namespaces,
 * sockets, disks. Pools are rebuilt, not adopted: a waiting VM has no value that is worth a risk.
 */
#include "node/adopt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/journal.h"
#include "node/netns.h"
#include "node/netns_pool.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"
#include "node/vm.h"

#define ADOPT_WAIT_MS 5000

struct adoption {
    struct node *node;
    void (*done)(void *arg);
    void *arg;
    unsigned int waiting; /* sandboxes whose agent has not answered yet, and the reaper */
    struct loop_timer *timer;
    bool finished;
    bool reaping;
};

struct reap {
    struct adoption *adoption;
    const struct node_parts *parts;
    const char *installation;
    bool *slots; /* owned ones */
    unsigned int slot_count;
    unsigned int *netns; /* owned ones */
    unsigned int netns_count;
    unsigned int reaped;
};

struct adopted {
    struct adoption *adoption;
    struct node *node;
    char id[ID_SIZE];
};

static void finish(struct adoption *a)
{
    if (!a->finished) {
        a->finished = true;
        loop_timer_stop(a->timer);
        a->done(a->arg);
    }
    if (a->waiting == 0) {
        loop_timer_free(a->timer);
        free(a);
    }
}

static void settle(struct adoption *a)
{
    if (--a->waiting == 0) {
        finish(a);
    }
}

static void on_timeout(void *arg)
{
    struct adoption *a = arg;

    if (a->reaping) {
        loop_timer_start(a->timer, ADOPT_WAIT_MS); /* that one is bounded and must be over */
        return;
    }
    log_warning("adoption_slow", "waiting=%u", a->waiting);
    finish(a);
}

/* ---- one sandbox ---- */

static void on_agent(void *arg, int result)
{
    struct adopted *one = arg;
    struct adoption *a = one->adoption;

    if (result == 0) {
        struct sandbox *sb = sandbox_find(one->node, one->id);

        log_info("sandbox_adopted", "sandbox=%s", one->id);
        if (sb != NULL) {
            sandbox_finish_wake(sb); /* its pause, suspend or wake may have been cut off */
        }
    }
    free(one);
    settle(a); /* a failure is told by the VM's end */
}

static void on_control(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;

    if (sb->vm == vm) {
        sandbox_settle_adopted(sb);
    }
}

static void set_error(struct sandbox *sb, const char *code, const char *message)
{
    (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), "%s", code);
    (void)snprintf(sb->info.reason_message, sizeof(sb->info.reason_message), "%s", message);
    sandbox_set_state(sb, SANDBOX_STATE_ERROR);
    (void)sandbox_write_journal(sb);
}

static void greet(struct adoption *a, struct sandbox *sb)
{
    struct node *node = a->node;
    struct adopted *one = calloc(1, sizeof(*one));

    if (one == NULL) {
        vm_fail(sb->vm, "vmm_crashed", "no memory to adopt it");
        return;
    }
    *one = (struct adopted){.adoption = a, .node = node};
    memcpy(one->id, sb->info.id, sizeof(one->id));
    a->waiting++;
    agent_expect_wake(vm_agent(sb->vm));
    agent_begin(vm_agent(sb->vm), false, (int64_t)node->settings.node_start_timeout_ms, on_agent,
                one);
}

/* What the journal says is made true; a pause or suspend that was cut off is taken back. */
static void take_state(struct sandbox *sb)
{
    if (sb->info.state == SANDBOX_STATE_PAUSING || sb->info.state == SANDBOX_STATE_SUSPENDING) {
        sb->info.state = SANDBOX_STATE_WAKING;
        sb->info.reason_code[0] = '\0';
        sb->info.reason_message[0] = '\0';
    }
    if (sb->info.paused_at_ms != 0) {
        sandbox_continue_rest(sb);
    }
    sb->greet_wanted = sb->info.state == SANDBOX_STATE_PAUSED;
}

static void adopt_vm(struct adoption *a, struct sandbox *sb, const struct journal *j)
{
    struct node *node = a->node;
    char disk[NODE_PATH_SIZE + 64];

    sb->await_reap = true;
    if (j->vm.slot == 0 || strcmp(j->vm.boot_id, node->parts->boot_id) != 0) {
        set_error(sb, "host_restarted", "the host was restarted; the disk is kept");
        return;
    }
    sandbox_dir_path(sb, "disk.img", disk, sizeof(disk));
    sb->vm = vm_adopt(node, &j->vm, disk, &sandbox_vm_owner, sb);
    if (sb->vm == NULL) {
        set_error(sb, "vmm_crashed", "the VMM was gone when the node started");
        return;
    }
    take_state(sb);
    sb->await_reap = false;
    netns_pool_skip(node->parts->netns, j->vm.netns);
    sandbox_seed_console(sb);
    sb->agent_told = true;
    sb->settling = true;
    vm_on_ready(sb->vm, on_control, sb);
    if (node->hooks.on_agent != NULL) {
        node->hooks.on_agent(node->hooks_ctx, sb, true);
    }
    if (!sb->greet_wanted) {
        greet(a, sb);
    }
}

/* Whatever is left of one without a snapshot may be the last copy of its disk. */
static void adopt_asleep(struct sandbox *sb)
{
    if (sandbox_can_wake(sb)) {
        sandbox_adopt_suspended(sb);
        return;
    }
    log_error("snapshot_lost", "sandbox=%s", sb->info.id);
    set_error(sb, "snapshot_lost",
              "what it was suspended to was gone when the node started; the disk is kept");
}

/* Its disk was not touched, or has been put in place by a guest that nobody was told of. */
static void undo_boot(struct sandbox *sb)
{
    sb->await_reap = true;
    sb->info.booting = false;
    sandbox_set_state(sb, SANDBOX_STATE_ERROR);
    (void)sandbox_write_journal(sb);
}

/* Of a create or a deletion that did not end. */
static void remove_left_over(struct sandbox *sb)
{
    sb->info.state = SANDBOX_STATE_ERROR;
    sb->await_reap = true;
    sb->is_left_over = true;
    sandbox_begin_delete(sb);
}

static void adopt_record(struct adoption *a, struct sandbox *sb, const struct journal *j)
{
    sb->info = j->info;
    sandbox_drop_rollback(sb);
    if (j->info.state == SANDBOX_STATE_WAKING && j->info.booting) {
        undo_boot(sb);
        return;
    }
    if (j->info.asleep || (j->info.state == SANDBOX_STATE_SUSPENDING && sandbox_has_snapshot(sb))) {
        if (j->info.state == SANDBOX_STATE_SUSPENDING || j->info.state == SANDBOX_STATE_SUSPENDED ||
            j->info.state == SANDBOX_STATE_WAKING) {
            sb->await_reap = true; /* its last VM, if it lives yet */
            adopt_asleep(sb);
            return;
        }
    }
    if (j->info.state != SANDBOX_STATE_ERROR || !j->info.asleep) {
        sandbox_drop_snapshot(sb);
    }
    switch (j->info.state) {
    case SANDBOX_STATE_SUSPENDED: /* never written without `asleep` */
    case SANDBOX_STATE_SUSPENDING:
    case SANDBOX_STATE_RUNNING:
    case SANDBOX_STATE_PAUSING:
    case SANDBOX_STATE_PAUSED:
    case SANDBOX_STATE_WAKING:
        adopt_vm(a, sb, j);
        break;
    case SANDBOX_STATE_CREATING: /* nobody was told that it exists */
    case SANDBOX_STATE_DELETING:
    case SANDBOX_STATE_DELETED:
        remove_left_over(sb);
        break;
    case SANDBOX_STATE_ERROR:
    case SANDBOX_STATE_COUNT:
        break;
    }
}

/* Never guess with somebody's disk: it is kept, for its owner to delete, or for an operator to
 * mend while the node is down, since nothing is written over what is there. */
static void show_damaged(struct sandbox *sb, int r)
{
    struct stat st;

    log_error("journal_damaged", "sandbox=%s error=%s", sb->info.id, strerror(-r));
    if (sb->dir_fd >= 0 && fstat(sb->dir_fd, &st) == 0) {
        sb->info.created_at_ms = (int64_t)st.st_mtim.tv_sec * 1000;
    }
    if (sb->env == NULL) {
        sb->env = json_object();
    }
    (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), SANDBOX_JOURNAL_DAMAGED);
    (void)snprintf(sb->info.reason_message, sizeof(sb->info.reason_message),
                   "the node's record of it cannot be read; the disk is kept");
    sb->await_reap = true;
    sandbox_set_state(sb, SANDBOX_STATE_ERROR);
}

static void adopt_dir(struct adoption *a, const char *id)
{
    struct sandbox *sb = sandbox_new(a->node, id);
    struct journal j;
    int r;

    if (sb == NULL) {
        log_error("adopt_failed", "sandbox=%s error=memory", id);
        return;
    }
    r = sandbox_open_dir(sb, false);
    if (r == 0) {
        r = journal_read(sb->dir_fd, &j);
    }
    if (r == 0 && strcmp(j.info.id, id) != 0) {
        r = -EBADMSG;
    }
    if (r == 0) {
        r = sandbox_load_env(sb);
    }
    if (r == 0) {
        adopt_record(a, sb, &j);
    } else if (r == -ENOENT) { /* the directory alone tells of it */
        remove_left_over(sb);
    } else {
        show_damaged(sb, r);
    }
}

/* ---- what belongs to nobody ---- */

static void reap_slot(void *arg, unsigned int slot)
{
    struct reap *reap = arg;
    int r;

    if (slot < reap->slot_count && reap->slots[slot]) {
        return;
    }
    r = cgroup_remove(&reap->parts->cgroup, slot);
    reap->reaped++;
    if (r < 0) {
        log_warning("reap", "cgroup=vm-%u error=%s", slot, strerror(-r));
    }
}

static void reap_netns(void *arg, unsigned int n)
{
    struct reap *reap = arg;
    char name[NETNS_NAME_SIZE];
    int r;

    for (unsigned int i = 0; i < reap->netns_count; i++) {
        if (reap->netns[i] == n) {
            return;
        }
    }
    (void)snprintf(name, sizeof(name), "%s-%u", reap->installation, n);
    r = netns_remove(name);
    reap->reaped++;
    if (r < 0) {
        log_warning("reap", "netns=%s error=%s", name, strerror(-r));
    }
}

/* Removes the numbered directories that belong to no slot. */
static void reap_dirs(struct reap *reap, const char *path)
{
    _cleanup_closedir_ DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        uint64_t slot;

        if (entry->d_name[0] == '.' ||
            (span_parse_u64(span_of_str(entry->d_name), UINT32_MAX, &slot) == 0 &&
             slot < reap->slot_count && reap->slots[slot])) {
            continue;
        }
        if (dir_remove_tree(dirfd(dir), entry->d_name) < 0) {
            log_warning("reap", "path=%s", LOG_STR(entry->d_name));
        }
        reap->reaped++;
    }
}

static void work_reap(void *arg)
{
    struct reap *reap = arg;

    cgroup_each(&reap->parts->cgroup, reap_slot, reap);
    netns_each(reap->installation, reap_netns, reap);
    reap_dirs(reap, reap->parts->vm_run);
    reap_dirs(reap, reap->parts->vm_disks);
}

static void done_reap(void *arg)
{
    struct reap *reap = arg;
    struct adoption *a = reap->adoption;

    if (reap->reaped > 0) {
        log_info("reaped", "count=%u", reap->reaped);
    }
    a->reaping = false;
    sandbox_tell_reaped(a->node);
    free(reap->netns);
    free(reap->slots);
    free(reap);
    settle(a);
}

static int start_reaper(struct adoption *a)
{
    struct node_parts *parts = a->node->parts;
    struct reap *reap = calloc(1, sizeof(*reap));
    bool *slots = calloc(parts->slot_count, sizeof(*slots));
    unsigned int *netns = calloc(parts->slot_count, sizeof(*netns));
    struct list *it;
    struct list *following;

    if (reap == NULL || slots == NULL || netns == NULL) {
        free(reap);
        free(slots);
        free(netns);
        return -ENOMEM;
    }
    *reap = (struct reap){.adoption = a,
                          .parts = parts,
                          .installation = a->node->settings.installation,
                          .slots = slots,
                          .netns = netns,
                          .slot_count = parts->slot_count};
    list_foreach(it, following, &parts->sandboxes->sandboxes)
    {
        const struct sandbox *sb = list_entry(it, struct sandbox, link);
        struct journal_vm vm;

        if (sb->vm != NULL) {
            vm_describe(sb->vm, &vm);
            slots[vm.slot] = true;
            reap->netns[reap->netns_count++] = vm.netns;
        }
    }
    a->reaping = true;
    a->waiting++;
    if (loop_submit(a->node->loop, work_reap, done_reap, reap, false) < 0) {
        work_reap(reap);
        done_reap(reap);
    }
    return 0;
}

int adopt_all(struct node *node, void (*done)(void *arg), void *arg, struct error *err)
{
    struct adoption *a = calloc(1, sizeof(*a));
    _cleanup_closedir_ DIR *dir = NULL;
    char path[NODE_PATH_SIZE + 16];
    struct dirent *entry;
    int r;

    if (a == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    a->node = node;
    a->done = done;
    a->arg = arg;
    a->waiting = 1; /* this function */
    a->timer = loop_timer_new(node->loop, on_timeout, a);
    (void)snprintf(path, sizeof(path), "%s/sandboxes", node->parts->volume);
    dir = opendir(path);
    if (dir == NULL || a->timer == NULL) {
        loop_timer_free(a->timer);
        free(a);
        return error_set(err, EIO, "cannot read %.200s", path);
    }
    while ((entry = readdir(dir)) != NULL) {
        if (id_is_valid(entry->d_name, "sb")) {
            adopt_dir(a, entry->d_name);
        }
    }
    r = start_reaper(a);
    if (r < 0) {
        return error_set(err, -r, "cannot reap what an earlier run left");
    }
    loop_timer_start(a->timer, ADOPT_WAIT_MS);
    settle(a);
    return 0;
}
