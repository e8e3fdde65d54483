/* tar-read: a tree as a pax archive. Sparse files are sent with their zeros. A file that becomes
 * longer meanwhile is sent as long as it was; one that becomes shorter cuts the archive off. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>

#include <sys/sysmacros.h>

#include "base/fd.h"
#include "guest/link_table.h"
#include "guest/service_path.h"
#include "guest/tree.h"
#include "wire/tar.h"

#define SMALL_BYTES  16384U /* content that is gathered with what stands around it */
#define SPLICE_BYTES 262144U
#define NAME_MAX_TAR 31U
#define LINK_MAX     4096U

struct packing {
    struct service *s;
    struct tree tree;
    struct link_table links;
};

/* Whether one of the patterns is for it: they match the path below the top, or the name alone. */
static bool is_left_out(const struct packing *p)
{
    for (size_t i = 1; i < p->s->argc; i++) {
        if (fnmatch(p->s->argv[i], tree_path(&p->tree), 0) == 0 ||
            fnmatch(p->s->argv[i], tree_name(&p->tree), 0) == 0) {
            return true;
        }
    }
    return false;
}

static uint8_t type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return TAR_FILE;
    case S_IFDIR:
        return TAR_DIRECTORY;
    case S_IFLNK:
        return TAR_SYMLINK;
    case S_IFCHR:
        return TAR_CHARACTER_DEVICE;
    case S_IFBLK:
        return TAR_BLOCK_DEVICE;
    case S_IFIFO:
        return TAR_FIFO;
    default:
        return 0;
    }
}

/* The fields that all kinds have. A long name of an account is left out; the number stays. */
static void describe(struct packing *p, const struct stat *st, struct tar_entry *e)
{
    e->type = type_of(st->st_mode);
    e->mode = (uint32_t)st->st_mode & 07777U;
    e->uid = st->st_uid;
    e->gid = st->st_gid;
    e->modified_s = st->st_mtim.tv_sec;
    e->user = accounts_user_name(&p->s->accounts, st->st_uid);
    e->group = accounts_group_name(&p->s->accounts, st->st_gid);
    if (e->user.n > NAME_MAX_TAR) {
        e->user = span_make(NULL, 0);
    }
    if (e->group.n > NAME_MAX_TAR) {
        e->group = span_make(NULL, 0);
    }
    if (e->type == TAR_CHARACTER_DEVICE || e->type == TAR_BLOCK_DEVICE) {
        e->major = major(st->st_rdev);
        e->minor = minor(st->st_rdev);
    }
}

static int put_header(struct packing *p, const struct tar_entry *e)
{
    tar_entry_format(&p->s->out, e);
    return buf_error(&p->s->out) == -EMSGSIZE ? -ENAMETOOLONG : service_flush_some(p->s);
}

static int put_zeros(struct packing *p, size_t n)
{
    static const uint8_t zeros[TAR_BLOCK_BYTES];

    buf_put(&p->s->out, span_make(zeros, n));
    return service_flush_some(p->s);
}

static int put_small(struct packing *p, int fd, size_t size)
{
    while (size > 0) {
        uint8_t *to = buf_reserve(&p->s->out, size);
        ssize_t n = to == NULL ? -1 : read(fd, to, size);

        if (n <= 0) {
            return to == NULL ? -ENOMEM : (n < 0 ? -errno : -ENODATA);
        }
        buf_commit(&p->s->out, (size_t)n);
        size -= (size_t)n;
    }
    return service_flush_some(p->s);
}

static int put_large(struct packing *p, int fd, uint64_t size)
{
    int r = service_flush(p->s);

    while (r == 0 && size > 0) {
        ssize_t n = splice(fd, NULL, SERVICE_OUT, NULL,
                           size < SPLICE_BYTES ? (size_t)size : SPLICE_BYTES, SPLICE_F_MOVE);

        if (n < 0 && errno == EINVAL) {
            /* A filesystem without splice: in small pieces through our own memory. */
            n = size < SMALL_BYTES ? (ssize_t)size : (ssize_t)SMALL_BYTES;
            r = put_small(p, fd, (size_t)n);
        } else if (n == 0) {
            r = -ENODATA;
        } else if (n < 0 && errno != EINTR) {
            r = -errno;
        }
        size -= n > 0 ? (uint64_t)n : 0;
    }
    return r;
}

