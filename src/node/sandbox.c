/* Records of sandboxes: lookup, states, waiters, what clients see. */
#include "node/sandbox.h"

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
#include "node/journal.h"
#include "node/node_private.h"
#include "node/pool.h"
#include "node/restore_gate.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_private.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

static const char *const state_names[] = {
    [SANDBOX_STATE_CREATING] = "creating",   [SANDBOX_STATE_RUNNING] = "running",
    [SANDBOX_STATE_PAUSING] = "pausing",     [SANDBOX_STATE_PAUSED] = "paused",
    [SANDBOX_STATE_WAKING] = "waking",       [SANDBOX_STATE_SUSPENDING] = "suspending",
    [SANDBOX_STATE_SUSPENDED] = "suspended", [SANDBOX_STATE_DELETING] = "deleting",
    [SANDBOX_STATE_ERROR] = "error",         [SANDBOX_STATE_DELETED] = "deleted",
};
_Static_assert(sizeof(state_names) / sizeof(state_names[0]) == SANDBOX_STATE_COUNT,
               "every state has a name");

const char *sandbox_state_name(enum sandbox_state state)
{
    return (unsigned int)state < SANDBOX_STATE_COUNT ? state_names[state] : "error";
}

/* ---- records ---- */

struct sandbox *sandbox_new(struct node *node, const char *id)
{
    struct sandbox *sb = calloc(1, sizeof(*sb));

    if (sb == NULL) {
        return NULL;
    }
    sb->node = node;
    sb->dir_fd = -1;
    list_init(&sb->gate.link);
    (void)snprintf(sb->info.id, sizeof(sb->info.id), "%s", id);
    list_append(&node->parts->sandboxes->sandboxes, &sb->link);
    node->parts->sandboxes->count++;
    return sb;
}

static void free_deferred(void *arg)
{
    free(arg);
}

void sandbox_free(struct sandbox *sb)
{
    struct node *node = sb->node;

    if (node->hooks.on_free != NULL) {
        node->hooks.on_free(node->hooks_ctx, sb);
    }
    list_remove(&sb->link);
    node->parts->sandboxes->count--;
    json_decref(sb->env);
    sandbox_free_suspend(sb);
    restore_gate_leave(sb);
    sandbox_free_restore(sb);
    sandbox_free_fetch(sb);
    loop_timer_free(sb->timer);
    if (sb->dir_fd >= 0) {
        (void)close(sb->dir_fd);
    }
    if (loop_defer(node->loop, free_deferred, sb) < 0) {
        free(sb);
    }
}

const struct sandbox_info *sandbox_info(const struct sandbox *sb)
{
    return &sb->info;
}

struct node *sandbox_node(const struct sandbox *sb)
{
    return sb->node;
}

unsigned int sandbox_count(const struct node *node)
{
    return node->parts->sandboxes->count;
}

struct sandbox_admitted sandbox_admitted(const struct node *node)
{
    const struct list *head = &node->parts->sandboxes->sandboxes;
    struct sandbox_admitted sum = {0};

    for (struct list *it = head->next; it != head; it = it->next) {
        const struct sandbox *sb = list_entry(it, struct sandbox, link);

        /* One in state error, and a suspended one, have a disk and no memory. */
        if (sb->info.state == SANDBOX_STATE_CREATING || sb->info.state == SANDBOX_STATE_WAKING ||
            sb->vm != NULL || sb->vms_going > 0) {
            sum.memory_mib += sb->info.memory_mib;
            sum.vcpus += sb->info.vcpus;
        }
    }
    return sum;
}

struct sandbox *sandbox_find(struct node *node, const char *id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (strcmp(sb->info.id, id) == 0) {
            return sb->info.state == SANDBOX_STATE_DELETED ? NULL : sb;
        }
    }
    return NULL;
}

struct sandbox *sandbox_next(struct node *node, unsigned int *index)
{
    struct list *it;
    struct list *following;
    unsigned int i = 0;

