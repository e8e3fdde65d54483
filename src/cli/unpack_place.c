#include "cli/unpack_place.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/openat2.h>

#include "base/cleanup.h"
#include "base/span.h"

#define NEW_DIRECTORY 0755U
#define WALK_FLAGS    (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

void place_init(struct place *p, int top_fd)
{
    *p = (struct place){.top_fd = top_fd, .parent_fd = -1};
}

void place_done(struct place *p)
{
    if (p->parent_fd >= 0) {
        (void)close(p->parent_fd);
    }
    p->parent_fd = -1;
}

static int open_beneath(int top_fd, const char *name, int flags)
{
    const struct open_how how = {
        .flags = (uint64_t)flags,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    long fd = syscall(SYS_openat2, top_fd, name, &how, sizeof(how));

    return fd < 0 ? -errno : (int)fd;
}

/* Component by component; where the kernel has no openat2, and to make what is missing. */
static int walk(int top_fd, const char *name, bool make)
{
    struct span rest = span_of_str(name);
    int fd = fcntl(top_fd, F_DUPFD_CLOEXEC, 3);

    while (fd >= 0 && rest.n > 0) {
        struct span component = span_head(rest, span_find(rest, 0, '/'));
        char text[NAME_MAX + 1];
        int next = -ENAMETOOLONG;

        rest = span_skip(rest, component.n + 1);
        if (span_copy_str(component, text, sizeof(text)) == 0) {
            next = make && mkdirat(fd, text, NEW_DIRECTORY) < 0 && errno != EEXIST
                       ? -errno
                       : openat(fd, text, WALK_FLAGS);
            next = next == -1 ? -errno : next;
        }
        (void)close(fd);
        fd = next;
    }
    return fd == -1 ? -errno : fd;
}

static int open_directory(int top_fd, const char *name, bool make)
{
    int fd;

    if (name[0] == '\0') {
        fd = fcntl(top_fd, F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? -errno : fd;
    }
    fd = open_beneath(top_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd == -ENOSYS || fd == -EPERM || (fd == -ENOENT && make)) {
        fd = walk(top_fd, name, make);
    }
    return fd;
}

int place_open_parent(struct place *p, const char *name, const char **ret_base)
{
    const char *slash = strrchr(name, '/');
    size_t n = slash != NULL ? (size_t)(slash - name) : 0;
    char parent[COPY_NAME_SIZE];
    int fd;

    memcpy(parent, name, n);
    parent[n] = '\0';
    if (p->parent_fd < 0 || strcmp(p->parent, parent) != 0) {
        place_done(p);
        fd = open_directory(p->top_fd, parent, true);
        if (fd < 0) {
            return fd;
        }
        p->parent_fd = fd;
        memcpy(p->parent, parent, n + 1);
    }
    *ret_base = slash != NULL ? slash + 1 : name;
    return p->parent_fd;
}

int place_open_directory(const struct place *p, const char *name)
{
    _cleanup_close_ int fd = open_directory(p->top_fd, name, false);
    int readable;

    if (fd < 0) {
        return fd;
    }
    readable = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return readable < 0 ? -errno : readable;
}
