#include <errno.h>
#include <fcntl.h>

#include <sys/syscall.h>

#include "base/buf.h"
#include "base/fd.h"
#include "guest/boot.h"
#include "guest/console.h"

#define MODULES_DIRECTORY "/modules"
#define ORDER_MAX         65536U
#define NAME_BYTES        256U

static int load(int dir_fd, const char *name)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -errno;
    }
    if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST) {
        return -errno;
    }
    return 0;
}

static int load_line(int dir_fd, struct span line)
{
    char name[NAME_BYTES];
    int r;

    if (line.n == 0 || line.p[0] == '#') {
        return 0;
    }
    r = span_copy_str(line, name, sizeof(name));
    if (r == 0) {
        r = load(dir_fd, name);
    }
    if (r < 0) {
        console_say("module %.*s: error %d", (int)line.n, (const char *)line.p, -r);
    }
    return r;
}

int modules_load(void)
{
    _cleanup_close_ int dir_fd = open(MODULES_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_buf_ struct buf order = buf_make(ORDER_MAX);
    struct span rest;
    int first = 0;
    int r;

    if (dir_fd < 0) {
        return errno == ENOENT ? 0 : -errno; /* a kernel with everything built in */
    }
    r = file_read(dir_fd, "order", ORDER_MAX, &order);
    if (r < 0) {
        return r;
    }
    for (rest = buf_span(&order); rest.n > 0;) {
        size_t at = span_find(rest, 0, '\n');

        r = load_line(dir_fd, span_head(rest, at));
        first = first == 0 ? r : first;
        rest = span_skip(rest, at + 1);
    }
    return first;
}