    if (node->parts == NULL || node->parts->sandboxes == NULL) {
        return NULL; /* the start failed early */
    }
    list_foreach(it, following, &node->parts->sandboxes->sandboxes)
    {
        if (i++ == *index) {
            (*index)++;
            return list_entry(it, struct sandbox, link);
        }
    }
    return NULL;
}

static json_t *time_or_null(int64_t ms)
{
    char text[CLOCK_TEXT_SIZE];

    if (ms == 0) {
        return json_null();
    }
    clock_format(ms, text);
    return json_string(text);
}

static json_t *describe_identity(const struct sandbox_info *i)
{
    uint32_t done = i->identity_done;

    if (i->identity_epoch == 0) {
        return json_null();
    }
    return json_pack(
        "{s:I, s:b, s:b, s:b, s:b, s:b, s:o}", "epoch", (json_int_t)i->identity_epoch, "entropy",
        (done & SANDBOX_IDENTITY_ENTROPY) != 0, "clock", (done & SANDBOX_IDENTITY_CLOCK) != 0,
        "hostname", (done & SANDBOX_IDENTITY_HOSTNAME) != 0, "machine_id",
        (done & SANDBOX_IDENTITY_MACHINE_ID) != 0, "tokens", (done & SANDBOX_IDENTITY_TOKENS) != 0,
        "confirmed_at", time_or_null(i->identity_confirmed_at_ms));
}

struct json_t *sandbox_describe(const struct sandbox *sb)
{
    const struct sandbox_info *i = &sb->info;
    json_t *reason = i->reason_code[0] == '\0' ? json_null()
                                               : json_pack("{s:s, s:s}", "code", i->reason_code,
                                                           "message", i->reason_message);

    bool asleep = i->state == SANDBOX_STATE_SUSPENDED;
    bool stored = sb->manifest[0] != '\0';

    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:s?, s:s?}",
                     "id", i->id, "state", sandbox_state_name(i->state), "reason", reason,
                     "template", i->template_name, "template_version", i->template_version, "vcpus",
                     (int)i->vcpus, "memory_mib", (int)i->memory_mib, "disk_mib", (int)i->disk_mib,
                     "created_at", time_or_null(i->created_at_ms), "running_at",
                     time_or_null(i->running_at_ms), "active_at", time_or_null(i->active_at_ms),
                     "identity", describe_identity(i), "durability",
                     !asleep  ? NULL
                     : stored ? "replicated"
                              : "local",
                     "manifest", asleep && stored ? sb->manifest : NULL);
}

/* ---- directory and journal ---- */

void sandbox_dir_path(const struct sandbox *sb, const char *file, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/sandboxes/%s%s%s", sb->node->parts->volume, sb->info.id,
                   file[0] != '\0' ? "/" : "", file);
}

int sandbox_open_dir(struct sandbox *sb, bool make)
{
    char path[NODE_PATH_SIZE + 64];

    sandbox_dir_path(sb, "", path, sizeof(path));
    if (make && mkdir(path, 0700) < 0 && errno != EEXIST) {
        return -errno;
    }
    sb->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return sb->dir_fd < 0 ? -errno : 0;
}

struct sync_job {
    char id[ID_SIZE];
    int dir_fd;
    int result;
};

static void work_sync(void *arg)
{
    struct sync_job *job = arg;

    job->result = journal_sync(job->dir_fd);
    (void)close(job->dir_fd);
}

/* What relies on it waits for a sync of its own. A deletion may have been faster. */
static void done_sync(void *arg)
{
    struct sync_job *job = arg;

    if (job->result < 0 && job->result != -ENOENT) {
        log_error("journal_not_synced", "sandbox=%s error=%s", job->id, strerror(-job->result));
    }
    free(job);
}

void sandbox_sync_later(struct sandbox *sb)
{
    struct sync_job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        return;
    }
    memcpy(job->id, sb->info.id, sizeof(job->id));
    job->dir_fd = fcntl(sb->dir_fd, F_DUPFD_CLOEXEC, 3);
    if (job->dir_fd < 0 || loop_submit(sb->node->loop, work_sync, done_sync, job, true) < 0) {
        if (job->dir_fd >= 0) {
            (void)close(job->dir_fd);
        }
        free(job);
    }
}

