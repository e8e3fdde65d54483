#include "node/name_claim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/span.h"

#define LOCK_TRIES    50
#define LOCK_RETRY_MS 100
#define MARK_NAME     "trusted.space"
#define MARK_MAX      4224U /* two numbers, an id and a path */
#define PATH_SIZE     (CGROUP_PATH_SIZE + 300)

struct mark {
    uint64_t uid_first;
    uint64_t uid_count;
    char data_id[ID_SIZE]; /* "": of before there were ids */
    char data_dir[PATH_MAX];
};

/* ---- the mark ---- */

/* As it is named without symbolic links, which is the same for every settings file. */
static void real_path(const char *path, char out[PATH_MAX])
{
    if (realpath(path, out) == NULL) {
        (void)snprintf(out, PATH_MAX, "%s", path);
    }
}

static const char *own_id(const struct name_claim *claim)
{
    return claim->data_id != NULL ? claim->data_id : "";
}

static struct span take_word(struct span *rest)
{
    struct span word = span_head(*rest, span_find(*rest, 0, ' '));

    *rest = span_skip(*rest, word.n < rest->n ? word.n + 1 : word.n);
    return word;
}

/* 0, -ENODATA when there is none that can be read, or -EBADMSG. */
static int read_mark(int fd, struct mark *ret)
{
    char text[MARK_MAX];
    ssize_t n = fgetxattr(fd, MARK_NAME, text, sizeof(text));
    struct span rest;

    if (n < 0) {
        return -ENODATA;
    }
    rest = span_make(text, (size_t)n);
    ret->data_id[0] = '\0';
    if (span_parse_u64(take_word(&rest), UINT32_MAX, &ret->uid_first) < 0 ||
        span_parse_u64(take_word(&rest), UINT32_MAX, &ret->uid_count) < 0 ||
        (rest.n > 0 && rest.p[0] != '/' &&
         span_copy_str(take_word(&rest), ret->data_id, sizeof(ret->data_id)) < 0) ||
        span_copy_str(rest, ret->data_dir, sizeof(ret->data_dir)) < 0) {
        return -EBADMSG;
    }
    return 0;
}

/* A host without such attributes still has the locks. */
static void write_mark(int fd, const struct name_claim *claim)
{
    char path[PATH_MAX];
    char text[MARK_MAX];
    int n;

    real_path(claim->data_dir, path);
    n = snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu64 " %s%s%s", claim->uid_first,
                 claim->uid_count, own_id(claim), own_id(claim)[0] != '\0' ? " " : "", path);
    if (fsetxattr(fd, MARK_NAME, text, (size_t)n, 0) < 0) {
        log_warning("name_not_marked", "installation=%s error=%s", claim->installation,
                    strerror(errno));
    }
}

/* ---- who lives ---- */

static bool has_process(int dir_fd, const char *group)
{
    char path[NAME_MAX + 32];
    char byte;
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, &byte, 1) == 1;
}

/* Whether a VM is in one of its groups. */
static bool has_vm(const char *path)
{
    _cleanup_closedir_ DIR *dir = opendir(path);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, "vm-", 3) == 0 && has_process(dirfd(dir), entry->d_name)) {
            return true;
        }
    }
    return false;
}

/* ---- the name ---- */

static bool is_own(const struct name_claim *claim, const struct mark *mark)
{
    char own[PATH_MAX];

    real_path(claim->data_dir, own);
    return strcmp(mark->data_dir, own) == 0 &&
           (mark->data_id[0] == '\0' || strcmp(mark->data_id, own_id(claim)) == 0);
}

static int refuse_name(const struct name_claim *claim, const struct mark *mark, struct error *err)
{
    char own[PATH_MAX];
    char which[80] = "";

    real_path(claim->data_dir, own);
    if (strcmp(mark->data_dir, own) == 0 && !is_own(claim, mark)) {
        (void)snprintf(which, sizeof(which), " of another container, with the id %s",
                       mark->data_id);
    }
    return error_set(err, EADDRINUSE,
                     "the name %s is taken by the installation in %.100s%s: set another "
                     "`installation` in these settings, or stop that one with its own (`space "
                     "down`)",
                     claim->installation, mark->data_dir, which);
}

