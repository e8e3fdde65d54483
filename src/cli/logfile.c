#include "cli/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/statfs.h>

#include "base/fd.h"

#define COPY_STEP_BYTES 65536U
#define PATH_SIZE       4096

/* Ours alone, and never a pipe, whose writer would wait for a reader. */
static int open_own(const char *path, int flags)
{
    _cleanup_close_ int fd =
        open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | flags, 0640);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1) {
        return -EMLINK;
    }
    return fcntl(fd, F_SETFL, flags & O_APPEND) < 0 ? -errno : TAKE_FD(fd);
}

int logfile_open(const char *path, struct error *err)
{
    int fd = open_own(path, O_APPEND | O_CREAT);

    if (fd == -EMLINK) {
        return error_set(err, EINVAL, "%.180s is no file of its own: remove it", path);
    }
    return fd >= 0 ? fd : error_set(err, -fd, "cannot open %.180s: %s", path, strerror(-fd));
}

/* Copies the first n bytes of `from` into a new file. */
static int copy_head(int from, off_t n, const char *path)
{
    _cleanup_close_ int to = -1;
    uint8_t bytes[COPY_STEP_BYTES];
    off_t at = 0;

    (void)unlink(path);
    to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (to < 0) {
        return -errno;
    }
    while (at < n) {
        size_t want = n - at < (off_t)sizeof(bytes) ? (size_t)(n - at) : sizeof(bytes);
        ssize_t got = pread(from, bytes, want, at);
        int r;

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : 0;
        }
        r = fd_write_all(to, span_make(bytes, (size_t)got));
        if (r < 0) {
            return r;
        }
        at += got;
    }
    return 0;
}

static void shift_old(const char *path)
{
    for (int i = LOGFILE_KEEP; i > 1; i--) {
        char from[PATH_SIZE];
        char to[PATH_SIZE];

        (void)snprintf(from, sizeof(from), "%.4000s.%d", path, i - 1);
        (void)snprintf(to, sizeof(to), "%.4000s.%d", path, i);
        (void)rename(from, to);
    }
}

int logfile_rotate(const char *path, uint64_t limit_bytes)
{
    _cleanup_close_ int fd = open_own(path, 0);
    char first[PATH_SIZE];
    struct statfs fs;
    struct stat st;
    off_t whole_blocks;
    int r;

    if (fd < 0) {
        return fd == -ENOENT ? 0 : fd;
    }
    if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
        return -errno;
    }
    if ((uint64_t)st.st_size <= limit_bytes || st.st_size < 2) {
        return 0;
    }
    (void)snprintf(first, sizeof(first), "%.4000s.1", path);
    shift_old(path);
    /* A collapsed range ends at a block boundary short of the end of the file. */
    whole_blocks = fs.f_bsize > 0 ? (st.st_size - 1) / fs.f_bsize * fs.f_bsize : 0;
    if (whole_blocks > 0) {
        r = copy_head(fd, whole_blocks, first);
        if (r < 0) {
            return r;
        }
        if (fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, whole_blocks) == 0) {
            return 1;
        }
    }
    r = copy_head(fd, st.st_size, first);
    if (r < 0) {
        return r;
    }
    return ftruncate(fd, 0) < 0 ? -errno : 1;
}
