/* tar-write: an archive becomes files of the user, below a directory that nothing in the archive
 * leads out of: the kernel resolves each name beneath it (openat2), symbolic links included. What
 * was written stays when something later is refused.
 *
 * Owners in the archive are passed over; modes are kept but for set-user-ID and the like. Existing
 * files are replaced, existing directories kept as they are. The modes and times of new directories
 * are set at the end, since what comes into them needs and changes them. */
#include <errno.h>
#include <fcntl.h>

#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/openat2.h>

#include "base/fd.h"
#include "guest/service_path.h"
#include "guest/sparse.h"
#include "wire/tar.h"

#define READ_BYTES            262144U
#define MODE_BITS             01777U
#define DIRECTORY_MODE        0755
#define OWNER_MODE            0700
#define DEFERRED_MAX          16777216U /* of what is to be done at the end; more is done at once */
#define RESOLVE_TRIES         32
#define RESOLVE_BENEATH_FLAGS (RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)

/* Stands behind its name. */
struct deferred {
    mode_t mode;
    int64_t modified_s;
    size_t name_bytes; /* with the NUL */
};

struct unpacking {
    struct service *s;
    int top_fd;
    struct tar_parser parser;
    struct buf name;     /* of the current entry, clean */
    struct buf parent;   /* of the directory behind parent_fd */
    int parent_fd;       /* the directory of the last entry; -1 */
    int file_fd;         /* the current file; -1 */
    int64_t modified_s;  /* of it */
    uint64_t written;    /* of it */
    bool has_hole;       /* at the end of what was written */
    struct buf deferred; /* what is to be done to directories */
    uint64_t count;
};

/* Makes the name clean: no empty and "." components. -EPERM for one that is absolute or climbs. */
static int clean_name(struct span name, struct buf *ret)
{
    buf_clear(ret);
    if (name.n > 0 && name.p[0] == '/') {
        return -EPERM;
    }
    while (name.n > 0) {
        struct span part = span_head(name, span_find(name, 0, '/'));

        name = span_skip(name, part.n + 1);
        if (span_equals_str(part, "..")) {
            return -EPERM;
        }
        if (part.n == 0 || span_equals_str(part, ".")) {
            continue;
        }
        if (ret->n > 0) {
            buf_put_str(ret, "/");
        }
        buf_put(ret, part);
    }
    return buf_error(ret);
}

/* Opens what a clean name leads to beneath the top. -EPERM when a link leads out. */
static int open_beneath(const struct unpacking *u, const char *name, int flags)
{
    struct open_how how = {.flags = (unsigned int)flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH_FLAGS};

    for (int i = 0;; i++) {
        long fd = syscall(SYS_openat2, u->top_fd, name, &how, sizeof(how));

        if (fd >= 0) {
            return (int)fd;
        }
        /* A rename somewhere made the kernel unsure. */
        if (errno != EAGAIN || i == RESOLVE_TRIES) {
            return errno == EXDEV ? -EPERM : -errno;
        }
    }
}

static int open_directory(const struct unpacking *u, const char *name)
{
    return open_beneath(u, name[0] == '\0' ? "." : name, O_PATH | O_DIRECTORY);
}

/* Opens a directory that is missing, after it and those above it were made. */
static int make_directories(const struct unpacking *u, const char *directory)
{
    _cleanup_buf_ struct buf partial = buf_make(0);
    struct span rest = span_of_str(directory);
    _cleanup_close_ int fd = open_directory(u, "");

    while (fd >= 0 && rest.n > 0) {
        struct span part = span_head(rest, span_find(rest, 0, '/'));
        char name[256];
        int next;

        rest = span_skip(rest, part.n + 1);
        buf_put_str(&partial, partial.n > 0 ? "/" : "");
        buf_put(&partial, part);
        if (buf_error(&partial) != 0 || span_copy_str(part, name, sizeof(name)) < 0) {
            return -ENAMETOOLONG;
        }
        if (mkdirat(fd, name, DIRECTORY_MODE) < 0 && errno != EEXIST) {
            return -errno;
        }
        next = open_directory(u, buf_str(&partial));
        cleanup_close(&fd);
        fd = next;
    }
    return TAKE_FD(fd);
}

static const char *last_component(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash == NULL ? name : slash + 1;
}

static void forget_parent(struct unpacking *u)
{
    cleanup_close(&u->parent_fd);
    u->parent_fd = -1;
}

