/* The services that change or remove files, trees too: file-set-mode, file-set-owner, file-delete.
 * Below the path of the request, everything is done by descriptors and names in an open directory,
 * so that nobody can lead a service elsewhere by a symbolic link put in its way. */
#include <errno.h>
#include <fcntl.h>

#include "guest/service_path.h"
#include "guest/tree.h"

/* What its owner needs to work in a directory. */
#define OWNER_ENTERS 0500U

struct change {
    bool is_owner; /* else the mode */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    bool recursive;
    uint64_t count;
};

/* Of an O_PATH descriptor. Symbolic links have an owner, but no mode of their own. */
static int change_one(struct change *c, int fd, mode_t type)
{
    char path[PATH_FD_BYTES];
    int r;

    if (c->is_owner) {
        r = fchownat(fd, "", c->uid, c->gid, AT_EMPTY_PATH);
    } else if (S_ISLNK(type)) {
        return 0;
    } else {
        path_of_fd(fd, path);
        r = chmod(path, c->mode);
    }
    if (r < 0) {
        return -errno;
    }
    c->count++;
    return 0;
}

static int change_at(struct change *c, int dir_fd, const char *name)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    return change_one(c, fd, st.st_mode);
}

/* A directory whose new mode would shut its owner out is changed after what is in it. */
static bool is_changed_last(const struct change *c)
{
    return !c->is_owner && (c->mode & OWNER_ENTERS) != OWNER_ENTERS;
}

static int change_tree(struct service *s, struct change *c, const char *path, int top_fd)
{
    _cleanup_tree_ struct tree t = {.n_levels = 0};
    int fd = path_reopen(top_fd, O_RDONLY | O_DIRECTORY);
    int r = fd < 0 ? fd : tree_init(&t, fd);

    if (r < 0) {
        return service_fail(s, r, path);
    }
    while ((r = tree_next(&t)) > 0) {
        bool is_now = r == TREE_OTHER || (r == TREE_LEAVE) == is_changed_last(c);

        r = is_now ? change_at(c, tree_dir_fd(&t), tree_name(&t)) : 0;
        if (r < 0) {
            break;
        }
    }
    return r < 0 ? service_fail_below(s, r, path, tree_path(&t)) : 0;
}

static int change(struct service *s, struct change *c, const char *path)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    _cleanup_buf_ struct buf absolute = buf_make(0);
    struct stat st;
    int r = 0;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return service_fail(s, -errno, path);
    }
    if (!is_changed_last(c)) {
        r = change_one(c, fd, st.st_mode);
    }
    if (r < 0) {
        return service_fail(s, r, path);
    }
    if (c->recursive && S_ISDIR(st.st_mode)) {
        r = change_tree(s, c, path, fd);
        if (r < 0) {
            return r;
        }
    }
    if (is_changed_last(c)) {
        r = change_one(c, fd, st.st_mode);
    }
    if (r == 0) {
        r = path_put_absolute(&absolute, path);
    }
    if (r == 0) {
        r = path_put_entry(s, buf_span(&absolute), fd);
    }
    if (r < 0) {
        return service_fail(s, r, path);
    }
    service_put_done(s, c->count, false);
    return 0;
}

int service_file_set_mode(struct service *s)
{
    int recursive = service_arg_flag(s, 2, "recursive");
    struct change c = {.recursive = recursive > 0};

    if (s->argc != 3 || recursive < 0 || service_arg_mode(s, 1, &c.mode) < 0) {
        return -EINVAL;
    }
    return change(s, &c, service_arg(s, 0));
}

/* `user`, `user:group` or `:group`; what is not named stays. */
static int parse_owner(struct service *s, struct span text, struct change *c)
{
    size_t colon = span_find(text, 0, ':');
    struct span user = span_head(text, colon);
    struct span group = span_skip(text, colon + 1);
    int r = 0;

    c->uid = (uid_t)-1;
    c->gid = (gid_t)-1;
    if (text.n == 0 || (colon < text.n && group.n == 0)) {
        return -EINVAL;
    }
    if (user.n > 0) {
        r = accounts_user_id(&s->accounts, user, &c->uid);
    }
    if (r == 0 && group.n > 0) {
        r = accounts_group_id(&s->accounts, group, &c->gid);
    }
    return r;
}

int service_file_set_owner(struct service *s)
{
    int recursive = service_arg_flag(s, 2, "recursive");
    struct change c = {.is_owner = true, .recursive = recursive > 0};

    if (s->argc != 3 || recursive < 0) {
        return -EINVAL;
    }
    if (parse_owner(s, span_of_str(service_arg(s, 1)), &c) < 0) {
        return service_fail(s, -EINVAL, service_arg(s, 1));
    }
    return change(s, &c, service_arg(s, 0));
}

/* Removes one name, which may be an empty directory. */
static int remove_name(int dir_fd, const char *name)
{
    int error;

    if (unlinkat(dir_fd, name, 0) == 0) {
        return 0;
    }
    error = errno;
    /* A directory says EISDIR, on some filesystems EPERM. */
    if ((error == EISDIR || error == EPERM) && unlinkat(dir_fd, name, AT_REMOVEDIR) == 0) {
        return 0;
    }
    return error == EISDIR || (error == EPERM && errno != ENOTDIR) ? -errno : -error;
}

static int delete_content(struct service *s, const struct place *p, uint64_t *count)
{
    _cleanup_tree_ struct tree t = {.n_levels = 0};
    int fd = openat(p->fd, p->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : tree_init(&t, fd);

    if (r < 0) {
        return service_fail(s, r, service_arg(s, 0));
    }
    t.restart = true;
    while ((r = tree_next(&t)) > 0) {
        if (r == TREE_ENTER) {
            continue;
        }
        if (unlinkat(tree_dir_fd(&t), tree_name(&t), r == TREE_LEAVE ? AT_REMOVEDIR : 0) == 0) {
            (*count)++;
        } else if (errno != ENOENT) {
            r = -errno;
            break;
        }
    }
    return r < 0 ? service_fail_below(s, r, service_arg(s, 0), tree_path(&t)) : 0;
}

int service_file_delete(struct service *s)
{
    _cleanup_place_ struct place place = {.fd = -1};
    const char *path = service_arg(s, 0);
    int recursive = service_arg_flag(s, 1, "recursive");
    uint64_t count = 0;
    int r;

    if (s->argc != 2 || recursive < 0) {
        return -EINVAL;
    }
    r = place_open(path, &place);
    if (r == 0) {
        r = remove_name(place.fd, place.name);
    }
    if (r == -ENOTEMPTY && recursive > 0) {
        r = delete_content(s, &place, &count);
        if (r < 0) {
            return r;
        }
        r = unlinkat(place.fd, place.name, AT_REMOVEDIR) < 0 ? -errno : 0;
    }
    if (r < 0) {
        /* The root, "." or "..": no name to remove. */
        return service_fail(s, r == -EISDIR ? -EBUSY : r, path);
    }
    service_put_done(s, count + 1, false);
    return 0;
}
