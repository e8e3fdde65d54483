#include "node/object_extent.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <linux/fiemap.h>
#include <linux/fs.h>

#define AT_ONCE 128U
/* Whose place says nothing about their content. */
#define VAGUE                                                                                      \
    (FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED |                      \
     FIEMAP_EXTENT_DATA_ENCRYPTED | FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE |        \
     FIEMAP_EXTENT_DATA_TAIL | FIEMAP_EXTENT_UNWRITTEN)

/* The extents of one file, a page of them at a time. */
struct map {
    int fd;
    bool is_last;
    unsigned int at;
    union {
        struct fiemap head;
        uint8_t room[sizeof(struct fiemap) + AT_ONCE * sizeof(struct fiemap_extent)];
    } page;
};

static int fill(struct map *m, uint64_t from)
{
    memset(&m->page, 0, sizeof(m->page));
    m->at = 0;
    m->page.head.fm_start = from;
    m->page.head.fm_length = FIEMAP_MAX_OFFSET - from;
    m->page.head.fm_flags = FIEMAP_FLAG_SYNC;
    m->page.head.fm_extent_count = AT_ONCE;
    if (ioctl(m->fd, FS_IOC_FIEMAP, &m->page.head) < 0) {
        return -errno;
    }
    m->is_last = m->page.head.fm_mapped_extents < AT_ONCE;
    return 0;
}

/* The extent that holds `from`, or the first one behind it; length 0: there is none. */
static int seek(struct map *m, uint64_t from, struct fiemap_extent *ret)
{
    for (;;) {
        while (m->at < m->page.head.fm_mapped_extents) {
            const struct fiemap_extent *e = &m->page.head.fm_extents[m->at];

            if (e->fe_logical + e->fe_length > from) {
                *ret = *e;
                return 0;
            }
            m->at++;
        }
        if (m->is_last) {
            *ret = (struct fiemap_extent){.fe_logical = UINT64_MAX};
            return 0;
        }
        if (fill(m, from) < 0) {
            return -EIO;
        }
    }
}

static bool holds(const struct fiemap_extent *e, uint64_t at)
{
    return e->fe_logical <= at;
}

/* Up to where what is true at `at` stays so. */
static uint64_t edge(const struct fiemap_extent *e, uint64_t at)
{
    return e->fe_logical > at ? e->fe_logical : e->fe_logical + e->fe_length;
}

static bool is_same(const struct fiemap_extent *a, const struct fiemap_extent *b, uint64_t at)
{
    if (!holds(a, at) && !holds(b, at)) {
        return true;
    }
    return holds(a, at) && holds(b, at) && ((a->fe_flags | b->fe_flags) & VAGUE) == 0 &&
           a->fe_physical + (at - a->fe_logical) == b->fe_physical + (at - b->fe_logical);
}

static int walk(struct map *own, struct map *other, uint64_t bytes, object_extent_fn fn, void *arg)
{
    uint64_t at = 0;
    int r = 0;

    while (r == 0 && at < bytes) {
        struct fiemap_extent a;
        struct fiemap_extent b;
        uint64_t end;

        if (seek(own, at, &a) < 0 || seek(other, at, &b) < 0) {
            return -EIO;
        }
        end = edge(&a, at) < edge(&b, at) ? edge(&a, at) : edge(&b, at);
        end = end < bytes ? end : bytes;
        if (!is_same(&a, &b, at)) {
            r = fn(arg, at, end - at);
        }
        at = end;
    }
    return r;
}

int object_extent_differences(int fd, int other_fd, uint64_t bytes, object_extent_fn fn, void *arg)
{
    struct map own = {.fd = fd};
    struct map other = {.fd = other_fd};
    struct stat a;
    struct stat b;

    if (fstat(fd, &a) < 0 || fstat(other_fd, &b) < 0) {
        return -errno;
    }
    if (a.st_dev != b.st_dev || fill(&own, 0) < 0 || fill(&other, 0) < 0) {
        return bytes > 0 ? fn(arg, 0, bytes) : 0;
    }
    return walk(&own, &other, bytes, fn, arg);
}
