#include "base/fault_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <sys/types.h>

#define ENDLESS 100000U

/* What the linker makes of a wrapped function: __real_ is the one of the C library. */
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
int __real_open(const char *path, int flags, ...);
int __real_openat(int dirfd, const char *path, int flags, ...);
ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __real_write(int fd, const void *from, size_t n);
ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t at);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t n);
int __real_rename(const char *from, const char *to);
int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __real_epoll_create1(int flags);
int __real_eventfd(unsigned int count, int flags);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int dirfd, const char *path, int flags, ...);
ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_write(int fd, const void *from, size_t n);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_ftruncate(int fd, off_t n);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_epoll_create1(int flags);
int __wrap_eventfd(unsigned int count, int flags);

static atomic_uint next_number;
static unsigned int first_bad;
static unsigned int last_bad;
static atomic_bool happened;

void fault_arm(unsigned int number, bool all)
{
    first_bad = number;
    last_bad = all ? UINT_MAX : number;
    atomic_store(&happened, false);
    atomic_store(&next_number, 1);
}

bool fault_disarm(void)
{
    first_bad = 0;
    last_bad = 0;
    return atomic_load(&happened);
}

unsigned int fault_each(void (*run)(void *arg), void *arg)
{
    unsigned int count = 0;

    for (int all = 0; all < 2; all++) {
        bool more = true;

        for (unsigned int number = 1; more; number++) {
            if (number > ENDLESS) {
                abort();
            }
            fault_arm(number, all != 0);
            run(arg);
            more = fault_disarm();
            count += more ? 1 : 0;
        }
    }
    return count;
}

static bool is_bad(int errnum)
{
    unsigned int number;

    if (first_bad == 0) {
        return false;
    }
    number = atomic_fetch_add(&next_number, 1);
    if (number < first_bad || number > last_bad) {
        return false;
    }
    atomic_store(&happened, true);
    errno = errnum;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return is_bad(ENOMEM) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
    return is_bad(ENOMEM) ? NULL : __real_calloc(count, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return is_bad(ENOMEM) ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *text)
{
    return is_bad(ENOMEM) ? NULL : __real_strdup(text);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return is_bad(EMFILE) ? -1 : __real_open(path, flags, mode);
}

int __wrap_openat(int dirfd, const char *path, int flags, ...)
{
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return is_bad(EMFILE) ? -1 : __real_openat(dirfd, path, flags, mode);
}

ssize_t __wrap_read(int fd, void *to, size_t n)
{
    return is_bad(EIO) ? -1 : __real_read(fd, to, n);
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    return is_bad(EIO) ? -1 : __real_pread(fd, to, n, at);
}

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
    return is_bad(ENOSPC) ? -1 : __real_write(fd, from, n);
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at)
{
    return is_bad(ENOSPC) ? -1 : __real_pwrite(fd, from, n, at);
}

int __wrap_fsync(int fd)
{
    return is_bad(EIO) ? -1 : __real_fsync(fd);
}

int __wrap_fdatasync(int fd)
{
    return is_bad(EIO) ? -1 : __real_fdatasync(fd);
}

int __wrap_ftruncate(int fd, off_t n)
{
    return is_bad(ENOSPC) ? -1 : __real_ftruncate(fd, n);
}

int __wrap_rename(const char *from, const char *to)
{
    return is_bad(ENOSPC) ? -1 : __real_rename(from, to);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return is_bad(ENOSPC) ? -1 : __real_renameat(from_fd, from, to_fd, to);
}

int __wrap_epoll_create1(int flags)
{
    return is_bad(EMFILE) ? -1 : __real_epoll_create1(flags);
}

int __wrap_eventfd(unsigned int count, int flags)
{
    return is_bad(EMFILE) ? -1 : __real_eventfd(count, flags);
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
