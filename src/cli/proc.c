#include "cli/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include <sys/pidfd.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#define STAT_LIMIT         4096U
#define RECORD_LIMIT       8192U
#define STAT_FIELD_START   22U
#define STAT_FIELDS_BEFORE 2U /* pid and command name, which ends with the last ')' */

static struct span next_word(struct span *rest)
{
    size_t end;
    struct span word;

    while (rest->n > 0 && (rest->p[0] == ' ' || rest->p[0] == '\n')) {
        *rest = span_skip(*rest, 1);
    }
    end = span_find(*rest, 0, ' ');
    word = span_head(*rest, end);
    *rest = span_skip(*rest, end);
    if (word.n > 0 && word.p[word.n - 1] == '\n') {
        word = span_head(word, word.n - 1);
    }
    return word;
}

int proc_find(pid_t pid, struct proc_ref *ret)
{
    _cleanup_buf_ struct buf text = buf_make(STAT_LIMIT);
    char path[64];
    struct span rest;
    size_t end = 0;
    uint64_t start_time;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pid <= 0 || file_read(AT_FDCWD, path, STAT_LIMIT, &text) < 0) {
        return -ESRCH;
    }
    rest = buf_span(&text);
    for (size_t at = span_find(rest, 0, ')'); at < rest.n; at = span_find(rest, at + 1, ')')) {
        end = at + 1;
    }
    rest = span_skip(rest, end);
    for (unsigned int field = STAT_FIELDS_BEFORE + 1; field < STAT_FIELD_START; field++) {
        struct span word = next_word(&rest);

        if (field == STAT_FIELDS_BEFORE + 1 &&
            (span_equals_str(word, "Z") || span_equals_str(word, "X"))) {
            return -ESRCH;
        }
    }
    if (span_parse_u64(next_word(&rest), UINT64_MAX, &start_time) < 0) {
        return -ESRCH;
    }
    *ret = (struct proc_ref){pid, start_time};
    return 0;
}

int proc_record_write(const char *path, const struct proc_ref *ref, const char *owner)
{
    _cleanup_buf_ struct buf text = buf_make(RECORD_LIMIT);

    buf_printf(&text, "%d %" PRIu64 " %s\n", (int)ref->pid, ref->start_time, owner);
    return buf_error(&text) != 0 ? -ENOMEM
                                 : file_write_atomic(AT_FDCWD, path, buf_span(&text), 0644, false);
}

static int read_record(const char *path, struct buf *text, struct proc_ref *ret, struct span *owner)
{
    struct span rest;
    uint64_t pid;
    uint64_t start_time;

    if (file_read(AT_FDCWD, path, RECORD_LIMIT, text) < 0) {
        return -ENOENT;
    }
    rest = buf_span(text);
    if (span_parse_u64(next_word(&rest), INT32_MAX, &pid) < 0 ||
        span_parse_u64(next_word(&rest), UINT64_MAX, &start_time) < 0 || pid == 0) {
        return -ENOENT;
    }
    rest = span_skip(rest, rest.n > 0 ? 1 : 0);
    *ret = (struct proc_ref){(pid_t)pid, start_time};
    *owner = span_head(rest, span_find(rest, 0, '\n'));
    return 0;
}

int proc_record_read(const char *path, struct proc_ref *ret)
{
    _cleanup_buf_ struct buf text = buf_make(RECORD_LIMIT);
    struct span owner;

    return read_record(path, &text, ret, &owner);
}

int proc_record_owner(const char *path, char *out, size_t out_size)
{
    _cleanup_buf_ struct buf text = buf_make(RECORD_LIMIT);
    struct proc_ref ref;
    struct span owner;

    if (read_record(path, &text, &ref, &owner) < 0 || owner.n == 0) {
        return -ENOENT;
    }
    return span_copy_str(owner, out, out_size) < 0 ? -ENOENT : 0;
}

bool proc_is_alive(const struct proc_ref *ref)
{
    struct proc_ref now;

    return proc_find(ref->pid, &now) == 0 && now.start_time == ref->start_time;
}

int proc_open(const struct proc_ref *ref)
{
    _cleanup_close_ int fd = ref->pid > 0 ? pidfd_open(ref->pid, 0) : -1;

    /* The check comes after the open: the descriptor then means the process that was checked. */
    if (fd < 0 || !proc_is_alive(ref)) {
        return -ESRCH;
    }
    return TAKE_FD(fd);
}

int proc_signal(const struct proc_ref *ref, int number)
{
    _cleanup_close_ int fd = proc_open(ref);

    if (fd < 0) {
        return -ESRCH;
    }
    return pidfd_send_signal(fd, number, NULL, 0) < 0 ? -errno : 0;
}

int proc_wait_end(const struct proc_ref *ref, int timeout_ms)
{
    _cleanup_close_ int fd = proc_open(ref);
    int64_t end_ms = clock_monotonic_ms() + timeout_ms;

    while (fd >= 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = end_ms - clock_monotonic_ms();
        int r = poll(&p, 1, left > 0 ? (int)left : 0);

        if (r > 0) {
            return 0;
        }
        if (r == 0) {
            return -ETIMEDOUT;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

bool proc_runs_file(const struct proc_ref *ref, const char *path)
{
    struct stat running;
    struct stat installed;
    char exe[64];

    (void)snprintf(exe, sizeof(exe), "/proc/%d/exe", (int)ref->pid);
    if (stat(exe, &running) < 0 || stat(path, &installed) < 0) {
        return true; /* another user's process, or it has ended: nothing is known against it */
    }
    return running.st_dev == installed.st_dev && running.st_ino == installed.st_ino;
}

int proc_exe_name(const struct proc_ref *ref, char *out, size_t out_size)
{
    static const char deleted[] = " (deleted)";
    char exe[64];
    char target[4096];
    const char *slash;
    size_t length;
    ssize_t n;

    (void)snprintf(exe, sizeof(exe), "/proc/%d/exe", (int)ref->pid);
    n = readlink(exe, target, sizeof(target) - 1);
    if (n < 0) {
        return -errno;
    }
    target[n] = '\0';
    slash = strrchr(target, '/');
    slash = slash != NULL ? slash + 1 : target;
    length = strlen(slash);
    if (length > sizeof(deleted) - 1 &&
        strcmp(&slash[length - (sizeof(deleted) - 1)], deleted) == 0) {
        length -= sizeof(deleted) - 1;
    }
    return span_copy_str(span_make(slash, length), out, out_size);
}

int proc_started_at(const struct proc_ref *ref, int64_t *ret_real_ms)
{
    long ticks = sysconf(_SC_CLK_TCK);
    struct timespec boot;

    if (ticks <= 0 || clock_gettime(CLOCK_BOOTTIME, &boot) < 0) {
        return -EIO;
    }
    *ret_real_ms = clock_real_ms() - ((int64_t)boot.tv_sec * 1000 + boot.tv_nsec / 1000000) +
                   (int64_t)(ref->start_time * 1000 / (uint64_t)ticks);
    return 0;
}
