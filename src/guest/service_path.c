#include "guest/service_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/fs.h>

#define SYMLINKS_MAX  40
#define PARENTS_MODE  0755
#define NS_PER_SECOND 1000000000U
#define MODE_BITS     07777U
#define HIDDEN_PREFIX ".space-"
#define HIDDEN_DIGITS 16U

/* Takes the next component off *rest; empty at the end. */
static struct span next_component(struct span *rest)
{
    struct span name;

    while (rest->n > 0 && rest->p[0] == '/') {
        *rest = span_skip(*rest, 1);
    }
    name = span_head(*rest, span_find(*rest, 0, '/'));
    *rest = span_skip(*rest, name.n);
    return name;
}

static bool has_component(struct span path, const char *wanted)
{
    while (path.n > 0) {
        if (span_equals_str(next_component(&path), wanted)) {
            return true;
        }
    }
    return false;
}

/* The kernel's name of an open directory. */
static int put_name_of_fd(struct buf *b, int fd)
{
    char link[PATH_FD_BYTES];
    char target[PATH_MAX];
    ssize_t n;

    path_of_fd(fd, link);
    n = readlink(link, target, sizeof(target));
    if (n <= 0 || (size_t)n == sizeof(target) || target[0] != '/') {
        return -ENAMETOOLONG;
    }
    buf_put(b, span_make(target, (size_t)n));
    return 0;
}

static int put_cwd(struct buf *b)
{
    char cwd[PATH_MAX];

    if (getcwd(cwd, sizeof(cwd)) == NULL) {
        return -errno;
    }
    buf_put_str(b, cwd);
    return 0;
}

static void put_components(struct buf *b, struct span path)
{
    struct span name;

    while ((name = next_component(&path)).n > 0) {
        if (span_equals_str(name, ".")) {
            continue;
        }
        if (b->n == 0 || b->p[b->n - 1] != '/') {
            buf_put_str(b, "/");
        }
        buf_put(b, name);
    }
    if (b->n == 0) {
        buf_put_str(b, "/");
    }
}

/* With "..", the directory above the last component is asked for its name, or, where the path ends
 * in "..", what it leads to. */
static int put_resolved(struct buf *b, const char *path)
{
    _cleanup_place_ struct place place = {.fd = -1};
    _cleanup_close_ int fd = -1;
    int r = place_open(path, &place);

    if (r == 0) {
        r = put_name_of_fd(b, place.fd);
        if (r == 0) {
            put_components(b, span_of_str(place.name));
        }
        return r;
    }
    fd = r == -EISDIR ? open(path, O_PATH | O_CLOEXEC) : -1;
    return fd < 0 ? r : put_name_of_fd(b, fd);
}

int path_put_absolute(struct buf *b, const char *path)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct span s = span_of_str(path);
    int r = 0;

    if (has_component(s, "..") && put_resolved(&text, path) == 0) {
        buf_put(b, buf_span(&text));
        return buf_error(b);
    }
    buf_clear(&text);
    if (path[0] != '/') {
        r = put_cwd(&text);
    }
    if (r == 0) {
        put_components(&text, s);
        r = buf_error(&text);
    }
    if (r == 0) {
        buf_put(b, buf_span(&text));
        r = buf_error(b);
    }
    return r;
}

/* Splits off the last component; the directory is "." or ends in a slash. */
static int split(const char *path, char directory[PATH_MAX], char name[256])
{
    size_t n = strlen(path);
    size_t start;

    if (n == 0) {
        return -ENOENT;
    }
    if (n >= PATH_MAX) {
        return -ENAMETOOLONG;
    }
    while (n > 0 && path[n - 1] == '/') {
        n--;
    }
    for (start = n; start > 0 && path[start - 1] != '/';) {
        start--;
    }
    if (span_copy_str(span_make(&path[start], n - start), name, 256) < 0) {
        return -ENAMETOOLONG;
    }
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return -EISDIR;
    }
    return span_copy_str(start == 0 ? span_of_str(".") : span_make(path, start), directory,
                         PATH_MAX);
}

static int place_open_at(int dir_fd, const char *path, struct place *ret)
{
    char directory[PATH_MAX];
    struct place place;
    int r = split(path, directory, place.name);

    if (r < 0) {
        return r;
    }
    place.fd = openat(dir_fd, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place.fd < 0) {
        return -errno;
    }
    *ret = place;
    return 0;
}

int place_open(const char *path, struct place *ret)
{
    return place_open_at(AT_FDCWD, path, ret);
}

/* The kernel's rule (fs.protected_symlinks), which holds for links that the kernel follows: in a
 * directory where everybody may put one, only its own and its owner's are followed. */
