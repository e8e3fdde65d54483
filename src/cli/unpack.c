#include "cli/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/id.h"
#include "cli/unpack_place.h"

#define CLOCK_PAUSE_NS   1000000
#define CLOCK_TRIES      20
#define MODE_MASK        0777U
#define PLAIN_DIRECTORY  0755U
#define DIRECTORIES_MAX  (COPY_NAME_SIZE / 2) /* components of the longest name */
#define BLOCK_STEP_BYTES 4194304U             /* between two calls of on_progress */

/* A directory whose mode and time are due when the walk leaves it. */
struct open_directory {
    size_t name_length; /* of unpacker.walk */
    unsigned int mode;
    struct timespec time;
};

struct unpacker {
    struct unpack *u;
    struct archive *archive;
    struct place place;
    struct timespec began; /* by the clock of the filesystem */
    char temporary[32];
    char walk[COPY_NAME_SIZE]; /* the innermost open directory */
    struct open_directory *directories;
    size_t depth;
};

struct archive *unpack_new_reader(void)
{
    struct archive *a = archive_read_new();

    if (a != NULL && archive_read_support_format_tar(a) != ARCHIVE_OK) {
        (void)archive_read_free(a);
        return NULL;
    }
    return a;
}

static int fail(struct error *err, int r, const char *name, const char *what)
{
    return error_set(err, -r, "%s %.120s: %s", what, name[0] != '\0' ? name : ".", strerror(-r));
}

/* ---- directories that were left ---- */

static int finish_directory(struct unpacker *p, struct error *err)
{
    const struct open_directory *d = &p->directories[--p->depth];
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, d->time};
    _cleanup_close_ int fd = -1;

    p->walk[d->name_length] = '\0';
    fd = place_open_directory(&p->place, p->walk);
    if (fd < 0) {
        return fail(err, fd, p->walk, "cannot open");
    }
    if (fchmod(fd, d->mode) < 0 || futimens(fd, times) < 0) {
        return fail(err, -errno, p->walk, "cannot set the mode of");
    }
    return 0;
}

static bool is_below(const char *name, const char *directory, size_t n)
{
    return n == 0 || (strncmp(name, directory, n) == 0 && name[n] == '/');
}

/* Finishes the directories that `name` is not in. */
static int leave_directories(struct unpacker *p, const char *name, struct error *err)
{
    while (p->depth > 0 && !is_below(name, p->walk, p->directories[p->depth - 1].name_length)) {
        if (finish_directory(p, err) < 0) {
            return -EIO;
        }
    }
    return 0;
}

static void enter_directory(struct unpacker *p, const char *name, struct archive_entry *e)
{
    struct open_directory *d;

    if (p->depth >= DIRECTORIES_MAX) {
        return; /* cannot be: a name has fewer components */
    }
    d = &p->directories[p->depth++];
    d->name_length = strlen(name);
    d->mode = (unsigned int)archive_entry_perm(e) & MODE_MASK;
    d->time = (struct timespec){.tv_nsec = UTIME_OMIT};
    if (archive_entry_mtime_is_set(e)) {
        d->time = (struct timespec){archive_entry_mtime(e), archive_entry_mtime_nsec(e)};
    }
    memcpy(p->walk, name, d->name_length + 1);
}

static int
make_directory(struct unpacker *p, const char *name, struct archive_entry *e, struct error *err)
{
    const char *base;
    struct stat st = {0};
    int parent;

    p->u->count.directories++;
    if (name[0] == '\0') {
        if (p->u->top_is_new) {
            enter_directory(p, name, e);
        }
        return 0;
    }
    parent = place_open_parent(&p->place, name, &base);
    if (parent < 0) {
        return fail(err, parent, name, "cannot make");
    }
    if (mkdirat(parent, base, PLAIN_DIRECTORY) < 0) {
        if (errno != EEXIST) {
            return fail(err, -errno, name, "cannot make");
        }
        if (fstatat(parent, base, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode)) {
            return error_set(err, ENOTDIR, "%.160s is there and is no directory", name);
        }
    }
    enter_directory(p, name, e);
    return 0;
}

/* ---- files and links ---- */

/* Gives what was made under our own name its place. */
static int put_in_place(struct unpacker *p, int parent, const char *base)
{
    int r = renameat(parent, p->temporary, parent, base) < 0 ? -errno : 0;

    (void)unlinkat(parent, p->temporary, 0); /* a rename of two names of one inode leaves both */
    return r;
}

static int step(struct unpacker *p)
{
    return p->u->on_progress != NULL ? p->u->on_progress(p->u->arg, &p->u->count) : 0;
}

