#include "node/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/checkpoint_private.h"
#include "node/json_field.h"
#include "node/node_private.h"

struct waiter {
    struct list link;
    checkpoint_fn fn;
    void *arg;
    bool removal;
};

/* ---- records ---- */

struct checkpoint *checkpoint_new(struct node *node, const char *id)
{
    struct checkpoint *ck = calloc(1, sizeof(*ck));

    if (ck == NULL) {
        return NULL;
    }
    ck->node = node;
    list_init(&ck->waiters);
    (void)snprintf(ck->info.id, sizeof(ck->info.id), "%s", id);
    list_append(&node->parts->checkpoints.checkpoints, &ck->link);
    id_table_add(&node->parts->checkpoints.by_id, &ck->by_id, ck->info.id);
    return ck;
}

static void free_checkpoint(struct checkpoint *ck)
{
    list_remove(&ck->link);
    id_table_remove(&ck->node->parts->checkpoints.by_id, &ck->by_id);
    while (!list_is_empty(&ck->waiters)) {
        struct waiter *w = list_entry(ck->waiters.next, struct waiter, link);

        list_remove(&w->link);
        free(w);
    }
    free(ck);
}

void checkpoint_discard(struct checkpoint *ck)
{
    free_checkpoint(ck);
}

void checkpoint_free_all(struct node *node)
{
    struct list *head = &node->parts->checkpoints.checkpoints;

    while (head->next != NULL && !list_is_empty(head)) {
        free_checkpoint(list_entry(head->next, struct checkpoint, link));
    }
}

struct checkpoint *checkpoint_find(struct node *node, const char *id)
{
    struct id_entry *found = id_table_find(&node->parts->checkpoints.by_id, id);

    return found == NULL ? NULL : list_entry(found, struct checkpoint, by_id);
}

bool checkpoint_is_image(const struct checkpoint *ck)
{
    return id_is_valid(ck->info.id, "tm");
}

bool checkpoint_is_stored(const struct checkpoint *ck)
{
    return !checkpoint_is_image(ck) && !ck->info.is_local;
}

struct checkpoint *checkpoint_next(struct node *node, struct checkpoint_walk *walk)
{
    struct list *head = &node->parts->checkpoints.checkpoints;
    struct list *it = walk->seen == 0 ? head->next : walk->following;

    if (it == head) {
        return NULL;
    }
    walk->following = it->next;
    walk->seen++;
    return list_entry(it, struct checkpoint, link);
}

void checkpoint_path(
    const struct checkpoint *ck, const char *suffix, const char *name, char *out, size_t size)
{
    (void)snprintf(out, size, "%.400s/checkpoints/%s%s%s%s", ck->node->parts->volume, ck->info.id,
                   suffix, name[0] != '\0' ? "/" : "", name);
}

struct json_t *checkpoint_describe(const struct checkpoint *ck)
{
    const struct checkpoint_info *i = &ck->info;
    static const char *const names[] = {"making", "ready", "damaged", "removing"};
    char created[CLOCK_TEXT_SIZE];

    clock_format(i->created_at_ms, created);
    bool stored = ck->manifest[0] != '\0';

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:I, s:s, s:s, s:s?}", "id",
                     i->id, "state", names[ck->state], "sandbox_id", i->sandbox_id, "template",
                     i->template_name, "template_version", i->template_version, "vcpus",
                     (int)i->vcpus, "memory_mib", (int)i->memory_mib, "disk_mib", (int)i->disk_mib,
                     "memory", (int)i->memory, "size_bytes", (json_int_t)i->size_bytes,
                     "created_at", created, "durability", stored ? "replicated" : "local",
                     "manifest", stored ? ck->manifest : NULL);
}

/* ---- waiting ---- */

static int add_waiter(struct checkpoint *ck, bool removal, checkpoint_fn fn, void *arg)
{
    struct waiter *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        return -ENOMEM;
    }
    *w = (struct waiter){.fn = fn, .arg = arg, .removal = removal};
    list_append(&ck->waiters, &w->link);
    return 0;
}

int checkpoint_wait(struct checkpoint *ck, checkpoint_fn fn, void *arg)
{
    return add_waiter(ck, false, fn, arg);
}

void checkpoint_cancel_waits(struct node *node, const void *arg)
{
    struct list *it;
    struct list *following;
    struct list *inner;
    struct list *next;

    if (node->parts == NULL || node->parts->checkpoints.checkpoints.next == NULL) {
        return;
    }
    list_foreach(it, following, &node->parts->checkpoints.checkpoints)
    {
        struct checkpoint *ck = list_entry(it, struct checkpoint, link);

        list_foreach(inner, next, &ck->waiters)
        {
            struct waiter *w = list_entry(inner, struct waiter, link);

            if (w->arg == arg) {
                list_remove(&w->link);
                free(w);
            }
        }
    }
}

static struct waiter *take_waiter(struct checkpoint *ck, bool removal)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &ck->waiters)
    {
        struct waiter *w = list_entry(it, struct waiter, link);

        if (w->removal == removal) {
            list_remove(&w->link);
            return w;
        }
    }
    return NULL;
}

