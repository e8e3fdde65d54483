/* Capturing a stopped VM, and filling the memory of a new one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/sendfile.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"
#include "node/disk.h"
#include "node/ram_pages.h"
#include "node/ram_stage.h"
#include "node/snapshot_private.h"
#include "node/snapshot_room.h"

#define RUN_BYTES ((size_t)RAM_RUN_PAGES_MAX * RAM_PAGE_BYTES)

enum page_kind {
    PAGE_SAME, /* as in the base */
    PAGE_ZERO,
    PAGE_DATA
};

struct capture {
    const struct ram_view *view; /* or, when it is NULL, what was staged */
    const struct ram_stage *stage;
    int image_fd;
    struct ram_layer_writer *writer;
    uint8_t *own; /* RUN_BYTES each */
    uint8_t *base;
};

/* ---- out ---- */

static int read_image(int fd, uint8_t *out, size_t n, uint64_t at)
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

static enum page_kind kind_of(const uint8_t *own, const uint8_t *base)
{
    if (memcmp(own, base, RAM_PAGE_BYTES) == 0) {
        return PAGE_SAME;
    }
    return own[0] == 0 && memcmp(own, own + 1, RAM_PAGE_BYTES - 1) == 0 ? PAGE_ZERO : PAGE_DATA;
}

/* At most RAM_RUN_PAGES_MAX of them. */
static int put_pages(struct capture *c, uint32_t first, uint32_t pages, const uint8_t *own)
{
    size_t n = (size_t)pages * RAM_PAGE_BYTES;
    uint32_t at = 0;
    int r = read_image(c->image_fd, c->base, n, (uint64_t)first * RAM_PAGE_BYTES);

    while (r == 0 && at < pages) {
        size_t offset = (size_t)at * RAM_PAGE_BYTES;
        enum page_kind kind = kind_of(&own[offset], &c->base[offset]);
        uint32_t end = at + 1;

        while (end < pages && kind == kind_of(&own[(size_t)end * RAM_PAGE_BYTES],
                                              &c->base[(size_t)end * RAM_PAGE_BYTES])) {
            end++;
        }
        if (kind != PAGE_SAME) {
            r = ram_layer_put(c->writer, first + at, end - at,
                              kind == PAGE_DATA ? &own[offset] : NULL);
        }
        at = end;
    }
    return r;
}

/* bytes NULL: they are still in the VMM. */
static int put_staged(void *arg, uint32_t first, uint32_t pages, const uint8_t *bytes)
{
    struct capture *c = arg;
    int r = 0;

    while (r == 0 && pages > 0) {
        uint32_t step = pages < RAM_RUN_PAGES_MAX ? pages : RAM_RUN_PAGES_MAX;

        if (bytes == NULL) {
            r = ram_view_read(c->view, first, step, c->own);
        }
        if (r == 0) {
            r = put_pages(c, first, step, bytes == NULL ? c->own : bytes);
        }
        bytes = bytes == NULL ? NULL : bytes + (size_t)step * RAM_PAGE_BYTES;
        first += step;
        pages -= step;
    }
    return r;
}

static int put_run(void *arg, uint32_t first, uint32_t pages)
{
    return put_staged(arg, first, pages, NULL);
}

static int count_run(void *arg, uint32_t first, uint32_t pages)
{
    uint64_t *count = arg;

    (void)first;
    *count += pages;
    return 0;
}

/* What is left must serve the guests that run: a full disk gives them errors. */
static int
take_room(const char *dir, const struct snapshot_source *source, struct snapshot_sizes *sizes)
{
    uint64_t most =
        sizes->own_pages * (RAM_PAGE_BYTES + RAM_RUN_BYTES) + 2 * (uint64_t)RAM_PAGE_BYTES;
    char path[SNAPSHOT_PATH_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "%.470s.new", dir);
    r = snapshot_room_promise(source->room, path, most, source->reserve_mib);
    if (r == 0) {
        sizes->promised_bytes = most;
    }
    return r;
}

/* What turned out to be as in the base. */
static void trim_room(const struct snapshot_source *source, struct snapshot_sizes *sizes)
{
    if (sizes->promised_bytes > sizes->memory_bytes) {
        snapshot_room_give_back(source->room, sizes->promised_bytes - sizes->memory_bytes);
        sizes->promised_bytes = sizes->memory_bytes;
    }
}

