#include "node/ram_layer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/reader.h"

#define HEAD_SUMMED (RAM_PAGE_BYTES - RAM_LAYER_SUM_BYTES)
#define KIND_DATA   1U
#define KIND_ZERO   2U
/* A run for every other page of the largest guest: 64 MiB of index. */
#define RUNS_MAX (2U * 1024U * 1024U)

static const uint8_t magic[8] = {'S', 'P', 'A', 'C', 'E', 'R', 'A', 'M'};

struct ram_layer_writer {
    int fd;
    struct ram_layer_head head;
    uint64_t next_page; /* behind the last run */
    struct buf index;
};

struct ram_sum ram_sum_of(struct span bytes)
{
    XXH128_canonical_t canonical;
    struct ram_sum sum;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.p, bytes.n));
    memcpy(sum.bytes, canonical.digest, sizeof(sum.bytes));
    return sum;
}

bool ram_sum_equals(const struct ram_sum *a, const struct ram_sum *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static struct ram_sum get_sum(struct reader *r)
{
    struct span bytes = reader_get_bytes(r, RAM_LAYER_SUM_BYTES);
    struct ram_sum sum = {{0}};

    if (bytes.n == sizeof(sum.bytes)) {
        memcpy(sum.bytes, bytes.p, bytes.n);
    }
    return sum;
}

static bool is_zero(struct span s)
{
    return s.n == 0 || (s.p[0] == 0 && memcmp(s.p, s.p + 1, s.n - 1) == 0);
}

/* ---- the head ---- */

static bool head_is_sound(const struct ram_layer_head *h)
{
    uint64_t ram_pages = h->place.ram_bytes / RAM_PAGE_BYTES;

    return h->place.ram_bytes > 0 && h->place.ram_bytes <= RAM_BYTES_MAX &&
           h->place.ram_bytes % RAM_PAGE_BYTES == 0 && h->data_pages <= ram_pages &&
           h->zero_pages <= ram_pages - h->data_pages && h->runs <= RUNS_MAX &&
           h->runs <= h->data_pages + h->zero_pages &&
           (uint64_t)h->runs * RAM_RUN_PAGES_MAX >= h->data_pages + h->zero_pages;
}

int ram_layer_head_parse(struct span block, struct ram_layer_head *ret)
{
    struct reader r = reader_make(block);
    struct ram_layer_head h = {0};
    struct ram_sum sum;
    struct ram_sum want;
    struct span sign = reader_get_bytes(&r, sizeof(magic));
    uint32_t version = reader_get_u32(&r);
    uint32_t page_bytes = reader_get_u32(&r);

    h.place.ram_bytes = reader_get_u64(&r);
    h.place.binding = get_sum(&r);
    h.data_pages = reader_get_u64(&r);
    h.zero_pages = reader_get_u64(&r);
    h.runs = reader_get_u32(&r);
    h.index_sum = get_sum(&r);
    if (block.n != RAM_PAGE_BYTES || r.error != 0) {
        return -EBADMSG;
    }
    if (!is_zero(span_head(r.rest, r.rest.n - RAM_LAYER_SUM_BYTES))) {
        return -EBADMSG;
    }
    (void)reader_get_bytes(&r, r.rest.n - RAM_LAYER_SUM_BYTES);
    sum = get_sum(&r);
    want = ram_sum_of(span_head(block, HEAD_SUMMED));
    if (reader_finish(&r) < 0 || !ram_sum_equals(&sum, &want) ||
        !span_equals(sign, span_make(magic, sizeof(magic))) || version != RAM_LAYER_VERSION ||
        page_bytes != RAM_PAGE_BYTES || !head_is_sound(&h)) {
        return -EBADMSG;
    }
    *ret = h;
    return 0;
}

void ram_layer_head_format(const struct ram_layer_head *head, uint8_t block[RAM_PAGE_BYTES])
{
    _cleanup_buf_ struct buf b = buf_make(RAM_PAGE_BYTES);
    struct ram_sum sum;

    buf_put(&b, span_make(magic, sizeof(magic)));
    buf_put_u32(&b, RAM_LAYER_VERSION);
    buf_put_u32(&b, RAM_PAGE_BYTES);
    buf_put_u64(&b, head->place.ram_bytes);
    buf_put(&b, span_make(head->place.binding.bytes, RAM_LAYER_SUM_BYTES));
    buf_put_u64(&b, head->data_pages);
    buf_put_u64(&b, head->zero_pages);
    buf_put_u32(&b, head->runs);
    buf_put(&b, span_make(head->index_sum.bytes, RAM_LAYER_SUM_BYTES));
    memset(block, 0, RAM_PAGE_BYTES);
    if (b.n > 0) {
        memcpy(block, b.p, b.n);
    }
    sum = ram_sum_of(span_make(block, HEAD_SUMMED));
    memcpy(&block[HEAD_SUMMED], sum.bytes, sizeof(sum.bytes));
}

static uint64_t index_at(const struct ram_layer_head *head)
{
    return (1 + head->data_pages) * RAM_PAGE_BYTES;
}

uint64_t ram_layer_file_bytes(const struct ram_layer_head *head)
{
    return index_at(head) + (uint64_t)head->runs * RAM_RUN_BYTES;
}

/* ---- the index ---- */

static int parse_run(struct reader *r, struct ram_run *ret)
{
    uint32_t kind;
    uint32_t unused;

    ret->first = reader_get_u32(r);
    ret->pages = reader_get_u32(r);
    kind = reader_get_u32(r);
    unused = reader_get_u32(r);
    ret->sum = get_sum(r);
    ret->is_zero = kind == KIND_ZERO;
    if (r->error != 0 || unused != 0 || (kind != KIND_DATA && kind != KIND_ZERO) ||
        ret->pages == 0 || ret->pages > RAM_RUN_PAGES_MAX ||
        (ret->is_zero && !is_zero(span_make(ret->sum.bytes, sizeof(ret->sum.bytes))))) {
        return -EBADMSG;
    }
    return 0;
}

int ram_layer_index_parse(const struct ram_layer_head *head,
                          struct span index,
                          struct ram_run *ret_runs)
{
    struct reader r = reader_make(index);
    struct ram_sum sum = ram_sum_of(index);
    uint64_t ram_pages = head->place.ram_bytes / RAM_PAGE_BYTES;
    uint64_t next = 0;
    uint64_t data = 0;
    uint64_t zero = 0;

    if (!ram_sum_equals(&sum, &head->index_sum)) {
        return -EBADMSG;
    }
    for (uint32_t i = 0; i < head->runs; i++) {
        struct ram_run *run = &ret_runs[i];

        if (parse_run(&r, run) < 0 || run->first < next ||
            (uint64_t)run->first + run->pages > ram_pages) {
            return -EBADMSG;
        }
        next = (uint64_t)run->first + run->pages;
        data += run->is_zero ? 0 : run->pages;
        zero += run->is_zero ? run->pages : 0;
    }
    return reader_finish(&r) < 0 || data != head->data_pages || zero != head->zero_pages ? -EBADMSG
                                                                                         : 0;
}

void ram_run_format(const struct ram_run *run, uint8_t bytes[RAM_RUN_BYTES])
{
    _cleanup_buf_ struct buf b = buf_make(RAM_RUN_BYTES);

    buf_put_u32(&b, run->first);
    buf_put_u32(&b, run->pages);
    buf_put_u32(&b, run->is_zero ? KIND_ZERO : KIND_DATA);
    buf_put_u32(&b, 0);
    buf_put(&b, span_make(run->sum.bytes, sizeof(run->sum.bytes)));
    memset(bytes, 0, RAM_RUN_BYTES);
    if (b.n > 0) {
        memcpy(bytes, b.p, b.n);
    }
}

/* ---- writing ---- */

struct ram_layer_writer *ram_layer_writer_new(int fd, const struct ram_layer_place *place)
{
    struct ram_layer_writer *w = calloc(1, sizeof(*w));

    if (w != NULL) {
        w->fd = fd;
        w->head.place = *place;
        w->index = buf_make(0);
    }
    return w;
}

void ram_layer_writer_free(struct ram_layer_writer *writer)
{
    if (writer != NULL) {
        buf_done(&writer->index);
        free(writer);
    }
}

int ram_layer_put(struct ram_layer_writer *w, uint32_t first, uint32_t pages, const uint8_t *bytes)
{
    struct ram_run run = {.first = first, .pages = pages, .is_zero = bytes == NULL};
    uint8_t record[RAM_RUN_BYTES];

    if (pages == 0 || pages > RAM_RUN_PAGES_MAX || first < w->next_page ||
        (uint64_t)first + pages > w->head.place.ram_bytes / RAM_PAGE_BYTES) {
        return -EINVAL;
    }
    if (w->head.runs == RUNS_MAX) {
        return -EFBIG;
    }
    if (bytes != NULL) {
        struct span s = span_make(bytes, (size_t)pages * RAM_PAGE_BYTES);
        int r = fd_pwrite_all(w->fd, s, (off_t)index_at(&w->head));

        if (r < 0) {
            return r;
        }
        run.sum = ram_sum_of(s);
        w->head.data_pages += pages;
    } else {
        w->head.zero_pages += pages;
    }
    ram_run_format(&run, record);
    buf_put(&w->index, span_make(record, sizeof(record)));
    w->head.runs++;
    w->next_page = (uint64_t)first + pages;
    return buf_error(&w->index);
}

int ram_layer_finish(struct ram_layer_writer *w, struct ram_layer_head *ret)
{
    uint8_t block[RAM_PAGE_BYTES];
    int r;

    w->head.index_sum = ram_sum_of(buf_span(&w->index));
    ram_layer_head_format(&w->head, block);
    r = fd_pwrite_all(w->fd, buf_span(&w->index), (off_t)index_at(&w->head));
    if (r == 0) {
        r = fd_pwrite_all(w->fd, span_make(block, sizeof(block)), 0);
    }
    if (r == 0) {
        *ret = w->head;
    }
    return r;
}

/* ---- reading ---- */

/* 0 or -errno; a short file is -EBADMSG. */
static int read_at(int fd, void *out, size_t n, uint64_t at)
{
    uint8_t *p = out;

    while (n > 0) {
        ssize_t got = pread(fd, p, n, (off_t)at);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got == 0 ? -EBADMSG : -errno;
        }
        p += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

static int damaged(struct error *err, int r, const char *what)
{
    return r == -EBADMSG
               ? error_set(err, EBADMSG, "the snapshot's memory is damaged: %s", what)
               : error_set(err, -r, "the snapshot's memory cannot be read: %s", strerror(-r));
}

static int read_head(int fd, struct ram_layer_head *ret, struct error *err)
{
    uint8_t block[RAM_PAGE_BYTES];
    struct stat st;
    int r = read_at(fd, block, sizeof(block), 0);

    if (r == 0) {
        r = ram_layer_head_parse(span_make(block, sizeof(block)), ret);
    }
    if (r < 0) {
        return damaged(err, r, "its head is not what was written");
    }
    if (fstat(fd, &st) < 0) {
        return damaged(err, -errno, "");
    }
    if ((uint64_t)st.st_size != ram_layer_file_bytes(ret)) {
        return damaged(err, -EBADMSG, "it has another length than its head says");
    }
    return 0;
}

static int read_index(int fd, const struct ram_layer_head *head, struct ram_run *runs)
{
    size_t n = (size_t)head->runs * RAM_RUN_BYTES;
    _cleanup_free_ uint8_t *index = malloc(n > 0 ? n : 1);
    int r = index == NULL ? -ENOMEM : read_at(fd, index, n, index_at(head));

    return r < 0 ? r : ram_layer_index_parse(head, span_make(index, n), runs);
}

int ram_layer_open(int fd,
                   const struct ram_layer_place *place,
                   struct ram_layer *ret,
                   struct error *err)
{
    struct ram_layer_head head = {0};
    struct ram_run *runs;
    int r = read_head(fd, &head, err);

    if (r < 0) {
        return r;
    }
    if (head.place.ram_bytes != place->ram_bytes ||
        !ram_sum_equals(&head.place.binding, &place->binding)) {
        return error_set(err, EBADMSG,
                         "the snapshot's memory was made on another base or environment");
    }
    runs = calloc(head.runs > 0 ? head.runs : 1, sizeof(*runs));
    if (runs == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    r = read_index(fd, &head, runs);
    if (r < 0) {
        free(runs);
        return damaged(err, r, "its index is not what was written");
    }
    *ret = (struct ram_layer){fd, head, runs};
    return 0;
}

void ram_layer_close(struct ram_layer *layer)
{
    free(TAKE(layer->runs));
}

int ram_layer_read(const struct ram_layer *layer, ram_layer_fn fn, void *arg, struct error *err)
{
    _cleanup_free_ uint8_t *bytes = malloc((size_t)RAM_RUN_PAGES_MAX * RAM_PAGE_BYTES);
    uint64_t at = RAM_PAGE_BYTES;

    if (bytes == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    for (uint32_t i = 0; i < layer->head.runs; i++) {
        const struct ram_run *run = &layer->runs[i];
        size_t n = (size_t)run->pages * RAM_PAGE_BYTES;
        int r = 0;

        if (!run->is_zero) {
            struct ram_sum sum;

            r = read_at(layer->fd, bytes, n, at);
            if (r < 0) {
                return damaged(err, r, "it ends too early");
            }
            sum = ram_sum_of(span_make(bytes, n));
            if (!ram_sum_equals(&sum, &run->sum)) {
                return damaged(err, -EBADMSG, "pages are not what was written");
            }
            at += n;
        }
        if (fn != NULL) {
            r = fn(arg, run, run->is_zero ? NULL : bytes);
        }
        if (r < 0) {
            return error_set(err, -r, "the snapshot's memory cannot be used: %s", strerror(-r));
        }
    }
    return 0;
}

bool ram_layer_has(const struct ram_layer *layer, uint32_t page, uint32_t *at)
{
    while (*at < layer->head.runs &&
           (uint64_t)layer->runs[*at].first + layer->runs[*at].pages <= page) {
        (*at)++;
    }
    return *at < layer->head.runs && layer->runs[*at].first <= page;
}
