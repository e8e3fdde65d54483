/* watch: what changes below a directory.
 *
 * inotify watches directories, so each one below the top has a watch and a node (watch_tree.h).
 * - A new directory may be filled before its watch exists: it is read after the watch was added,
 * and what is found is reported as created. An entry made in between is then found and has an event
 * as well; `found` remembers what was found, so that such an event is not reported again.
 * - The two events of a move carry the same cookie. They are read together where possible; a half
 *   that stays alone is a deletion (moved away) or a creation (moved in from elsewhere).
 * - When the kernel drops events, OVERFLOW is reported, and all watches are made anew.
 * Events are gathered for a moment, so that a program that writes all the time neither keeps this
 * one busy nor floods the host: within one batch a file is modified once. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>

#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/openat2.h>

#include "guest/service_path.h"
#include "guest/tree.h"
#include "guest/watch_tree.h"

#define DIRECTORIES_MAX 65536U
#define BATCH_BYTES     65536U
#define GATHER_NS       5000000
#define OTHER_HALF_MS   20 /* for the second event of a move */
#define FOUND_SLOTS     65536U
#define HASH_FACTOR     0x9e3779b97f4a7c15U
#define NAME_FACTOR     1099511628211U
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define WATCHED                                                                                    \
    (IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |                 \
     IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)

/* A set of hashes of (directory, name): 0 is a free slot. What does not fit is not remembered. */
struct name_set {
    uint64_t slots[FOUND_SLOTS];
    size_t count;
};

struct watch {
    struct service *s;
    bool recursive;
    dev_t dev; /* of the top. No descriptor of it is kept, nor is it the working directory: */
    ino_t ino; /* the kernel tells of its removal only when nobody has it */
    int inotify_fd;
    struct buf top_path;
    struct watch_tree tree;
    struct watch_node *top;
    struct name_set found;
    struct name_set modified; /* in this batch */
    bool is_over;             /* the top is gone */
    bool is_lost;             /* events were dropped: begin anew */
    _Alignas(struct inotify_event) uint8_t batch[BATCH_BYTES];
    size_t n;
};

/* ---- sets of names ---- */

static uint64_t hash_of(int wd, const char *name)
{
    uint64_t hash = ((uint64_t)(unsigned int)wd + 1) * HASH_FACTOR;

    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * NAME_FACTOR;
    }
    return hash == 0 ? 1 : hash;
}

static size_t slot_of(const struct name_set *set, uint64_t hash)
{
    size_t i = (size_t)(hash >> 40U) % FOUND_SLOTS;

    while (set->slots[i] != 0 && set->slots[i] != hash) {
        i = (i + 1) % FOUND_SLOTS;
    }
    return i;
}

static void set_clear(struct name_set *set)
{
    if (set->count > 0) {
        memset(set, 0, sizeof(*set));
    }
}

/* False when it was in the set before. */
static bool set_add(struct name_set *set, int wd, const char *name)
{
    uint64_t hash = hash_of(wd, name);
    size_t i = slot_of(set, hash);

    if (set->slots[i] == hash) {
        return false;
    }
    if (set->count < FOUND_SLOTS / 2) {
        set->slots[i] = hash;
        set->count++;
    }
    return true;
}

/* Whether it was in the set. What stands behind it moves up, so that it is still found. */
static bool set_take(struct name_set *set, int wd, const char *name)
{
    size_t i = slot_of(set, hash_of(wd, name));

    if (set->slots[i] == 0) {
        return false;
    }
    set->slots[i] = 0;
    set->count--;
    for (size_t k = (i + 1) % FOUND_SLOTS; set->slots[k] != 0; k = (k + 1) % FOUND_SLOTS) {
        uint64_t hash = set->slots[k];

        set->slots[k] = 0;
        set->slots[slot_of(set, hash)] = hash;
    }
    return true;
}

/* ---- reporting ---- */