int sandbox_write_journal_as(struct sandbox *sb, enum sandbox_state state)
{
    struct journal j = {.info = sb->info};
    int r;

    j.info.state = state;
    if (sb->vm != NULL) {
        vm_describe(sb->vm, &j.vm);
    }
    r = journal_write(sb->dir_fd, &j);
    if (r < 0) {
        log_error("journal_failed", "sandbox=%s error=%s", sb->info.id, strerror(-r));
    } else if (state != SANDBOX_STATE_DELETING) {
        sandbox_sync_later(sb);
    }
    return r;
}

int sandbox_write_journal(struct sandbox *sb)
{
    return sandbox_write_journal_as(sb, sb->info.state);
}

int sandbox_dir_fd(const struct sandbox *sb)
{
    return sb->dir_fd;
}

/* ---- states and waiters ---- */

static bool is_legal(enum sandbox_state from, enum sandbox_state to)
{
    switch (to) {
    case SANDBOX_STATE_RUNNING:
        return from == SANDBOX_STATE_CREATING || from == SANDBOX_STATE_PAUSING ||
               from == SANDBOX_STATE_WAKING || from == SANDBOX_STATE_SUSPENDING;
    case SANDBOX_STATE_PAUSING:
        return from == SANDBOX_STATE_RUNNING || from == SANDBOX_STATE_PAUSED;
    case SANDBOX_STATE_PAUSED:
        return from == SANDBOX_STATE_PAUSING || from == SANDBOX_STATE_WAKING ||
               from == SANDBOX_STATE_SUSPENDING;
    case SANDBOX_STATE_WAKING:
        return from == SANDBOX_STATE_PAUSED || from == SANDBOX_STATE_SUSPENDED ||
               from == SANDBOX_STATE_ERROR;
    case SANDBOX_STATE_SUSPENDING:
        return from == SANDBOX_STATE_RUNNING || from == SANDBOX_STATE_PAUSED;
    case SANDBOX_STATE_SUSPENDED:
        return from == SANDBOX_STATE_SUSPENDING || from == SANDBOX_STATE_WAKING;
    case SANDBOX_STATE_ERROR:
        return from != SANDBOX_STATE_DELETING && from != SANDBOX_STATE_DELETED &&
               from != SANDBOX_STATE_ERROR;
    case SANDBOX_STATE_DELETING:
        return from != SANDBOX_STATE_DELETED;
    case SANDBOX_STATE_DELETED:
        return from == SANDBOX_STATE_DELETING;
    case SANDBOX_STATE_CREATING:
    case SANDBOX_STATE_COUNT:
        break;
    }
    return false;
}

void sandbox_set_state(struct sandbox *sb, enum sandbox_state state)
{
    struct node *node = sb->node;

    if (!is_legal(sb->info.state, state)) {
        log_error("state_refused", "sandbox=%s from=%s to=%s", sb->info.id,
                  sandbox_state_name(sb->info.state), sandbox_state_name(state));
        return;
    }
    log_info("sandbox_state", "sandbox=%s from=%s to=%s reason=%s", sb->info.id,
             sandbox_state_name(sb->info.state), sandbox_state_name(state), sb->info.reason_code);
    sb->info.state = state;
    if (sb->counted) {
        sb->counted = false;
        pool_settle(node->parts->pool);
    }
    restore_gate_leave(sb);
    if (node->hooks.on_change != NULL) {
        node->hooks.on_change(node->hooks_ctx, sb);
    }
    sandbox_notify(node);
}

/* It began in any of these states, and leads through them; change_err says if it came to nothing.
 */
static bool is_rolled_back(const struct sandbox *sb, struct error *err, bool *ret_failed)
{
    if (sb->restore != NULL || sb->resume != NULL) {
        return false;
    }
    *err = sb->change_err;
    if (err->code == ERROR_NONE && sb->info.state != SANDBOX_STATE_RUNNING) {
        (void)error_set_code(err, ERROR_CONFLICT, NULL, "another change came in between");
    }
    *ret_failed = err->code != ERROR_NONE;
    return true;
}