/* The entry's data, holes kept. The blocks come in order, within the size that the head named. */
static int copy_data(struct unpacker *p, int fd, int64_t size, struct error *err)
{
    int64_t end = 0;
    uint64_t since = 0;

    for (;;) {
        const void *bytes;
        size_t n;
        la_int64_t offset;
        int r = archive_read_data_block(p->archive, &bytes, &n, &offset);

        if (r == ARCHIVE_EOF) {
            break;
        }
        if (r < ARCHIVE_WARN) {
            return error_set(err, EBADMSG, "the archive is damaged: %.200s",
                             archive_error_string(p->archive));
        }
        if (offset < end || n > (uint64_t)size || offset > size - (int64_t)n) {
            return error_set(err, EBADMSG, "the archive is damaged: data out of place");
        }
        r = fd_pwrite_all(fd, span_make(bytes, n), offset);
        if (r < 0) {
            return error_set(err, -r, "cannot write: %s", strerror(-r));
        }
        end = offset + (int64_t)n;
        p->u->count.bytes += n;
        since += n;
        if (since >= BLOCK_STEP_BYTES) {
            since = 0;
            r = step(p);
            if (r < 0) {
                return error_set(err, -r, "interrupted");
            }
        }
    }
    return end < size && ftruncate(fd, size) < 0
               ? error_set(err, errno, "cannot write: %s", strerror(errno))
               : 0;
}

static int set_file_attributes(int fd, struct archive_entry *e)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {archive_entry_mtime(e), archive_entry_mtime_nsec(e)}};

    if (fchmod(fd, (mode_t)archive_entry_perm(e) & MODE_MASK) < 0) {
        return -errno;
    }
    return archive_entry_mtime_is_set(e) && futimens(fd, times) < 0 ? -errno : 0;
}

static int make_file(
    struct unpacker *p, int parent, const char *base, struct archive_entry *e, struct error *err)
{
    _cleanup_close_ int fd =
        openat(parent, p->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r;

    if (fd < 0) {
        return error_set(err, errno, "cannot write %.160s: %s", base, strerror(errno));
    }
    r = copy_data(p, fd, archive_entry_size(e), err);
    if (r == 0) {
        r = set_file_attributes(fd, e);
        if (r == 0) {
            r = put_in_place(p, parent, base);
        }
        if (r < 0) {
            (void)error_set(err, -r, "cannot write %.160s: %s", base, strerror(-r));
        }
    }
    if (r < 0) {
        (void)unlinkat(parent, p->temporary, 0);
    }
    return r;
}

static int make_symlink(
    struct unpacker *p, int parent, const char *base, struct archive_entry *e, struct error *err)
{
    const char *target = archive_entry_symlink(e);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {archive_entry_mtime(e), archive_entry_mtime_nsec(e)}};
    int r;