static void
put_path(struct watch *w, struct buf *b, const struct watch_node *node, const char *name)
{
    buf_put(b, buf_span(&w->top_path));
    if (node->parent != NULL) {
        buf_put_str(b, w->top_path.n > 1 ? "/" : "");
        watch_tree_put_path(b, node);
    }
    if (name[0] != '\0') {
        buf_put_str(b, b->n > 1 ? "/" : "");
        buf_put_str(b, name);
    }
}

struct change {
    enum service_change_kind kind;
    bool is_directory;
    const struct watch_node *node;
    const char *name;
    const struct watch_node *from_node; /* of a move */
    const char *from;
};

static int report(struct watch *w, const struct change *c)
{
    _cleanup_buf_ struct buf path = buf_make(0);
    _cleanup_buf_ struct buf from = buf_make(0);
    struct service_change m = {.kind = (uint8_t)c->kind, .is_directory = c->is_directory};

    put_path(w, &path, c->node, c->name);
    if (c->from_node != NULL) {
        put_path(w, &from, c->from_node, c->from);
    }
    if (buf_error(&path) != 0 || buf_error(&from) != 0) {
        return -ENOMEM;
    }
    if (path.n > SERVICE_PATH_BYTES || from.n > SERVICE_PATH_BYTES) {
        return 0; /* deeper than anything is watched */
    }
    m.path = buf_span(&path);
    m.from = buf_span(&from);
    service_change_format(&w->s->out, &m);
    return service_flush_some(w->s);
}

static int report_one(struct watch *w,
                      enum service_change_kind kind,
                      const struct watch_node *node,
                      const char *name,
                      bool is_directory)
{
    const struct change c = {
        .kind = kind, .is_directory = is_directory, .node = node, .name = name};

    return report(w, &c);
}

/* Whether a name is only the kernel's for a file that has none, "#" and a number, as file-write
 * uses them. */