static int pack_file(struct packing *p, const struct stat *seen, struct tar_entry *e)
{
    _cleanup_close_ int fd = -1;
    struct stat st;
    int r;

    if (seen->st_nlink > 1) {
        const char *first =
            link_table_find(&p->links, seen->st_dev, seen->st_ino, tree_path(&p->tree));

        if (first != NULL) {
            describe(p, seen, e);
            e->type = TAR_HARD_LINK;
            e->target = span_of_str(first);
            return put_header(p, e);
        }
    }
    /* Never blocks, should it be a fifo by now. */
    fd = openat(tree_dir_fd(&p->tree), tree_name(&p->tree),
                O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        return errno == ENOENT || errno == ELOOP ? 0 : -errno;
    }
    if (!S_ISREG(st.st_mode)) {
        return 0; /* replaced a moment ago */
    }
    describe(p, &st, e);
    e->size_bytes = (uint64_t)st.st_size;
    r = put_header(p, e);
    if (r == 0) {
        r = e->size_bytes <= SMALL_BYTES ? put_small(p, fd, (size_t)e->size_bytes)
                                         : put_large(p, fd, e->size_bytes);
    }
    return r < 0 ? r : put_zeros(p, tar_padding(e->size_bytes));
}

static int pack_one(struct packing *p, int event)
{
    _cleanup_buf_ struct buf name = buf_make(0);
    struct tar_entry e = {.name = span_of_str(tree_path(&p->tree))};
    char target[LINK_MAX];
    struct stat st;

    if (fstatat(tree_dir_fd(&p->tree), tree_name(&p->tree), &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (event == TREE_OTHER && S_ISREG(st.st_mode)) {
        return pack_file(p, &st, &e);
    }
    describe(p, &st, &e);
    if (e.type == 0 || (e.type == TAR_DIRECTORY) != (event == TREE_ENTER)) {
        return 0; /* a socket, or replaced a moment ago */
    }
    if (e.type == TAR_DIRECTORY) {
        buf_put(&name, e.name);
        buf_put_str(&name, "/");
        e.name = buf_span(&name);
    }
    if (e.type == TAR_SYMLINK) {
        ssize_t n = readlinkat(tree_dir_fd(&p->tree), tree_name(&p->tree), target, sizeof(target));

        if (n <= 0) {
            return n < 0 && errno != ENOENT ? -errno : 0;
        }
        e.target = span_make(target, (size_t)n);
    }
    return buf_error(&name) != 0 ? buf_error(&name) : put_header(p, &e);
}

/* Whether the user may read it; a link or a pipe is not opened. */
static int check_one(struct packing *p, int event)
{
    struct stat st;

    if (event == TREE_LEAVE ||
        fstatat(tree_dir_fd(&p->tree), tree_name(&p->tree), &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return 0;
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        return 0;
    }
    return faccessat(tree_dir_fd(&p->tree), tree_name(&p->tree), R_OK, 0) == 0 || errno != EACCES
               ? 0
               : -EACCES;
}

/* Walks through all that is not left out. 0 or -errno, with the path at fault. */
static int walk(struct packing *p, int (*visit)(struct packing *, int))
{
    const char *path = service_arg(p->s, 0);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? -errno : tree_init(&p->tree, fd);

    if (r < 0) {
        return service_fail(p->s, r, path);
    }
    while ((r = tree_next(&p->tree)) > 0) {
        if (r == TREE_LEAVE) {
            continue;
        }
        if (is_left_out(p)) {
            tree_skip(&p->tree);
            continue;
        }
        r = visit(p, r);
        if (r < 0) {
            break;
        }
    }
    if (r < 0) {
        r = service_fail_below(p->s, r, path, tree_path(&p->tree));
    }
    tree_done(&p->tree);
    return r;
}

int service_tar_read(struct service *s)
{
    struct packing p = {.s = s};
    int r;

    if (s->argc < 1) {
        return -EINVAL;
    }
    /* Once bytes are out, no error can be told: so what can be known is looked for first. */
    r = walk(&p, check_one);
    if (r < 0) {
        return r;
    }
    r = service_begin_body(s, 0, SERVICE_LENGTH_UNKNOWN);
    if (r < 0) {
        return r;
    }
    link_table_init(&p.links);
    r = walk(&p, pack_one);
    link_table_done(&p.links);
    if (r == 0) {
        tar_end_format(&s->out);
    }
    return r;
}