    if (target == NULL || target[0] == '\0') {
        return error_set(err, EBADMSG, "the archive is damaged: %.120s is a link to nothing", base);
    }
    if (symlinkat(target, parent, p->temporary) < 0) {
        return error_set(err, errno, "cannot make %.160s: %s", base, strerror(errno));
    }
    if (archive_entry_mtime_is_set(e)) {
        (void)utimensat(parent, p->temporary, times, AT_SYMLINK_NOFOLLOW);
    }
    r = put_in_place(p, parent, base);
    return r < 0 ? error_set(err, -r, "cannot make %.160s: %s", base, strerror(-r)) : 0;
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static int
make_hardlink(struct unpacker *p, const char *name, struct archive_entry *e, struct error *err)
{
    _cleanup_close_ int target_parent = -1;
    char target[COPY_NAME_SIZE];
    const char *target_base;
    const char *base;
    struct stat st = {0};
    int parent;

    if (copy_name_check(archive_entry_hardlink(e), target) < 0 || target[0] == '\0') {
        return error_set(err, EPERM, "the archive links %.100s to a file outside of it", name);
    }
    parent = place_open_parent(&p->place, target, &target_base);
    target_parent = parent < 0 ? -1 : fcntl(parent, F_DUPFD_CLOEXEC, 3);
    if (target_parent < 0 || fstatat(target_parent, target_base, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode) || is_before(&st.st_ctim, &p->began)) {
        return error_set(err, EPERM,
                         "the archive links %.100s to %.100s, which did not come with it", name,
                         target);
    }
    parent = place_open_parent(&p->place, name, &base);
    if (parent < 0) {
        return fail(err, parent, name, "cannot make");
    }
    if (linkat(target_parent, target_base, parent, p->temporary, 0) < 0) {
        return fail(err, -errno, name, "cannot make");
    }
    parent = put_in_place(p, parent, base);
    return parent < 0 ? fail(err, parent, name, "cannot make") : 0;
}

static int leave_out(struct unpacker *p, const char *name)
{
    struct unpack_count *c = &p->u->count;

    if (c->left_out++ == 0) {
        (void)snprintf(c->first_left_out, sizeof(c->first_left_out), "%.255s", name);
    }
    return 0;
}

/* ---- entries ---- */

static int unpack_entry(struct unpacker *p, struct archive_entry *e, struct error *err)
{
    unsigned int type = archive_entry_filetype(e);
    char name[COPY_NAME_SIZE];
    const char *base;
    int parent;
    int r = copy_name_check(archive_entry_pathname(e), name);

    if (r < 0 || (name[0] == '\0' && type != AE_IFDIR)) {
        const char *given = archive_entry_pathname(e);

        return error_set(err, r < 0 ? -r : EPERM,
                         "the archive has an entry with a forbidden name: %.160s",
                         given != NULL ? given : "(none)");
    }
    if (leave_directories(p, name, err) < 0) {
        return -EIO;
    }
    if (archive_entry_hardlink(e) != NULL) {
        p->u->count.files++;
        return make_hardlink(p, name, e, err);
    }
    if (type == AE_IFDIR) {
        return make_directory(p, name, e, err);
    }
    if (type != AE_IFREG && type != AE_IFLNK) {
        return leave_out(p, name);
    }
    parent = place_open_parent(&p->place, name, &base);
    if (parent < 0) {
        return fail(err, parent, name, "cannot make");
    }
    p->u->count.files++;
    return type == AE_IFREG ? make_file(p, parent, base, e, err)
                            : make_symlink(p, parent, base, e, err);
}

static int unpack_entries(struct unpacker *p, struct error *err)
{
    for (;;) {
        struct archive_entry *e;
        int r = archive_read_next_header(p->archive, &e);

        if (r == ARCHIVE_EOF) {
            break;
        }
        if (r < ARCHIVE_WARN) {
            return error_set(err, EBADMSG, "the archive is damaged: %.200s",
                             archive_error_string(p->archive));
        }
        r = unpack_entry(p, e, err);
        if (r < 0) {
            return r;
        }
        r = step(p);
        if (r < 0) {
            return error_set(err, -r, "interrupted");
        }
    }
    while (p->depth > 0) {
        if (finish_directory(p, err) < 0) {
            return -EIO;
        }
    }
    return 0;
}

/* What the filesystem's clock says now: a file is made and asked for its time. */
static int read_clock(const struct unpacker *p, struct timespec *ret)
{
    int top = p->u->top_fd;
    _cleanup_close_ int fd =
        openat(top, p->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat st = {0};
    int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;

    if (fd >= 0) {
        (void)unlinkat(top, p->temporary, 0);
    }
    if (r == 0) {
        *ret = st.st_ctim;
    }
    return r;
}

/* Waits for the next tick of that clock: what is older than it was there before. Where ticks are
 * so coarse that none comes, no hard link will be believed. */
static int note_beginning(struct unpacker *p)
{
    const struct timespec pause = {.tv_nsec = CLOCK_PAUSE_NS};
    struct timespec first = {0};
    int r = read_clock(p, &first);

    p->began = (struct timespec){.tv_sec = INT64_MAX};
    for (int i = 0; r == 0 && i < CLOCK_TRIES; i++) {
        struct timespec now = {0};

        (void)nanosleep(&pause, NULL);
        r = read_clock(p, &now);
        if (r == 0 && is_before(&first, &now)) {
            p->began = now;
            break;
        }
    }
    return r;
}

int unpack_all(struct unpack *u, struct archive *archive, struct error *err)
{
    struct unpacker *p = calloc(1, sizeof(*p));
    char id[ID_SIZE];
    int r;

    if (p != NULL) {
        p->directories = calloc(DIRECTORIES_MAX, sizeof(*p->directories));
    }
    if (p == NULL || p->directories == NULL || id_make("cp", id) < 0) {
        free(p);
        return error_set(err, ENOMEM, "out of memory");
    }
    p->u = u;
    p->archive = archive;
    place_init(&p->place, u->top_fd);
    (void)snprintf(p->temporary, sizeof(p->temporary), ".space-%s", id);
    r = note_beginning(p);
    r = r < 0 ? error_set(err, -r, "cannot write there: %s", strerror(-r)) : unpack_entries(p, err);
    place_done(&p->place);
    free(p->directories);
    free(p);
    return r;
}
