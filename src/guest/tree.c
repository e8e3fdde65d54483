#include "guest/tree.h"

#include <errno.h>
#include <fcntl.h>

#include <sys/syscall.h>

#define OPEN_MAX_LEVELS 64U
#define LEVELS_FIRST    16U
#define READ_BYTES      8192U
#define DIRECTORY_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)

/* Fields of a record of getdents64. */
#define ENTRY_OFFSET_AT 8U
#define ENTRY_LENGTH_AT 16U
#define ENTRY_TYPE_AT   18U
#define ENTRY_NAME_AT   19U

static struct tree_level *top_of(const struct tree *t)
{
    return &t->levels[t->n_levels - 1];
}

static void level_close(struct tree_level *l)
{
    cleanup_close(&l->fd);
    l->fd = -1;
    free(l->bytes);
    l->bytes = NULL;
    l->at = 0;
    l->n = 0;
}

/* Takes fd. */
static int push(struct tree *t, int fd)
{
    struct tree_level l = {.fd = fd, .path_bytes = t->path.n};
    struct stat st;

    if (t->n_levels == t->room) {
        size_t room = t->room == 0 ? LEVELS_FIRST : t->room * 2;
        struct tree_level *levels = realloc(t->levels, room * sizeof(*levels));

        if (levels == NULL) {
            (void)close(fd);
            return -ENOMEM;
        }
        t->levels = levels;
        t->room = room;
    }
    if (fstat(fd, &st) < 0) {
        int r = -errno;

        (void)close(fd);
        return r;
    }
    l.dev = st.st_dev;
    l.ino = st.st_ino;
    t->levels[t->n_levels++] = l;
    if (t->n_levels - t->first_open > OPEN_MAX_LEVELS) {
        level_close(&t->levels[t->first_open++]);
    }
    return 0;
}

int tree_init(struct tree *t, int fd)
{
    int r;

    *t = (struct tree){.path = buf_make(TREE_PATH_MAX)};
    r = push(t, fd);
    if (r == 0 && buf_reserve(&t->path, 1) == NULL) {
        r = -ENOMEM;
    }
    if (r < 0) {
        tree_done(t);
    }
    return r;
}

void tree_done(struct tree *t)
{
    while (t->n_levels > 0) {
        level_close(&t->levels[--t->n_levels]);
    }
    free(t->levels);
    t->levels = NULL;
    buf_done(&t->path);
}

/* Goes back to the directory above the last one, which is still open. */
static int reopen_above(struct tree *t)
{
    struct tree_level *above = &t->levels[t->n_levels - 2];
    struct stat st;

    if (above->fd >= 0) {
        return 0;
    }
    above->fd = openat(top_of(t)->fd, "..", DIRECTORY_FLAGS);
    if (above->fd < 0 || fstat(above->fd, &st) < 0) {
        return -errno;
    }
    if (st.st_dev != above->dev || st.st_ino != above->ino) {
        return -ESTALE; /* it was moved meanwhile */
    }
    if (lseek(above->fd, t->restart ? 0 : above->position, SEEK_SET) < 0) {
        return -errno;
    }
    t->first_open = t->n_levels - 2;
    return 0;
}

static int set_name(struct tree *t, const char *name)
{
    t->path.n = top_of(t)->path_bytes;
    if (t->path.n > 0) {
        buf_put_str(&t->path, "/");
    }
    t->name_at = t->path.n;
    buf_put_str(&t->path, name);
    return buf_error(&t->path) == -EMSGSIZE ? -ENAMETOOLONG : buf_error(&t->path);
}

static int leave(struct tree *t)
{
    size_t n;
    int r;

    if (t->n_levels == 1) {
        return TREE_END;
    }
    r = reopen_above(t);
    if (r < 0) {
        return r;
    }
    n = top_of(t)->path_bytes;
    level_close(top_of(t));
    t->n_levels--;
    t->path.n = n;
    t->path.p[n] = '\0';
    t->name_at = top_of(t)->path_bytes == 0 ? 0 : top_of(t)->path_bytes + 1;
    return TREE_LEAVE;
}

static int level_read(struct tree_level *l)
{
    long n;

    if (l->bytes == NULL) {
        l->bytes = malloc(READ_BYTES);
        if (l->bytes == NULL) {
            return -ENOMEM;
        }
    }
    n = syscall(SYS_getdents64, l->fd, l->bytes, READ_BYTES);
    if (n < 0) {
        /* Removed by someone while it was read. */
        return errno == ENOENT ? 0 : -errno;
    }
    l->at = 0;
    l->n = (size_t)n;
    return (int)n;
}

static bool is_directory(const struct tree *t, uint8_t type, const char *name)
{
    struct stat st;

    if (type != DT_UNKNOWN) {
        return type == DT_DIR;
    }
    return fstatat(top_of(t)->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* The next entry of the last directory; TREE_END when it has no more. */
static int next_entry(struct tree *t)
{
    struct tree_level *l = top_of(t);

    for (;;) {
        const uint8_t *entry;
        const char *name;
        uint16_t length;
        uint8_t type;
        int r;

        if (l->at == l->n) {
            r = level_read(l);
            if (r <= 0) {
                return r;
            }
        }
        /* Written by the kernel; a record is never cut. */
        entry = &l->bytes[l->at];
        memcpy(&length, &entry[ENTRY_LENGTH_AT], sizeof(length));
        memcpy(&l->position, &entry[ENTRY_OFFSET_AT], sizeof(l->position));
        type = entry[ENTRY_TYPE_AT];
        name = (const char *)&entry[ENTRY_NAME_AT];
        l->at += length;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            continue;
        }
        r = set_name(t, name);
        if (r < 0) {
            return r;
        }
        return is_directory(t, type, name) ? TREE_ENTER : TREE_OTHER;
    }
}

int tree_next(struct tree *t)
{
    int r;

    if (t->enter) {
        int fd = openat(top_of(t)->fd, tree_name(t), DIRECTORY_FLAGS);

        t->enter = false;
        r = fd < 0 ? -errno : push(t, fd);
        if (r < 0 && r != -ENOENT) { /* gone meanwhile: on to the next */
            return r;
        }
    }
    r = next_entry(t);
    if (r == TREE_END) {
        return leave(t);
    }
    t->enter = r == TREE_ENTER;
    return r;
}

void tree_skip(struct tree *t)
{
    t->enter = false;
}

int tree_dir_fd(const struct tree *t)
{
    return top_of(t)->fd;
}

const char *tree_name(const struct tree *t)
{
    return &buf_str(&t->path)[t->name_at];
}

const char *tree_path(const struct tree *t)
{
    return buf_str(&t->path);
}
