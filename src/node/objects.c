#include "node/objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/step.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/object_sum.h"
#include "node/objects_private.h"
#include "node/sandbox_private.h"

#define SWEEP_RETRY_MS  5000
#define SWEEP_RETRY_MAX 600000

/* ---- failures ---- */

static int64_t keep_ms_of(const struct objects *o)
{
    return (int64_t)o->node->settings.objects_garbage_seconds * 1000 + 1000;
}

static void note_failure(struct objects *o, const struct error *err)
{
    int64_t now = clock_monotonic_ms();

    if (o->delay_ms == 0) {
        o->failing_since_ms = clock_real_ms();
    }
    o->delay_ms = o->delay_ms == 0 ? OBJECTS_RETRY_MS : o->delay_ms * 2;
    o->delay_ms = o->delay_ms > OBJECTS_RETRY_MAX ? OBJECTS_RETRY_MAX : o->delay_ms;
    o->retry_at_ms = now + o->delay_ms;
    o->problem = *err;
    log_warning("objects_wait", "waiting=%u retry_ms=%lld error=%s",
                o->keep_count + o->forget_count, (long long)o->delay_ms, LOG_STR(err->message));
}

/* What nothing refers to any more is swept when it is old enough. */
static void note_garbage(struct objects *o)
{
    int64_t due;

    o->garbage_ms = clock_monotonic_ms();
    due = o->garbage_ms + keep_ms_of(o);
    if (!o->sweep_wanted || due < o->sweep_due_ms) { /* one that failed waits longer */
        o->sweep_wanted = true;
        o->sweep_due_ms = due;
    }
}

static void note_success(struct objects *o)
{
    if (o->delay_ms != 0) {
        log_info("objects_reached", "waiting=%u", o->keep_count + o->forget_count);
    }
    o->delay_ms = 0;
    o->retry_at_ms = 0;
    o->failing_since_ms = 0;
    o->problem = (struct error){0};
}

/* ---- what is wanted ---- */

static struct objects_entry *find_entry(const struct objects *o, const char *owner)
{
    struct id_entry *found = id_table_find(&o->by_owner, owner);

    return found == NULL ? NULL : list_entry(found, struct objects_entry, by_owner);
}

static void append_entry(struct objects *o, struct objects_entry *e)
{
    list_append(&o->entries, &e->link);
    id_table_add(&o->by_owner, &e->by_owner, e->owner);
}

static void take_entry(struct objects *o, struct objects_entry *e)
{
    list_remove(&e->link);
    id_table_remove(&o->by_owner, &e->by_owner);
}

static void count(struct objects *o, enum objects_want want, int by)
{
    unsigned int *counter = want == OBJECTS_KEEP ? &o->keep_count : &o->forget_count;

    *counter += (unsigned int)by;
}

static void drop_entry(struct objects *o, struct objects_entry *e)
{
    count(o, e->want, -1);
    take_entry(o, e);
    free(e);
}

static void want(struct objects *o, const char *owner, enum objects_want what)
{
    struct objects_entry *e = find_entry(o, owner);

    if (e != NULL) {
        count(o, e->want, -1);
        take_entry(o, e);
    } else {
        e = calloc(1, sizeof(*e));
        if (e == NULL) {
            log_warning("objects_forgotten", "owner=%s error=memory",
                        owner); /* a restart finds it */
            return;
        }
        (void)snprintf(e->owner, sizeof(e->owner), "%s", owner);
    }
    e->want = what;
    count(o, what, 1);
    append_entry(o, e);
    objects_go_on(o);
}

static void forget_path(const struct node *node, const char *owner, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/objects/forget/%s", node->parts->volume, owner);
}

void objects_keep(struct node *node, const char *owner)
{
    struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;
    char path[OBJECTS_PATH_SIZE];

    if (o == NULL || (o->put != NULL && !o->obsolete && strcmp(o->put->owner, owner) == 0)) {
        return;
    }
    forget_path(o->node, owner, path, sizeof(path));
    (void)unlink(path); /* what is stored next replaces it all */
    want(o, owner, OBJECTS_KEEP);
}

