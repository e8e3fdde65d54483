/* space-objects: one job between this node and its object store.
 *
 * space-node starts it with the job's request and all descriptors that it needs, but that of the
 * directory of a store: opening one may take for ever. It looks that up, gives up root before it
 * opens it or reads a byte of anything, does the job, writes one JSON object, and ends. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <curl/curl.h>

#include "base/fd.h"
#include "base/span.h"
#include "base/step.h"
#include "node/json_field.h"
#include "node/object_claim.h"
#include "node/object_pulse.h"
#include "node/object_work.h"

#define REQUEST_MAX (4U * 1024U * 1024U)
#define KEYS_MAX    16384U
#define NICE        15
/* Of a call that a filesystem may let stand: the writing of a chunk and its way to the disk. */
#define CALL_MS 60000
/* Beside sandboxes the store ends before they do: they have twice the reserve, and this. */
#define SHARE_OF_SIZE 10U
#define SHARE_MAX     (32ULL << 30U)

/* As they were started with; STORE is a directory, or "-" for a bucket, RUN_DIR of a test or "-".
 */
struct arguments {
    const char *uid;
    const char *parent;
    const char *store;
    const char *run_dir;
};

static int give_up_root(const char *uid_text, const char *parent_text)
{
    uint64_t uid;
    uint64_t parent;

    if (span_parse_u64(span_of_str(uid_text), UINT32_MAX - 1, &uid) < 0 || uid == 0 ||
        span_parse_u64(span_of_str(parent_text), INT32_MAX, &parent) < 0) {
        return -EINVAL;
    }
    if (setgroups(0, NULL) < 0 || setresgid((gid_t)uid, (gid_t)uid, (gid_t)uid) < 0 ||
        setresuid((uid_t)uid, (uid_t)uid, (uid_t)uid) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) < 0 ||
        prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0L, 0L, 0L) < 0 ||
        prctl(PR_SET_DUMPABLE, 0L, 0L, 0L, 0L) < 0) {
        return -errno;
    }
    if ((uint64_t)getppid() != parent) {
        return -ESRCH;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

static bool read_bucket(const json_t *request, struct object_place *place)
{
    const json_t *p = json_object_get(request, "bucket");

    return json_field_text(p, "endpoint", place->endpoint, sizeof(place->endpoint)) &&
           json_field_text(p, "bucket", place->bucket, sizeof(place->bucket)) &&
           json_field_text(p, "prefix", place->prefix, sizeof(place->prefix)) &&
           json_field_text(p, "region", place->region, sizeof(place->region));
}

/* Where sandboxes are on the same filesystem, more stays free for them, and where the image of
 * their volume is, what the image can still come to take. */
static int set_reserve(const json_t *request, struct object_place *place)
{
    uint64_t volume;
    uint64_t image;
    uint64_t holes;
    struct stat st;
    struct statvfs space;

    if (!json_field_u64(request, "reserve_bytes", INT64_MAX / 4, &place->reserve_bytes) ||
        !json_field_u64(request, "volume_device", INT64_MAX, &volume) ||
        !json_field_u64(request, "image_device", INT64_MAX, &image) ||
        !json_field_u64(request, "image_holes", INT64_MAX / 4, &holes)) {
        return -EINVAL;
    }
    if (fstat(place->dir_fd, &st) < 0) {
        return 0;
    }
    if (st.st_dev == (dev_t)image) {
        place->reserve_bytes += holes;
    }
    if (st.st_dev == (dev_t)volume && fstatvfs(place->dir_fd, &space) == 0) {
        uint64_t share = (uint64_t)space.f_blocks * space.f_frsize / SHARE_OF_SIZE;

        place->reserve_bytes = 2 * place->reserve_bytes + (share < SHARE_MAX ? share : SHARE_MAX);
    }
    return 0;
}

/* found: the number of its O_PATH descriptor, or -errno. */
static int open_directory(const json_t *request,
                          const struct arguments *a,
                          int found,
                          struct object_place *place,
                          struct error *err,
                          json_t *result)
{
    char id[OBJECT_CLAIM_ID_SIZE] = "";
    char installation[64];
    struct object_claim claim = {.path = a->store, .installation = installation, .id = id};
    char is[OBJECT_CLAIM_ID_SIZE];

    if (found < 0) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "cannot open %.150s: %s",
                              a->store, strerror(-found));
    }
    if (!json_field_text(request, "installation", installation, sizeof(installation)) ||
        !json_field_text(request, "store", id, sizeof(id))) {
        return error_set(err, EINVAL, "the request names no store");
    }
    (void)json_field_u64(request, "home_device", INT64_MAX, &claim.home_device);
    claim.may_begin = json_is_true(json_object_get(request, "may_begin"));
    place->dir_fd = object_claim_open(found, &claim, is, err);
    if (place->dir_fd < 0) {
        return place->dir_fd;
    }
    if (set_reserve(request, place) < 0) {
        return error_set(err, EINVAL, "the request names no reserve");
    }
    (void)json_object_set_new(result, "store", json_string(is));
    return 0;
}

