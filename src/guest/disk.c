#include "guest/disk.h"

#include <errno.h>
#include <fcntl.h>

#include <sys/ioctl.h>
#include <sys/statfs.h>

#include <linux/fs.h>

#define EXT4_RESIZE_FS _IOW('f', 16, uint64_t)
/* The device's new size arrives by an interrupt and a work queue of the kernel. */
#define SIZE_TRIES   500
#define SIZE_WAIT_US 1000

static int wait_for_size(uint64_t bytes)
{
    _cleanup_close_ int fd = open(DISK_DEVICE, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -errno;
    }
    for (int i = 0; i < SIZE_TRIES; i++) {
        uint64_t now = 0;

        if (ioctl(fd, BLKGETSIZE64, &now) < 0) {
            return -errno;
        }
        if (now >= bytes) {
            return 0;
        }
        (void)usleep(SIZE_WAIT_US);
    }
    return -ENOSPC;
}

int disk_grow(uint64_t bytes)
{
    _cleanup_close_ int fd = -1;
    struct statfs fs;
    uint64_t blocks;
    int r;

    if (bytes == 0) {
        return 0;
    }
    fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatfs(fd, &fs) < 0) {
        return -errno;
    }
    r = wait_for_size(bytes);
    if (r < 0) {
        return r;
    }
    blocks = bytes / (uint64_t)fs.f_bsize;
    /* statfs counts without the filesystem's own tables; a request that is not larger than what the
     * filesystem has is answered with EINVAL and means that nothing is to be done. */
    if (blocks <= (uint64_t)fs.f_blocks || ioctl(fd, EXT4_RESIZE_FS, &blocks) == 0) {
        return 0;
    }
    return errno == EINVAL ? 0 : -errno;
}
