#include "cli/pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/fd.h"

#define DEPTH_MAX       256
#define READ_STEP       131072U
#define PENDING_LIMIT   (1024U * 1024U)
#define ENTRY_MODE_MASK 07777U

struct level {
    DIR *dir;
    size_t name_length; /* of this directory in `name` */
};

struct pack {
    struct archive *archive;
    struct archive_entry *entry;
    struct buf pending; /* made and not yet given out */
    char name[PATH_MAX];
    struct level levels[DEPTH_MAX];
    size_t depth;
    int file_fd; /* being read; -1: none */
    int64_t file_left;
    bool ended;
    struct pack_count count;
    uint8_t step[READ_STEP];
};

static la_ssize_t on_write(struct archive *a, void *arg, const void *bytes, size_t n)
{
    struct pack *p = arg;

    buf_put(&p->pending, span_make(bytes, n));
    if (buf_error(&p->pending) < 0) {
        archive_set_error(a, ENOMEM, "out of memory");
        return -1;
    }
    return (la_ssize_t)n;
}

static int archive_failed(const struct pack *p, struct error *err)
{
    return error_set(err, EIO, "cannot make the archive: %.200s", archive_error_string(p->archive));
}

static void leave_out(struct pack *p, const char *name)
{
    if (p->count.left_out++ == 0) {
        (void)snprintf(p->count.first_left_out, sizeof(p->count.first_left_out), "%.255s", name);
    }
}

static void set_entry(struct pack *p, const struct stat *st)
{
    archive_entry_clear(p->entry);
    archive_entry_copy_pathname(p->entry, p->name[0] != '\0' ? p->name : ".");
    archive_entry_set_filetype(p->entry, st->st_mode & S_IFMT);
    archive_entry_set_perm(p->entry, st->st_mode & ENTRY_MODE_MASK);
    archive_entry_set_mtime(p->entry, st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    archive_entry_set_size(p->entry, S_ISREG(st->st_mode) ? st->st_size : 0);
}

static int put_header(struct pack *p, struct error *err)
{
    int r = archive_write_header(p->archive, p->entry);

    p->count.files++;
    return r < ARCHIVE_WARN ? archive_failed(p, err) : 0;
}

static int begin_file(struct pack *p, int dir_fd, const char *base, struct error *err)
{
    _cleanup_close_ int fd =
        openat(dir_fd, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        leave_out(p, p->name);
        return 0;
    }
    set_entry(p, &st);
    if (put_header(p, err) < 0) {
        return -EIO;
    }
    p->file_fd = TAKE_FD(fd);
    p->file_left = st.st_size;
    return 0;
}

static int
begin_link(struct pack *p, int dir_fd, const char *base, const struct stat *st, struct error *err)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(dir_fd, base, target, sizeof(target) - 1);

    if (n < 0) {
        leave_out(p, p->name);
        return 0;
    }
    target[n] = '\0';
    set_entry(p, st);
    archive_entry_copy_symlink(p->entry, target);
    return put_header(p, err);
}

static int begin_directory(
    struct pack *p, int dir_fd, const char *base, const struct stat *st, struct error *err)
{
    int fd = openat(dir_fd, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        leave_out(p, p->name);
        return 0;
    }
    if (p->depth >= DEPTH_MAX) {
        (void)closedir(dir);
        return error_set(err, ENAMETOOLONG, "%.120s…: deeper than %d directories", p->name,
                         DEPTH_MAX);
    }
    p->levels[p->depth++] = (struct level){dir, strlen(p->name)};
    set_entry(p, st);
    return put_header(p, err);
}

/* The entry `base` of a directory, called p->name in the archive. */
static int begin_entry(struct pack *p, int dir_fd, const char *base, struct error *err)
{
    struct stat st;

    if (fstatat(dir_fd, base, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        leave_out(p, p->name);
        return 0;
    }
    if (S_ISREG(st.st_mode)) {
        return begin_file(p, dir_fd, base, err);
    }
    if (S_ISLNK(st.st_mode)) {
        return begin_link(p, dir_fd, base, &st, err);
    }
    if (S_ISDIR(st.st_mode)) {
        return begin_directory(p, dir_fd, base, &st, err);
    }
    leave_out(p, p->name);
    return 0;
}

static int step_directory(struct pack *p, struct error *err)
{
    struct level *level = &p->levels[p->depth - 1];
    const struct dirent *entry = readdir(level->dir);
    size_t n = level->name_length;

    p->name[n] = '\0';
    if (entry == NULL) {
        (void)closedir(level->dir);
        p->depth--;
        return 0;
    }
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
        return 0;
    }
    if (snprintf(&p->name[n], sizeof(p->name) - n, "%s%s", n > 0 ? "/" : "", entry->d_name) >=
        (int)(sizeof(p->name) - n)) {
        return error_set(err, ENAMETOOLONG, "%.100s…: the path is too long", p->name);
    }
    return begin_entry(p, dirfd(level->dir), entry->d_name, err);
}