static int write_layer(struct capture *c, int fd, struct snapshot_sizes *ret)
{
    struct ram_layer_head head;
    struct stat st;
    int r = c->view != NULL ? ram_view_each(c->view, put_run, c)
                            : ram_stage_each(c->stage, put_staged, c);

    if (r == 0) {
        r = ram_layer_finish(c->writer, &head);
    }
    if (r == 0 && fstat(fd, &st) < 0) {
        r = -errno;
    }
    if (r == 0) {
        ret->memory_bytes = (uint64_t)st.st_size;
        ret->data_pages = head.data_pages;
        ret->zero_pages = head.zero_pages;
    }
    return r;
}

static int capture_view(const char *dir,
                        struct capture *c,
                        const struct ram_layer_place *place,
                        struct snapshot_sizes *ret)
{
    _cleanup_close_ int fd = snapshot_open_file(dir, ".new", "memory", O_RDWR | O_CREAT | O_EXCL);
    _cleanup_free_ uint8_t *room = malloc(2 * RUN_BYTES);
    int r;

    if (fd < 0) {
        return fd;
    }
    c->writer = ram_layer_writer_new(fd, place);
    if (c->writer == NULL || room == NULL) {
        ram_layer_writer_free(c->writer);
        return -ENOMEM;
    }
    c->own = room;
    c->base = &room[RUN_BYTES];
    r = write_layer(c, fd, ret);
    ram_layer_writer_free(TAKE(c->writer));
    return r;
}

/* own_pages of them are looked at. */
static int write_memory(const char *dir,
                        struct capture *c,
                        const struct ram_layer_place *place,
                        const struct snapshot_source *source,
                        struct snapshot_sizes *ret)
{
    int r = take_room(dir, source, ret);

    if (r == 0) {
        r = capture_view(dir, c, place, ret);
    }
    if (r == 0) {
        trim_room(source, ret);
    }
    return r;
}

/* With a view while the VM stands still, or with what was staged. */
static int capture_memory(const char *dir,
                          const struct snapshot_facts *facts,
                          const struct snapshot_source *source,
                          struct snapshot_sizes *ret,
                          struct error *err)
{
    _cleanup_close_ int image = snapshot_open_file(dir, ".new", "ram", O_RDONLY);
    struct ram_layer_place place;
    struct ram_view view;
    struct capture c = {.stage = source->stage, .image_fd = image};
    int r = image < 0 ? image : snapshot_place(facts, image, &place);

    if (r < 0) {
        return snapshot_fail(err, r, "the base image cannot be read");
    }
    if (ret->is_staged) {
        r = write_memory(dir, &c, &place, source, ret);
        return r < 0 ? snapshot_fail(err, r, "the VM's memory cannot be captured") : 0;
    }
    r = ram_view_open(source->proc_fd, image, source->ram_is_memfd, &view, err);
    if (r < 0) {
        return r;
    }
    c.view = &view;
    r = ram_view_each(&view, count_run, &ret->own_pages);
    if (r == 0) {
        r = write_memory(dir, &c, &place, source, ret);
    }
    ram_view_close(&view);
    return r < 0 ? snapshot_fail(err, r, "the VM's memory cannot be captured") : 0;
}

/* Where there is no stage, or not room enough in it, the memory is written at once. */
static int take_memory(const char *dir,
                       const struct snapshot_facts *facts,
                       const struct snapshot_source *source,
                       struct snapshot_sizes *ret,
                       struct error *err)
{
    int r = source->stage == NULL ? 0 : ram_stage_take(source->stage);

    if (r < 0) {
        return snapshot_fail(err, r, "the VM's memory cannot be captured");
    }
    if (r == 0) {
        return capture_memory(dir, facts, source, ret, err);
    }
    ret->is_staged = true;
    ret->own_pages = ram_stage_pages(source->stage);
    return 0;
}

int snapshot_write(const char *dir,
                   const struct snapshot_facts *facts,
                   const struct snapshot_source *source,
                   struct snapshot_sizes *sizes,
                   struct error *err)
{
    return sizes->is_staged ? capture_memory(dir, facts, source, sizes, err) : 0;
}