/* Most entries are in the directory of the one before. */
static int enter_parent(struct unpacking *u, const char *name)
{
    size_t n = (size_t)(last_component(name) - name);
    struct span directory = span_make(name, n > 0 ? n - 1 : 0);

    if (u->parent_fd >= 0 && span_equals(directory, buf_span(&u->parent))) {
        return 0;
    }
    forget_parent(u);
    buf_clear(&u->parent);
    buf_put(&u->parent, directory);
    if (buf_error(&u->parent) != 0) {
        return buf_error(&u->parent);
    }
    u->parent_fd = open_directory(u, buf_str(&u->parent));
    if (u->parent_fd == -ENOENT) {
        u->parent_fd = make_directories(u, buf_str(&u->parent));
    }
    if (u->parent_fd < 0) {
        int r = u->parent_fd;

        u->parent_fd = -1;
        return r;
    }
    return 0;
}

/* Ends the file that was written last. */
static int close_file(struct unpacking *u)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)u->modified_s}};

    if (u->file_fd < 0) {
        return 0;
    }
    if (u->has_hole && ftruncate(u->file_fd, (off_t)u->written) < 0) {
        return -errno;
    }
    (void)futimens(u->file_fd, times);
    cleanup_close(&u->file_fd);
    u->file_fd = -1;
    return 0;
}

/* Makes way for a new entry: what is there and no directory goes. */
static int make_way(const struct unpacking *u, const char *name)
{
    return unlinkat(u->parent_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static int unpack_file(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int r;

    u->file_fd = openat(u->parent_fd, name, flags, 0600);
    if (u->file_fd < 0 && errno == EEXIST) {
        r = make_way(u, name);
        if (r < 0) {
            return r;
        }
        u->file_fd = openat(u->parent_fd, name, flags, 0600);
    }
    if (u->file_fd < 0 || fchmod(u->file_fd, e->mode & MODE_BITS) < 0) {
        return -errno;
    }
    u->modified_s = e->modified_s;
    u->written = 0;
    u->has_hole = false;
    return 0;
}

/* Mode and time of a directory, once nothing more comes into it. */
static void set_directory(const struct unpacking *u, const struct deferred *d, const char *name)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)d->modified_s}};
    _cleanup_close_ int fd = open_beneath(u, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

    if (fd >= 0) {
        (void)futimens(fd, times);
        (void)fchmod(fd, d->mode);
    }
}

/* From the last to the first, so that a directory comes after those in it. */
static void set_directories(struct unpacking *u)
{
    while (u->deferred.n > 0) {
        struct deferred d;

        u->deferred.n -= sizeof(d);
        memcpy(&d, &u->deferred.p[u->deferred.n], sizeof(d));
        u->deferred.n -= d.name_bytes;
        set_directory(u, &d, (const char *)&u->deferred.p[u->deferred.n]);
    }
}

static int defer_directory(struct unpacking *u, mode_t mode, int64_t modified_s)
{
    struct deferred d = {.mode = mode, .modified_s = modified_s, .name_bytes = u->name.n + 1};

    if (u->deferred.n > DEFERRED_MAX) {
        d.mode |= OWNER_MODE; /* more may come into it */
        set_directory(u, &d, buf_str(&u->name));
        return 0;
    }
    buf_put(&u->deferred, span_make(u->name.p, d.name_bytes));
    buf_put(&u->deferred, span_make(&d, sizeof(d)));
    return buf_error(&u->deferred);
}

static int unpack_directory(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    mode_t mode = e->mode & MODE_BITS;
    struct stat st;

    if (mkdirat(u->parent_fd, name, (mode & 0777) | OWNER_MODE) < 0) {
        int fd;

        if (errno != EEXIST) {
            return -errno;
        }
        /* A directory that is there, or a link to one, is kept. */
        fd = open_directory(u, buf_str(&u->name));
        if (fd >= 0) {
            (void)close(fd);
            return 0;
        }
        if (fd == -EPERM || fstatat(u->parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            return fd;
        }
        if (make_way(u, name) < 0 || mkdirat(u->parent_fd, name, (mode & 0777) | OWNER_MODE) < 0) {
            return -errno;
        }
    }
    return defer_directory(u, mode, e->modified_s);
}

static int unpack_symlink(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)e->modified_s}};
    char target[4096];
    int r = span_copy_str(e->target, target, sizeof(target)) < 0 ? -ENAMETOOLONG : 0;

    if (r == 0) {
        r = make_way(u, name);
    }
    if (r == 0 && symlinkat(target, u->parent_fd, name) < 0) {
        r = -errno;
    }
    if (r == 0) {
        (void)utimensat(u->parent_fd, name, times, AT_SYMLINK_NOFOLLOW);
    }
    return r;
}

