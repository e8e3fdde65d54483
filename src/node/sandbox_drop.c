/* Removes what a suspend, a wake or a rollback leaves in a sandbox's directory. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "node/journal.h"
#include "node/sandbox_capture.h"
#include "node/sandbox_fetch.h"

struct drop_job {
    struct sandbox *sb;
    bool is_suspended; /* and not `rollback` */
    char dir[SNAPSHOT_PATH_SIZE];
    int result;
};

int sandbox_clear_snapshot(const struct sandbox *sb, const char *dir)
{
    int r;

    if (!snapshot_has_parts(dir)) {
        return 0;
    }
    r = journal_sync(sb->dir_fd);
    return r == 0 ? snapshot_remove(dir) : r;
}

static void work_drop(void *arg)
{
    struct drop_job *job = arg;

    job->result = sandbox_clear_snapshot(job->sb, job->dir);
}

static void done_drop(void *arg)
{
    struct drop_job *job = arg;
    struct sandbox *sb = job->sb;

    sb->snapshot_stays = job->result < 0;
    if (job->result < 0) {
        log_warning("snapshot_not_removed", "sandbox=%s error=%s", sb->info.id,
                    strerror(-job->result));
    } else if (job->is_suspended && (sb->info.state == SANDBOX_STATE_RUNNING ||
                                     sb->info.state == SANDBOX_STATE_PAUSED)) {
        /* Not before the disk has the record that says so. One that is suspended anew replaces
         * what is stored. */
        sandbox_forget_objects(sb);
    }
    free(job);
    sandbox_end_job(sb);
}

static void drop(struct sandbox *sb, const char *name)
{
    struct drop_job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        log_warning("snapshot_not_removed", "sandbox=%s error=memory", sb->info.id);
        return;
    }
    job->sb = sb;
    job->is_suspended = strcmp(name, "suspended") == 0;
    sandbox_dir_path(sb, name, job->dir, sizeof(job->dir));
    if (!snapshot_has_parts(job->dir)) {
        free(job);
        return;
    }
    sandbox_submit(sb, work_drop, done_drop, job);
}

void sandbox_drop_snapshot(struct sandbox *sb)
{
    drop(sb, "suspended");
}

void sandbox_drop_rollback(struct sandbox *sb)
{
    drop(sb, "rollback");
}