static void tell(struct checkpoint *ck, bool removal, const struct error *err)
{
    struct waiter *w;

    while ((w = take_waiter(ck, removal)) != NULL) {
        w->fn(w->arg, removal || err != NULL ? NULL : ck, err);
        free(w);
    }
}

/* ---- removal ---- */

struct remove_job {
    struct checkpoint *ck;
    char path[CHECKPOINT_PATH_SIZE + 64];
    int result;
};

static void work_remove(void *arg)
{
    struct remove_job *job = arg;

    job->result = checkpoint_remove_files(job->path);
}

static void done_remove(void *arg)
{
    struct remove_job *job = arg;
    struct checkpoint *ck = job->ck;
    struct error err = {0};

    if (job->result < 0) {
        log_warning("checkpoint_not_removed", "checkpoint=%s error=%s", ck->info.id,
                    strerror(-job->result));
        (void)error_set(&err, -job->result, "the checkpoint's files cannot be removed: %s",
                        strerror(-job->result));
        tell(ck, true, &err);
        ck->state = CHECKPOINT_STATE_DAMAGED; /* for another try */
        ck->remove_wanted = false;
    } else {
        log_info("checkpoint_removed", "checkpoint=%s", ck->info.id);
        tell(ck, true, NULL);
        free_checkpoint(ck);
    }
    free(job);
}

/* One whose fetch has failed is kept there, unless it is not wanted at all. */
static void forget_objects(const struct checkpoint *ck)
{
    char path[CHECKPOINT_PATH_SIZE];

    checkpoint_path(ck, "", OBJECTS_STORED, path, sizeof(path));
    if (ck->manifest[0] != '\0' || ck->remove_wanted || access(path, F_OK) == 0) {
        objects_forget(ck->node, ck->info.id);
    }
}

static void remove_files(struct checkpoint *ck)
{
    struct remove_job *job = calloc(1, sizeof(*job));
    struct error err = {0};

    if (job == NULL) {
        (void)error_set(&err, ENOMEM, "no memory");
        tell(ck, true, &err);
        return;
    }
    ck->state = CHECKPOINT_STATE_REMOVING;
    forget_objects(ck);
    job->ck = ck;
    checkpoint_path(ck, "", "", job->path, sizeof(job->path));
    if (loop_submit(ck->node->loop, work_remove, done_remove, job, true) < 0) {
        work_remove(job);
        done_remove(job);
    }
}

int checkpoint_remove(struct node *node, const char *id, checkpoint_fn fn, void *arg)
{
    struct checkpoint *ck = checkpoint_find(node, id);
    int r;

    if (ck == NULL) {
        if (id_is_valid(id, "ck")) {
            objects_forget(node, id); /* the store may have what this node has lost */
        }
        fn(arg, NULL, NULL);
        return 0;
    }
    r = add_waiter(ck, true, fn, arg);
    if (r < 0) {
        return r;
    }
    ck->remove_wanted = true;
    if (ck->users == 0 &&
        (ck->state == CHECKPOINT_STATE_READY || ck->state == CHECKPOINT_STATE_DAMAGED)) {
        remove_files(ck);
    }
    return 0;
}

/* ---- making ---- */

void checkpoint_settle(struct checkpoint *ck, const struct checkpoint_info *info)
{
    ck->info = *info;
    ck->state = CHECKPOINT_STATE_READY;
    if (ck->manifest[0] == '\0' && checkpoint_is_stored(ck)) {
        objects_keep(ck->node, ck->info.id);
    }
    log_info("checkpoint_made", "checkpoint=%s sandbox=%s memory=%d size_bytes=%llu", ck->info.id,
             ck->info.sandbox_id, (int)ck->info.memory, (unsigned long long)ck->info.size_bytes);
    ck->users++;
    tell(ck, false, NULL);
    checkpoint_release(ck);
}

void checkpoint_fail(struct checkpoint *ck, const struct error *err)
{
    log_warning("checkpoint_failed", "checkpoint=%s sandbox=%s error=%s", ck->info.id,
                ck->info.sandbox_id, LOG_STR(err->message));
    ck->users++;
    tell(ck, false, err);
    ck->users--;
    remove_files(ck);
}

/* ---- use ---- */

int checkpoint_use(struct node *node, const char *id, struct checkpoint **ret_ck, struct error *err)
{
    struct checkpoint *ck = checkpoint_find(node, id);

    if (ck == NULL || ck->remove_wanted || ck->state == CHECKPOINT_STATE_REMOVING) {
        return error_set_code(err, ERROR_NOT_FOUND, "checkpoint", "there is no checkpoint %.20s",
                              id);
    }
    if (ck->state == CHECKPOINT_STATE_MAKING) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "checkpoint %.20s is still being made", id);
    }
    if (ck->state == CHECKPOINT_STATE_DAMAGED) {
        return error_set(err, EBADMSG, "checkpoint %.20s is damaged: its record cannot be read",
                         id);
    }
    ck->users++;
    *ret_ck = ck;
    return 0;
}

void checkpoint_release(struct checkpoint *ck)
{
    if (--ck->users == 0 && ck->remove_wanted && ck->state != CHECKPOINT_STATE_REMOVING) {
        remove_files(ck);
    }
}
