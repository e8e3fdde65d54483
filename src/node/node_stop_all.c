/* --stop-all: every VM of the installation ends, and what the host has of it goes, without a
 * daemon.
 *
 * A guest that runs is asked to power itself off first, all of them at once: its agent ends what
 * runs, and what was written is on its disk. A pause or suspend that was cut off is taken back for
 * that, as after a restart of the daemon. Who does not answer is killed, as is one that is paused,
 * whose guest cannot be asked without waking it. A suspended one has no VM; one whose snapshot is
 * whole although the journal does not say so yet is one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/list.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/cgroup.h"
#include "node/journal.h"
#include "node/netns.h"
#include "node/node_private.h"
#include "node/snapshot.h"
#include "node/vm.h"

/* Guests are waited for as long as another one ends within this time, … */
#define QUIET_MS 15000
/* … but not longer in all. */
#define TOTAL_MS 120000

/* ---- guests that run are powered off ---- */

struct farewell {
    struct node *node;
    struct list guests;
    unsigned int waiting;
    unsigned int powered_off;
    struct loop_timer *quiet_timer;
    struct loop_timer *total_timer;
};

struct guest {
    struct list link;
    struct farewell *farewell;
    char id[ID_SIZE];
    struct vm *vm; /* NULL: it has ended */
    bool silent;   /* or may be: it is woken first */
};

static void on_time_over(void *arg)
{
    const struct farewell *f = arg;

    log_warning("guests_not_powered_off", "count=%u", f->waiting);
    loop_stop(f->node->loop);
}

static void on_gone(void *arg)
{
    struct farewell *f = arg;

    loop_timer_start(f->quiet_timer, QUIET_MS);
    if (--f->waiting == 0) {
        loop_stop(f->node->loop);
    }
}

static void on_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct guest *g = arg;
    struct farewell *f = g->farewell;

    g->vm = NULL;
    if (strcmp(code, "guest_poweroff") == 0) {
        f->powered_off++;
        log_info("guest_powered_off", "sandbox=%s", g->id);
    } else {
        log_warning("guest_not_powered_off", "sandbox=%s code=%s message=%s", g->id, code,
                    LOG_STR(message));
    }
    vm_when_gone(vm, on_gone, f);
}

static void on_power_off(void *arg, int result)
{
    struct guest *g = arg;

    if (result > 0 && g->vm != NULL) {
        vm_fail(g->vm, "agent_protocol", "the guest refused to power off");
    }
}

static void power_off(void *arg, int result)
{
    struct guest *g = arg;

    if (result >= 0 && g->vm != NULL) { /* else its end tells */
        agent_power_off(vm_agent(g->vm), TOTAL_MS, on_power_off, g);
    }
}

static void on_greeted(void *arg, int result)
{
    struct guest *g = arg;

    if (result < 0 || !g->silent) {
        power_off(g, result);
    } else if (g->vm != NULL) {
        agent_wake(vm_agent(g->vm), TOTAL_MS, power_off, g);
    }
}

static void on_checked(void *arg, struct vm *vm)
{
    (void)arg;
    if (vm_is_stopped(vm)) {
        vm_cont(vm, NULL, NULL);
    }
}

static void on_control(void *arg, struct vm *vm)
{
    vm_check(vm, on_checked, arg);
}

static bool has_snapshot(const struct node *node, const char *id)
{
    char path[SNAPSHOT_PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s/sandboxes/%s/suspended", node->parts->volume, id);
    return snapshot_exists(path);
}

static bool is_to_be_asked(const struct node *node, const struct journal *j)
{
    if (j->info.asleep || strcmp(j->vm.boot_id, node->parts->boot_id) != 0) {
        return false;
    }
    return j->info.state == SANDBOX_STATE_RUNNING || j->info.state == SANDBOX_STATE_PAUSING ||
           j->info.state == SANDBOX_STATE_WAKING ||
           (j->info.state == SANDBOX_STATE_SUSPENDING && !has_snapshot(node, j->info.id));
}

static void ask_guest(void *arg, int sandboxes_fd, const char *id)
{
    static const struct vm_owner owner = {on_end};
    struct farewell *f = arg;
    _cleanup_close_ int fd = openat(sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char disk[VM_PATH_SIZE];
    struct guest *g;
    struct journal j;

    if (fd < 0 || journal_read(fd, &j) < 0 || strcmp(j.info.id, id) != 0 ||
        !is_to_be_asked(f->node, &j)) {
        return;
    }
    g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return;
    }
    g->farewell = f;
    g->silent = j.info.state != SANDBOX_STATE_RUNNING;
    memcpy(g->id, j.info.id, sizeof(g->id));
    (void)snprintf(disk, sizeof(disk), "%s/sandboxes/%s/disk.img", f->node->parts->volume, id);
    g->vm = vm_adopt(f->node, &j.vm, disk, &owner, g);
    if (g->vm == NULL) {
        free(g);
        return;
    }
    list_append(&f->guests, &g->link);
    f->waiting++;
    vm_on_ready(g->vm, on_control, g);
    if (g->silent) {
        agent_expect_wake(vm_agent(g->vm));
    }
    agent_begin(vm_agent(g->vm), false, TOTAL_MS, on_greeted, g);
}

static void each_sandbox(const struct node *node,
                         void (*fn)(void *arg, int sandboxes_fd, const char *id),
                         void *arg)
{
    char path[NODE_PATH_SIZE + 16];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    (void)snprintf(path, sizeof(path), "%s/sandboxes", node->parts->volume);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (id_is_valid(entry->d_name, "sb")) {
            fn(arg, dirfd(dir), entry->d_name);
        }
    }
}