/* Of one that waits for the end of a pause, suspend, wake or rollback. */
static bool is_changed(const struct sandbox_waiter *w, struct error *err, bool *ret_failed)
{
    static const struct {
        enum sandbox_state from;
        enum sandbox_state to;
    } ways[] = {
        [WAITER_PAUSED] = {SANDBOX_STATE_PAUSING, SANDBOX_STATE_PAUSED},
        [WAITER_SUSPENDED] = {SANDBOX_STATE_SUSPENDING, SANDBOX_STATE_SUSPENDED},
        [WAITER_AWAKE] = {SANDBOX_STATE_WAKING, SANDBOX_STATE_RUNNING},
    };
    const struct sandbox *sb = w->sb;

    if (w->kind == WAITER_ROLLED_BACK) {
        return is_rolled_back(sb, err, ret_failed);
    }
    if (sb->info.state == ways[w->kind].from) {
        return false;
    }
    if (sb->info.state != ways[w->kind].to) {
        *err = sb->change_err;
        if (err->code == ERROR_NONE) {
            (void)error_set_code(err, ERROR_CONFLICT, NULL, "another change came in between");
        }
        *ret_failed = true;
    }
    return true;
}

/* Whether this waiter has its answer; fills err when the answer is an error. */
static bool is_answered(const struct sandbox_waiter *w, struct error *err, bool *ret_failed)
{
    const struct sandbox *sb = w->sb;

    *ret_failed = false;
    if (sb == NULL) {
        return true;
    }
    if (w->kind == WAITER_GONE) {
        return sb->info.state == SANDBOX_STATE_DELETED;
    }
    switch (sb->info.state) {
    case SANDBOX_STATE_CREATING:
        return false;
    case SANDBOX_STATE_RUNNING:
    case SANDBOX_STATE_PAUSING:
    case SANDBOX_STATE_PAUSED:
    case SANDBOX_STATE_WAKING:
    case SANDBOX_STATE_SUSPENDING:
    case SANDBOX_STATE_SUSPENDED:
        return w->kind == WAITER_RUNNING || is_changed(w, err, ret_failed);
    case SANDBOX_STATE_DELETING:
        if (sb->failed) {
            return false; /* nothing may be left behind when the error is told */
        }
        break;
    case SANDBOX_STATE_ERROR:
        *ret_failed = true;
        if (w->kind == WAITER_AWAKE && sb->change_err.code != ERROR_NONE) {
            *err = sb->change_err; /* of a boot that led back to here */
            return true;
        }
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION, "error", "sandbox %s: %.200s",
                             sb->info.id, sb->info.reason_message);
        return true;
    case SANDBOX_STATE_DELETED:
    case SANDBOX_STATE_COUNT:
        break;
    }
    *ret_failed = true;
    if (sb->failed) {
        *err = sb->fail_err;
    } else {
        (void)error_set_code(err, ERROR_CONFLICT, NULL, "sandbox %s was deleted", sb->info.id);
    }
    return true;
}

static void deliver(struct node *node)
{
    struct sandbox_set *set = node->parts->sandboxes;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &set->waiters)
    {
        struct error err = {0};
        bool failed;

        if (is_answered(list_entry(it, struct sandbox_waiter, link), &err, &failed)) {
            list_remove(it);
            list_append(&set->delivering, it);
        }
    }
    while (!list_is_empty(&set->delivering)) {
        struct sandbox_waiter *w = list_entry(set->delivering.next, struct sandbox_waiter, link);
        struct error err = {0};
        bool failed = false;

        list_remove(&w->link);
        (void)is_answered(w, &err, &failed);
        if (w->fn != NULL) {
            w->fn(w->arg, failed || w->kind == WAITER_GONE ? NULL : w->sb, failed ? &err : NULL);
        }
        free(w);
    }
}