void objects_changed(struct node *node, const char *owner)
{
    struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;

    if (o != NULL && o->put != NULL && strcmp(o->put->owner, owner) == 0) {
        o->obsolete = true;
    }
}

void objects_forget(struct node *node, const char *owner)
{
    struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;
    char path[OBJECTS_PATH_SIZE];
    int fd;

    objects_changed(node, owner);
    forget_path(node, owner, path, sizeof(path));
    step("forget owner");
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    step("forgot owner");
    if (fd >= 0) {
        (void)close(fd);
    } else if (o != NULL || errno != ENOENT) {
        log_warning("objects_forget", "owner=%s error=%s", owner, strerror(errno));
    }
    if (o != NULL) {
        want(o, owner, OBJECTS_FORGET);
    }
}

/* ---- storing ---- */

static void tell_stored(struct objects *o, const struct objects_put *put)
{
    struct node *node = o->node;

    if (put->is_checkpoint) {
        struct checkpoint *ck = checkpoint_find(node, put->owner);

        if (ck != NULL) {
            (void)snprintf(ck->manifest, sizeof(ck->manifest), "%s", put->manifest);
            if (node->hooks.on_checkpoint != NULL) {
                node->hooks.on_checkpoint(node->hooks_ctx, ck);
            }
        }
    } else {
        struct sandbox *sb = sandbox_find(node, put->owner);

        if (sb != NULL && sb->info.state == SANDBOX_STATE_SUSPENDED) {
            (void)snprintf(sb->manifest, sizeof(sb->manifest), "%s", put->manifest);
            if (node->hooks.on_change != NULL) {
                node->hooks.on_change(node->hooks_ctx, sb);
            }
        }
    }
}

static void end_put(struct objects *o)
{
    objects_put_free(TAKE(o->put));
    o->busy = false;
    objects_go_on(o);
}

static void work_mark(void *arg)
{
    struct objects_put *put = arg;

    put->result = objects_work_mark(put);
}

static void done_mark(void *arg)
{
    struct objects_put *put = arg;
    struct objects *o = put->node->parts->objects;
    struct error err = {0};

    if (o->obsolete || put->result == -ENOENT) {
        /* It was woken or removed meanwhile. What is wanted since then counts. */
        if (find_entry(o, put->owner) == NULL) {
            objects_forget(put->node, put->owner);
        }
    } else if (put->result < 0) {
        (void)error_set(&err, -put->result, "what is stored cannot be written down: %s",
                        strerror(-put->result));
        note_failure(o, &err);
        want(o, put->owner, OBJECTS_KEEP);
    } else {
        objects_set_store(o, put->store);
        note_success(o);
        note_garbage(o);
        tell_stored(o, put);
    }
    end_put(o);
}

static uint64_t number(const json_t *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(object, key));

    return n > 0 ? (uint64_t)n : 0;
}

/* No other try would end otherwise: it stays local. What was stored of it before is of no use. */
static void leave_local(struct objects *o, const struct objects_put *put, const struct error *err)
{
    log_warning("snapshot_stays_local", "owner=%s error=%s", put->owner, LOG_STR(err->message));
    if (find_entry(o, put->owner) == NULL) {
        objects_forget(o->node, put->owner);
    }
}

static void fail_put(struct objects *o, const struct objects_put *put, const struct error *err)
{
    if (err->code == ERROR_PAYLOAD_TOO_LARGE) {
        leave_local(o, put, err);
        return;
    }
    note_failure(o, err);
    if (err->code == ERROR_STORAGE_FULL) { /* what nothing refers to goes first, however new */
        o->is_full = true;
        o->sweep_wanted = true;
        o->sweep_due_ms = clock_monotonic_ms();
    }
    if (!o->obsolete) {
        want(o, put->owner, OBJECTS_KEEP);
    }
}

