#include "guest/write_file.h"

#include <errno.h>
#include <fcntl.h>

#include <sys/stat.h>

#include "base/fd.h"

static int make_parents(char *path, const struct agent_write_file *m)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        int r = 0;

        *slash = '\0';
        if (mkdir(path, 0755) == 0) {
            r = lchown(path, m->uid, m->gid);
        } else if (errno != EEXIST) {
            r = -1;
        }
        *slash = '/';
        if (r < 0) {
            return -errno;
        }
    }
    return 0;
}

int write_file_part(const struct agent_write_file *m)
{
    /* Without O_NONBLOCK a fifo at that path would stop the agent. */
    int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    _cleanup_close_ int fd = -1;
    char path[AGENT_PATH_BYTES + 1];
    struct stat st;
    int r = span_copy_str(m->path, path, sizeof(path));

    if (r < 0) {
        return r;
    }
    if (m->create) {
        r = make_parents(path, m);
        flags |= O_CREAT;
    }
    if (r < 0) {
        return r;
    }
    fd = open(path, flags, 0600);
    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    if (!S_ISREG(st.st_mode)) {
        return -EINVAL;
    }
    if (m->create &&
        (ftruncate(fd, 0) < 0 || fchown(fd, m->uid, m->gid) < 0 || fchmod(fd, m->mode) < 0)) {
        return -errno;
    }
    return fd_pwrite_all(fd, m->bytes, (off_t)m->offset);
}