static int read_keys(const json_t *request, struct object_place *place, struct error *err)
{
    _cleanup_buf_ struct buf keys = buf_make(KEYS_MAX);
    int r;

    place->dir_fd = -1;
    if (!read_bucket(request, place)) {
        return error_set(err, EINVAL, "the request names no store");
    }
    r = fd_read_all(OBJECT_FD_KEYS, &keys);
    if (r == 0) {
        r = object_place_parse_keys(place, buf_span(&keys), err);
        explicit_bzero(keys.p, keys.room);
        return r;
    }
    return error_set(err, -r, "the keys of the object store cannot be read");
}

static int run(struct object_work *w, json_t *result, struct error *err)
{
    /* For a fetch somebody waits. */
    static const struct {
        const char *name;
        int (*fn)(struct object_work *w, json_t *result, struct error *err);
        int niceness;
    } jobs[] = {
        {"put", object_work_put, NICE},
        {"get", object_work_get, 0},
        {"forget", object_work_forget, NICE},
        {"sweep", object_work_sweep, NICE},
    };
    const char *name = json_string_value(json_object_get(w->request, "job"));

    for (size_t i = 0; name != NULL && i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        if (strcmp(jobs[i].name, name) == 0) {
            (void)nice(jobs[i].niceness);
            return jobs[i].fn(w, result, err);
        }
    }
    return error_set(err, EINVAL, "the request names no job");
}

static int work_at(struct object_place *place, json_t *request, json_t *result, struct error *err)
{
    struct object_pulse pulse;
    struct object_work w = {.place = place, .request = request};
    int r = object_pulse_start(&pulse, OBJECT_FD_RESULT, place->dir_fd >= 0 ? CALL_MS : 0);

    if (r < 0) {
        return error_set(err, -r, "no thread: %s", strerror(-r));
    }
    place->pulse = &pulse;
    w.store = object_store_open(place, err);
    r = w.store == NULL ? -EIO : run(&w, result, err);
    object_store_close(w.store);
    place->pulse = NULL;
    object_pulse_stop(&pulse);
    return r;
}

static int
work(json_t *request, const struct arguments *a, int found, json_t *result, struct error *err)
{
    struct object_place place = {0};
    int r;

    if (request == NULL) {
        return error_set(err, EINVAL, "there is no request");
    }
    r = json_object_get(request, "bucket") != NULL
            ? read_keys(request, &place, err)
            : open_directory(request, a, found, &place, err, result);
    if (r == 0) {
        r = work_at(&place, request, result, err);
    }
    explicit_bzero(&place, sizeof(place));
    return r;
}

static int answer(json_t *result)
{
    _cleanup_free_ char *text = json_dumps(result, JSON_COMPACT);

    return text == NULL ? -ENOMEM : fd_write_all(OBJECT_FD_RESULT, span_of_str(text));
}

/* As root, for the way to it; what it is, its own user has to be able to see. */
static int find_store(const char *path)
{
    int fd;

    if (strcmp(path, "-") == 0) {
        return -ENOENT;
    }
    fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int main(int argc, char **argv)
{
    _cleanup_buf_ struct buf text = buf_make(REQUEST_MAX);
    struct arguments a = {0};
    struct error err = {0};
    json_t *result = json_object();
    json_t *request;
    int found;
    int r;

    if (argc != 5) {
        return 2;
    }
    a = (struct arguments){argv[1], argv[2], argv[3], argv[4]};
    if (strcmp(a.run_dir, "-") != 0) {
        step_init(a.run_dir, "space-objects");
    }
    found = find_store(a.store);
    if (give_up_root(a.uid, a.parent) < 0 || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return 2;
    }
    r = fd_read_all(OBJECT_FD_REQUEST, &text);
    request = r == 0 ? json_loadb(buf_str(&text), text.n, 0, NULL) : NULL;
    r = work(request, &a, found, result, &err);
    json_decref(request);
    if (r < 0) {
        json_decref(result);
        result = json_pack("{s:b, s:s, s:s, s:s}", "ok", 0, "code", error_code_name(err.code),
                           "field", err.field, "message", err.message);
    } else {
        (void)json_object_set_new(result, "ok", json_true());
    }
    r = answer(result);
    json_decref(result);
    curl_global_cleanup();
    return r < 0 ? 1 : 0;
}