static void on_put(void *arg, const json_t *result, const struct error *err)
{
    struct objects *o = arg;
    struct objects_put *put = o->put;
    struct error bad = {0};

    o->job = NULL;
    if (err == NULL && (!objects_take_name(result, "manifest", put->manifest) ||
                        !objects_take_name(result, "base", put->base))) {
        (void)error_set(&bad, EIO, "space-objects answered without a name");
        err = &bad;
    }
    if (err != NULL) {
        fail_put(o, put, err);
        end_put(o);
        return;
    }
    o->last_raw_bytes = number(result, "raw_bytes");
    o->last_stored_bytes = number(result, "stored_bytes");
    log_info("snapshot_stored",
             "owner=%s manifest=%.12s raw_bytes=%llu stored_bytes=%llu new_bytes=%llu", put->owner,
             put->manifest, (unsigned long long)o->last_raw_bytes,
             (unsigned long long)o->last_stored_bytes,
             (unsigned long long)number(result, "new_bytes"));
    if (o->obsolete) {
        put->result = -ENOENT;
        done_mark(put);
        return;
    }
    put->store_is_known = objects_take_store(o, result, put->store);
    objects_submit(o, work_mark, done_mark, put);
}

static void work_open(void *arg)
{
    struct objects_put *put = arg;

    put->result = objects_work_open(put);
}

static void done_open(void *arg)
{
    struct objects_put *put = arg;
    struct objects *o = put->node->parts->objects;
    struct error err = {0};

    if (put->result == -ENOENT || o->obsolete || put->node->parts->stopping) {
        end_put(o);
        return;
    }
    if (put->result == 0) {
        o->job = objects_start_job(o, put->request, &(struct objects_fds){put->fds, put->fd_count},
                                   on_put, o, &err);
    } else if (put->result == -E2BIG) {
        (void)error_set_code(&err, ERROR_PAYLOAD_TOO_LARGE, NULL, "it has more than %u files",
                             OBJECTS_FILES_MAX);
    } else {
        (void)error_set(&err, -put->result, "the snapshot of %s cannot be opened: %s", put->owner,
                        strerror(-put->result));
    }
    if (o->job == NULL) {
        fail_put(o, put, &err);
        end_put(o);
    }
}

/* Whose it is, and where. False when there is nothing to store any more. */
static bool describe_owner(struct objects *o, struct objects_put *put)
{
    struct node *node = o->node;
    const struct checkpoint *ck = checkpoint_find(node, put->owner);
    const struct sandbox *sb = sandbox_find(node, put->owner);

    (void)snprintf(put->images, sizeof(put->images), "%s/images", node->parts->volume);
    if (ck != NULL && ck->state == CHECKPOINT_STATE_READY && !ck->remove_wanted) {
        put->is_checkpoint = true;
        checkpoint_path(ck, "", "", put->dir, sizeof(put->dir));
        checkpoint_path(ck, "", "snapshot", put->snapshot, sizeof(put->snapshot));
        objects_template_path(o, ck->info.template_name, ck->info.template_version,
                              put->template_disk);
        return true;
    }
    if (sb != NULL && sb->info.state == SANDBOX_STATE_SUSPENDED && sb->restore == NULL) {
        sandbox_dir_path(sb, "", put->dir, sizeof(put->dir));
        sandbox_dir_path(sb, "suspended", put->snapshot, sizeof(put->snapshot));
        objects_template_path(o, sb->info.template_name, sb->info.template_version,
                              put->template_disk);
        return true;
    }
    return false;
}

static void start_put(struct objects *o, struct objects_entry *e)
{
    struct objects_put *put = calloc(1, sizeof(*put));
    bool exists;

    if (put == NULL) {
        return;
    }
    put->node = o->node;
    put->snapshot_fd = -1;
    (void)snprintf(put->owner, sizeof(put->owner), "%s", e->owner);
    drop_entry(o, e);
    exists = describe_owner(o, put);
    o->put = put;
    o->obsolete = false;
    o->busy = true;
    if (!exists) {
        end_put(o);
        return;
    }
    objects_submit(o, work_open, done_open, put);
}

/* ---- forgetting ---- */