static int end_file(struct pack *p, struct error *err)
{
    (void)close(TAKE_FD(p->file_fd));
    return archive_write_finish_entry(p->archive) < ARCHIVE_WARN ? archive_failed(p, err) : 0;
}

static int step_file(struct pack *p, struct error *err)
{
    size_t want = p->file_left < (int64_t)READ_STEP ? (size_t)p->file_left : READ_STEP;
    ssize_t n = want > 0 ? read(p->file_fd, p->step, want) : 0;

    if (n < 0 && errno == EINTR) {
        return 0;
    }
    if (n < 0) {
        return error_set(err, errno, "cannot read %.160s: %s", p->name, strerror(errno));
    }
    if (n == 0) {
        p->count.changed += p->file_left > 0 ? 1 : 0;
        return end_file(p, err);
    }
    p->file_left -= n;
    p->count.bytes += (uint64_t)n;
    return archive_write_data(p->archive, p->step, (size_t)n) < 0 ? archive_failed(p, err) : 0;
}

static int step(struct pack *p, struct error *err)
{
    if (p->file_fd >= 0) {
        return step_file(p, err);
    }
    if (p->depth > 0) {
        return step_directory(p, err);
    }
    p->ended = true;
    return archive_write_close(p->archive) < ARCHIVE_WARN ? archive_failed(p, err) : 0;
}

static int open_archive(struct pack *p)
{
    p->archive = archive_write_new();
    p->entry = archive_entry_new();
    if (p->archive == NULL || p->entry == NULL ||
        archive_write_set_format_pax_restricted(p->archive) != ARCHIVE_OK ||
        archive_write_add_filter_none(p->archive) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(p->archive, 0) != ARCHIVE_OK ||
        archive_write_open(p->archive, p, NULL, on_write, NULL) != ARCHIVE_OK) {
        return -ENOMEM;
    }
    return 0;
}

int pack_new(const char *path, const char *name, struct pack **ret, struct error *err)
{
    _cleanup_pack_ struct pack *p = calloc(1, sizeof(*p));
    int r;

    if (p == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    p->file_fd = -1;
    p->pending = buf_make(0);
    if (open_archive(p) < 0 || strlen(name) >= sizeof(p->name)) {
        return error_set(err, ENOMEM, "out of memory");
    }
    (void)snprintf(p->name, sizeof(p->name), "%s", name);
    r = begin_entry(p, AT_FDCWD, path, err);
    if (r == 0 && p->count.left_out > 0) {
        r = error_set(err, EACCES, "cannot read %.200s, or it is no file, link or directory", path);
    }
    if (r < 0) {
        return r;
    }
    *ret = TAKE(p);
    return 0;
}

void pack_free(struct pack *p)
{
    if (p == NULL) {
        return;
    }
    while (p->depth > 0) {
        (void)closedir(p->levels[--p->depth].dir);
    }
    if (p->file_fd >= 0) {
        (void)close(p->file_fd);
    }
    (void)archive_write_free(p->archive);
    archive_entry_free(p->entry);
    buf_done(&p->pending);
    free(p);
}

ssize_t pack_read(struct pack *p, void *to, size_t room, struct error *err)
{
    size_t n;

    while (!p->ended && p->pending.n < room && p->pending.n < PENDING_LIMIT) {
        int r = step(p, err);

        if (r < 0) {
            return r;
        }
    }
    n = p->pending.n < room ? p->pending.n : room;
    memcpy(to, p->pending.p, n);
    buf_consume(&p->pending, n);
    return (ssize_t)n;
}

const struct pack_count *pack_get_count(const struct pack *p)
{
    return &p->count;
}
