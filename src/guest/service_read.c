/* file-read: a file, or a range of it, from the page cache into the pipe without a copy. */
#include <errno.h>
#include <fcntl.h>

#include <sys/vfs.h>

#include <linux/magic.h>

#include "base/fd.h"
#include "guest/service_path.h"

#define SPLICE_BYTES 262144U
#define READ_BYTES   65536U

struct range {
    uint64_t offset;
    uint64_t length;
};

/* "", "A-B", "A-" or "-N", cut to the size. -EINVAL, or -ERANGE when nothing of it is there. */
static int parse_range(struct span text, uint64_t size, struct range *ret)
{
    size_t dash = span_find(text, 0, '-');
    struct span head = span_head(text, dash);
    struct span tail = span_skip(text, dash + 1);
    uint64_t first = 0;
    uint64_t last = UINT64_MAX;

    if (text.n == 0) {
        *ret = (struct range){0, size};
        return 0;
    }
    if (dash == text.n || (head.n == 0 && tail.n == 0) ||
        (head.n > 0 && span_parse_u64(head, UINT64_MAX, &first) < 0) ||
        (tail.n > 0 && span_parse_u64(tail, UINT64_MAX, &last) < 0) ||
        (head.n > 0 && first > last)) {
        return -EINVAL;
    }
    if (head.n == 0) {
        first = last < size ? size - last : 0;
        last = last == 0 ? 0 : UINT64_MAX;
        if (last == 0) {
            return -ERANGE;
        }
    }
    if (first >= size) {
        return -ERANGE;
    }
    *ret = (struct range){first, (last < size ? last + 1 : size) - first};
    return 0;
}

/* Opens a regular file, whatever the path leads to: nothing else is ever opened for reading, so no
 * fifo blocks and no device notices. */
static int open_regular(const char *path, struct stat *ret_stat, int *ret_path_fd)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    int content;

    if (fd < 0 || fstat(fd, ret_stat) < 0) {
        return -errno;
    }
    if (!S_ISREG(ret_stat->st_mode)) {
        return S_ISDIR(ret_stat->st_mode) ? -EISDIR : -EINVAL;
    }
    content = path_reopen(fd, O_RDONLY);
    if (content >= 0) {
        *ret_path_fd = TAKE_FD(fd);
    }
    return content;
}

/* Files of the kernel say 0, or a page, whatever they hold; so may one that is just being filled.
 */
static bool has_no_size(int fd, const struct stat *st)
{
    struct statfs fs;

    if (st->st_size != 0 && (fstatfs(fd, &fs) < 0 || fs.f_type != SYSFS_MAGIC)) {
        return false;
    }
    return st->st_blocks == 0;
}

/* What such a file holds, after what was read of it already. 0 or -errno. */
static int copy_all(int fd, uint8_t *bytes, size_t n)
{
    while (n > 0) {
        int r = fd_write_all(SERVICE_OUT, span_make(bytes, n));
        ssize_t more = r < 0 ? 0 : read(fd, bytes, READ_BYTES);

        if (r < 0 || more < 0) {
            return r < 0 ? r : -errno;
        }
        n = (size_t)more;
    }
    return 0;
}

/* For a filesystem without splice. */
static ssize_t copy_some(int fd, off_t *offset, size_t n)
{
    uint8_t bytes[READ_BYTES];
    ssize_t got = pread(fd, bytes, n < sizeof(bytes) ? n : sizeof(bytes), *offset);
    int r = got <= 0 ? 0 : fd_write_all(SERVICE_OUT, span_make(bytes, (size_t)got));

    if (r < 0) {
        errno = -r;
        return -1;
    }
    *offset += got > 0 ? got : 0;
    return got;
}

/* -ENODATA when the file has become shorter. */
static int copy_range(int fd, const struct range *range)
{
    off_t offset = (off_t)range->offset;
    uint64_t left = range->length;

    while (left > 0) {
        size_t n = left < SPLICE_BYTES ? (size_t)left : SPLICE_BYTES;
        ssize_t done = splice(fd, &offset, SERVICE_OUT, NULL, n, SPLICE_F_MOVE);

        if (done < 0 && errno == EINVAL) {
            done = copy_some(fd, &offset, n);
        }
        if (done < 0 && errno != EINTR) {
            return -errno;
        }
        if (done == 0) {
            return -ENODATA;
        }
        left -= done > 0 ? (uint64_t)done : 0;
    }
    return 0;
}

static int send_kernel_file(struct service *s, int fd)
{
    uint8_t bytes[READ_BYTES];
    ssize_t n = read(fd, bytes, sizeof(bytes));
    int r;

    if (n < 0) {
        return -errno;
    }
    r = service_begin_body(s, 0, n == 0 ? 0 : SERVICE_LENGTH_UNKNOWN);
    return r < 0 ? r : copy_all(fd, bytes, (size_t)n);
}

static int read_file(struct service *s, const char *path, struct span range_text)
{
    _cleanup_buf_ struct buf absolute = buf_make(0);
    _cleanup_close_ int path_fd = -1;
    struct range range = {0, 0};
    struct stat st = {.st_size = 0};
    _cleanup_close_ int fd = open_regular(path, &st, &path_fd);
    bool unsized;
    int bad_range;
    int r = fd < 0 ? fd : path_put_absolute(&absolute, path);

    if (r < 0) {
        return r;
    }
    unsized = has_no_size(fd, &st);
    if (unsized) {
        st.st_size = 0;
    }
    bad_range = parse_range(range_text, (uint64_t)st.st_size, &range);
    if (bad_range == -EINVAL) {
        return -EINVAL;
    }
    /* One size for ENTRY and BODY, whatever others write to the file meanwhile. */
    r = path_put_entry_as(s, buf_span(&absolute), path_fd, &st);
    if (r < 0 || bad_range < 0) {
        return r < 0 ? r : bad_range;
    }
    if (range_text.n == 0 && unsized) {
        return send_kernel_file(s, fd);
    }
    r = service_begin_body(s, range.offset, range.length);
    return r < 0 ? r : copy_range(fd, &range);
}

int service_file_read(struct service *s)
{
    const char *path = service_arg(s, 0);
    int r = s->argc == 2 ? read_file(s, path, span_of_str(service_arg(s, 1))) : -EINVAL;

    return r < 0 ? service_fail(s, r, path) : 0;
}
