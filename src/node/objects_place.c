/* Processes of space-objects for a node's store, and what they are told of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/log.h"
#include "base/step.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/json_field.h"
#include "node/object_sum.h"
#include "node/objects_private.h"

#define MIB        1048576LL
#define RECORD_MAX 4096U

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

/* ---- where it is, and what it was ---- */

static void record_path(const struct objects *o, char out[OBJECTS_PATH_SIZE])
{
    (void)snprintf(out, OBJECTS_PATH_SIZE, "%.500s/objects/store", o->node->parts->volume);
}

/* Of the place that snapshots were stored at last. */
static void read_record(struct objects *o)
{
    char path[OBJECTS_PATH_SIZE];
    char where[OBJECTS_WHERE_SIZE];
    char id[OBJECT_CLAIM_ID_SIZE];
    _cleanup_json_ json_t *root = NULL;

    record_path(o, path);
    root = json_file_read(AT_FDCWD, path, RECORD_MAX);
    o->known = json_field_text(root, "where", where, sizeof(where)) &&
               json_field_text(root, "id", id, sizeof(id)) && strcmp(where, o->where) == 0;
    if (o->known) {
        memcpy(o->store_id, id, sizeof(id));
    }
}

/* In data_dir, where nobody else can make anything. Under a name of its own first: what is there
 * already is not looked at, and one that was the store is not made again. */
static int make_local(const struct objects *o, struct error *err)
{
    char fresh[sizeof(o->dir) + 8];

    if (o->store_id[0] != '\0' || access(o->dir, F_OK) == 0) {
        return 0;
    }
    (void)snprintf(fresh, sizeof(fresh), "%s.new", o->dir);
    if ((mkdir(fresh, 0700) < 0 && errno != EEXIST) || lchown(fresh, o->uid, o->uid) < 0) {
        return error_set(err, errno, "cannot make %.150s: %s", fresh, strerror(errno));
    }
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, o->dir, RENAME_NOREPLACE) < 0) {
        int r = -errno;

        (void)rmdir(fresh);
        return r == -EEXIST ? 0
                            : error_set(err, -r, "cannot make %.150s: %s", o->dir, strerror(-r));
    }
    return 0;
}

static int read_place(struct objects *o, struct error *err)
{
    const struct settings *s = &o->node->settings;
    int r = object_place_parse(s->objects_store, &o->place, err);

    if (r < 0) {
        return error_wrap(err, "objects.store");
    }
    if (s->objects_store[0] == '/') {
        (void)snprintf(o->dir, sizeof(o->dir), "%s", s->objects_store);
        (void)snprintf(o->where, sizeof(o->where), "%s", o->dir);
    } else {
        (void)snprintf(o->where, sizeof(o->where), "%.255s %s", s->objects_endpoint,
                       s->objects_store);
    }
    return 0;
}

int objects_find_place(struct objects *o, struct error *err)
{
    const struct settings *s = &o->node->settings;
    bool is_local = strcmp(s->objects_store, "local") == 0;
    struct error why = {0};
    struct stat st;
    int r = 0;

    if (is_local) {
        (void)snprintf(o->dir, sizeof(o->dir), "%s/objects", s->data_dir);
        (void)snprintf(o->where, sizeof(o->where), "%s", o->dir);
    } else {
        r = read_place(o, err);
    }
    if (r < 0) {
        return r;
    }
    if (stat(o->node->parts->volume, &st) < 0) {
        return error_set(err, errno, "%.200s: %s", o->node->parts->volume, strerror(errno));
    }
    o->volume_device = st.st_dev;
    read_record(o);
    if (is_local && make_local(o, &why) < 0) {
        /* Nothing can be stored then, which every attempt says; what is here is served. */
        log_warning("objects_not_made", "error=%s", LOG_STR(why.message));
    }
    return 0;
}

bool objects_take_store(const struct objects *o,
                        const json_t *result,
                        char out[OBJECT_CLAIM_ID_SIZE])
{
    if (!json_field_text(result, "store", out, OBJECT_CLAIM_ID_SIZE)) {
        out[0] = '\0'; /* of a bucket */
    }
    return o->known && strcmp(out, o->store_id) == 0;
}