static bool is_unnamed(struct watch *w, const struct watch_node *node, const char *name)
{
    _cleanup_buf_ struct buf path = buf_make(0);

    if (name[0] != '#' || strspn(&name[1], "0123456789") != strlen(&name[1])) {
        return false;
    }
    put_path(w, &path, node, name);
    return buf_error(&path) == 0 &&
           faccessat(AT_FDCWD, buf_str(&path), F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* ---- directories ---- */

static void forget_wd(void *arg, int wd)
{
    const struct watch *w = arg;

    (void)inotify_rm_watch(w->inotify_fd, wd);
}

static void drop_node(struct watch *w, struct watch_node *node)
{
    if (node == w->top) {
        w->is_over = true;
        return;
    }
    watch_tree_remove(&w->tree, node, forget_wd, w);
}

/* Watches the directory behind an O_PATH descriptor. *ret_node is NULL when the user may not. */
static int add_node(struct watch *w,
                    struct watch_node *parent,
                    const char *name,
                    int fd,
                    struct watch_node **ret_node)
{
    char path[PATH_FD_BYTES];
    struct watch_node *node;
    int wd;

    *ret_node = NULL;
    if (w->tree.count >= DIRECTORIES_MAX) {
        return -ENOSPC;
    }
    path_of_fd(fd, path);
    wd = inotify_add_watch(w->inotify_fd, path, WATCHED);
    if (wd < 0) {
        return errno == EACCES || errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    }
    /* One that is known by another name was moved: that is where it is now. */
    node = watch_tree_find(&w->tree, wd);
    if (node == w->top && node != NULL) {
        return 0;
    }
    *ret_node = node != NULL ? watch_tree_move(&w->tree, node, parent, name)
                             : watch_tree_add(&w->tree, parent, name, wd);
    if (*ret_node == NULL) {
        w->is_lost = true;
    }
    return 0;
}

static int open_top(struct watch *w)
{
    _cleanup_close_ int fd = open(buf_str(&w->top_path), O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    if (w->ino != 0 && (st.st_dev != w->dev || st.st_ino != w->ino)) {
        return -ENOENT; /* another one by that name */
    }
    w->dev = st.st_dev;
    w->ino = st.st_ino;
    return TAKE_FD(fd);
}

static int open_node(struct watch *w, const struct watch_node *node, const char *name)
{
    struct open_how how = {.flags = DIRECTORY_FLAGS,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    _cleanup_buf_ struct buf path = buf_make(0);
    _cleanup_close_ int top_fd = open_top(w);
    long fd;

    watch_tree_put_path(&path, node);
    buf_put_str(&path, path.n > 0 ? "/" : "");
    buf_put_str(&path, name);
    if (top_fd < 0 || buf_error(&path) != 0) {
        return top_fd < 0 ? top_fd : -ENOMEM;
    }
    fd = syscall(SYS_openat2, top_fd, buf_str(&path), &how, sizeof(how));
    return fd < 0 ? -errno : (int)fd;
}

/* An entry that a walk found. *node is the directory that the walk is in. */
static int take_found(struct watch *w, struct tree *t, struct watch_node **node, bool is_new)
{
    const char *name = tree_name(t);
    struct watch_node *child = NULL;
    _cleanup_close_ int fd = -1;
    int r = 0;

    if (is_new && !path_is_hidden(name) && set_add(&w->found, (*node)->wd, name)) {
        r = report_one(w, SERVICE_CHANGE_CREATED, *node, name, t->enter);
    }
    if (r < 0 || !t->enter) {
        return r;
    }
    fd = openat(tree_dir_fd(t), name, DIRECTORY_FLAGS);
    r = fd < 0 ? 0 : add_node(w, *node, name, fd, &child);
    if (child == NULL) {
        tree_skip(t);
    } else {
        *node = child;
    }
    return r;
}

/* Watches all directories below a node, of which fd is one (O_PATH); `is_new`: what is found was
 * made just now, and is reported. */
static int add_below(struct watch *w, struct watch_node *node, int fd, bool is_new)
{
    _cleanup_tree_ struct tree t = {.n_levels = 0};
    int content = path_reopen(fd, O_RDONLY | O_DIRECTORY);
    int r = content < 0 ? content : tree_init(&t, content);

    while (r == 0 && !w->is_lost && (r = tree_next(&t)) > 0) {
        if (r == TREE_LEAVE) {
            node = node->parent;
            r = 0;
        } else {
            r = take_found(w, &t, &node, is_new);
        }
    }
    /* What is closed to the user, moved away or too deep is not watched. */
    return r == -EACCES || r == -ENOENT || r == -ESTALE || r == -ENAMETOOLONG ? 0 : r;
}

/* A directory that is new at this place. */
static int add_directory(struct watch *w, struct watch_node *parent, const char *name)
{
    struct watch_node *node = watch_tree_find_child(&w->tree, parent, name);
    _cleanup_close_ int fd = -1;
    int r;

    if (!w->recursive) {
        return 0;
    }
    if (node != NULL) {
        return 0; /* found already, with what is in it */
    }
    fd = open_node(w, parent, name);
    if (fd < 0) {
        return fd == -ENOMEM ? fd : 0; /* gone again, or too deep */
    }
    r = add_node(w, parent, name, fd, &node);
    return r < 0 || node == NULL ? r : add_below(w, node, fd, true);
}

/* Begins, or begins anew: a fresh queue and all watches. */
static int watch_all(struct watch *w)
{
    _cleanup_close_ int top_fd = open_top(w);
    int r;

    if (top_fd < 0) {
        return top_fd;
    }
    if (w->inotify_fd >= 0) {
        (void)close(w->inotify_fd);
    }
    w->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->inotify_fd < 0) {
        return -errno;
    }
    if (w->top != NULL) {
        watch_tree_remove(&w->tree, w->top, forget_wd, w);
        w->top = NULL;
    }
    set_clear(&w->found);
    w->is_lost = false;
    r = add_node(w, NULL, "", top_fd, &w->top);
    if (r < 0 || w->top == NULL) {
        return r < 0 ? r : -EACCES;
    }
    return w->recursive ? add_below(w, w->top, top_fd, false) : 0;
}

/* ---- events ---- */

static struct inotify_event *event_at(struct watch *w, size_t at)
{
    return (struct inotify_event *)(void *)&w->batch[at];
}

static size_t event_bytes(const struct inotify_event *e)
{
    return sizeof(*e) + e->len;
}

static const char *event_name(const struct inotify_event *e)
{
    return e->len > 0 ? e->name : "";
}

/* Appends what the kernel has to the batch. */
static int read_more(struct watch *w)
{
    ssize_t n = read(w->inotify_fd, &w->batch[w->n], sizeof(w->batch) - w->n);

    if (n < 0) {
        /* EINVAL: no room for the next one. */
        return errno == EAGAIN || errno == EINTR || errno == EINVAL ? 0 : -errno;
    }
    w->n += (size_t)n;
    return 0;
}

static struct inotify_event *search_moved_to(struct watch *w, size_t at, uint32_t cookie)
{
    while (at < w->n) {
        struct inotify_event *e = event_at(w, at);

        if ((e->mask & IN_MOVED_TO) != 0 && e->cookie == cookie) {
            return e;
        }
        at += event_bytes(e);
    }
    return NULL;
}

/* The other half of a move, behind `at` in the batch. The kernel makes both at once, so only where
 * the batch ends with the first it may still come. */
static struct inotify_event *find_moved_to(struct watch *w, size_t at, uint32_t cookie)
{
    struct pollfd p = {.fd = w->inotify_fd, .events = POLLIN};

    if (at == w->n && (poll(&p, 1, OTHER_HALF_MS) <= 0 || read_more(w) < 0)) {
        return NULL;
    }
    return search_moved_to(w, at, cookie);
}

static int on_created(struct watch *w, struct watch_node *node, const struct inotify_event *e)
{
    const char *name = event_name(e);
    bool is_directory = (e->mask & IN_ISDIR) != 0;
    int r = 0;

    if (!set_take(&w->found, node->wd, name)) {
        r = report_one(w, SERVICE_CHANGE_CREATED, node, name, is_directory);
    }
    return r == 0 && is_directory ? add_directory(w, node, name) : r;
}

static int on_deleted(struct watch *w, struct watch_node *node, const struct inotify_event *e)
{
    const char *name = event_name(e);
    bool is_directory = (e->mask & IN_ISDIR) != 0;
    struct watch_node *child = is_directory ? watch_tree_find_child(&w->tree, node, name) : NULL;

    (void)set_take(&w->found, node->wd, name);
    if (child != NULL) {
        drop_node(w, child);
    }
    return report_one(w, SERVICE_CHANGE_DELETED, node, name, is_directory);
}

static int move_directory(struct watch *w,
                          struct watch_node *from_node,
                          const char *from,
                          struct watch_node *to_node,
                          const char *to)
{
    struct watch_node *node = watch_tree_find_child(&w->tree, from_node, from);
    struct watch_node *old = watch_tree_find_child(&w->tree, to_node, to);

    if (old != NULL && old != node) {
        drop_node(w, old); /* an empty directory that was replaced */
    }
    if (node == NULL) {
        return add_directory(w, to_node, to);
    }
    if (watch_tree_move(&w->tree, node, to_node, to) == NULL) {
        w->is_lost = true;
    }
    return 0;
}

static int on_moved_from(struct watch *w, struct watch_node *node, size_t at)
{
    const struct inotify_event *e = event_at(w, at);
    struct inotify_event *other = find_moved_to(w, at + event_bytes(e), e->cookie);
    struct watch_node *to_node = other == NULL ? NULL : watch_tree_find(&w->tree, other->wd);
    bool is_directory = (e->mask & IN_ISDIR) != 0;
    struct change c = {.kind = SERVICE_CHANGE_MOVED, .is_directory = is_directory};
    int r;

    if (to_node == NULL) {
        return path_is_hidden(event_name(e)) ? 0 : on_deleted(w, node, e);
    }
    other->mask = 0; /* done with this one */
    (void)set_take(&w->found, node->wd, event_name(e));
    (void)set_take(&w->found, to_node->wd, event_name(other));
    if (path_is_hidden(event_name(e))) {
        /* An upload has replaced a file. */
        return report_one(w, SERVICE_CHANGE_MODIFIED, to_node, event_name(other), is_directory);
    }
    c.node = to_node;
    c.name = event_name(other);
    c.from_node = node;
    c.from = event_name(e);
    r = report(w, &c);
    return r == 0 && is_directory && w->recursive ? move_directory(w, node, c.from, to_node, c.name)
                                                  : r;
}

static int on_event(struct watch *w, size_t at)
{
    const struct inotify_event *e = event_at(w, at);
    struct watch_node *node = watch_tree_find(&w->tree, e->wd);

    if ((e->mask & IN_Q_OVERFLOW) != 0) {
        w->is_lost = true;
        return 0;
    }
    if (node == NULL) {
        return 0; /* of a directory that is gone */
    }
    if (node == w->top && (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) != 0) {
        w->is_over = true;
        return 0;
    }
    if ((e->mask & IN_IGNORED) != 0) {
        drop_node(w, node);
        return 0;
    }
    if (e->len == 0) {
        return 0; /* of the directory itself: the one above it tells */
    }
    if ((e->mask & IN_MOVED_FROM) == 0 && path_is_hidden(event_name(e))) {
        return 0; /* an upload that is not there yet */
    }
    if ((e->mask & (IN_CREATE | IN_MOVED_TO)) != 0) {
        return on_created(w, node, e);
    }
    if ((e->mask & IN_DELETE) != 0) {
        return on_deleted(w, node, e);
    }
    if ((e->mask & IN_MOVED_FROM) != 0) {
        return on_moved_from(w, node, at);
    }
    if ((e->mask & (IN_MODIFY | IN_ATTRIB)) != 0 && !is_unnamed(w, node, event_name(e)) &&
        set_add(&w->modified, node->wd, event_name(e))) {
        return report_one(w, SERVICE_CHANGE_MODIFIED, node, event_name(e),
                          (e->mask & IN_ISDIR) != 0);
    }
    return 0;
}

static int on_batch(struct watch *w)
{
    int left = 0;
    int r = 0;

    set_clear(&w->modified);
    for (size_t at = 0; at < w->n && r == 0 && !w->is_over && !w->is_lost;) {
        size_t bytes = event_bytes(event_at(w, at));

        r = on_event(w, at);
        at += bytes;
    }
    w->n = 0;
    if (r == 0 && w->is_lost) {
        r = report_one(w, SERVICE_CHANGE_OVERFLOW, w->top, "", true);
        return r < 0 ? r : watch_all(w);
    }
    /* All events from before the last reading of a directory are done with. */
    if (ioctl(w->inotify_fd, FIONREAD, &left) == 0 && left == 0) {
        set_clear(&w->found);
    }
    return r;
}

static int watch(struct watch *w, const char *path)
{
    const struct timespec gather = {.tv_nsec = GATHER_NS};
    int r = path_put_absolute(&w->top_path, path);

    if (r == 0 && chdir("/") < 0) {
        r = -errno;
    }
    if (r == 0) {
        r = watch_all(w);
    }
    if (r == 0) {
        service_put_done(w->s, w->tree.count, false);
    }
    while (r == 0) {
        struct pollfd p = {.fd = w->inotify_fd, .events = POLLIN};

        r = service_flush(w->s);
        if (r == 0 && w->is_over) {
            return -ENOENT;
        }
        if (r == 0 && poll(&p, 1, -1) > 0) {
            (void)nanosleep(&gather, NULL);
            r = read_more(w);
        }
        if (r == 0) {
            r = on_batch(w);
        }
    }
    return r;
}

int service_watch(struct service *s)
{
    struct watch *w = calloc(1, sizeof(*w));
    const char *path = service_arg(s, 0);
    int recursive = service_arg_flag(s, 1, "recursive");

    if (s->argc != 2 || recursive < 0 || w == NULL) {
        free(w);
        return w == NULL ? -ENOMEM : -EINVAL;
    }
    w->s = s;
    w->recursive = recursive > 0;
    w->inotify_fd = -1;
    w->top_path = buf_make(0);
    watch_tree_init(&w->tree);
    /* What it has goes with the process. */
    return service_fail(s, watch(w, path), path);
}
