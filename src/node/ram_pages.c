#include "node/ram_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/fd.h"
#include "node/ram_layer.h"

#define MAPS_MAX     (4U * 1024U * 1024U)
#define MEMFD_NAME   "/memfd:space-base (deleted)"
#define RANGES_AHEAD 512U
#define WORDS_AHEAD  8192U

/* PAGEMAP_SCAN came with Linux 6.7; the headers of this system may be older. */
struct scan_range {
    uint64_t start;
    uint64_t end;
    uint64_t categories;
};

struct scan_request {
    uint64_t size;
    uint64_t flags;
    uint64_t start;
    uint64_t end;
    uint64_t walk_end;
    uint64_t ranges;
    uint64_t range_count;
    uint64_t max_pages;
    uint64_t category_inverted;
    uint64_t category_mask;
    uint64_t category_any_of;
    uint64_t return_mask;
};
#define SCAN_IOCTL   _IOWR('f', 16, struct scan_request)
#define SCAN_FILE    4U
#define SCAN_PRESENT 8U
#define SCAN_SWAPPED 16U

/* Words of /proc/PID/pagemap. */
#define WORD_PRESENT (1ULL << 63U)
#define WORD_SWAPPED (1ULL << 62U)
#define WORD_FILE    (1ULL << 61U)

/* ---- mappings ---- */

static bool parse_hex(struct span s, uint64_t *ret)
{
    uint64_t value = 0;

    if (s.n == 0 || s.n > 16) {
        return false;
    }
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];
        unsigned int digit;

        if (c >= '0' && c <= '9') {
            digit = c - '0';
        } else if (c >= 'a' && c <= 'f') {
            digit = c - 'a' + 10U;
        } else {
            return false;
        }
        value = value << 4U | digit;
    }
    *ret = value;
    return true;
}

/* The next field, without the blanks before it. */
static struct span take_field(struct span *rest)
{
    struct span field;
    size_t end;

    while (rest->n > 0 && rest->p[0] == ' ') {
        *rest = span_skip(*rest, 1);
    }
    end = span_find(*rest, 0, ' ');
    field = span_head(*rest, end);
    *rest = span_skip(*rest, end);
    return field;
}

int ram_mapping_parse(struct span line, struct ram_mapping *ret)
{
    struct span rest = line;
    struct span range = take_field(&rest);
    struct span mode = take_field(&rest);
    struct span offset = take_field(&rest);
    struct span device = take_field(&rest);
    struct span inode = take_field(&rest);
    size_t dash = span_find(range, 0, '-');
    struct ram_mapping m = {0};

    while (rest.n > 0 && rest.p[0] == ' ') {
        rest = span_skip(rest, 1);
    }
    if (!parse_hex(span_head(range, dash), &m.start) ||
        !parse_hex(span_skip(range, dash + 1), &m.end) || !parse_hex(offset, &m.offset) ||
        span_parse_u64(inode, UINT64_MAX, &m.inode) < 0 || mode.n != 4 || device.n == 0 ||
        m.start >= m.end) {
        return -EBADMSG;
    }
    m.is_private = mode.p[0] == 'r' && mode.p[1] == 'w' && mode.p[3] == 'p';
    m.name = rest;
    *ret = m;
    return 0;
}

struct finder {
    int proc_fd;
    struct stat image;
    bool is_memfd;
    struct ram_view *view;
};

/* What is mapped there is asked of the kernel: numbers of devices in `maps` are not those of stat
 * on every filesystem. */
static bool is_image(const struct finder *f, const struct ram_mapping *m)
{
    char path[64];
    struct stat st;

    if (!m->is_private || (!f->is_memfd && m->inode != f->image.st_ino) ||
        (f->is_memfd && !span_equals_str(m->name, MEMFD_NAME))) {
        return false;
    }
    (void)snprintf(path, sizeof(path), "map_files/%llx-%llx", (unsigned long long)m->start,
                   (unsigned long long)m->end);
    if (fstatat(f->proc_fd, path, &st, 0) < 0) {
        return false;
    }
    return st.st_size == f->image.st_size &&
           (f->is_memfd || (st.st_dev == f->image.st_dev && st.st_ino == f->image.st_ino));
}

/* Keeps them in the order of the guest's memory. -E2BIG, -EBADMSG when two say the same. */
static int add_part(struct ram_view *view, const struct ram_mapping *m)
{
    struct ram_part part = {m->start, m->offset, m->end - m->start};
    unsigned int i = view->count;

    if (view->count == RAM_PARTS_MAX) {
        return -E2BIG;
    }
    while (i > 0 && view->parts[i - 1].offset > part.offset) {
        view->parts[i] = view->parts[i - 1];
        i--;
    }
    view->parts[i] = part;
    view->count++;
    return 0;
}