static int capture_state(const char *dir, int state_fd, uint64_t *ret_bytes)
{
    _cleanup_close_ int fd = snapshot_open_file(dir, ".new", "state", O_WRONLY | O_CREAT | O_EXCL);
    struct stat st;
    off_t at = 0;

    if (fd < 0) {
        return fd;
    }
    if (fstat(state_fd, &st) < 0) {
        return -errno;
    }
    if (st.st_size <= 0 || st.st_size > (off_t)SNAPSHOT_STATE_MAX) {
        return -EFBIG;
    }
    while (at < st.st_size) {
        ssize_t n = sendfile(fd, state_fd, &at, (size_t)(st.st_size - at));

        if (n <= 0) {
            return n < 0 ? -errno : -EIO;
        }
    }
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static int link_ram(const char *dir, const char *ram_path)
{
    char path[SNAPSHOT_PATH_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%.470s.new/ram", dir);
    return link(ram_path, path) < 0 ? -errno : 0;
}

int snapshot_capture(const char *dir,
                     const struct snapshot_facts *facts,
                     const struct snapshot_source *source,
                     struct snapshot_sizes *ret,
                     struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    struct snapshot_sizes sizes = {0};
    int64_t begun_ns = clock_monotonic_ns();
    int64_t cloned_ns;
    struct stat st = {0};
    int r = link_ram(dir, source->ram_path);

    if (r < 0) {
        return snapshot_fail(err, r, "the base image of the sandbox is not there");
    }
    (void)snprintf(path, sizeof(path), "%.470s.new/disk.img", dir);
    r = disk_clone(source->disk_path, path, 0, err);
    if (r == 0 && stat(path, &st) < 0) {
        r = snapshot_fail(err, -errno, "the disk cannot be captured");
    }
    if (r < 0) {
        return r;
    }
    sizes.disk_bytes = (uint64_t)st.st_size;
    cloned_ns = clock_monotonic_ns();
    r = capture_state(dir, source->state_fd, &sizes.state_bytes);
    if (r < 0) {
        return snapshot_fail(err, r, "the device state cannot be captured");
    }
    r = take_memory(dir, facts, source, &sizes, err);
    if (r == 0) {
        *ret = sizes;
        ret->disk_us = (cloned_ns - begun_ns) / 1000;
        ret->memory_us = (clock_monotonic_ns() - cloned_ns) / 1000;
    } else {
        snapshot_room_give_back(source->room, sizes.promised_bytes);
    }
    return r;
}

/* ---- in ---- */

struct fill {
    const struct ram_view *view;
    const struct ram_layer *layer;
    int image_fd;
    uint32_t cursor;
    uint8_t page[RAM_PAGE_BYTES];
};

/* A page that the VMM wrote while it started, and that the layer leaves to the base. */
static int reset_run(void *arg, uint32_t first, uint32_t pages)
{
    struct fill *f = arg;
    int r = 0;

    for (uint32_t page = first; r == 0 && page < first + pages; page++) {
        if (ram_layer_has(f->layer, page, &f->cursor)) {
            continue;
        }
        r = read_image(f->image_fd, f->page, sizeof(f->page), (uint64_t)page * RAM_PAGE_BYTES);
        if (r == 0) {
            r = ram_view_write(f->view, page, 1, f->page);
        }
    }
    return r;
}

static int write_run(void *arg, const struct ram_run *run, const uint8_t *bytes)
{
    static const uint8_t zeroes[RAM_PAGE_BYTES];
    struct fill *f = arg;
    int r = 0;

    if (bytes != NULL) {
        return ram_view_write(f->view, run->first, run->pages, bytes);
    }
    for (uint32_t i = 0; r == 0 && i < run->pages; i++) {
        r = ram_view_write(f->view, run->first + i, 1, zeroes);
    }
    return r;
}

static int fill_view(struct fill *f, struct error *err)
{
    int r = ram_view_each(f->view, reset_run, f);

    if (r < 0) {
        return error_set(err, -r, "the VM's memory cannot be prepared: %s", strerror(-r));
    }
    return ram_layer_read(f->layer, write_run, f, err);
}

int snapshot_fill(const char *dir,
                  const struct snapshot_facts *want,
                  int proc_fd,
                  bool ram_is_memfd,
                  struct error *err)
{
    _cleanup_close_ int image = snapshot_open_file(dir, "", "ram", O_RDONLY);
    _cleanup_close_ int fd = snapshot_open_file(dir, "", "memory", O_RDONLY);
    struct ram_layer_place place;
    struct ram_layer layer;
    struct ram_view view;
    struct fill f = {.view = &view, .layer = &layer, .image_fd = image};
    int r = image < 0 ? image : fd < 0 ? fd : snapshot_place(want, image, &place);

    if (r < 0) {
        return error_set(err, -r, "the snapshot cannot be read: %s", strerror(-r));
    }
    r = ram_layer_open(fd, &place, &layer, err);
    if (r < 0) {
        return r;
    }
    r = ram_view_open(proc_fd, image, ram_is_memfd, &view, err);
    if (r == 0) {
        r = fill_view(&f, err);
        ram_view_close(&view);
    }
    ram_layer_close(&layer);
    return r;
}
