#include "base/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/span.h"

int ready_parse(const char *text, int *ret_fd)
{
    uint64_t fd;
    struct stat st;

    if (span_parse_u64(span_of_str(text), INT_MAX, &fd) < 0 || fd <= STDERR_FILENO ||
        fstat((int)fd, &st) < 0 || !S_ISFIFO(st.st_mode) ||
        fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
        return -EINVAL;
    }
    *ret_fd = (int)fd;
    return 0;
}

void ready_tell(int fd)
{
    if (fd < 0) {
        return;
    }
    if (fd_write_all(fd, span_make("+", 1)) < 0) {
        log_debug("nobody waits", "fd=%d", fd);
    }
    (void)close(fd);
}
