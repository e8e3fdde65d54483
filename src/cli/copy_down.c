/* `space cp` out of a sandbox. The guest is hostile: see unpack.h for trees; a single file is
 * written under a name of ours and renamed to its place. */
#include <archive.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/copy.h"
#include "cli/unpack.h"

#define MODE_MASK     0777U
#define NEW_DIRECTORY 0755U

/* Where something comes to lie: a directory, and a name in it. */
struct landing {
    int dir_fd;
    char name[NAME_MAX + 1];
};

/* "0644" of an entry; other digits give 0600. */
static mode_t entry_mode(const json_t *entry)
{
    const char *text = api_text(entry, "mode");
    unsigned int mode = 0;

    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '7' || mode > MODE_MASK * 8) {
            return 0600;
        }
        mode = mode * 8 + (unsigned int)(*c - '0');
    }
    return text[0] != '\0' ? mode & MODE_MASK : 0600;
}

static void entry_times(const json_t *entry, struct timespec times[2])
{
    int64_t ms;

    times[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    times[1] = times[0];
    if (clock_parse(api_text(entry, "modified_at"), &ms) == 0 && ms >= 0) {
        times[1] = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    }
}

/* Opens the directory of `path` (as the user typed it: links in it are followed). */
static int open_landing(const char *path, struct landing *ret, struct error *err)
{
    char parent[COPY_NAME_SIZE];
    char *slash;

    if (copy_name_base(path, ret->name) < 0 || ret->name[0] == '\0' ||
        snprintf(parent, sizeof(parent), "%s", path) >= (int)sizeof(parent)) {
        return error_set(err, EINVAL, "%.200s is no name for a file", path);
    }
    slash = strrchr(parent, '/');
    if (slash != NULL) {
        slash[slash == parent ? 1 : 0] = '\0';
    }
    ret->dir_fd = open(slash != NULL ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return ret->dir_fd < 0
               ? error_set(err, errno, "%.200s: %s", slash != NULL ? parent : ".", strerror(errno))
               : 0;
}

/* ---- a file ---- */

static int write_source(struct copy *c, struct copy_source *s, int fd, struct error *err)
{
    uint64_t done = 0;
    int r;

    while ((r = copy_source_next(s)) > 0) {
        r = fd_write_all(fd, buf_span(&s->given));
        if (r < 0) {
            return error_set(err, -r, "cannot write: %s", strerror(-r));
        }
        done += s->given.n;
        progress_show(&c->progress, done, 0);
    }
    if (r < 0) {
        *err = s->err;
        return r;
    }
    progress_done(&c->progress, done, 0);
    return 0;
}

static int receive(struct copy *c, const char *remote, int fd, struct error *err)
{
    struct copy_source s;
    int r = copy_source_start(&s, c, "", remote);

    if (r < 0) {
        *err = s.err;
    } else {
        r = write_source(c, &s, fd, err);
    }
    copy_source_done(&s);
    return r;
}

static int receive_to_landing(struct copy *c,
                              const char *remote,
                              const json_t *entry,
                              const struct landing *to,
                              struct error *err)
{
    _cleanup_close_ int fd = -1;
    struct timespec times[2];
    char temporary[32];
    char id[ID_SIZE];
    int r = id_make("cp", id);

    (void)snprintf(temporary, sizeof(temporary), ".space-%s", r == 0 ? id : "cp");
    fd = openat(to->dir_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return error_set(err, errno, "cannot write there: %s", strerror(errno));
    }
    r = receive(c, remote, fd, err);
    if (r == 0) {
        entry_times(entry, times);
        if (fchmod(fd, entry_mode(entry)) < 0 || futimens(fd, times) < 0 ||
            renameat(to->dir_fd, temporary, to->dir_fd, to->name) < 0) {
            r = error_set(err, errno, "cannot write %.160s: %s", to->name, strerror(errno));
        }
    }
    if (r < 0) {
        (void)unlinkat(to->dir_fd, temporary, 0);
    }
    return r;
}

/* A device or pipe that the user named is written to, not replaced. */
static int
receive_to_special(struct copy *c, const char *remote, const char *local, struct error *err)
{
    _cleanup_close_ int fd = open(local, O_WRONLY | O_CLOEXEC | O_NOCTTY);

    return fd < 0 ? error_set(err, errno, "cannot write %.200s: %s", local, strerror(errno))
                  : receive(c, remote, fd, err);
}

static int receive_file(
    struct copy *c, const char *remote, const json_t *entry, const char *local, struct error *err)
{
    _cleanup_free_ char *behind = realpath(local, NULL); /* a link that the user named */
    const char *path = behind != NULL ? behind : local;
    struct landing to = {.dir_fd = -1};
    struct stat st;
    int r;

    progress_init(&c->progress, c->cli, remote, (uint64_t)api_number(entry, "size_bytes"));
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return S_ISDIR(st.st_mode) ? error_set(err, EISDIR, "%.200s is a directory", local)
                                   : receive_to_special(c, remote, path, err);
    }
    r = open_landing(path, &to, err);
    if (r == 0) {
        r = receive_to_landing(c, remote, entry, &to, err);
        (void)close(to.dir_fd);
    }
    return r;
}

/* ---- a link ---- */

static int receive_link(const json_t *entry, const char *local, struct error *err)
{
    const char *target = api_text(entry, "symlink_target");
    struct landing to = {.dir_fd = -1};
    char temporary[32];
    char id[ID_SIZE];
    int r;

    if (target[0] == '\0' || id_make("cp", id) < 0) {
        return error_set(err, EBADMSG, "the sandbox does not say where the link leads");
    }
    r = open_landing(local, &to, err);
    if (r < 0) {
        return r;
    }
    (void)snprintf(temporary, sizeof(temporary), ".space-%s", id);
    if (symlinkat(target, to.dir_fd, temporary) < 0 ||
        renameat(to.dir_fd, temporary, to.dir_fd, to.name) < 0) {
        r = error_set(err, errno, "cannot make %.200s: %s", local, strerror(errno));
        (void)unlinkat(to.dir_fd, temporary, 0);
    }
    (void)close(to.dir_fd);
    return r;
}

/* ---- a tree ---- */

static int on_progress(void *arg, const struct unpack_count *count)
{
    struct copy *c = arg;

    progress_show(&c->progress, count->bytes, count->files);
    return 0; /* signals are seen where the bytes come from */
}

static int unpack_source(struct copy *c, struct copy_source *s, struct unpack *u, struct error *err)
{
    struct archive *archive = copy_source_open(s);
    int r;

    if (archive == NULL) {
        *err = s->err;
        return -s->err.errnum;
    }
    r = unpack_all(u, archive, err);
    while (r == 0 && (r = copy_source_next(s)) > 0) {
        r = 0; /* what follows the archive's end; the connection's own end is to be seen */
    }
    if (r < 0 && s->err.errnum != 0) {
        *err = s->err;
        r = -s->err.errnum;
    }
    (void)archive_read_free(archive);
    copy_tell_left_out(c, u->count.left_out, u->count.first_left_out,
                       "it is a device, pipe or socket");
    if (r == 0) {
        progress_done(&c->progress, u->count.bytes, u->count.files);
    }
    return r;
}

static int
receive_tree(struct copy *c, const char *remote, int top_fd, bool is_new, struct error *err)
{
    struct unpack u = {
        .top_fd = top_fd, .top_is_new = is_new, .on_progress = on_progress, .arg = c};
    struct copy_source s;
    int r;

    progress_init(&c->progress, c->cli, remote, 0);
    r = copy_source_start(&s, c, "/tar", remote);
    if (r < 0) {
        *err = s.err;
    } else {
        r = unpack_source(c, &s, &u, err);
    }
    copy_source_done(&s);
    return r;
}

/* Makes or opens the directory that the tree becomes. The name in a directory which the user gave
 * is never followed: an earlier copy may have put a link there. */
static int open_top(const char *directory, const char *base, bool *ret_is_new, struct error *err)
{
    int dir_fd = -1;
    int fd = -1;
    int made;

    if (base[0] == '\0') {
        made = mkdir(directory, NEW_DIRECTORY);
        if (made == 0 || errno == EEXIST) {
            fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
    } else {
        dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        made = dir_fd >= 0 ? mkdirat(dir_fd, base, NEW_DIRECTORY) : -1;
        if (made == 0 || (dir_fd >= 0 && errno == EEXIST)) {
            fd = openat(dir_fd, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
    }
    if (fd < 0) {
        (void)error_set(err, errno, "cannot make the directory %.160s%s%.60s: %s", directory,
                        base[0] != '\0' ? "/" : "", base, strerror(errno));
    }
    if (dir_fd >= 0) {
        (void)close(dir_fd);
    }
    *ret_is_new = made == 0;
    return fd;
}

/* Of a copy that was refused nothing stays: the next one would go into it. */
static void remove_empty_top(const char *directory, const char *base)
{
    _cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (base[0] == '\0') {
        (void)rmdir(directory); /* fails where something was copied */
    } else if (fd >= 0) {
        (void)unlinkat(fd, base, AT_REMOVEDIR);
    }
}

static int
receive_directory(struct copy *c, const char *remote, const char *local, struct error *err)
{
    char base[NAME_MAX + 1] = "";
    bool is_new = false;
    struct stat st;
    int top_fd;
    int r;

    if (stat(local, &st) == 0 && copy_name_base(remote, base) < 0) {
        return error_set(err, ENAMETOOLONG, "the name is too long");
    }
    top_fd = open_top(local, base, &is_new, err);
    if (top_fd < 0) {
        return -err->errnum;
    }
    r = receive_tree(c, remote, top_fd, is_new, err);
    (void)close(top_fd);
    if (r < 0 && is_new) {
        remove_empty_top(local, base);
    }
    return r;
}

int copy_down(struct copy *c, const char *remote, const char *local, struct error *err)
{
    _cleanup_json_ json_t *entry = NULL;
    char target[COPY_NAME_SIZE];
    char base[NAME_MAX + 1];
    enum copy_kind kind;
    struct stat st;
    bool into = stat(local, &st) == 0 && S_ISDIR(st.st_mode);
    int r = copy_stat(c, remote, &kind, &entry, err);

    if (r < 0) {
        return r;
    }
    if (kind == COPY_DIRECTORY) {
        return receive_directory(c, remote, local, err);
    }
    if (kind == COPY_MISSING || kind == COPY_OTHER) {
        return error_set_code(err, kind == COPY_MISSING ? ERROR_NOT_FOUND : ERROR_CONFLICT, "file",
                              kind == COPY_MISSING ? "there is no %.200s in the sandbox"
                                                   : "%.200s is no file, directory or link",
                              remote);
    }
    if (!into && copy_name_is_directory(local)) {
        return error_set(err, ENOENT, "there is no directory %.200s", local);
    }
    if (snprintf(target, sizeof(target), "%s", local) >= (int)sizeof(target) ||
        (into && (copy_name_base(remote, base) < 0 || copy_join(local, base, target, err) < 0))) {
        return error_set(err, ENAMETOOLONG, "the name is too long");
    }
    return kind == COPY_FILE ? receive_file(c, remote, entry, target, err)
                             : receive_link(entry, target, err);
}
