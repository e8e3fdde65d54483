/* Processes of space-objects for a node's store, and what they are told of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "io/loop.h"
#include "node/object_sum.h"
#include "node/objects_private.h"

#define MIB 1048576LL

bool objects_enabled(const struct node *node)
{
    return node->parts != NULL && node->parts->objects != NULL;
}

bool objects_is_bucket(const struct objects *o)
{
    return o->dir[0] == '\0';
}

/* Of the directory, or of the file with the keys. -errno with err. */
static int open_store(const struct objects *o, struct error *err)
{
    const struct settings *s = &o->node->settings;
    const char *path = objects_is_bucket(o) ? s->objects_keys_file : o->dir;
    int fd = open(path, O_RDONLY | O_CLOEXEC | (objects_is_bucket(o) ? O_NOFOLLOW : O_DIRECTORY));
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        int r = -errno;

        if (fd >= 0) {
            (void)close(fd);
        }
        return error_set_code(
            err, objects_is_bucket(o) ? ERROR_FAILED_PRECONDITION : ERROR_SERVICE_UNAVAILABLE,
            objects_is_bucket(o) ? "object_store" : NULL, "cannot open %.150s: %s", path,
            strerror(-r));
    }
    if (objects_is_bucket(o) &&
        (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 077U) != 0)) {
        (void)close(fd);
        return error_set_code(
            err, ERROR_FAILED_PRECONDITION, "object_store",
            "%.150s has keys that others may read: its owner must be root and its "
            "mode 0600",
            path);
    }
    if (!objects_is_bucket(o) && st.st_uid != o->uid && fchown(fd, o->uid, o->uid) < 0) {
        (void)close(fd);
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "cannot give %.150s to user %u", path, o->uid);
    }
    return fd;
}

static int add_place(const struct objects *o, json_t *request)
{
    const struct settings *s = &o->node->settings;
    json_t *bucket;

    if (!objects_is_bucket(o)) {
        return json_object_set_new(request, "reserve_bytes",
                                   json_integer((json_int_t)s->node_disk_reserve_mib * MIB));
    }
    bucket = json_pack("{s:s, s:s, s:s, s:s}", "endpoint", s->objects_endpoint, "bucket",
                       o->place.bucket, "prefix", o->place.prefix, "region", s->objects_region);
    return bucket == NULL ? -1 : json_object_set_new(request, "bucket", bucket);
}

struct objects_job *objects_start_job(struct objects *o,
                                      json_t *request,
                                      const struct objects_fds *fds,
                                      objects_job_fn fn,
                                      void *arg,
                                      struct error *err)
{
    struct objects_order order = {.program = o->program,
                                  .uid = o->uid,
                                  .request = request,
                                  .fds = fds->fds,
                                  .fd_count = fds->count};
    struct objects_job *job;

    if (add_place(o, request) < 0) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    order.store_fd = open_store(o, err);
    if (order.store_fd < 0) {
        return NULL;
    }
    job = objects_job_start(o->node->loop, &order, fn, arg, err);
    (void)close(order.store_fd);
    return job;
}

void objects_template_path(const struct objects *o,
                           const char *name,
                           const char *version,
                           char *out)
{
    (void)snprintf(out, OBJECTS_PATH_SIZE, "%.400s/templates/%.63s/%.20s/disk.img",
                   o->node->parts->volume, name, version);
}

void objects_submit(struct objects *o, loop_fn work, loop_fn done, void *arg)
{
    if (loop_submit(o->node->loop, work, done, arg, true) < 0) {
        work(arg);
        done(arg);
    }
}

bool objects_take_name(const json_t *result, const char *key, char out[OBJECTS_NAME_SIZE])
{
    const char *text = json_string_value(json_object_get(result, key));
    struct object_sum sum;

    if (text == NULL || object_sum_parse(span_of_str(text), &sum) < 0) {
        return false;
    }
    object_sum_format(&sum, out);
    return true;
}
