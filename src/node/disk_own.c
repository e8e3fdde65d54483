/* What a file takes for itself: the filesystem says of each extent whether others have it too. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <linux/fiemap.h>
#include <linux/fs.h>

#include "base/fd.h"
#include "node/disk.h"

#define EXTENTS 64U

union extents {
    struct fiemap head; /* the extents follow it */
    uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
};

/* 0 or -errno; *ret_end 0: there is no more. */
static int add_own(int fd, uint64_t from, uint64_t *sum, uint64_t *ret_end)
{
    union extents map;

    memset(&map, 0, sizeof(map));
    map.head.fm_start = from;
    map.head.fm_length = FIEMAP_MAX_OFFSET - from;
    map.head.fm_extent_count = EXTENTS;
    *ret_end = 0;
    if (ioctl(fd, FS_IOC_FIEMAP, &map) < 0) {
        return -errno;
    }
    for (unsigned int i = 0; i < map.head.fm_mapped_extents && i < EXTENTS; i++) {
        const struct fiemap_extent *extent = &map.head.fm_extents[i];

        *sum += (extent->fe_flags & FIEMAP_EXTENT_SHARED) != 0 ? 0 : extent->fe_length;
        *ret_end = (extent->fe_flags & FIEMAP_EXTENT_LAST) != 0
                       ? 0
                       : extent->fe_logical + extent->fe_length;
    }
    return 0;
}

uint64_t disk_own_bytes(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    uint64_t sum = 0;
    uint64_t at = 0;
    struct stat st;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink > 1) {
        return 0;
    }
    do {
        uint64_t end;

        r = add_own(fd, at, &sum, &end);
        at = end > at ? end : 0;
    } while (r == 0 && at != 0);
    return r < 0 ? (uint64_t)st.st_blocks * 512U : sum;
}
