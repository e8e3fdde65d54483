#include "node/object_claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "io/json_request.h"
#include "node/json_field.h"

#define FORMAT      1
#define CONTENT_MAX 4096U

static int refuse(const struct object_claim *claim, struct error *err, const char *why)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store", "%.150s %s", claim->path,
                          why);
}

static int is_away(const struct object_claim *claim, struct error *err, const char *why)
{
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "%.150s %s", claim->path, why);
}

static int fail(const struct object_claim *claim, struct error *err, int r)
{
    return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "cannot use %.150s: %s",
                          claim->path, strerror(-r));
}

/* Neither made nor given away here: where a disk is not mounted there is another directory, or
 * none, and that is nobody's store. */
static int open_own(int at_fd, const struct object_claim *claim, struct error *err)
{
    _cleanup_close_ int fd = openat(at_fd, ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    struct stat st;

    if (fd < 0 && errno != EACCES && errno != EPERM) {
        return fail(claim, err, -errno);
    }
    if (fd >= 0 && fstat(fd, &st) < 0) {
        return fail(claim, err, -errno);
    }
    if (fd < 0 || st.st_uid != geteuid()) {
        return error_set_code(
            err, ERROR_FAILED_PRECONDITION, "object_store",
            "%.100s is not mounted, or not given to the store's process: chown -R "
            "%u:%u %.100s",
            claim->path, (unsigned int)geteuid(), (unsigned int)geteuid(), claim->path);
    }
    return TAKE_FD(fd);
}

/* ---- what it says ---- */

static int parse(const struct object_claim *claim,
                 struct span text,
                 char id[OBJECT_CLAIM_ID_SIZE],
                 struct error *err)
{
    _cleanup_json_ json_t *root = json_loadb((const char *)text.p, text.n, 0, NULL);
    char installation[64];
    uint64_t format;

    if (!json_field_u64(root, "format", UINT32_MAX, &format) || format != FORMAT ||
        !json_field_text(root, "id", id, OBJECT_CLAIM_ID_SIZE) || id[0] == '\0' ||
        !json_field_text(root, "installation", installation, sizeof(installation))) {
        return refuse(claim, err, "has a " OBJECT_CLAIM_NAME " that is not of this program");
    }
    if (strcmp(installation, claim->installation) != 0) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                              "%.150s is the object store of the installation %.63s", claim->path,
                              installation);
    }
    if (claim->id[0] != '\0' && strcmp(id, claim->id) != 0) {
        return refuse(claim, err, "is another object store than the one that was there");
    }
    return 1;
}

/* 1 when it is this installation's, 0 without any. */
static int read_claim(int fd,
                      const struct object_claim *claim,
                      char id[OBJECT_CLAIM_ID_SIZE],
                      struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(CONTENT_MAX);
    int r = file_read(fd, OBJECT_CLAIM_NAME, CONTENT_MAX, &text);

    if (r == -ENOENT) {
        return 0;
    }
    return r < 0 ? fail(claim, err, r) : parse(claim, buf_span(&text), id, err);
}

/* ---- the first use ---- */

static bool is_nothing(const char *name)
{
    static const char *const names[] = {".", "..", "lost+found", OBJECT_CLAIM_NAME ".new"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Of what a store keeps its objects in, and ours. */
static bool is_stored(int dir_fd, const char *name)
{
    static const char *const names[] = {"manifests", "bases", "chunks"};
    struct stat st;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
                   st.st_uid == geteuid();
        }
    }
    return false;
}

/* 0: it is empty; 1: a store from before it was claimed. */
static int look_into(int fd, const struct object_claim *claim, struct error *err)
{
    int own = openat(fd, ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    _cleanup_closedir_ DIR *dir = own < 0 ? NULL : fdopendir(own);
    const struct dirent *entry;
    bool has_objects = false;

    if (dir == NULL) {
        int r = -errno;

        if (own >= 0) {
            (void)close(own);
        }
        return fail(claim, err, r);
    }
    errno = 0;
    while ((entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        if (is_stored(dirfd(dir), entry->d_name)) {
            has_objects = true;
        } else if (!is_nothing(entry->d_name)) {
            return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                                  "%.100s has %.60s in it and no " OBJECT_CLAIM_NAME
                                  ": an object store begins in an empty directory",
                                  claim->path, entry->d_name);
        }
        errno = 0;
    }
    return errno != 0 ? fail(claim, err, -errno) : has_objects;
}

/* What is left in the place of a disk that is not mounted looks like an older store. */
static int check_older(int fd, const struct object_claim *claim, struct error *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        return fail(claim, err, -errno);
    }
    if (claim->home_device != 0 && st.st_dev == claim->home_device) {
        return refuse(claim, err,
                      "has a store's directories and no " OBJECT_CLAIM_NAME
                      ", on the disk of data_dir: is its own disk mounted? If it is the store, "
                      "write that file (docs/objects.md)");
    }
    return 0;
}

static int
begin(int fd, const struct object_claim *claim, char id[OBJECT_CLAIM_ID_SIZE], struct error *err)
{
    _cleanup_json_ json_t *root = NULL;
    uint64_t words[2];
    int r = look_into(fd, claim, err);

    if (r == 0 && !claim->may_begin) {
        return is_away(claim, err, "has no " OBJECT_CLAIM_NAME ": is its disk mounted?");
    }
    if (r > 0) {
        r = check_older(fd, claim, err);
    }
    if (r < 0) {
        return r;
    }
    r = random_bytes(words, sizeof(words));
    if (r < 0) {
        return fail(claim, err, r);
    }
    (void)snprintf(id, OBJECT_CLAIM_ID_SIZE, "%016llx%016llx", (unsigned long long)words[0],
                   (unsigned long long)words[1]);
    root = json_pack("{s:i, s:s, s:s}", "format", FORMAT, "id", id, "installation",
                     claim->installation);
    r = root == NULL ? -ENOMEM : json_file_write(fd, OBJECT_CLAIM_NAME, root, true);
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "%.150s has no room", claim->path);
    }
    return r < 0 ? fail(claim, err, r) : 0;
}

int object_claim_open(int at_fd,
                      const struct object_claim *claim,
                      char ret_id[OBJECT_CLAIM_ID_SIZE],
                      struct error *err)
{
    _cleanup_close_ int fd = open_own(at_fd, claim, err);
    char id[OBJECT_CLAIM_ID_SIZE];
    int r = fd < 0 ? fd : read_claim(fd, claim, id, err);

    if (r == 0 && claim->id[0] != '\0') {
        r = is_away(claim, err,
                    "was the object store and has no " OBJECT_CLAIM_NAME
                    " any more: is its disk mounted?");
    } else if (r == 0) {
        r = begin(fd, claim, id, err);
    }
    if (r < 0) {
        return r;
    }
    memcpy(ret_id, id, sizeof(id));
    return TAKE_FD(fd);
}
