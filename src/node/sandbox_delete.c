/* Deleting a sandbox, from any state: processes are told, the VM ends with all that belongs to it,
 * then the directory goes. Asynchronous, retried until it is done. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/step.h"
#include "io/loop.h"
#include "node/node_private.h"
#include "node/pool.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_private.h"
#include "node/vm.h"

#define RETRY_MS 1000

struct remove_job {
    struct sandbox *sb;
    char path[NODE_PATH_SIZE + 64];
    int result;
};

static void remove_files(void *arg);

void sandbox_lose_agent(struct sandbox *sb, const char *reason)
{
    struct node *node = sb->node;

    if (sb->agent_told) {
        if (node->hooks.on_lost != NULL) {
            node->hooks.on_lost(node->hooks_ctx, sb, reason);
        }
        sb->agent_told = false;
    }
}

void sandbox_sleep_agent(struct sandbox *sb)
{
    struct node *node = sb->node;

    if (sb->agent_told) {
        if (node->hooks.on_asleep != NULL) {
            node->hooks.on_asleep(node->hooks_ctx, sb);
        }
        sb->agent_told = false;
    }
}

static void on_vm_gone(void *arg)
{
    struct sandbox *sb = arg;

    sb->vms_going--;
    if (sb->remove_wanted) {
        remove_files(sb);
    }
}

void sandbox_change_vm(struct sandbox *sb, struct vm *vm)
{
    sb->agent_told = false;
    sb->vm = NULL;
    sb->vms_going++;
    vm_when_gone(vm, on_vm_gone, sb);
}

void sandbox_end_vm(struct sandbox *sb, struct vm *vm)
{
    sb->vms_going++;
    vm_end(vm, on_vm_gone, sb);
}

void sandbox_end_job(struct sandbox *sb)
{
    sb->jobs--;
    if (sb->remove_wanted) {
        remove_files(sb);
    } else {
        sandbox_tell_idle(sb);
    }
}

void sandbox_lose_vm(struct sandbox *sb, struct vm *vm)
{
    sandbox_lose_agent(sb, "crashed");
    sandbox_change_vm(sb, vm);
}

void sandbox_tell_reaped(struct node *node)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->await_reap) {
            sb->await_reap = false;
            if (sb->remove_wanted) {
                remove_files(sb);
            }
        }
    }
}

static void work_remove(void *arg)
{
    struct remove_job *job = arg;

    step("remove sandbox");
    job->result = dir_remove_tree(AT_FDCWD, job->path);
    step("removed sandbox");
}

static void done_remove(void *arg)
{
    struct remove_job *job = arg;
    struct sandbox *sb = job->sb;
    int r = job->result;

    free(job);
    if (r < 0) {
        log_warning("delete_retried", "sandbox=%s error=%s", sb->info.id, strerror(-r));
        if (sb->timer == NULL) {
            sb->timer = loop_timer_new(sb->node->loop, remove_files, sb);
        }
        if (sb->timer != NULL) {
            loop_timer_start(sb->timer, RETRY_MS);
        }
        return;
    }
    sandbox_set_state(sb, SANDBOX_STATE_DELETED);
}

/* Every process is gone: the files. */
static void remove_files(void *arg)
{
    struct sandbox *sb = arg;
    struct remove_job *job;

    sb->remove_wanted = true;
    if (sb->vms_going > 0 || sb->jobs > 0 || sb->await_reap) {
        return;
    }
    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        log_error("delete_stuck", "sandbox=%s error=memory", sb->info.id);
        return;
    }
    job->sb = sb;
    sandbox_dir_path(sb, "", job->path, sizeof(job->path));
    if (loop_submit(sb->node->loop, work_remove, done_remove, job, false) < 0) {
        work_remove(job);
        done_remove(job);
    }
}

void sandbox_begin_delete(struct sandbox *sb)
{
    struct vm *vm = TAKE(sb->vm);

    if (sb->info.state == SANDBOX_STATE_DELETING || sb->info.state == SANDBOX_STATE_DELETED) {
        sb->vm = vm;
        return;
    }
    if (sb->request != NULL) {
        pool_cancel(TAKE(sb->request));
    }
    sandbox_set_state(sb, SANDBOX_STATE_DELETING);
    sandbox_lose_capture(sb);
    sandbox_forget_objects(sb);
    /* Written without the VM: a restart must not adopt it any more. */
    if (sb->dir_fd >= 0) {
        (void)sandbox_write_journal(sb);
    }
    sandbox_lose_agent(sb, "deleted");
    if (vm != NULL) {
        vm_end(vm, remove_files, sb);
    } else {
        remove_files(sb);
    }
}