static int check_link(int dir_fd, const struct stat *link)
{
    struct stat dir;

    if (fstat(dir_fd, &dir) < 0) {
        return -errno;
    }
    if ((dir.st_mode & (S_ISVTX | S_IWOTH)) == (S_ISVTX | S_IWOTH) && link->st_uid != geteuid() &&
        link->st_uid != dir.st_uid) {
        return -EACCES;
    }
    return 0;
}

/* Where the name leads if it is a symbolic link: 1, else (nothing yet, too) 0, or -errno. */
static int read_link(const struct place *place, char target[PATH_MAX])
{
    _cleanup_close_ int fd = openat(place->fd, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    ssize_t n;
    int r;

    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (fstat(fd, &st) < 0) {
        return -errno;
    }
    if (!S_ISLNK(st.st_mode)) {
        return 0;
    }
    r = check_link(place->fd, &st);
    if (r < 0) {
        return r;
    }
    n = readlinkat(fd, "", target, PATH_MAX);
    if (n < 0 || n >= PATH_MAX) {
        return n < 0 ? -errno : -ENAMETOOLONG;
    }
    target[n] = '\0';
    return 1;
}

int place_open_following(const char *path, struct place *ret)
{
    _cleanup_place_ struct place place = {.fd = -1};
    int r = place_open(path, &place);

    for (int i = 0; r == 0; i++) {
        char target[PATH_MAX];
        struct place next;

        r = read_link(&place, target);
        if (r == 0) {
            *ret = (struct place){.fd = TAKE_FD(place.fd)};
            memcpy(ret->name, place.name, sizeof(ret->name));
            return 0;
        }
        if (r > 0) {
            r = i < SYMLINKS_MAX ? place_open_at(place.fd, target, &next) : -ELOOP;
        }
        if (r == 0) {
            cleanup_close(&place.fd);
            place = next;
        }
    }
    return r;
}

void path_of_fd(int fd, char out[PATH_FD_BYTES])
{
    (void)snprintf(out, PATH_FD_BYTES, "/proc/self/fd/%d", fd);
}

int path_reopen(int fd, int flags)
{
    char path[PATH_FD_BYTES];
    int again;

    path_of_fd(fd, path);
    again = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    return again < 0 ? -errno : again;
}

/* Whether it is a directory, following symbolic links: 0, else -ENOTDIR or -errno. */
static int check_directory(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        return errno == ENOENT ? -EEXIST : -errno; /* a link that leads nowhere */
    }
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* The umask took something from a new directory's mode, or mkdir does not know the bit. */
static int set_mode(const char *path, mode_t mode)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 || fchmod(fd, mode) < 0 ? -errno : 0;
}

/* Makes one directory, if it is missing. 1 made, 0 there. */
static int make_one(const char *path, mode_t mode)
{
    if (mkdir(path, mode & 0777) == 0) {
        int r = (mode & ~(mode_t)PARENTS_MODE) == 0 ? 0 : set_mode(path, mode);

        return r < 0 ? r : 1;
    }
    if (errno != EEXIST) {
        /* On a read-only filesystem, or without the right, a directory that exists is enough. */
        int error = errno;

        return check_directory(path) == 0 ? 0 : -error;
    }
    return check_directory(path);
}

/* Where the component that begins at or after `from` ends; from when there is none. */
static size_t component_end(const char *path, size_t from)
{
    size_t at = from;

    while (path[at] == '/') {
        at++;
    }
    if (path[at] == '\0') {
        return from;
    }
    while (path[at] != '/' && path[at] != '\0') {
        at++;
    }
    return at;
}

static int make_all(const char *path, mode_t mode, bool with_last, size_t *ret_made)
{
    char partial[PATH_MAX];
    size_t end = 0;
    int r = 0;

    *ret_made = 0;
    if (span_copy_str(span_of_str(path), partial, sizeof(partial)) < 0) {
        return -ENAMETOOLONG;
    }
    for (size_t next; (next = component_end(path, end)) != end; end = next) {
        bool is_last = component_end(path, next) == next;

        if (is_last && !with_last) {
            break;
        }
        partial[next] = '\0';
        r = make_one(partial, is_last ? mode : PARENTS_MODE);
        partial[next] = path[next];
        if (r < 0) {
            return r;
        }
        *ret_made += (size_t)r;
    }
    return r;
}

int path_make(const char *path, mode_t mode, size_t *ret_made)
{
    return path[0] == '\0' ? -ENOENT : make_all(path, mode, true, ret_made);
}

int path_make_parents(const char *path, size_t *ret_made)
{
    int r = make_all(path, PARENTS_MODE, false, ret_made);

    return r < 0 ? r : 0;
}

