#include "node/object_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/object_extent.h"
#include "node/ram_layer.h"

#define BLOCK        4096U
#define WINDOW_FILE  (1024U * 1024U)
#define WINDOW_DISK  (4U * 1024U * 1024U)
#define WINDOW_PAGES 1024U /* 4 MiB of the guest's memory */
#define COMPARE_STEP (256U * 1024U)

struct builder {
    struct object_plan *plan;
    uint32_t piece_room;
    uint32_t chunk_room;
    uint64_t window; /* of the open chunk */
    int error;
};

void object_plan_done(struct object_plan *plan)
{
    if (plan->file.is_inline) {
        free((void *)(uintptr_t)plan->file.content.p);
    }
    free(plan->file.pieces);
    free(plan->file.chunks);
    free(plan->cursors);
    *plan = (struct object_plan){.fd = -1};
}

/* ---- building ---- */

static int grow(void **array, uint32_t *room, size_t each)
{
    uint32_t more = *room == 0 ? 64 : *room * 2;
    void *grown = more > OBJECT_PIECES_MAX * 2U ? NULL : reallocarray(*array, more, each);

    if (grown == NULL) {
        return -ENOMEM;
    }
    *array = grown;
    *room = more;
    return 0;
}

static int add_piece(struct builder *b, uint64_t offset, uint64_t bytes)
{
    struct object_file *f = &b->plan->file;
    struct object_piece *last = f->piece_count > 0 ? &f->pieces[f->piece_count - 1] : NULL;

    if (last != NULL && last->offset + last->bytes == offset) {
        last->bytes += bytes;
        return 0;
    }
    if (f->piece_count == b->piece_room) {
        void *pieces = f->pieces;
        int r = f->piece_count >= OBJECT_PIECES_MAX
                    ? -EMSGSIZE
                    : grow(&pieces, &b->piece_room, sizeof(*f->pieces));

        if (r < 0) {
            return r;
        }
        f->pieces = pieces;
    }
    if (f->pieces == NULL) {
        return -ENOMEM;
    }
    f->pieces[f->piece_count++] = (struct object_piece){offset, bytes};
    return 0;
}

/* What follows goes into the open chunk if it is of the same window and fits. */
static int add_to_chunk(struct builder *b, uint64_t window, uint32_t bytes)
{
    struct object_file *f = &b->plan->file;

    if (f->chunk_count > 0 && window == b->window &&
        f->chunks[f->chunk_count - 1].bytes + bytes <= OBJECT_CHUNK_MAX) {
        f->chunks[f->chunk_count - 1].bytes += bytes;
        return 0;
    }
    if (f->chunk_count == b->chunk_room) {
        void *chunks = f->chunks;
        int r = grow(&chunks, &b->chunk_room, sizeof(*f->chunks));

        if (r < 0) {
            return r;
        }
        f->chunks = chunks;
    }
    f->chunks[f->chunk_count++] = (struct object_ref){.bytes = bytes};
    b->window = window;
    return 0;
}

/* A range of the file, cut at the windows of its own offsets. */
static int add_range(struct builder *b, uint64_t offset, uint64_t bytes, uint64_t window_bytes)
{
    int r = add_piece(b, offset, bytes);

    while (r == 0 && bytes > 0) {
        uint64_t left = window_bytes - offset % window_bytes;
        uint64_t step = bytes < left ? bytes : left;

        step = step < OBJECT_CHUNK_MAX ? step : OBJECT_CHUNK_MAX;
        r = add_to_chunk(b, offset / window_bytes, (uint32_t)step);
        offset += step;
        bytes -= step;
    }
    return r;
}

static int finish(struct builder *b, int r)
{
    if (r == 0) {
        b->plan->cursors = object_plan_cursors(&b->plan->file);
        r = b->plan->cursors == NULL ? -ENOMEM : 0;
    }
    return r;
}

static int begin(struct builder *b, struct object_plan *plan, const char *name, int fd)
{
    struct stat st;

    *plan = (struct object_plan){.fd = fd};
    *b = (struct builder){.plan = plan, .window = UINT64_MAX};
    if (fstat(fd, &st) < 0) {
        return -errno;
    }
    if (!object_name_is_valid(name) || !S_ISREG(st.st_mode) || st.st_size < 0 ||
        (uint64_t)st.st_size > OBJECT_LENGTH_MAX) {
        return -EINVAL;
    }
    (void)snprintf(plan->file.name, sizeof(plan->file.name), "%s", name);
    plan->file.bytes = (uint64_t)st.st_size;
    plan->file.time_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return 0;
}

