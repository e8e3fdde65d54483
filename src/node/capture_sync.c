/* What a capture brings onto stable storage before the stop: the sandbox's own files. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "node/sandbox_capture.h"

/* Output that was acknowledged to the guest is nowhere else: it must outlive what the snapshot
 * outlives. */
static int sync_sessions(const char *path)
{
    _cleanup_closedir_ DIR *dir = opendir(path);
    const struct dirent *entry;

    if (dir == NULL) {
        return errno == ENOENT ? 0 : -errno;
    }
    while ((entry = readdir(dir)) != NULL) {
        _cleanup_close_ int fd = -1;

        if (entry->d_name[0] == '.') {
            continue;
        }
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT) {
            continue; /* removed meanwhile */
        }
        if (fd < 0 || fsync(fd) < 0) {
            return -errno;
        }
    }
    return fsync(dirfd(dir)) < 0 ? -errno : 0;
}

static int sync_disk(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);

    return fd < 0 || fdatasync(fd) < 0 ? -errno : 0;
}

int sandbox_capture_sync(const struct sandbox_capture *c)
{
    int r = sync_sessions(c->sessions_path);

    return r == 0 ? sync_disk(c->disk_path) : r;
}
