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

/* -errno with err. */
static int open_keys(const char *path, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "cannot open %.150s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 077U) != 0) {
        return error_set_code(
            err, ERROR_FAILED_PRECONDITION, "object_store",
            "%.150s has keys that others may read: its owner must be root and its "
            "mode 0600",
            path);
    }
    return TAKE_FD(fd);
}

/* The one in data_dir, where nobody else can make anything. */
static int open_local(const struct objects *o, struct error *err)
{
    _cleanup_close_ int fd = -1;
    struct stat st;

    if (mkdir(o->dir, 0700) == 0 || errno == EEXIST) {
        fd = open(o->dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    }
    if (fd < 0 || fstat(fd, &st) < 0 || (st.st_uid != o->uid && fchown(fd, o->uid, o->uid) < 0)) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "cannot open %.150s: %s",
                              o->dir, strerror(errno));
    }
    return TAKE_FD(fd);
}

/* Neither made nor given away here: where a disk is not mounted there is another directory, or
 * none, and that is nobody's store. */
static int open_directory(const struct objects *o, struct error *err)
{
    _cleanup_close_ int fd = open(o->dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "cannot open %.150s: %s",
                              o->dir, strerror(errno));
    }
    if (st.st_uid != o->uid) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "%.100s is not mounted, or not given to the store's process: chown "
                              "%u:%u %.100s",
                              o->dir, o->uid, o->uid, o->dir);
    }
    return TAKE_FD(fd);
}

/* Of the directory, or of the file with the keys. -errno with err. */
static int open_store(const struct objects *o, struct error *err)
{
    const struct settings *s = &o->node->settings;

    if (objects_is_bucket(o)) {
        return open_keys(s->objects_keys_file, err);
    }
    return strcmp(s->objects_store, "local") == 0 ? open_local(o, err) : open_directory(o, err);
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
