/* file-move. To another filesystem, which rename() cannot reach, a plain file is copied and a
 * symbolic link made anew: complete, with its attributes and on the disk before it gets the name,
 * all at once, and only then the old one is removed. Whenever the service ends, one of the two is
 * whole under its name, maybe both. Directories and other kinds of files are not moved so: EXDEV.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <sys/stat.h>

#include "guest/replace.h"
#include "guest/sparse.h"

#define COPY_BYTES  262144U
#define SET_ID_BITS 06000U
#define LINK_TRIES  16

struct move {
    bool replace;
    struct place from;
    int from_fd;    /* O_PATH */
    int content_fd; /* for reading, of a plain file */
    struct stat st;
    struct replacement to;
};

static void move_done(struct move *m)
{
    place_close(&m->from);
    cleanup_close(&m->from_fd);
    cleanup_close(&m->content_fd);
    replacement_done(&m->to);
}

/* As the kernel would judge the removal, which comes last: a directory that may be changed, and in
 * a sticky one the file or the directory must be the user's. */
static int check_from(const struct move *m)
{
    uid_t user = geteuid();
    struct stat st;

    if (fstat(m->from.fd, &st) < 0 || faccessat(m->from.fd, ".", W_OK | X_OK, AT_EACCESS) < 0) {
        return -errno;
    }
    return (st.st_mode & S_ISVTX) != 0 && user != 0 && user != st.st_uid && user != m->st.st_uid
               ? -EPERM
               : 0;
}

/* What has the name may be replaced as by rename(). */
static int check_to(struct move *m)
{
    int r = replacement_look(&m->to);

    if (r < 0 || !m->to.exists) {
        return r;
    }
    if (!m->replace) {
        return -EEXIST;
    }
    return S_ISDIR(m->to.old.st_mode) ? -EISDIR : 0;
}

static int copy_content(int from, int to)
{
    _cleanup_free_ uint8_t *bytes = malloc(COPY_BYTES);
    uint64_t total = 0;

    if (bytes == NULL) {
        return -ENOMEM;
    }
    for (;;) {
        ssize_t n = read(from, bytes, COPY_BYTES);
        int r = n < 0 && errno != EINTR ? -errno : 0;

        if (n == 0) {
            return ftruncate(to, (off_t)total) < 0 ? -errno : 0; /* a hole at the end */
        }
        if (n > 0) {
            r = sparse_write(to, total, span_make(bytes, (size_t)n));
            total += (uint64_t)n;
        }
        if (r < 0) {
            return r;
        }
    }
}

/* Owner, mode and times, the first as far as the user may give files away. */
static int copy_attributes(const struct move *m)
{
    const struct timespec times[2] = {m->st.st_atim, m->st.st_mtim};
    mode_t mode = m->st.st_mode & 07777;

    if (fchown(m->to.fd, m->st.st_uid, m->st.st_gid) < 0) {
        mode &= ~(mode_t)SET_ID_BITS;
        (void)fchown(m->to.fd, (uid_t)-1, m->st.st_gid);
    }
    return fchmod(m->to.fd, mode) < 0 || futimens(m->to.fd, times) < 0 ? -errno : 0;
}

static int copy_file(struct move *m)
{
    int r = replacement_open(&m->to);

    if (r == 0) {
        r = copy_content(m->content_fd, m->to.fd);
    }
    if (r == 0) {
        r = copy_attributes(m);
    }
    if (r == 0 && fsync(m->to.fd) < 0) {
        r = -errno;
    }
    return r < 0 ? r : replacement_finish(&m->to, m->replace);
}

static int link_as(const struct move *m, const char *target, const char *name)
{
    const struct timespec times[2] = {m->st.st_atim, m->st.st_mtim};
    int dir_fd = m->to.place.fd;

    if (symlinkat(target, dir_fd, name) < 0) {
        return -errno;
    }
    (void)fchownat(dir_fd, name, m->st.st_uid, m->st.st_gid, AT_SYMLINK_NOFOLLOW);
    (void)utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW);
    return 0;
}