/* To a file beneath the top only, by its descriptor. */
static int unpack_hard_link(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    _cleanup_buf_ struct buf target = buf_make(0);
    _cleanup_close_ int fd = -1;
    char path[PATH_FD_BYTES];
    struct stat there;
    struct stat st;
    int r = clean_name(e->target, &target);

    if (r < 0 || target.n == 0) {
        return r < 0 ? r : -EPERM;
    }
    fd = open_beneath(u, buf_str(&target), O_PATH | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0) {
        return fd < 0 ? fd : -errno;
    }
    if (fstatat(u->parent_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        there.st_dev == st.st_dev && there.st_ino == st.st_ino) {
        return 0; /* it is that file already */
    }
    r = make_way(u, name);
    path_of_fd(fd, path);
    if (r == 0 && linkat(AT_FDCWD, path, u->parent_fd, name, AT_SYMLINK_FOLLOW) < 0) {
        r = -errno;
    }
    return r;
}

static int unpack_fifo(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    int r = make_way(u, name);

    return r == 0 && mkfifoat(u->parent_fd, name, e->mode & 0777) < 0 ? -errno : r;
}

static int unpack_type(struct unpacking *u, const struct tar_entry *e, const char *name)
{
    switch ((enum tar_type)e->type) {
    case TAR_FILE:
        return unpack_file(u, e, name);
    case TAR_DIRECTORY:
        return unpack_directory(u, e, name);
    case TAR_SYMLINK:
        return unpack_symlink(u, e, name);
    case TAR_HARD_LINK:
        return unpack_hard_link(u, e, name);
    case TAR_FIFO:
        return unpack_fifo(u, e, name);
    case TAR_CHARACTER_DEVICE:
    case TAR_BLOCK_DEVICE:
    default:
        return -EPERM;
    }
}

static int unpack_entry(struct unpacking *u, const struct tar_entry *e)
{
    int r = close_file(u);

    if (r == 0) {
        r = clean_name(e->name, &u->name);
    }
    if (r < 0) {
        return r;
    }
    if (u->name.n == 0) {
        return e->type == TAR_DIRECTORY ? 0 : -EPERM; /* the top itself */
    }
    r = enter_parent(u, buf_str(&u->name));
    return r < 0 ? r : unpack_type(u, e, last_component(buf_str(&u->name)));
}

static int unpack_content(struct unpacking *u, struct span content)
{
    int r = sparse_write(u->file_fd, u->written, content);

    u->written += content.n;
    u->has_hole = r > 0;
    return r < 0 ? r : 0;
}

/* One piece of the archive. */
static int unpack(struct unpacking *u, struct span bytes)
{
    while (bytes.n > 0) {
        struct tar_entry e;
        struct span content;
        int r = tar_parser_next(&u->parser, &bytes, &e, &content);

        if (r == TAR_ENTRY) {
            buf_clear(&u->s->fault);
            buf_put(&u->s->fault, e.name);
            r = unpack_entry(u, &e);
            u->count++;
        } else if (r == TAR_CONTENT) {
            r = unpack_content(u, content);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int unpack_all(struct unpacking *u)
{
    _cleanup_free_ uint8_t *bytes = malloc(READ_BYTES);
    int r = bytes == NULL ? -ENOMEM : 0;

    while (r == 0) {
        ssize_t n = read(SERVICE_IN, bytes, READ_BYTES);

        if (n == 0) {
            r = tar_parser_finish(&u->parser);
            return r < 0 ? r : close_file(u);
        }
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        r = n < 0 ? 0 : unpack(u, span_make(bytes, (size_t)n));
    }
    return r;
}

/* A file of which only a part arrived goes. */
static void drop_file(const struct unpacking *u)
{
    if (u->file_fd >= 0 && u->parent_fd >= 0) {
        (void)unlinkat(u->parent_fd, last_component(buf_str(&u->name)), 0);
    }
}

int service_tar_write(struct service *s)
{
    struct unpacking u = {.s = s, .top_fd = -1, .parent_fd = -1, .file_fd = -1};
    const char *path = service_arg(s, 0);
    size_t made = 0;
    int r;

    if (s->argc != 1) {
        return -EINVAL;
    }
    r = path_make(path, DIRECTORY_MODE, &made);
    u.top_fd = r < 0 ? -1 : open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (u.top_fd < 0) {
        return service_fail(s, r < 0 ? r : -errno, path);
    }
    u.name = buf_make(TAR_NAME_BYTES);
    u.parent = buf_make(TAR_NAME_BYTES);
    u.deferred = buf_make(0);
    tar_parser_init(&u.parser);
    r = unpack_all(&u);
    if (r < 0) {
        drop_file(&u);
    }
    set_directories(&u);
    if (r == 0) {
        service_put_done(s, u.count, false);
    }
    return r; /* the process ends, and with it what it has */
}
