/* file-list: a page of a walk through a tree, in which each directory is sorted by bytes.
 *
 * A page costs one reading of each directory on its way, and memory for its own names: of a
 * directory only the smallest names behind the last one are kept, as many as the page still takes,
 * in a heap whose root is the largest. */
#include <errno.h>
#include <fcntl.h>

#include "guest/service_path.h"

#define DEPTH_MAX 64U
#define LIMIT_MAX 1000U

struct level {
    DIR *dir;
    char **names; /* sorted once they are complete */
    size_t n;
    size_t next;
    bool is_cut;       /* the directory has more names behind these */
    char *passed;      /* a name that is only gone into: it was on the page before */
    size_t path_bytes; /* of the directory */
};

struct walk {
    struct service *s;
    struct level levels[DEPTH_MAX];
    size_t n_levels;
    size_t depth;
    uint64_t limit;
    uint64_t count;
    struct buf path;   /* absolute, of the current directory or entry */
    struct span after; /* what is left of it, relative to the current directory; empty: all */
};

static void level_clear(struct level *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->names[i]);
    }
    free(l->names);
    l->names = NULL;
    l->n = 0;
    l->next = 0;
}

static void level_done(struct level *l)
{
    level_clear(l);
    free(l->passed);
    l->passed = NULL;
    if (l->dir != NULL) {
        (void)closedir(l->dir);
        l->dir = NULL;
    }
}

static void walk_done(struct walk *w)
{
    while (w->n_levels > 0) {
        level_done(&w->levels[--w->n_levels]);
    }
    buf_done(&w->path);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void swap(char **a, char **b)
{
    char *other = *a;

    *a = *b;
    *b = other;
}

static void heap_up(char **heap, size_t i)
{
    while (i > 0 && strcmp(heap[i], heap[(i - 1) / 2]) > 0) {
        swap(&heap[i], &heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static void heap_down(char **heap, size_t n)
{
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < n && strcmp(heap[child + 1], heap[child]) > 0) {
            child++;
        }
        if (child >= n || strcmp(heap[child], heap[i]) <= 0) {
            return;
        }
        swap(&heap[i], &heap[child]);
        i = child;
    }
}

static int heap_add(struct level *l, size_t room, const char *name)
{
    char *largest = l->n == room ? l->names[0] : NULL;
    char *copy;

    l->is_cut = l->is_cut || largest != NULL;
    if (largest != NULL && strcmp(name, largest) >= 0) {
        return 0;
    }
    copy = strdup(name);
    if (copy == NULL) {
        return -ENOMEM;
    }
    if (largest != NULL) {
        free(largest);
        l->names[0] = copy;
        heap_down(l->names, room);
        return 0;
    }
    l->names[l->n] = copy;
    heap_up(l->names, l->n++);
    return 0;
}

/* Takes the first names of a directory: those behind `bound`, or from it on. */
static int level_fill(struct walk *w, struct level *l, const char *bound, bool inclusive)
{
    /* One that is only gone into, and one that tells that there are more. */
    size_t room = (size_t)(w->limit - w->count) + 2;
    const struct dirent *entry;

    l->is_cut = false;
    l->names = calloc(room, sizeof(*l->names));
    if (l->names == NULL) {
        return -ENOMEM;
    }
    rewinddir(l->dir);
    errno = 0;
    while ((entry = readdir(l->dir)) != NULL) {
        const char *name = entry->d_name;
        int order = bound == NULL ? 1 : strcmp(name, bound);
        int r;

        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || order < 0 ||
            (order == 0 && !inclusive)) {
            continue;
        }
        r = heap_add(l, room, name);
        if (r < 0) {
            return r;
        }
        errno = 0;
    }
    if (errno != 0) {
        return -errno;
    }
    qsort(l->names, l->n, sizeof(*l->names), compare);
    return 0;
}

/* Names that were taken may be gone, so that more of the directory is needed. */
static int level_refill(struct walk *w, struct level *l)
{
    _cleanup_free_ char *last = TAKE(l->names[l->n - 1]);

    l->n--;
    level_clear(l);
    return level_fill(w, l, last, false);
}

/* Goes into a directory; takes fd. */
static int push(struct walk *w, int fd)
{
    struct level *l = &w->levels[w->n_levels];
    size_t n = span_find(w->after, 0, '/');

    *l = (struct level){.dir = fdopendir(fd), .path_bytes = w->path.n};
    if (l->dir == NULL) {
        (void)close(fd);
        return -errno;
    }
    w->n_levels++;
    if (w->after.n > 0) {
        l->passed = strndup((const char *)w->after.p, n);
        if (l->passed == NULL) {
            return -ENOMEM;
        }
        w->after = span_skip(w->after, n + 1);
    }
    return level_fill(w, l, l->passed, true);
}

/* What cannot be opened shows as an entry only. */
static int push_name(struct walk *w, int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        w->after = span_make(NULL, 0);
        return 0;
    }
    return push(w, fd);
}