static void sweep(void *arg)
{
    struct node *node = arg;
    struct sandbox_set *set = node->parts->sandboxes;
    struct list *it;
    struct list *following;

    set->sweep_queued = false;
    deliver(node);
    list_foreach(it, following, &set->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->info.state == SANDBOX_STATE_DELETED) {
            sandbox_free(sb);
        }
    }
}

void sandbox_notify(struct node *node)
{
    struct sandbox_set *set = node->parts->sandboxes;

    if (!set->sweep_queued && loop_defer(node->loop, sweep, node) == 0) {
        set->sweep_queued = true;
    }
}

int sandbox_add_waiter(
    struct node *node, struct sandbox *sb, enum waiter_kind kind, sandbox_wait_fn fn, void *arg)
{
    struct sandbox_waiter *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        return -ENOMEM;
    }
    *w = (struct sandbox_waiter){.kind = kind, .sb = sb, .fn = fn, .arg = arg};
    list_append(&node->parts->sandboxes->waiters, &w->link);
    sandbox_notify(node);
    return 0;
}

int sandbox_wait_running(struct sandbox *sb, sandbox_wait_fn fn, void *arg)
{
    return sandbox_add_waiter(sb->node, sb, WAITER_RUNNING, fn, arg);
}

int sandbox_delete(struct node *node, const char *id, sandbox_wait_fn fn, void *arg)
{
    struct sandbox *sb = sandbox_find(node, id);
    int r = 0;

    if (fn != NULL) {
        r = sandbox_add_waiter(node, sb, WAITER_GONE, fn, arg);
    }
    if (r == 0 && sb != NULL) {
        if (sb->fetched) {
            objects_forget(node, id); /* its own files do not say yet that it is stored */
        }
        sandbox_begin_delete(sb);
    } else if (r == 0 && id_is_valid(id, "sb")) {
        objects_forget(node, id); /* the store may have what this node has lost */
    }
    return r;
}

void sandbox_cancel_waits(struct node *node, const void *arg)
{
    struct list *lists[] = {&node->parts->sandboxes->waiters, &node->parts->sandboxes->delivering};
    struct list *it;
    struct list *following;

    for (size_t i = 0; i < 2; i++) {
        list_foreach(it, following, lists[i])
        {
            struct sandbox_waiter *w = list_entry(it, struct sandbox_waiter, link);

            if (w->arg == arg) {
                list_remove(it);
                free(w);
            }
        }
    }
}

int sandbox_require_running(const struct sandbox *sb, struct error *err)
{
    /* What is asked of a paused one waits in its agent; one that is being written down, or is on
     * its way back from there, or boots, takes nothing. */
    if (sb->vm != NULL && !sb->info.asleep && !sb->info.booting &&
        sb->info.state != SANDBOX_STATE_SUSPENDING &&
        (sb->info.state == SANDBOX_STATE_RUNNING || sandbox_is_resting(sb))) {
        return 0;
    }
    (void)error_set_code(err, ERROR_FAILED_PRECONDITION, sandbox_state_name(sb->info.state),
                         "sandbox %s is not running but %s", sb->info.id,
                         sandbox_state_name(sb->info.state));
    return -EBUSY;
}

/* ---- for the data side ---- */

struct agent *sandbox_agent(const struct sandbox *sb)
{
    return sb->vm != NULL && sb->agent_told ? vm_agent(sb->vm) : NULL;
}

struct process_table *sandbox_processes(const struct sandbox *sb)
{
    return sb->processes;
}

void sandbox_set_processes(struct sandbox *sb, struct process_table *processes)
{
    sb->processes = processes;
}

struct services *sandbox_services(const struct sandbox *sb)
{
    return sb->services;
}

void sandbox_set_services(struct sandbox *sb, struct services *services)
{
    sb->services = services;
}

int sandbox_cpu_ns(const struct sandbox *sb, uint64_t *ret_ns)
{
    return sb->vm == NULL ? -ESRCH : clock_of_process_ns(vm_pid(sb->vm), ret_ns);
}

void sandbox_touch(struct sandbox *sb)
{
    sb->info.active_at_ms = clock_real_ms();
}

struct json_t *sandbox_env(const struct sandbox *sb)
{
    return sb->env;
}