static void on_forgotten(void *arg, const json_t *result, const struct error *err)
{
    struct objects *o = arg;

    (void)result;
    o->job = NULL;
    o->busy = false;
    if (err != NULL) {
        note_failure(o, err);
    } else {
        note_success(o);
        note_garbage(o);
    }
    while (!list_is_empty(&o->batch)) {
        struct objects_entry *e = list_entry(o->batch.next, struct objects_entry, link);
        char path[OBJECTS_PATH_SIZE];

        list_remove(&e->link);
        if (find_entry(o, e->owner) == NULL) {
            if (err != NULL) {
                count(o, OBJECTS_FORGET, 1);
                append_entry(o, e);
                continue;
            }
            forget_path(o->node, e->owner, path, sizeof(path));
            step("end removal");
            (void)unlink(path);
            step("ended removal");
        }
        free(e);
    }
    objects_go_on(o);
}

static void start_forget(struct objects *o)
{
    _cleanup_json_ json_t *request = json_pack("{s:s, s:[]}", "job", "forget", "owners");
    struct list *it;
    struct list *following;
    struct error err = {0};
    unsigned int n = 0;

    list_foreach(it, following, &o->entries)
    {
        struct objects_entry *e = list_entry(it, struct objects_entry, link);

        if (e->want == OBJECTS_FORGET && n < OBJECTS_BATCH) {
            (void)json_array_append_new(json_object_get(request, "owners"), json_string(e->owner));
            count(o, OBJECTS_FORGET, -1);
            take_entry(o, e);
            list_append(&o->batch, &e->link);
            n++;
        }
    }
    o->busy = true;
    o->job = request == NULL ? NULL
                             : objects_start_job(o, request, &(struct objects_fds){NULL, 0},
                                                 on_forgotten, o, &err);
    if (o->job == NULL) {
        on_forgotten(o, NULL, &err);
    }
}

/* ---- sweeping ---- */

static void on_swept(void *arg, const json_t *result, const struct error *err)
{
    struct objects *o = arg;
    int64_t now = clock_monotonic_ms();

    o->job = NULL;
    o->busy = false;
    if (err != NULL) {
        note_failure(o, err);
        o->sweep_delay_ms = o->sweep_delay_ms == 0 ? SWEEP_RETRY_MS : o->sweep_delay_ms * 4;
        if (o->sweep_delay_ms > SWEEP_RETRY_MAX) {
            o->sweep_delay_ms = SWEEP_RETRY_MAX;
        }
        o->sweep_wanted = true;
        o->sweep_due_ms = now + o->sweep_delay_ms; /* what waits comes before */
    } else {
        o->is_full = false;
        o->sweep_delay_ms = 0;
        o->sweep_wanted = o->garbage_ms != 0 && o->garbage_ms + keep_ms_of(o) > now;
        o->sweep_due_ms = o->garbage_ms + keep_ms_of(o);
        log_info("objects_swept", "snapshots=%llu chunks=%llu bytes=%llu removed=%llu",
                 (unsigned long long)number(result, "snapshots"),
                 (unsigned long long)number(result, "chunks"),
                 (unsigned long long)number(result, "bytes"),
                 (unsigned long long)number(result, "removed"));
    }
    objects_go_on(o);
}

static void work_images(void *arg)
{
    const struct objects *o = arg;
    char path[OBJECTS_PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s/images", o->node->parts->volume);
    objects_drop_images(path);
}

static void done_images(void *arg)
{
    struct objects *o = arg;
    _cleanup_json_ json_t *request =
        json_pack("{s:s, s:I}", "job", "sweep", "keep_seconds",
                  o->is_full ? 0 : (json_int_t)o->node->settings.objects_garbage_seconds);
    struct error err = {0};

    o->dropping_images = false;
    if (!o->node->parts->stopping) {
        objects_next_fetch(o);
    }
    o->sweep_wanted = false;
    o->job = request == NULL || o->node->parts->stopping
                 ? NULL
                 : objects_start_job(o, request, &(struct objects_fds){NULL, 0}, on_swept, o, &err);
    if (o->job == NULL && !o->node->parts->stopping) {
        on_swept(o, NULL, &err);
    }
}

static void start_sweep(struct objects *o)
{
    o->busy = true;
    o->dropping_images = true;
    objects_submit(o, work_images, done_images, o);
}

/* ---- whose turn it is ---- */

static struct objects_entry *next_keep(struct objects *o)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &o->entries)
    {
        struct objects_entry *e = list_entry(it, struct objects_entry, link);

        if (e->want == OBJECTS_KEEP) {
            return e;
        }
    }
    return NULL;
}

