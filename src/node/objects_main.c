/* space-objects: one job between this node and its object store.
 *
 * space-node starts it with the job's request and all descriptors that it needs. It gives up root
 * before it reads a byte, does the job, writes one JSON object, and ends. */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/resource.h>

#include <curl/curl.h>

#include "base/fd.h"
#include "base/span.h"
#include "node/json_field.h"
#include "node/object_work.h"

#define REQUEST_MAX (4U * 1024U * 1024U)
#define KEYS_MAX    16384U
#define NICE        15

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

static int read_place(const json_t *request, struct object_place *place, struct error *err)
{
    _cleanup_buf_ struct buf keys = buf_make(KEYS_MAX);
    int r;

    if (json_object_get(request, "bucket") == NULL) {
        place->dir_fd = OBJECT_FD_STORE;
        return json_field_u64(request, "reserve_bytes", INT64_MAX, &place->reserve_bytes)
                   ? 0
                   : error_set(err, EINVAL, "the request names no store");
    }
    place->dir_fd = -1;
    if (!read_bucket(request, place)) {
        return error_set(err, EINVAL, "the request names no store");
    }
    r = fd_read_all(OBJECT_FD_STORE, &keys);
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

static int work(json_t *request, json_t *result, struct error *err)
{
    struct object_place place = {0};
    struct object_work w = {.place = &place, .request = request};
    int r = request == NULL ? error_set(err, EINVAL, "there is no request")
                            : read_place(request, &place, err);

    if (r == 0) {
        w.store = object_store_open(&place, err);
        r = w.store == NULL ? -EIO : run(&w, result, err);
        object_store_close(w.store);
    }
    explicit_bzero(&place, sizeof(place));
    return r;
}

static int answer(json_t *result)
{
    _cleanup_free_ char *text = json_dumps(result, JSON_COMPACT);

    return text == NULL ? -ENOMEM : fd_write_all(OBJECT_FD_RESULT, span_of_str(text));
}

int main(int argc, char **argv)
{
    _cleanup_buf_ struct buf text = buf_make(REQUEST_MAX);
    struct error err = {0};
    json_t *result = json_object();
    json_t *request;
    int r;

    if (argc != 3 || give_up_root(argv[1], argv[2]) < 0 ||
        curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return 2;
    }
    r = fd_read_all(OBJECT_FD_REQUEST, &text);
    request = r == 0 ? json_loadb(buf_str(&text), text.n, 0, NULL) : NULL;
    r = work(request, result, &err);
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
