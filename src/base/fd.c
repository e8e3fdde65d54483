#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

#include <sys/stat.h>

#include "base/buf.h"

#define READ_STEP_BYTES  16384U
#define TREE_DEPTH_LIMIT 64

int fd_write_all(int fd, struct span s)
{
    while (s.n > 0) {
        ssize_t n = write(fd, s.p, s.n);

        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        s = span_skip(s, (size_t)n);
    }
    return 0;
}

int fd_pwrite_all(int fd, struct span s, off_t offset)
{
    while (s.n > 0) {
        ssize_t n = pwrite(fd, s.p, s.n, offset);

        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        s = span_skip(s, (size_t)n);
        offset += n;
    }
    return 0;
}

int fd_read_all(int fd, struct buf *b)
{
    for (;;) {
        uint8_t *to = buf_reserve(b, READ_STEP_BYTES);
        ssize_t n;

        if (to == NULL && b->error == -ENOMEM) {
            return -ENOMEM;
        }
        if (to == NULL) {
            /* The cap may be nearer than a step: read on by single bytes to tell full from over. */
            b->error = 0;
            to = buf_reserve(b, 1);
            if (to == NULL) {
                uint8_t probe;

                b->error = 0;
                return read(fd, &probe, 1) == 0 ? 0 : -EMSGSIZE;
            }
            n = read(fd, to, 1);
        } else {
            n = read(fd, to, READ_STEP_BYTES);
        }
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        if (n == 0) {
            return 0;
        }
        buf_commit(b, (size_t)n);
    }
}

int file_read(int dirfd, const char *path, size_t max, struct buf *ret_content)
{
    _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);

    if (fd < 0) {
        return -errno;
    }
    *ret_content = buf_make(max);
    return fd_read_all(fd, ret_content);
}

static int sync_parent(int dirfd, const char *path)
{
    const char *slash = strrchr(path, '/');
    char parent[4096];
    _cleanup_close_ int fd = -1;

    if (slash == NULL) {
        (void)snprintf(parent, sizeof(parent), ".");
    } else if (span_copy_str(span_make(path, (size_t)(slash - path) + 1), parent, sizeof(parent)) <
               0) {
        return -ENAMETOOLONG;
    }
    fd = openat(dirfd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0) {
        return -errno;
    }
    return 0;
}

int file_write_atomic(int dirfd, const char *path, struct span content, mode_t mode, bool sync)
{
    _cleanup_close_ int fd = -1;
    char temporary[4096];
    int n = snprintf(temporary, sizeof(temporary), "%s.new", path);
    int r;

    if (n < 0 || (size_t)n >= sizeof(temporary)) {
        return -ENAMETOOLONG;
    }
    fd = openat(dirfd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) {
        return -errno;
    }
    r = fchmod(fd, mode) < 0 ? -errno : fd_write_all(fd, content);
    if (r == 0 && sync && fsync(fd) < 0) {
        r = -errno;
    }
    if (r == 0 && renameat(dirfd, temporary, dirfd, path) < 0) {
        r = -errno;
    }
    if (r < 0) {
        (void)unlinkat(dirfd, temporary, 0);
        return r;
    }
    return sync ? sync_parent(dirfd, path) : 0;
}

int fd_set_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        return -errno;
    }
    return 0;
}

int dir_make_all(int dirfd, const char *path, mode_t mode)
{
    char partial[4096];
    size_t n = strlen(path);

    if (n >= sizeof(partial)) {
        return -ENAMETOOLONG;
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(partial, path, i);
        partial[i] = '\0';
        if (mkdirat(dirfd, partial, mode) < 0 && errno != EEXIST) {
            return -errno;
        }
    }
    return 0;
}

/* An explicit stack of open directories instead of recursion; -ELOOP past the depth limit. */
struct tree_walk {
    DIR *dirs[TREE_DEPTH_LIMIT];
    char names[TREE_DEPTH_LIMIT][256];
    int depth;
    int error;
};

static void tree_push(struct tree_walk *w, int dirfd, const char *name)
{
    _cleanup_close_ int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d;

    if (w->depth == TREE_DEPTH_LIMIT) {
        w->error = -ELOOP;
        return;
    }
    if (fd < 0 || (d = fdopendir(fd)) == NULL) {
        w->error = -errno;
        return;
    }
    (void)TAKE_FD(fd);
    w->dirs[w->depth] = d;
    (void)snprintf(w->names[w->depth], sizeof(w->names[0]), "%s", name);
    w->depth++;
}

static void tree_pop(struct tree_walk *w, int root_fd, const char *root_name)
{
    int parent = w->depth >= 2 ? dirfd(w->dirs[w->depth - 2]) : root_fd;
    const char *name = w->depth >= 2 ? w->names[w->depth - 1] : root_name;

    if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        w->error = -errno;
    }
    (void)closedir(w->dirs[w->depth - 1]);
    w->depth--;
}

static void tree_step(struct tree_walk *w, int root_fd, const char *root_name)
{
    DIR *d = w->dirs[w->depth - 1];
    const struct dirent *entry = readdir(d);

    if (entry == NULL) {
        tree_pop(w, root_fd, root_name);
        return;
    }
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
        return;
    }
    if (unlinkat(dirfd(d), entry->d_name, 0) == 0 || errno == ENOENT) {
        return;
    }
    if (errno == EISDIR || errno == EPERM) {
        tree_push(w, dirfd(d), entry->d_name);
    } else {
        w->error = -errno;
    }
}

int dir_remove_tree(int dirfd, const char *path)
{
    _cleanup_free_ struct tree_walk *w = NULL;
    int r;

    if (unlinkat(dirfd, path, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if (errno != EISDIR && errno != EPERM) {
        return -errno;
    }
    w = calloc(1, sizeof(*w));
    if (w == NULL) {
        return -ENOMEM;
    }
    tree_push(w, dirfd, path);
    while (w->depth > 0 && w->error == 0) {
        tree_step(w, dirfd, path);
    }
    while (w->depth > 0) {
        (void)closedir(w->dirs[--w->depth]);
    }
    r = w->error;
    return r;
}