static int copy_link(struct move *m)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(m->from_fd, "", target, sizeof(target));
    int r = -EEXIST;

    if (n < 0 || (size_t)n >= sizeof(target)) {
        return n < 0 ? -errno : -ENAMETOOLONG;
    }
    target[n] = '\0';
    if (!m->to.exists) {
        r = link_as(m, target, m->to.place.name);
        if (r != -EEXIST || !m->replace) {
            return r;
        }
    }
    for (int i = 0; i < LINK_TRIES && r == -EEXIST; i++) {
        char hidden[PATH_HIDDEN_BYTES];

        r = path_make_hidden(hidden);
        if (r == 0) {
            r = link_as(m, target, hidden);
        }
        if (r == 0) {
            memcpy(m->to.hidden, hidden, sizeof(hidden));
        }
    }
    return r < 0 ? r : replacement_finish(&m->to, true);
}

/* The new name is on disk before the old one goes: a machine that is cut off has one of them. Who
 * may not read the directory has to do without. */
static void sync_place(const struct place *place)
{
    _cleanup_close_ int fd = path_reopen(place->fd, O_RDONLY | O_DIRECTORY);

    if (fd >= 0) {
        (void)fsync(fd);
    }
}

/* Removes the old name, if it is still the file's. */
static int remove_from(const struct move *m)
{
    struct stat st;

    if (fstatat(m->from.fd, m->from.name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (st.st_dev != m->st.st_dev || st.st_ino != m->st.st_ino) {
        return 0; /* somebody put another there, which stays */
    }
    return unlinkat(m->from.fd, m->from.name, 0) < 0 ? -errno : 0;
}

static bool ends_in_slash(const char *path)
{
    size_t n = strlen(path);

    return n > 0 && path[n - 1] == '/';
}

static int open_from(struct move *m, const char *from)
{
    int r = ends_in_slash(from) ? -ENOTDIR : place_open(from, &m->from);

    if (r == 0) {
        m->from_fd = openat(m->from.fd, m->from.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        r = m->from_fd < 0 || fstat(m->from_fd, &m->st) < 0 ? -errno : check_from(m);
    }
    if (r == 0 && S_ISREG(m->st.st_mode)) {
        m->content_fd = path_reopen(m->from_fd, O_RDONLY);
        r = m->content_fd < 0 ? m->content_fd : 0;
    }
    return r;
}

static int move_across(struct service *s, const char *from, const char *to, bool replace)
{
    _cleanup_(move_done) struct move m = {.replace = replace,
                                          .from = {.fd = -1},
                                          .from_fd = -1,
                                          .content_fd = -1,
                                          .to = REPLACEMENT_NONE};
    struct stat st;
    int r;

    if (lstat(from, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) {
        return service_fail(s, -EXDEV, to);
    }
    r = open_from(&m, from);
    if (r == 0 && !S_ISREG(m.st.st_mode) && !S_ISLNK(m.st.st_mode)) {
        r = -EXDEV;
    }
    if (r < 0) {
        return service_fail(s, r, from);
    }
    r = ends_in_slash(to) ? -ENOTDIR : place_open(to, &m.to.place);
    if (r == 0) {
        r = check_to(&m);
    }
    if (r == 0) {
        r = S_ISLNK(m.st.st_mode) ? copy_link(&m) : copy_file(&m);
    }
    if (r < 0) {
        return service_fail(s, r, to);
    }
    sync_place(&m.to.place);
    r = remove_from(&m);
    return r < 0 ? service_fail(s, r, from) : 0;
}

int service_file_move(struct service *s)
{
    const char *from = service_arg(s, 0);
    const char *to = service_arg(s, 1);
    int replace = service_arg_flag(s, 2, "replace");
    struct stat st;
    int r;

    if (s->argc != 3 || replace < 0) {
        return -EINVAL;
    }
    /* Asked first, so that ENOENT names the right one. */
    if (lstat(from, &st) < 0) {
        return service_fail(s, -errno, from);
    }
    r = path_rename_at(AT_FDCWD, from, to, replace > 0);
    if (r == -EXDEV) {
        r = move_across(s, from, to, replace > 0);
        if (r < 0) {
            return r;
        }
    } else if (r < 0) {
        return service_fail(s, r, to);
    }
    r = path_put_entry_of(s, to);
    if (r < 0) {
        return service_fail(s, r, to);
    }
    service_put_done(s, 1, false);
    return 0;
}
