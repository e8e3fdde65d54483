/* Sandboxes whose snapshot is in the object store: into it, and back on a node that does not have
 * them any more.
 *
 *   journal    steps behind it                                     after a restart
 *   creating   the snapshot is fetched into `fetched/`, checked    removed; the store still has it
 *              against what was asked for, and put in place as
 *              `suspended/`, with sessions, variables and identity
 *   running    it has woken (sandbox_resume.c)                     runs */
#include "node/sandbox_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/sandbox_capture.h"
#include "node/sandbox_resume.h"

struct sandbox_fetch {
    struct sandbox *sb;
    char manifest[OBJECTS_NAME_SIZE];
    char dir[SNAPSHOT_PATH_SIZE];
    char into[SNAPSHOT_PATH_SIZE];
    char home[SNAPSHOT_PATH_SIZE];
    struct journal record; /* of then */
    int result;
    struct error err;
};

void sandbox_keep_objects(struct sandbox *sb)
{
    if (sb->manifest[0] == '\0' && sb->info.state == SANDBOX_STATE_SUSPENDED) {
        objects_keep(sb->node, sb->info.id);
    }
}

/* From here on whoever removes it removes that too. Not before it runs: until then the store's copy
 * is the only one. */
static void note_stored(struct sandbox *sb)
{
    if (file_write_atomic(sb->dir_fd, OBJECTS_STORED, span_of_str(""), 0600, false) < 0) {
        log_warning("objects_not_noted", "sandbox=%s", sb->info.id);
    }
}

void sandbox_leave_objects(struct sandbox *sb)
{
    if (sb->fetched) {
        sb->fetched = false;
        note_stored(sb);
    }
    sb->manifest[0] = '\0';
    objects_changed(sb->node, sb->info.id);
}

void sandbox_forget_objects(struct sandbox *sb)
{
    sb->manifest[0] = '\0';
    objects_changed(sb->node, sb->info.id);
    if (sb->dir_fd >= 0 && faccessat(sb->dir_fd, OBJECTS_STORED, F_OK, 0) == 0) {
        objects_forget(sb->node, sb->info.id);
    }
}

int sandbox_plan_fetch(struct sandbox *sb, const char *manifest, struct error *err)
{
    struct sandbox_fetch *m;

    if (!objects_enabled(sb->node)) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "this node has no object store to fetch the snapshot from");
    }
    m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    m->sb = sb;
    (void)snprintf(m->manifest, sizeof(m->manifest), "%s", manifest);
    sandbox_dir_path(sb, "fetched", m->dir, sizeof(m->dir));
    sandbox_dir_path(sb, "", m->home, sizeof(m->home));
    sandbox_suspended_path(sb, m->into, sizeof(m->into));
    sb->fetch = m;
    sb->fetched = true;
    return 0;
}

/* One whose work has begun is freed by its end: the record waits for its jobs. */
void sandbox_free_fetch(struct sandbox *sb)
{
    free(TAKE(sb->fetch));
}

/* ---- on a worker ---- */

static int move_into(const char *from, const char *name, const char *into)
{
    char old[SNAPSHOT_PATH_SIZE + 32];
    char fresh[SNAPSHOT_PATH_SIZE + 32];

    (void)snprintf(old, sizeof(old), "%.470s/%s", from, name);
    (void)snprintf(fresh, sizeof(fresh), "%.470s/%s", into, name);
    return rename(old, fresh) < 0 && errno != ENOENT ? -errno : 0;
}

/* Its own, and what was asked for. */
static int check_record(struct sandbox_fetch *m)
{
    const struct sandbox_info *want = &m->sb->info;
    const struct sandbox_info *had = &m->record.info;
    _cleanup_close_ int fd = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 || journal_read(fd, &m->record) < 0) {
        return error_set(&m->err, EBADMSG,
                         "the snapshot in the object store is damaged: its record cannot be read");
    }
    if (strcmp(had->id, want->id) != 0 ||
        strcmp(had->template_version, want->template_version) != 0 || had->vcpus != want->vcpus ||
        had->memory_mib != want->memory_mib || had->disk_mib != want->disk_mib) {
        return error_set(&m->err, EBADMSG,
                         "the snapshot in the object store belongs to another sandbox, or to "
                         "another version of its template");
    }
    return 0;
}