/* The path of an entry of l. */
static void set_path(struct walk *w, const struct level *l, const char *name)
{
    w->path.n = l->path_bytes;
    if (w->path.p[w->path.n - 1] != '/') {
        buf_put_str(&w->path, "/");
    }
    buf_put_str(&w->path, name);
}

static int visit(struct walk *w, struct level *l, const char *name, bool is_shown)
{
    struct stat st;

    if (fstatat(dirfd(l->dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        w->after = span_make(NULL, 0);
        return errno == ENOENT ? 0 : -errno;
    }
    set_path(w, l, name);
    if (is_shown) {
        int r = path_put_entry_at(w->s, buf_span(&w->path), dirfd(l->dir), name);

        if (r < 0) {
            return r == -ENOENT ? 0 : r;
        }
        w->count++;
        r = service_flush_some(w->s);
        if (r < 0) {
            return r;
        }
    }
    if (S_ISDIR(st.st_mode) && w->n_levels < w->depth) {
        return push_name(w, dirfd(l->dir), name);
    }
    w->after = span_make(NULL, 0);
    return 0;
}

/* One entry, or the end of a directory. 1 when there would be one more than the limit. */
static int step(struct walk *w)
{
    struct level *l = &w->levels[w->n_levels - 1];
    const char *name;

    if (l->next == l->n) {
        if (l->is_cut) {
            return level_refill(w, l);
        }
        level_done(l);
        w->n_levels--;
        return 0;
    }
    name = l->names[l->next++];
    if (l->passed != NULL && strcmp(name, l->passed) == 0) {
        return visit(w, l, name, false);
    }
    w->after = span_make(NULL, 0); /* where it led is gone, or done */
    return w->count == w->limit ? 1 : visit(w, l, name, true);
}

/* What the list goes on behind, relative to the directory; empty for the first page. */
static int find_after(struct walk *w, const char *text, struct buf *ret)
{
    int r;

    if (text[0] == '\0') {
        return 0;
    }
    r = path_put_absolute(ret, text);
    if (r < 0) {
        return r;
    }
    if (w->path.n == 1) {
        w->after = span_skip(buf_span(ret), 1);
    } else if (ret->n > w->path.n && ret->p[w->path.n] == '/' &&
               memcmp(ret->p, w->path.p, w->path.n) == 0) {
        w->after = span_skip(buf_span(ret), w->path.n + 1);
    }
    return w->after.n > 0 ? 0 : -EINVAL;
}

static int list(struct walk *w, const char *path, const char *after_text)
{
    _cleanup_buf_ struct buf after = buf_make(0);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    int r;

    if (fd < 0) {
        return -errno;
    }
    r = path_put_absolute(&w->path, path);
    if (r == 0) {
        r = find_after(w, after_text, &after);
    }
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    r = push(w, fd);
    while (r == 0 && w->n_levels > 0) {
        r = step(w);
    }
    if (r >= 0) {
        service_put_done(w->s, w->count, r > 0);
    }
    return r < 0 ? r : buf_error(&w->path);
}

int service_file_list(struct service *s)
{
    _cleanup_free_ struct walk *w = calloc(1, sizeof(*w));
    const char *path = service_arg(s, 0);
    uint64_t depth;
    int r;

    if (w == NULL) {
        return -ENOMEM;
    }
    *w = (struct walk){.s = s, .path = buf_make(0)};
    if (s->argc != 4 || span_parse_u64(span_of_str(service_arg(s, 1)), DEPTH_MAX, &depth) < 0 ||
        span_parse_u64(span_of_str(service_arg(s, 2)), LIMIT_MAX, &w->limit) < 0 || depth == 0 ||
        w->limit == 0) {
        return -EINVAL;
    }
    w->depth = (size_t)depth;
    r = list(w, path, service_arg(s, 3));
    walk_done(w);
    return r < 0 ? service_fail(s, r, path) : 0;
}