static void wait_until(struct objects *o, int64_t at_ms, int64_t now)
{
    loop_timer_start(o->timer, at_ms > now ? at_ms - now : 1);
}

static void take_turn(void *arg)
{
    struct objects *o = arg;
    int64_t now = clock_monotonic_ms();

    if (o->busy || !o->started || o->node->parts->stopping) {
        return;
    }
    if (o->retry_at_ms > now) {
        wait_until(o, o->retry_at_ms, now);
    } else if (o->forget_count > 0) {
        start_forget(o);
    } else if (o->sweep_wanted && o->fetching == 0 && o->sweep_due_ms <= now) {
        start_sweep(o); /* before more is stored: room may be what that lacks */
    } else if (o->keep_count > 0) {
        struct objects_entry *e = next_keep(o);

        if (e != NULL) {
            start_put(o, e);
        }
    } else if (o->sweep_wanted && o->fetching == 0) {
        wait_until(o, o->sweep_due_ms, now);
    }
}

/* Not from inside of whoever wants something. */
void objects_go_on(struct objects *o)
{
    if (o->started && !o->busy) {
        loop_timer_start(o->timer, 0);
    }
}

/* ---- the whole ---- */

static int find_program(struct objects *o, struct error *err)
{
    char *slash;

    (void)snprintf(o->program, sizeof(o->program), "%s", o->node->parts->stage_path);
    slash = strrchr(o->program, '/');
    if (slash == NULL || (size_t)(slash - o->program) + 16 > sizeof(o->program)) {
        return error_set(err, EINVAL, "cannot find space-objects");
    }
    (void)snprintf(slash, 16, "/space-objects");
    return access(o->program, X_OK) < 0
               ? error_set(err, errno, "cannot run %.200s: %s", o->program, strerror(errno))
               : 0;
}

static int make_dirs(struct objects *o, struct error *err)
{
    static const char *const names[] = {"objects/forget", "images"};
    char path[OBJECTS_PATH_SIZE];
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", o->node->parts->volume, names[i]);
        r = dir_make_all(AT_FDCWD, path, 0700);
    }
    return r < 0 ? error_set(err, -r, "the object store's directories cannot be made: %s",
                             strerror(-r))
                 : 0;
}

/* Without a store nobody asks what they are of, nor whether somebody else still needs them. */
static void remove_images(const struct node *node)
{
    char path[OBJECTS_PATH_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "%s/images", node->parts->volume);
    r = dir_remove_tree(AT_FDCWD, path);
    if (r < 0) {
        log_warning("images_not_removed", "error=%s", strerror(-r));
    }
}