void path_remove_parents(const char *path, size_t made)
{
    char partial[PATH_MAX];
    size_t n = strlen(path);

    /* With dots, what was made is not simply the end of the path. */
    if (has_component(span_of_str(path), ".") || has_component(span_of_str(path), "..") ||
        span_copy_str(span_of_str(path), partial, sizeof(partial)) < 0) {
        return;
    }
    for (; made > 0; made--) {
        while (n > 0 && partial[n - 1] == '/') {
            n--;
        }
        while (n > 0 && partial[n - 1] != '/') {
            n--;
        }
        partial[n] = '\0';
        if (n == 0 || rmdir(partial) < 0) {
            return; /* someone put something into it meanwhile */
        }
    }
}

static uint8_t entry_type(mode_t mode)
{
    if (S_ISREG(mode)) {
        return SERVICE_ENTRY_FILE;
    }
    if (S_ISDIR(mode)) {
        return SERVICE_ENTRY_DIRECTORY;
    }
    return S_ISLNK(mode) ? SERVICE_ENTRY_SYMLINK : SERVICE_ENTRY_OTHER;
}

int path_put_entry(struct service *s, struct span absolute, int fd)
{
    return path_put_entry_at(s, absolute, fd, "");
}

static int
put_entry(struct service *s, struct span absolute, const struct stat *st, struct span target)
{
    struct service_entry m = {.path = absolute, .symlink_target = target};

    m.type = entry_type(st->st_mode);
    m.size_bytes = (uint64_t)st->st_size;
    m.mode = (uint32_t)st->st_mode & MODE_BITS;
    m.uid = st->st_uid;
    m.gid = st->st_gid;
    m.user = accounts_user_name(&s->accounts, st->st_uid);
    m.group = accounts_group_name(&s->accounts, st->st_gid);
    if (st->st_mtim.tv_sec >= 0) {
        m.modified_ns =
            (uint64_t)st->st_mtim.tv_sec * NS_PER_SECOND + (uint64_t)st->st_mtim.tv_nsec;
    }
    service_entry_format(&s->out, &m);
    return buf_error(&s->out);
}

int path_put_entry_of(struct service *s, const char *path)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_buf_ struct buf absolute = buf_make(0);
    int r;

    if (fd < 0) {
        return -errno;
    }
    r = path_put_absolute(&absolute, path);
    return r < 0 ? r : path_put_entry(s, buf_span(&absolute), fd);
}

static int put_link(
    struct service *s, struct span absolute, const struct stat *st, int dir_fd, const char *name)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(dir_fd, name, target, sizeof(target));

    return n < 0 ? -errno : put_entry(s, absolute, st, span_make(target, (size_t)n));
}

int path_put_entry_as(struct service *s, struct span absolute, int fd, const struct stat *st)
{
    return S_ISLNK(st->st_mode) ? put_link(s, absolute, st, fd, "")
                                : put_entry(s, absolute, st, span_make(NULL, 0));
}

int path_put_entry_at(struct service *s, struct span absolute, int dir_fd, const char *name)
{
    struct stat st;
    int r;

    do {
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0) {
            return -errno;
        }
        r = S_ISLNK(st.st_mode) ? put_link(s, absolute, &st, dir_fd, name)
                                : put_entry(s, absolute, &st, span_make(NULL, 0));
    } while (r == -EINVAL &&
             S_ISLNK(st.st_mode)); /* no link any more: another thing took its name */
    return r;
}

int path_make_hidden(char name[PATH_HIDDEN_BYTES])
{
    uint64_t number = 0;

    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0) {
        return -errno;
    }
    (void)snprintf(name, PATH_HIDDEN_BYTES, HIDDEN_PREFIX "%016llx", (unsigned long long)number);
    return 0;
}

/* FNV-1a. That others can find names with the same hash does no harm: then another name is taken.
 */
void path_hidden_of(const char *name, char hidden[PATH_HIDDEN_BYTES])
{
    uint64_t hash = 14695981039346656037U;

    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 1099511628211U;
    }
    (void)snprintf(hidden, PATH_HIDDEN_BYTES, HIDDEN_PREFIX "%016llx", (unsigned long long)hash);
}

int path_rename_at(int dir_fd, const char *from, const char *to, bool replace)
{
    /* musl has no renameat2. */
    return syscall(SYS_renameat2, dir_fd, from, dir_fd, to, replace ? 0 : RENAME_NOREPLACE) < 0
               ? -errno
               : 0;
}

bool path_is_hidden(const char *name)
{
    size_t prefix = strlen(HIDDEN_PREFIX);

    return strncmp(name, HIDDEN_PREFIX, prefix) == 0 && strlen(&name[prefix]) == HIDDEN_DIGITS &&
           strspn(&name[prefix], "0123456789abcdef") == HIDDEN_DIGITS;
}