/* What runs yet is left alone, and meets its end with its control group. */
static void let_go(struct farewell *f)
{
    struct node_parts *p = f->node->parts;
    struct list *it;
    struct list *following;

    p->stopping = true;
    loop_finish_work(f->node->loop);
    for (unsigned int i = 0; i < p->slot_count; i++) {
        if (p->slots[i] != NULL) {
            vm_abandon(p->slots[i]);
        }
    }
    list_foreach(it, following, &f->guests)
    {
        free(list_entry(it, struct guest, link));
    }
}

/* How many have. */
static unsigned int power_off_guests(struct node *node)
{
    struct node_parts *p = node->parts;
    struct farewell f = {.node = node};

    list_init(&f.guests);
    p->runtime.ops = runtime_driver;
    p->slots = calloc((size_t)node->settings.node_vmm_uid_count, sizeof(struct vm *));
    f.quiet_timer = loop_timer_new(node->loop, on_time_over, &f);
    f.total_timer = loop_timer_new(node->loop, on_time_over, &f);
    if (p->slots != NULL && f.quiet_timer != NULL && f.total_timer != NULL) {
        p->slot_count = (unsigned int)node->settings.node_vmm_uid_count;
        each_sandbox(node, ask_guest, &f);
    }
    if (f.waiting > 0) {
        loop_timer_start(f.quiet_timer, QUIET_MS);
        loop_timer_start(f.total_timer, TOTAL_MS);
        (void)loop_run(node->loop);
    }
    let_go(&f);
    loop_timer_free(f.quiet_timer);
    loop_timer_free(f.total_timer);
    return f.powered_off;
}

/* ---- everything goes ---- */

struct stop_count {
    const struct node_parts *parts;
    const char *installation;
    unsigned int vms;
    int result;
};

static void stop_slot(void *arg, unsigned int slot)
{
    struct stop_count *c = arg;
    int r = cgroup_remove(&c->parts->cgroup, slot);

    c->vms++;
    if (r < 0) {
        c->result = r;
    }
}

static void stop_netns(void *arg, unsigned int n)
{
    struct stop_count *c = arg;
    char name[NETNS_NAME_SIZE];
    int r;

    (void)snprintf(name, sizeof(name), "%s-%u", c->installation, n);
    r = netns_remove(name);
    if (r < 0) {
        c->result = r;
    }
}

static bool ends_with_its_vm(const struct node *node, const struct sandbox_info *info)
{
    switch (info->state) {
    case SANDBOX_STATE_RUNNING:
    case SANDBOX_STATE_PAUSING:
    case SANDBOX_STATE_PAUSED:
    case SANDBOX_STATE_WAKING:
        return !info->asleep;
    case SANDBOX_STATE_SUSPENDING:
        return !has_snapshot(node, info->id);
    case SANDBOX_STATE_CREATING:
    case SANDBOX_STATE_SUSPENDED:
    case SANDBOX_STATE_DELETING:
    case SANDBOX_STATE_ERROR:
    case SANDBOX_STATE_DELETED:
    case SANDBOX_STATE_COUNT:
        break;
    }
    return false;
}

/* The next start shall say why these sandboxes run no more. */
static void mark_stopped(void *arg, int sandboxes_fd, const char *id)
{
    const struct node *node = arg;
    _cleanup_close_ int fd = openat(sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct journal j;

    if (fd < 0 || journal_read(fd, &j) < 0 || !ends_with_its_vm(node, &j.info)) {
        return;
    }
    j.info.state = SANDBOX_STATE_ERROR;
    j.info.booting = false;
    j.vm = (struct journal_vm){0};
    (void)snprintf(j.info.reason_code, sizeof(j.info.reason_code), "host_restarted");
    (void)snprintf(j.info.reason_message, sizeof(j.info.reason_message),
                   "the installation was stopped; the disk is kept");
    if (journal_write(fd, &j) < 0) {
        log_warning("journal_failed", "sandbox=%s", id);
    }
}

/* The last of it: an installation that is stopped leaves nothing in run_dir, and /run/netns is no
 * mount any more when no namespace is left in it. */
static void remove_run_dir(struct node *node)
{
    char path[NODE_PATH_SIZE];

    (void)rmdir(node->parts->empty_dir);
    (void)snprintf(path, sizeof(path), "%s/%s", node->settings.run_dir,
                   node->settings.installation);
    if (dir_remove_tree(AT_FDCWD, path) < 0) {
        log_warning("run_dir_kept", "path=%s", LOG_STR(path));
    }
    netns_done();
}

int node_stop_all(struct node *node, struct error *err)
{
    struct stop_count c = {.installation = node->settings.installation};
    unsigned int powered_off;
    int r = node_parts_new(node, err);

    if (r == 0) {
        r = node_prepare_host(node, false, err);
    }
    if (r < 0) {
        return r;
    }
    c.parts = node->parts;
    powered_off = power_off_guests(node);
    cgroup_each(&c.parts->cgroup, stop_slot, &c);
    netns_each(c.installation, stop_netns, &c);
    each_sandbox(node, mark_stopped, node);
    r = dir_remove_tree(AT_FDCWD, c.parts->vm_run);
    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, c.parts->vm_disks);
    }
    if (r == 0) {
        r = c.result;
    }
    remove_run_dir(node);
    cgroup_remove_parents(&c.parts->cgroup); /* at last: with it goes the claim to the name */
    if (r < 0) {
        return error_set(err, -r, "not everything could be removed: %s", strerror(-r));
    }
    log_info("stopped_all", "powered_off=%u killed=%u", powered_off, c.vms);
    return 0;
}