static bool is_whole(const struct ram_view *view)
{
    uint64_t at = 0;

    for (unsigned int i = 0; i < view->count; i++) {
        if (view->parts[i].offset != at || view->parts[i].bytes % RAM_PAGE_BYTES != 0) {
            return false;
        }
        at += view->parts[i].bytes;
    }
    return at == view->ram_bytes;
}

static int find_parts(const struct finder *f)
{
    _cleanup_buf_ struct buf maps = buf_make(MAPS_MAX);
    struct span rest;
    int r = file_read(f->proc_fd, "maps", MAPS_MAX, &maps);

    for (rest = buf_span(&maps); r == 0 && rest.n > 0;) {
        size_t end = span_find(rest, 0, '\n');
        struct ram_mapping m;

        if (ram_mapping_parse(span_head(rest, end), &m) == 0 && is_image(f, &m)) {
            r = add_part(f->view, &m);
        }
        rest = span_skip(rest, end + 1);
    }
    return r;
}

static int find_pid(int proc_fd, pid_t *ret)
{
    _cleanup_buf_ struct buf text = buf_make(4096);
    int r = file_read(proc_fd, "stat", 4096, &text);
    uint64_t pid;

    if (r < 0) {
        return r;
    }
    if (span_parse_u64(span_head(buf_span(&text), span_find(buf_span(&text), 0, ' ')), INT32_MAX,
                       &pid) < 0) {
        return -EBADMSG;
    }
    *ret = (pid_t)pid;
    return 0;
}

int ram_view_open(int proc_fd, int image_fd, bool is_memfd, struct ram_view *ret, struct error *err)
{
    struct ram_view view = {.proc_fd = proc_fd, .mem_fd = -1, .pagemap_fd = -1};
    struct finder f = {.proc_fd = proc_fd, .is_memfd = is_memfd, .view = &view};
    int r = fstat(image_fd, &f.image) < 0 ? -errno : 0;

    if (r == 0) {
        view.ram_bytes = (uint64_t)f.image.st_size;
        r = find_pid(proc_fd, &view.pid);
    }
    if (r == 0) {
        r = find_parts(&f);
    }
    if (r < 0) {
        return error_set(err, -r, "cannot read the VMM's mappings: %s", strerror(-r));
    }
    if (view.ram_bytes == 0 || view.ram_bytes > RAM_BYTES_MAX || !is_whole(&view)) {
        return error_set(err, ENXIO, "the VMM does not run on the sandbox's base image");
    }
    view.mem_fd = openat(proc_fd, "mem", O_RDWR | O_CLOEXEC);
    view.pagemap_fd = openat(proc_fd, "pagemap", O_RDONLY | O_CLOEXEC);
    if (view.mem_fd < 0 || view.pagemap_fd < 0) {
        r = -errno;
        ram_view_close(&view);
        return error_set(err, -r, "cannot open the VMM's memory: %s", strerror(-r));
    }
    *ret = view;
    return 0;
}

void ram_view_close(struct ram_view *view)
{
    if (view->mem_fd >= 0) {
        (void)close(TAKE_FD(view->mem_fd));
    }
    if (view->pagemap_fd >= 0) {
        (void)close(TAKE_FD(view->pagemap_fd));
    }
}

/* ---- which pages ---- */

static uint32_t page_of(const struct ram_part *part, uint64_t address)
{
    return (uint32_t)((part->offset + (address - part->address)) / RAM_PAGE_BYTES);
}

/* -ENOTTY: this kernel cannot. */
static int
scan_part(const struct ram_view *view, const struct ram_part *part, ram_pages_fn fn, void *arg)
{
    struct scan_range ranges[RANGES_AHEAD];
    struct scan_request q = {
        .size = sizeof(q),
        .start = part->address,
        .end = part->address + part->bytes,
        .ranges = (uint64_t)(uintptr_t)ranges,
        .range_count = RANGES_AHEAD,
        .category_inverted = SCAN_FILE,
        .category_mask = SCAN_FILE,
        .category_any_of = SCAN_PRESENT | SCAN_SWAPPED,
        .return_mask = SCAN_FILE, /* the same for all, so that neighbours are one range */
    };

    while (q.start < q.end) {
        int n = ioctl(view->pagemap_fd, SCAN_IOCTL, &q);

        if (n < 0) {
            return q.start == part->address && (errno == EINVAL || errno == ENOTTY) ? -ENOTTY
                                                                                    : -errno;
        }
        for (int i = 0; i < n; i++) {
            int r = fn(arg, page_of(part, ranges[i].start),
                       (uint32_t)((ranges[i].end - ranges[i].start) / RAM_PAGE_BYTES));

            if (r < 0) {
                return r;
            }
        }
        if (q.walk_end <= q.start) {
            return -EIO;
        }
        q.start = q.walk_end;
    }
    return 0;
}