static int put_in_place(struct sandbox_fetch *m)
{
    static const char *const files[] = {"ram",           "memory", "state",  "disk.img",
                                        "snapshot.json", "cold",   "capture"};
    char fresh[SNAPSHOT_PATH_SIZE + 8];
    int r = snapshot_begin(m->into, &m->err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(fresh, sizeof(fresh), "%.470s.new", m->into);
    for (size_t i = 0; r == 0 && i < sizeof(files) / sizeof(files[0]); i++) {
        r = move_into(m->dir, files[i], fresh);
    }
    if (r == 0) {
        r = move_into(m->dir, "sessions", m->home);
    }
    if (r == 0) {
        r = move_into(m->dir, JOURNAL_ENV_FILE, m->home);
    }
    if (r == 0) {
        r = snapshot_settle(m->into);
    }
    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, m->dir);
    }
    return r < 0 ? error_set(&m->err, -r, "the snapshot cannot be put in place: %s", strerror(-r))
                 : 0;
}

static void work_place(void *arg)
{
    struct sandbox_fetch *m = arg;

    m->result = check_record(m);
    if (m->result == 0) {
        m->result = put_in_place(m);
    }
}

/* ---- on the loop ---- */

static void fail(struct sandbox *sb, const struct error *err)
{
    sandbox_fail_create(sb, err->code, err->message);
    sb->fail_err = *err; /* with its details */
}

/* It goes on as what it was. */
static int take_record(struct sandbox *sb, const struct journal *record)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    struct sandbox_info *i = &sb->info;
    const struct sandbox_info *had = &record->info;

    memcpy(i->base_version, had->base_version, sizeof(i->base_version));
    memcpy(i->machine_id, had->machine_id, sizeof(i->machine_id));
    memcpy(i->hostname, had->hostname, sizeof(i->hostname));
    memcpy(i->user, had->user, sizeof(i->user));
    i->identity_epoch = had->identity_epoch;
    i->created_at_ms = had->created_at_ms;
    i->running_at_ms = had->running_at_ms;
    i->active_at_ms = had->active_at_ms;
    i->paused_total_ms = had->paused_total_ms;
    i->paused_at_ms = had->paused_at_ms != 0 ? had->paused_at_ms : had->active_at_ms;
    sandbox_continue_rest(sb);
    sb->key.template_info.disk_mib = i->disk_mib; /* its disk has that size */
    sandbox_dir_path(sb, "suspended/ram", path, sizeof(path));
    sandbox_link_ram(sb, path);
    json_decref(TAKE(sb->env));
    return sandbox_load_env(sb);
}

static void done_place(void *arg)
{
    struct sandbox_fetch *m = arg;
    struct sandbox *sb = m->sb;
    int r = m->result;

    if (r == 0 && sb->info.state == SANDBOX_STATE_CREATING) {
        r = take_record(sb, &m->record);
        if (r < 0) {
            (void)error_set(&m->err, -r, "its variables cannot be read: %s", strerror(-r));
        }
    }
    if (sb->info.state == SANDBOX_STATE_CREATING && !sb->node->parts->stopping) {
        if (r < 0) {
            fail(sb, &m->err);
        } else {
            sandbox_resume_created(sb);
        }
    }
    free(m);
    sandbox_end_job(sb);
}

static void on_fetched(void *arg, const struct error *err)
{
    struct sandbox_fetch *m = arg;
    struct sandbox *sb = m->sb;

    if (err == NULL && sb->info.state == SANDBOX_STATE_CREATING && !sb->node->parts->stopping) {
        if (loop_submit(sb->node->loop, work_place, done_place, m, false) < 0) {
            work_place(m);
            done_place(m);
        }
        return;
    }
    if (err != NULL && sb->info.state == SANDBOX_STATE_CREATING) {
        fail(sb, err);
    }
    free(m);
    sandbox_end_job(sb);
}

void sandbox_start_fetched(struct sandbox *sb)
{
    struct sandbox_fetch *m = TAKE(sb->fetch);
    const struct objects_fetch f = {.owner = sb->info.id,
                                    .manifest = m->manifest,
                                    .dir = m->dir,
                                    .template_name = sb->info.template_name,
                                    .template_version = sb->info.template_version};
    struct error err = {0};
    int r = sandbox_write_journal(sb);

    if (r < 0) {
        (void)sandbox_fail_journal(&err, r);
    } else {
        sb->jobs++;
        r = objects_fetch(sb->node, &f, on_fetched, m, &err);
        sb->jobs -= r < 0 ? 1U : 0U;
    }
    if (r < 0) {
        free(m);
        fail(sb, &err);
    }
}