/* ---- any file ---- */

static int read_at(int fd, uint8_t *out, size_t n, uint64_t at)
{
    while (n > 0) {
        ssize_t got = pread(fd, out, n, (off_t)at);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -EIO;
        }
        out += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

static int plan_inline(struct object_plan *plan)
{
    size_t n = (size_t)plan->file.bytes;
    uint8_t *content = malloc(n > 0 ? n : 1);
    int r = content == NULL ? -ENOMEM : read_at(plan->fd, content, n, 0);

    if (r < 0) {
        free(content);
        return r;
    }
    plan->file.is_inline = true;
    plan->file.content = span_make(content, n);
    return 0;
}

static int plan_data(struct builder *b)
{
    uint64_t end = b->plan->file.bytes;
    uint64_t at = 0;
    int r = 0;

    while (r == 0 && at < end) {
        off_t data = lseek(b->plan->fd, (off_t)at, SEEK_DATA);
        off_t hole;

        if (data < 0) {
            return errno == ENXIO ? 0 : -errno;
        }
        hole = lseek(b->plan->fd, data, SEEK_HOLE);
        if (hole < 0) {
            return -errno;
        }
        at = (uint64_t)hole < end ? (uint64_t)hole : end;
        if (at > (uint64_t)data) {
            r = add_range(b, (uint64_t)data, at - (uint64_t)data, WINDOW_FILE);
        }
    }
    return r;
}

int object_plan_file(struct object_plan *plan, const char *name, int fd)
{
    struct builder b;
    int r = begin(&b, plan, name, fd);

    if (r == 0 && plan->file.bytes <= OBJECT_INLINE_MAX) {
        return plan_inline(plan);
    }
    return finish(&b, r == 0 ? plan_data(&b) : r);
}

/* ---- a layer of pages ---- */

static int plan_runs(struct builder *b, const struct ram_layer *layer)
{
    int r = add_to_chunk(b, UINT64_MAX - 1, RAM_PAGE_BYTES);
    uint64_t left = (uint64_t)layer->head.runs * RAM_RUN_BYTES;

    for (uint32_t i = 0; r == 0 && i < layer->head.runs; i++) {
        const struct ram_run *run = &layer->runs[i];
        uint32_t at = 0;

        while (r == 0 && !run->is_zero && at < run->pages) {
            uint32_t page = run->first + at;
            uint32_t room = WINDOW_PAGES - page % WINDOW_PAGES;
            uint32_t step = run->pages - at < room ? run->pages - at : room;

            r = add_to_chunk(b, page / WINDOW_PAGES, step * RAM_PAGE_BYTES);
            at += step;
        }
    }
    b->window = UINT64_MAX;
    while (r == 0 && left > 0) {
        uint32_t step = left < OBJECT_CHUNK_MAX ? (uint32_t)left : OBJECT_CHUNK_MAX;

        r = add_to_chunk(b, UINT64_MAX - 2, step);
        left -= step;
    }
    return r;
}

/* Its place is not checked here: what reads the snapshot does that. */
int object_plan_layer(struct object_plan *plan, const char *name, int fd)
{
    uint8_t block[RAM_PAGE_BYTES];
    struct ram_layer_head head;
    struct ram_layer layer = {0};
    struct error err = {0};
    struct builder b;
    int r = begin(&b, plan, name, fd);

    if (r == 0) {
        r = read_at(fd, block, sizeof(block), 0);
    }
    if (r == 0) {
        r = ram_layer_head_parse(span_make(block, sizeof(block)), &head);
    }
    if (r == 0) {
        r = ram_layer_open(fd, &head.place, &layer, &err);
    }
    if (r < 0) {
        return r;
    }
    r = add_piece(&b, 0, plan->file.bytes);
    if (r == 0) {
        r = plan_runs(&b, &layer);
    }
    ram_layer_close(&layer);
    return finish(&b, r);
}

/* ---- a disk ---- */

struct comparison {
    struct builder *b;
    int fd;
    int template_fd;
    uint8_t *own;
    uint8_t *old;
};

/* Beyond the end of the template there are zeroes, as in a disk that was grown. */
static int read_padded(int fd, uint8_t *out, size_t n, uint64_t at)
{
    memset(out, 0, n);
    while (n > 0) {
        ssize_t got = pread(fd, out, n, (off_t)at);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : 0;
        }
        out += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

static int compare_step(struct comparison *c, uint64_t at, size_t n)
{
    int r = read_padded(c->fd, c->own, n, at);

    if (r == 0) {
        r = read_padded(c->template_fd, c->old, n, at);
    }
    for (size_t i = 0; r == 0 && i < n; i += BLOCK) {
        size_t block = n - i < BLOCK ? n - i : BLOCK;

        if (memcmp(&c->own[i], &c->old[i], block) != 0) {
            r = add_range(c->b, at + i, block, WINDOW_DISK);
        }
    }
    return r;
}

static int on_extent(void *arg, uint64_t offset, uint64_t bytes)
{
    struct comparison *c = arg;
    int r = 0;

    while (r == 0 && bytes > 0) {
        size_t step = bytes < COMPARE_STEP ? (size_t)bytes : COMPARE_STEP;

        r = compare_step(c, offset, step);
        offset += step;
        bytes -= step;
    }
    return r;
}

int object_plan_disk(struct object_plan *plan, const char *name, int fd, int template_fd)
{
    _cleanup_free_ uint8_t *room = malloc((size_t)2 * COMPARE_STEP);
    struct builder b;
    struct comparison c = {.b = &b, .fd = fd, .template_fd = template_fd, .own = room};
    int r = begin(&b, plan, name, fd);

    if (room == NULL) {
        return -ENOMEM;
    }
    c.old = &room[COMPARE_STEP];
    plan->file.over = OBJECT_OVER_TEMPLATE;
    if (r == 0) {
        r = object_extent_differences(fd, template_fd, plan->file.bytes, on_extent, &c);
    }
    return finish(&b, r);
}

/* ---- bytes ---- */

struct object_cursor *object_plan_cursors(const struct object_file *f)
{
    struct object_cursor *cursors =
        calloc(f->chunk_count > 0 ? f->chunk_count : 1, sizeof(*cursors));
    struct object_cursor at = {0};

    for (uint32_t i = 0; cursors != NULL && i < f->chunk_count; i++) {
        uint64_t left = f->chunks[i].bytes;

        cursors[i] = at;
        while (left > 0 && at.piece < f->piece_count) {
            uint64_t here = f->pieces[at.piece].bytes - at.skip;

            if (left < here) {
                at.skip += left;
                break;
            }
            left -= here;
            at.piece++;
            at.skip = 0;
        }
    }
    return cursors;
}

int object_plan_read(const struct object_plan *plan, uint32_t i, uint8_t *out)
{
    const struct object_file *f = &plan->file;
    struct object_cursor at = plan->cursors[i];
    uint64_t left = f->chunks[i].bytes;
    int r = 0;

    while (r == 0 && left > 0 && at.piece < f->piece_count) {
        const struct object_piece *p = &f->pieces[at.piece];
        uint64_t here = p->bytes - at.skip < left ? p->bytes - at.skip : left;

        r = read_at(plan->fd, out, (size_t)here, p->offset + at.skip);
        out += here;
        left -= here;
        at.piece++;
        at.skip = 0;
    }
    return r == 0 && left > 0 ? -EINVAL : r;
}

int object_plan_write(const struct object_file *f,
                      const struct object_cursor *from,
                      struct span bytes,
                      int fd)
{
    struct object_cursor at = *from;
    int r = 0;

    while (r == 0 && bytes.n > 0 && at.piece < f->piece_count) {
        const struct object_piece *p = &f->pieces[at.piece];
        uint64_t here = p->bytes - at.skip < bytes.n ? p->bytes - at.skip : bytes.n;

        r = fd_pwrite_all(fd, span_head(bytes, (size_t)here), (off_t)(p->offset + at.skip));
        bytes = span_skip(bytes, (size_t)here);
        at.piece++;
        at.skip = 0;
    }
    return r == 0 && bytes.n > 0 ? -EINVAL : r;
}
