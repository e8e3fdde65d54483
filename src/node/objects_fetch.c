/* Snapshots out of the object store. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/objects_private.h"

static void end_get(struct objects_get *get, const struct error *err)
{
    struct objects *o = get->node->parts->objects;

    list_remove(&get->link);
    o->fetching--;
    if (err != NULL) {
        log_warning("fetch_failed", "owner=%s error=%s", get->owner, LOG_STR(err->message));
    } else {
        log_info("snapshot_fetched", "owner=%s manifest=%.12s", get->owner, get->manifest);
    }
    get->fn(get->arg, err);
    objects_get_free(get);
    objects_next_fetch(o);
    objects_go_on(o);
}

static void work_take(void *arg)
{
    struct objects_get *get = arg;

    get->result = objects_work_take(get);
}

static void work_clear(void *arg)
{
    const struct objects_get *get = arg;

    (void)dir_remove_tree(AT_FDCWD, get->dir);
}

static void done_clear(void *arg)
{
    struct objects_get *get = arg;
    const struct error err = get->err;

    end_get(get, &err);
}

static void done_take(void *arg)
{
    struct objects_get *get = arg;

    if (get->result == 0) {
        objects_set_store(get->node->parts->objects, get->store);
    }
    if (get->result < 0) {
        objects_submit(get->node->parts->objects, work_clear, done_clear, get);
    } else {
        end_get(get, NULL);
    }
}

static void on_got(void *arg, const json_t *result, const struct error *err)
{
    struct objects_get *get = arg;
    struct objects *o = get->node->parts->objects;

    get->job = NULL;
    if (err != NULL) {
        get->err = *err;
    } else if (!objects_take_name(result, "base", get->base)) {
        (void)error_set(&get->err, EIO, "space-objects answered without a name");
    }
    if (get->err.code != ERROR_NONE) {
        objects_submit(o, work_clear, done_clear, get);
        return;
    }
    get->store_is_known = objects_take_store(o, result, get->store);
    if (loop_submit(o->node->loop, work_take, done_take, get, false) < 0) {
        work_take(get);
        done_take(get);
    }
}

static void work_prepare(void *arg)
{
    struct objects_get *get = arg;

    get->result = objects_work_prepare(get);
}

static void done_prepare(void *arg)
{
    struct objects_get *get = arg;
    struct objects *o = get->node->parts->objects;

    if (get->result == 0 && !o->node->parts->stopping) {
        get->job = objects_start_job(o, get->request, &(struct objects_fds){&get->dir_fd, 1},
                                     on_got, get, &get->err);
    }
    if (get->job == NULL && !o->node->parts->stopping) {
        objects_submit(o, work_clear, done_clear, get);
    }
}

void objects_next_fetch(struct objects *o)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &o->fetches)
    {
        struct objects_get *get = list_entry(it, struct objects_get, link);

        if (!get->begun && !o->dropping_images && o->fetching < OBJECTS_FETCHES) {
            get->begun = true;
            o->fetching++;
            if (loop_submit(o->node->loop, work_prepare, done_prepare, get, false) < 0) {
                work_prepare(get);
                done_prepare(get);
            }
        }
    }
}

int objects_fetch(
    struct node *node, const struct objects_fetch *f, objects_fn fn, void *arg, struct error *err)
{
    struct objects *o = objects_enabled(node) ? node->parts->objects : NULL;
    struct objects_get *get;

    if (o == NULL) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "this node has no object store to fetch the snapshot from");
    }
    get = calloc(1, sizeof(*get));
    if (get == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    get->node = node;
    get->fn = fn;
    get->arg = arg;
    get->uid = o->uid;
    get->dir_fd = -1;
    (void)snprintf(get->owner, sizeof(get->owner), "%s", f->owner);
    (void)snprintf(get->manifest, sizeof(get->manifest), "%s", f->manifest);
    (void)snprintf(get->dir, sizeof(get->dir), "%s", f->dir);
    (void)snprintf(get->images, sizeof(get->images), "%s/images", node->parts->volume);
    objects_template_path(o, f->template_name, f->template_version, get->template_disk);
    list_append(&o->fetches, &get->link);
    objects_next_fetch(o);
    return 0;
}
