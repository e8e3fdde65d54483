#include "node/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <linux/falloc.h>
#include <linux/fs.h>

#include "base/fd.h"
#include "base/span.h"

#define COPY_STEP   (8U * 1024U * 1024U)
#define PUNCH_BLOCK 65536U

/* Copies the data extents of src. Those are known when they are on the disk: ext2 and ext3 show
 * what is only in the page cache as a hole. 0 or -errno. */
static int copy_sparse(int src, int dst, off_t size)
{
    off_t at = 0;

    if (fdatasync(src) < 0) {
        return -errno;
    }
    while (at < size) {
        off_t data = lseek(src, at, SEEK_DATA);
        off_t hole;

        if (data < 0) {
            return errno == ENXIO ? 0 : -errno;
        }
        hole = lseek(src, data, SEEK_HOLE);
        if (hole < 0) {
            return -errno;
        }
        at = data;
        while (at < hole) {
            loff_t from = at;
            loff_t to = at;
            size_t step = hole - at < (off_t)COPY_STEP ? (size_t)(hole - at) : COPY_STEP;
            ssize_t n = copy_file_range(src, &from, dst, &to, step, 0);

            if (n <= 0) {
                return n == 0 ? -EIO : -errno;
            }
            at += n;
        }
    }
    return 0;
}

static int clone_into(int src, int dst, uint64_t bytes)
{
    struct stat st;
    off_t size;

    if (fstat(src, &st) < 0) {
        return -errno;
    }
    size = st.st_size;
    if (ioctl(dst, FICLONE, src) < 0) {
        int r;

        if (errno != EOPNOTSUPP && errno != EXDEV && errno != EINVAL && errno != ENOTTY) {
            return -errno;
        }
        r = copy_sparse(src, dst, size);
        if (r < 0) {
            return r;
        }
    }
    if ((uint64_t)size < bytes) {
        size = (off_t)bytes;
    }
    return ftruncate(dst, size) < 0 ? -errno : 0;
}

static int disk_error(struct error *err, int r, const char *what, const char *path)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "no space left for %.150s", path);
    }
    return error_set(err, -r, "%s %.150s: %s", what, path, strerror(-r));
}

int disk_clone(const char *src_path, const char *dst_path, uint64_t bytes, struct error *err)
{
    _cleanup_close_ int src = open(src_path, O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int dst = -1;
    int r;

    if (src < 0) {
        return disk_error(err, -errno, "cannot open", src_path);
    }
    dst = open(dst_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (dst < 0) {
        return disk_error(err, -errno, "cannot make", dst_path);
    }
    r = clone_into(src, dst, bytes);
    if (r < 0) {
        (void)unlink(dst_path);
        return disk_error(err, r, "cannot clone to", dst_path);
    }
    return 0;
}

int disk_grow(const char *path, uint64_t bytes, struct error *err)
{
    struct stat st;
    int r = 0;

    if (stat(path, &st) < 0 || ((uint64_t)st.st_size < bytes && truncate(path, (off_t)bytes) < 0)) {
        r = -errno;
    } else if ((uint64_t)st.st_size > bytes) {
        r = -EINVAL;
    }
    return r < 0 ? disk_error(err, r, "cannot grow", path) : 0;
}

bool disk_has_reflink(const char *dir)
{
    _cleanup_close_ int src = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    _cleanup_close_ int dst = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    static const uint8_t block[4096] = {1};

    return src >= 0 && dst >= 0 && fd_write_all(src, span_make(block, sizeof(block))) == 0 &&
           ioctl(dst, FICLONE, src) == 0;
}

int disk_space(const char *dir, uint64_t *ret_total_mib, uint64_t *ret_free_mib)
{
    struct statvfs st;

    if (statvfs(dir, &st) < 0) {
        return -errno;
    }
    *ret_total_mib = st.f_blocks * st.f_frsize / 1048576U;
    *ret_free_mib = st.f_bavail * st.f_frsize / 1048576U;
    return 0;
}

static bool is_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

int disk_punch_zeroes(int fd, uint64_t bytes)
{
    uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    off_t at = 0;
    int r = 0;

    if (map == MAP_FAILED) {
        return -errno;
    }
    while (r == 0 && (at = lseek(fd, at, SEEK_DATA)) >= 0) {
        off_t start = at - at % PUNCH_BLOCK;
        size_t n = bytes - (uint64_t)start < PUNCH_BLOCK ? bytes - (uint64_t)start : PUNCH_BLOCK;

        if (is_zero(map + start, n) &&
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, (off_t)n) < 0) {
            r = -errno;
        }
        at = start + (off_t)n;
    }
    (void)munmap(map, bytes);
    return r;
}