static int lock(int fd)
{
    const struct timespec pause = {0, LOCK_RETRY_MS * 1000000L};

    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return 0;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return -errno;
        }
        (void)nanosleep(&pause, NULL);
    }
    return -EWOULDBLOCK;
}

/* Whether the path still leads to what is open. */
static bool is_there(int fd, const char *path)
{
    struct stat opened;
    struct stat named;

    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

int name_claim_take(const struct cgroup *cg,
                    const struct name_claim *claim,
                    int *ret_fd,
                    struct error *err)
{
    const char *path = cg->parents[0];
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct mark mark = {.data_dir = "another directory"};
    int r;

    if (fd < 0) {
        return error_set(err, errno == ENOENT ? ESTALE : errno, "cannot open cgroup %.100s: %s",
                         path, strerror(errno));
    }
    r = lock(fd);
    if (r < 0 && r != -EWOULDBLOCK) {
        return error_set(err, -r, "cannot lock cgroup %.100s: %s", path, strerror(-r));
    }
    if (r == 0 && !is_there(fd, path)) {
        return error_set(err, ESTALE, "cgroup %.100s was removed again and again", path);
    }
    if (r < 0) {
        (void)read_mark(fd, &mark);
        return refuse_name(claim, &mark, err);
    }
    if (read_mark(fd, &mark) == 0 && !is_own(claim, &mark) && has_vm(path)) {
        return refuse_name(claim, &mark, err);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* ---- the uids ---- */

static bool meets(const struct name_claim *claim, const struct mark *mark)
{
    return mark->uid_first < claim->uid_first + claim->uid_count &&
           claim->uid_first < mark->uid_first + mark->uid_count;
}

static bool is_alive(int fd, const char *path)
{
    return (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK) || has_vm(path);
}

static int
compare_uids(const struct name_claim *claim, const char *top, const char *name, struct error *err)
{
    char path[PATH_SIZE];
    struct mark mark;
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/%s", top, name);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || read_mark(fd, &mark) < 0 || !meets(claim, &mark) || !is_alive(fd, path)) {
        return 0;
    }
    return error_set(err, EADDRINUSE,
                     "the VMM uids of %s, %" PRIu64 " to %" PRIu64 ", meet those of the "
                     "installation %.16s, %" PRIu64 " to %" PRIu64
                     ": set another node.vmm_uid_first",
                     claim->installation, claim->uid_first, claim->uid_first + claim->uid_count - 1,
                     name, mark.uid_first, mark.uid_first + mark.uid_count - 1);
}

int name_claim_mark(const struct cgroup *cg, const struct name_claim *claim, struct error *err)
{
    const char *slash = strrchr(cg->parents[0], '/');
    _cleanup_close_ int fd = open(cg->parents[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *dir = NULL;
    char top[CGROUP_PATH_SIZE];
    const struct dirent *entry;
    char had[MARK_MAX];
    ssize_t n;
    int r = 0;

    if (fd < 0 || slash == NULL) {
        return error_set(err, ENOENT, "cannot open cgroup %.100s", cg->parents[0]);
    }
    n = fgetxattr(fd, MARK_NAME, had, sizeof(had));
    write_mark(fd, claim); /* first: of two that start at once, one sees the other */
    (void)snprintf(top, sizeof(top), "%.*s", (int)(slash - cg->parents[0]), cg->parents[0]);
    dir = opendir(top);
    while (r == 0 && dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, claim->installation) != 0) {
            r = compare_uids(claim, top, entry->d_name, err);
        }
    }
    if (r < 0) {
        /* Who was refused holds up nobody else. */
        (void)(n < 0 ? fremovexattr(fd, MARK_NAME) : fsetxattr(fd, MARK_NAME, had, (size_t)n, 0));
    }
    return r;
}