int objects_new(struct node *node, struct error *err)
{
    struct objects *o;
    int r;

    if (strcmp(node->settings.objects_store, "none") == 0) {
        remove_images(node);
        return 0;
    }
    o = calloc(1, sizeof(*o));
    if (o == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    o->node = node;
    o->uid = (unsigned int)node->settings.node_vmm_uid_first;
    list_init(&o->entries);
    list_init(&o->batch);
    list_init(&o->fetches);
    list_init(&o->given_up);
    o->timer = loop_timer_new(node->loop, take_turn, o);
    node->parts->objects = o;
    r = o->timer == NULL ? error_set(err, ENOMEM, "no memory") : find_program(o, err);
    if (r == 0) {
        r = make_dirs(o, err);
    }
    return r == 0 ? objects_find_place(o, err) : r;
}

static void free_entries(struct list *head)
{
    while (!list_is_empty(head)) {
        struct objects_entry *e = list_entry(head->next, struct objects_entry, link);

        list_remove(&e->link);
        free(e);
    }
}

void objects_free(struct node *node)
{
    struct objects *o = node->parts->objects;

    if (o == NULL) {
        return;
    }
    node->parts->objects = NULL;
    objects_job_cancel(o->job);
    objects_put_free(o->put);
    while (!list_is_empty(&o->fetches)) {
        struct objects_get *get = list_entry(o->fetches.next, struct objects_get, link);

        list_remove(&get->link);
        objects_get_free(get);
    }
    objects_job_cancel_all(&o->given_up);
    free_entries(&o->entries);
    free_entries(&o->batch);
    loop_timer_free(o->timer);
    free(o);
}

/* Both there and not wanted there: the removal was asked for by what the disk has lost, or has
 * happened since. Or it is there, and that was another store. */
static void keep_again(struct objects *o, const char *owner, const char *snapshot, char *manifest)
{
    char path[OBJECTS_PATH_SIZE + 32];

    if (manifest[0] != '\0' && (!o->known || find_entry(o, owner) != NULL)) {
        (void)snprintf(path, sizeof(path), "%.540s/" OBJECTS_MARKER, snapshot);
        if (unlink(path) < 0 && errno != ENOENT) {
            log_warning("objects_not_noted", "owner=%s error=%s", owner, strerror(errno));
        }
        manifest[0] = '\0';
    }
    if (manifest[0] == '\0') {
        objects_keep(o->node, owner);
    }
}

/* What an earlier run left to do. */
static void load_wanted(struct objects *o)
{
    struct node *node = o->node;
    char path[OBJECTS_PATH_SIZE];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    struct checkpoint_walk walk = {0};
    struct checkpoint *ck;
    struct sandbox *sb;
    unsigned int i = 0;

    forget_path(o->node, "", path, sizeof(path));
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        if (id_is_valid(entry->d_name, "sb") || id_is_valid(entry->d_name, "ck")) {
            want(o, entry->d_name, OBJECTS_FORGET);
        }
    }
    while ((ck = checkpoint_next(node, &walk)) != NULL) {
        if (ck->state == CHECKPOINT_STATE_READY && checkpoint_is_stored(ck)) {
            checkpoint_path(ck, "", "snapshot", path, sizeof(path));
            keep_again(o, ck->info.id, path, ck->manifest);
        }
    }
    while ((sb = sandbox_next(node, &i)) != NULL) {
        if (sb->info.state == SANDBOX_STATE_SUSPENDED) {
            sandbox_dir_path(sb, "suspended", path, sizeof(path));
            keep_again(o, sb->info.id, path, sb->manifest);
        }
    }
}

void objects_start(struct node *node)
{
    struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;

    if (o == NULL) {
        return;
    }
    o->started = true;
    o->sweep_wanted = true; /* of what a killed run may have left */
    o->sweep_due_ms = clock_monotonic_ms() +
                      (keep_ms_of(o) < OBJECTS_RETRY_MAX ? keep_ms_of(o) : OBJECTS_RETRY_MAX);
    load_wanted(o);
    objects_go_on(o);
}

struct json_t *objects_describe(const struct node *node)
{
    const struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;
    char since[CLOCK_TEXT_SIZE] = "";

    if (o == NULL) {
        return json_null();
    }
    if (o->failing_since_ms != 0) {
        clock_format(o->failing_since_ms, since);
    }
    return json_pack("{s:s, s:i, s:i, s:s?, s:s?}", "store",
                     objects_is_bucket(o) ? node->settings.objects_store : o->dir, "waiting",
                     (int)(o->keep_count + (o->put != NULL ? 1U : 0U)), "removals",
                     (int)o->forget_count, "problem",
                     o->failing_since_ms != 0 ? o->problem.message : NULL, "problem_since",
                     o->failing_since_ms != 0 ? since : NULL);
}