struct run_gatherer {
    ram_pages_fn fn;
    void *arg;
    uint32_t first;
    uint32_t pages;
};

static int gather(struct run_gatherer *g, uint32_t page, bool own)
{
    int r = 0;

    if (own && g->pages > 0 && g->first + g->pages == page) {
        g->pages++;
        return 0;
    }
    if (g->pages > 0) {
        r = g->fn(g->arg, g->first, g->pages);
    }
    g->first = page;
    g->pages = own ? 1 : 0;
    return r;
}

static int
walk_part(const struct ram_view *view, const struct ram_part *part, ram_pages_fn fn, void *arg)
{
    _cleanup_free_ uint64_t *words = malloc(WORDS_AHEAD * sizeof(*words));
    struct run_gatherer g = {.fn = fn, .arg = arg};
    uint64_t pages = part->bytes / RAM_PAGE_BYTES;
    uint64_t at = 0;
    int r = words == NULL ? -ENOMEM : 0;

    while (r == 0 && at < pages) {
        uint64_t want = pages - at < WORDS_AHEAD ? pages - at : WORDS_AHEAD;
        off_t from = (off_t)((part->address / RAM_PAGE_BYTES + at) * sizeof(*words));
        ssize_t n = pread(view->pagemap_fd, words, want * sizeof(*words), from);

        if (n <= 0 || n % (ssize_t)sizeof(*words) != 0) {
            return n < 0 ? -errno : -ESRCH;
        }
        for (size_t i = 0; r == 0 && i < (size_t)n / sizeof(*words); i++, at++) {
            bool own =
                (words[i] & (WORD_PRESENT | WORD_SWAPPED)) != 0 && (words[i] & WORD_FILE) == 0;

            r = gather(&g, page_of(part, part->address + at * RAM_PAGE_BYTES), own);
        }
    }
    return r == 0 && g.pages > 0 ? fn(arg, g.first, g.pages) : r;
}

int ram_view_each(const struct ram_view *view, ram_pages_fn fn, void *arg)
{
    for (unsigned int i = 0; i < view->count; i++) {
        int r = view->no_scan ? -ENOTTY : scan_part(view, &view->parts[i], fn, arg);

        if (r == -ENOTTY) {
            r = walk_part(view, &view->parts[i], fn, arg);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* ---- bytes ---- */

/* Address of a page and how many bytes follow it in its part. */
static uint64_t find_page(const struct ram_view *view, uint64_t offset, uint64_t *ret_room)
{
    for (unsigned int i = 0; i < view->count; i++) {
        const struct ram_part *part = &view->parts[i];

        if (offset - part->offset < part->bytes) {
            *ret_room = part->bytes - (offset - part->offset);
            return part->address + (offset - part->offset);
        }
    }
    *ret_room = 0;
    return 0;
}

/* One call's worth of bytes. */
static ssize_t read_step(const struct ram_view *view, uint64_t address, void *out, size_t n)
{
    const struct iovec here = {out, n};
    const struct iovec there = {(void *)(uintptr_t)address, n};
    ssize_t got = process_vm_readv(view->pid, &here, 1, &there, 1, 0);

    if (got >= 0 && faccessat(view->proc_fd, "stat", F_OK, 0) < 0) {
        errno = ESRCH; /* perhaps they were another's */
        return -1;
    }
    return got;
}

static int
copy(const struct ram_view *view, uint64_t offset, uint8_t *out, const uint8_t *in, size_t n)
{
    size_t done = 0;

    while (done < n) {
        uint64_t room;
        uint64_t address = find_page(view, offset + done, &room);
        size_t step = n - done < room ? n - done : (size_t)room;
        ssize_t got;

        if (room == 0) {
            return -EINVAL;
        }
        got = in != NULL ? pwrite(view->mem_fd, &in[done], step, (off_t)address)
                         : read_step(view, address, &out[done], step);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -ESRCH;
        }
        done += (size_t)got;
    }
    return 0;
}

int ram_view_read(const struct ram_view *view, uint32_t first, uint32_t pages, uint8_t *out)
{
    return copy(view, (uint64_t)first * RAM_PAGE_BYTES, out, NULL, (size_t)pages * RAM_PAGE_BYTES);
}

int ram_view_write(const struct ram_view *view, uint32_t first, uint32_t pages, const uint8_t *in)
{
    return copy(view, (uint64_t)first * RAM_PAGE_BYTES, NULL, in, (size_t)pages * RAM_PAGE_BYTES);
}
