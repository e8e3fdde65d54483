/* Objects in a directory: written beside their place, synchronised, renamed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/step.h"
#include "node/object_backend.h"

#define MIB 1048576U

struct object_dir {
    int fd; /* borrowed */
    uint64_t reserve_bytes;
};

static int fail(struct error *err, int r, const char *what)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the object store's directory has no room");
    }
    return error_set_code(
        err, r == -EACCES || r == -EPERM ? ERROR_FAILED_PRECONDITION : ERROR_SERVICE_UNAVAILABLE,
        r == -EACCES || r == -EPERM ? "object_store" : NULL, "the object store's directory: %s: %s",
        what, strerror(-r));
}

void *object_dir_open(const struct object_place *place, struct error *err)
{
    struct object_dir *d = calloc(1, sizeof(*d));

    if (d == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    d->fd = place->dir_fd;
    d->reserve_bytes = place->reserve_bytes;
    return d;
}

static void dir_close(void *self)
{
    free(self);
}

/* The directory that a key, or a prefix, is in. */
static void parent_of(const char *key, char out[OBJECT_KEY_SIZE])
{
    const char *slash = strrchr(key, '/');

    (void)snprintf(out, OBJECT_KEY_SIZE, "%.*s", slash == NULL ? 1 : (int)(slash - key),
                   slash == NULL ? "." : key);
}

/* What is stored ends before it takes from whoever else writes there. */
static int check_room(const struct object_dir *d, size_t bytes, struct error *err)
{
    struct statvfs st;
    uint64_t room;

    if (fstatvfs(d->fd, &st) < 0) {
        return 0;
    }
    room = (uint64_t)st.f_bavail * st.f_frsize;
    return room >= d->reserve_bytes + bytes
               ? 0
               : error_set_code(err, ERROR_STORAGE_FULL, NULL,
                                "the object store's directory has no room: %llu MiB are free, and "
                                "%llu stay free",
                                (unsigned long long)(room / MIB),
                                (unsigned long long)(d->reserve_bytes / MIB));
}

static int sync_dir(int fd, const char *path)
{
    _cleanup_close_ int dir = openat(fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    return dir < 0 || fsync(dir) < 0 ? -errno : 0;
}

static int write_file(int dir_fd, const char *path, struct span bytes)
{
    _cleanup_close_ int fd =
        openat(dir_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = fd < 0 ? -errno : fd_write_all(fd, bytes);

    return r == 0 && fsync(fd) < 0 ? -errno : r;
}

/* Before the first chunk: chunks without that directory are a store that has lost it. */
static int make_manifests(const struct object_dir *d)
{
    int r;

    if (faccessat(d->fd, "chunks", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return 0;
    }
    r = errno == ENOENT ? dir_make_all(d->fd, "manifests", 0700) : -errno;
    return r == 0 ? sync_dir(d->fd, ".") : r;
}

static int dir_put(void *self, const char *key, struct span bytes, struct error *err)
{
    const struct object_dir *d = self;
    char parent[OBJECT_KEY_SIZE];
    char fresh[OBJECT_KEY_SIZE + 32];
    uint64_t nonce;
    int r = check_room(d, bytes.n, err);

    if (r < 0) {
        return r;
    }
    parent_of(key, parent);
    r = random_bytes(&nonce, sizeof(nonce));
    if (r == 0) {
        r = make_manifests(d);
    }
    if (r == 0) {
        r = dir_make_all(d->fd, parent, 0700);
    }
    if (r < 0) {
        return fail(err, r, "cannot write");
    }
    (void)snprintf(fresh, sizeof(fresh), "%s/.new-%016llx", parent, (unsigned long long)nonce);
    r = write_file(d->fd, fresh, bytes);
    step("place %.*s", (int)strcspn(parent, "/"), parent); /* chunks: wherever they are */
    if (r == 0 && renameat(d->fd, fresh, d->fd, key) < 0) {
        r = -errno;
    }
    if (r < 0) {
        (void)unlinkat(d->fd, fresh, 0);
        return fail(err, r, "cannot write");
    }
    r = sync_dir(d->fd, parent);
    return r < 0 ? fail(err, r, "cannot write") : 0;
}

static int dir_get(void *self, const char *key, size_t max, struct buf *ret, struct error *err)
{
    const struct object_dir *d = self;
    _cleanup_buf_ struct buf content = buf_make(max);
    int r = file_read(d->fd, key, max, &content);

    if (r == -ENOENT) {
        return 0;
    }
    if (r == -EMSGSIZE || r == -EFBIG) {
        return error_set(err, EBADMSG, "object %.100s is damaged: it is too long", key);
    }
    if (r == 0) {
        buf_put(ret, buf_span(&content));
        r = buf_error(ret);
    }
    return r < 0 ? fail(err, r, "cannot read") : 1;
}

static int dir_has(void *self, const char *key, uint64_t *ret_bytes, struct error *err)
{
    const struct object_dir *d = self;
    struct stat st;

    if (fstatat(d->fd, key, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : fail(err, -errno, "cannot read");
    }
    *ret_bytes = (uint64_t)st.st_size;
    return 1;
}

static int dir_remove(void *self, const char *key, struct error *err)
{
    const struct object_dir *d = self;
    char parent[OBJECT_KEY_SIZE];
    int r;

    if (unlinkat(d->fd, key, 0) < 0) {
        return errno == ENOENT ? 0 : fail(err, -errno, "cannot remove");
    }
    parent_of(key, parent);
    r = sync_dir(d->fd, parent);
    return r < 0 ? fail(err, r, "cannot remove") : 0;
}

struct walk {
    const struct object_dir *dir;
    object_list_fn fn;
    void *arg;
    const char *prefix; /* of the whole key */
    int64_t now_ms;
};

static int visit(const struct walk *w, int fd, const char *name, const char *key)
{
    struct object_entry entry = {.key = key};
    struct stat st;

    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (!S_ISREG(st.st_mode) || strncmp(key, w->prefix, strlen(w->prefix)) != 0) {
        return 0;
    }
    entry.bytes = (uint64_t)st.st_size;
    entry.age_seconds = w->now_ms / 1000 - (int64_t)st.st_mtim.tv_sec;
    return w->fn(w->arg, &entry);
}

/* An error of the file system ends readdir as the end of the directory does. */
static const struct dirent *next_entry(DIR *dir, int *ret_error)
{
    const struct dirent *entry;

    errno = 0;
    entry = readdir(dir);
    *ret_error = entry == NULL ? -errno : 0;
    return entry;
}

/* What an interrupted put left (".new-…") is listed too: it is of nobody. */
static int walk_dir(const struct walk *w, const char *path, unsigned int depth)
{
    int fd = openat(w->dir->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0;

    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    while (r == 0 && (entry = next_entry(dir, &r)) != NULL) {
        char key[OBJECT_KEY_SIZE];

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            snprintf(key, sizeof(key), "%s/%s", path, entry->d_name) >= (int)sizeof(key)) {
            continue;
        }
        r = entry->d_type == DT_DIR && depth > 0 ? 0 : visit(w, fd, entry->d_name, key);
    }
    return r;
}

/* Nothing is there before the first put, and all of it from then on. */
static int check_manifests(const struct object_dir *d)
{
    if (faccessat(d->fd, "manifests", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return 0;
    }
    if (errno != ENOENT) {
        return -errno;
    }
    if (faccessat(d->fd, "chunks", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return -ENOENT;
    }
    return errno == ENOENT ? 0 : -errno;
}

/* chunks/XX: one level below. */
static int walk_below(const struct walk *w, const char *path)
{
    int r = walk_dir(w, path, 0);

    for (unsigned int i = 0; r == 0 && i < 256; i++) {
        char below[OBJECT_KEY_SIZE];

        (void)snprintf(below, sizeof(below), "%.100s/%02x", path, i);
        r = walk_dir(w, below, 1);
    }
    return r;
}

static int dir_list(void *self, const char *prefix, object_list_fn fn, void *arg, struct error *err)
{
    struct walk w = {self, fn, arg, prefix, clock_real_ms()};
    char path[OBJECT_KEY_SIZE];
    int r;

    parent_of(prefix, path);
    r = strcmp(path, "manifests") == 0 ? check_manifests(self) : 0;
    if (r == 0) {
        r = strcmp(path, "chunks") == 0 ? walk_below(&w, path) : walk_dir(&w, path, 0);
    }
    return r < 0 && (err == NULL || err->code == ERROR_NONE) ? fail(err, r, "cannot list") : r;
}

const struct object_backend object_dir_backend = {
    .put = dir_put,
    .get = dir_get,
    .has = dir_has,
    .list = dir_list,
    .remove = dir_remove,
    .close = dir_close,
};
