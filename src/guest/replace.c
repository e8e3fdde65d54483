#include "guest/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/file.h>

#define NAME_TRIES 16

int replacement_look(struct replacement *n)
{
    if (fstatat(n->place.fd, n->place.name, &n->old, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    n->exists = true;
    return 0;
}

/* Names of this kind are ours, but files of others may have one. Ours are plain files of this user
 * or of whom the replaced file belongs to, with no second name, and locked while their maker lives.
 * The name is looked at again under the lock: only who has the lock removes it. */
static bool is_abandoned(const struct replacement *n, int fd, const char *name)
{
    struct stat st;
    struct stat named;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
           (st.st_uid == geteuid() || (n->exists && st.st_uid == n->old.st_uid)) &&
           flock(fd, LOCK_EX | LOCK_NB) == 0 &&
           fstatat(n->place.fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == st.st_dev && named.st_ino == st.st_ino;
}

static void remove_abandoned(const struct replacement *n)
{
    char name[PATH_HIDDEN_BYTES];
    _cleanup_close_ int fd = -1;

    path_hidden_of(n->place.name, name);
    fd = openat(n->place.fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && is_abandoned(n, fd, name)) {
        (void)unlinkat(n->place.fd, name, 0);
    }
}

/* The i-th name to try: when the one of this target is in use, others. */
static int next_hidden(struct replacement *n, int i, char name[PATH_HIDDEN_BYTES])
{
    if (i == 0) {
        path_hidden_of(n->place.name, name);
        return 0;
    }
    return path_make_hidden(name);
}

/* Locks the new file; a filesystem without locks goes without. */
static int lock_new(const struct replacement *n)
{
    return flock(n->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -EEXIST : 0;
}

static int create_hidden(struct replacement *n, const char *name)
{
    struct stat st;
    int r;

    n->fd = openat(n->place.fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (n->fd < 0) {
        return -errno;
    }
    r = lock_new(n);
    if (r == 0 && (fstat(n->fd, &st) < 0 || st.st_nlink == 0)) {
        r = -EEXIST; /* taken for an abandoned one before it was locked */
    }
    if (r < 0) {
        cleanup_close(&n->fd);
        n->fd = -1;
    }
    return r;
}

static int open_hidden(struct replacement *n)
{
    char name[PATH_HIDDEN_BYTES];
    int r = -EEXIST;

    for (int i = 0; i < NAME_TRIES && r == -EEXIST; i++) {
        r = next_hidden(n, i, name);
        if (r == 0) {
            r = create_hidden(n, name);
        }
    }
    if (r == 0) {
        memcpy(n->hidden, name, sizeof(name));
    }
    return r;
}

int replacement_open(struct replacement *n)
{
    remove_abandoned(n);
    n->fd = openat(n->place.fd, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    if (n->fd >= 0) {
        return lock_new(n);
    }
    /* How kernels and filesystems without it say so. */
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT) {
        return open_hidden(n);
    }
    return -errno;
}

static int link_as(const struct replacement *n, const char *name)
{
    char path[PATH_FD_BYTES];

    path_of_fd(n->fd, path);
    return linkat(AT_FDCWD, path, n->place.fd, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int link_hidden(struct replacement *n)
{
    char name[PATH_HIDDEN_BYTES];
    int r = -EEXIST;

    for (int i = 0; i < NAME_TRIES && r == -EEXIST; i++) {
        r = next_hidden(n, i, name);
        if (r == 0) {
            r = link_as(n, name);
        }
    }
    if (r == 0) {
        memcpy(n->hidden, name, sizeof(name));
    }
    return r;
}

int replacement_finish(struct replacement *n, bool replace)
{
    int r = 0;

    /* A file that is new gets its name at once, so that whoever watches sees it come. */
    if (n->hidden[0] == '\0' && (!n->exists || !replace)) {
        r = link_as(n, n->place.name);
        if (r != -EEXIST || !replace) {
            return r;
        }
        n->exists = true; /* somebody made one meanwhile */
    }
    if (n->hidden[0] == '\0') {
        r = link_hidden(n);
    }
    if (r == 0) {
        r = path_rename_at(n->place.fd, n->hidden, n->place.name, replace);
    }
    if (r == 0) {
        n->hidden[0] = '\0';
    }
    return r;
}

void replacement_done(struct replacement *n)
{
    if (n->hidden[0] != '\0') {
        (void)unlinkat(n->place.fd, n->hidden, 0);
    }
    cleanup_close(&n->fd);
    place_close(&n->place);
}