int objects_work_note_store(const struct objects *o, const char *id)
{
    char path[OBJECTS_PATH_SIZE];
    _cleanup_json_ json_t *root = json_pack("{s:s, s:s}", "where", o->where, "id", id);

    record_path(o, path);
    return root == NULL ? -ENOMEM : json_file_write(AT_FDCWD, path, root, true);
}

void objects_set_store(struct objects *o, const char *id)
{
    (void)snprintf(o->store_id, sizeof(o->store_id), "%s", id);
    o->known = true;
}

/* ---- jobs ---- */

static int add_bucket(const struct objects *o, json_t *request)
{
    const struct settings *s = &o->node->settings;
    json_t *bucket =
        json_pack("{s:s, s:s, s:s, s:s}", "endpoint", s->objects_endpoint, "bucket",
                  o->place.bucket, "prefix", o->place.prefix, "region", s->objects_region);

    return bucket == NULL ? -1 : json_object_set_new(request, "bucket", bucket);
}

/* What the volume's image has been promised of its filesystem and does not take now: what sandboxes
 * delete becomes holes in it. */
static uint64_t find_holes(const struct settings *s, uint64_t *ret_device)
{
    char path[OBJECTS_PATH_SIZE];
    struct stat st;
    uint64_t taken;

    (void)snprintf(path, sizeof(path), "%.500s/volume.img", s->data_dir);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode)) {
        return 0;
    }
    *ret_device = st.st_dev;
    taken = (uint64_t)st.st_blocks * 512;
    return (uint64_t)st.st_size > taken ? (uint64_t)st.st_size - taken : 0;
}

static int add_directory(const struct objects *o, json_t *request)
{
    const struct settings *s = &o->node->settings;
    bool fetches = strcmp(json_string_value(json_object_get(request, "job")), "get") == 0;
    uint64_t device = 0;
    uint64_t holes = find_holes(s, &device);
    struct stat home = {0};
    json_t *more;
    int r;

    (void)stat(s->data_dir, &home); /* 0: not known */
    more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:b}", "home_device",
                     (json_int_t)home.st_dev, "reserve_bytes",
                     (json_int_t)s->node_disk_reserve_mib * MIB, "volume_device",
                     (json_int_t)o->volume_device, "image_device", (json_int_t)device,
                     "image_holes", (json_int_t)holes, "installation", s->installation, "store",
                     o->store_id, "may_begin", !fetches);
    r = more == NULL ? -1 : json_object_update(request, more);

    json_decref(more);
    return r;
}

static int check_answers(const struct objects *o, struct error *err)
{
    return list_is_empty(&o->given_up)
               ? 0
               : error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                                "%.150s does not answer: an earlier process hangs in it", o->dir);
}

struct objects_job *objects_start_job(struct objects *o,
                                      json_t *request,
                                      const struct objects_fds *fds,
                                      objects_job_fn fn,
                                      void *arg,
                                      struct error *err)
{
    const struct settings *s = &o->node->settings;
    bool is_bucket = objects_is_bucket(o);
    _cleanup_close_ int keys_fd = -1;
    struct objects_order order = {.program = o->program,
                                  .uid = o->uid,
                                  .request = request,
                                  .dir = is_bucket ? NULL : o->dir,
                                  .run_dir = step_is_watched() ? s->run_dir : NULL,
                                  .given_up = &o->given_up,
                                  .fds = fds->fds,
                                  .fd_count = fds->count};

    if ((is_bucket ? add_bucket(o, request) : add_directory(o, request)) < 0) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    if (is_bucket) {
        keys_fd = open_keys(s->objects_keys_file, err);
        if (keys_fd < 0) {
            return NULL;
        }
    } else if (check_answers(o, err) < 0) {
        return NULL;
    }
    order.keys_fd = keys_fd;
    return objects_job_start(o->node->loop, &order, fn, arg, err);
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
