#include "node/object_manifest.h"

#include <errno.h>
#include <stdlib.h>

#include "base/reader.h"

#define MAGIC   0x4E4D5053U /* SPMN */
#define VERSION 1U

#define FLAG_INLINE   1U
#define FLAG_TEMPLATE 2U
#define PIECE_BYTES   16U
#define REF_BYTES     36U
#define FILE_BYTES    24U /* the least that one takes */

/* ---- writing ---- */

static void put_file(const struct object_file *f, struct buf *out)
{
    uint32_t flags =
        (f->is_inline ? FLAG_INLINE : 0U) | (f->over == OBJECT_OVER_TEMPLATE ? FLAG_TEMPLATE : 0U);

    buf_put_block(out, span_of_str(f->name));
    buf_put_u32(out, flags);
    buf_put_u64(out, f->bytes);
    buf_put_u64(out, (uint64_t)f->time_ns);
    if (f->is_inline) {
        buf_put_block(out, f->content);
        return;
    }
    buf_put_u32(out, f->piece_count);
    for (uint32_t i = 0; i < f->piece_count; i++) {
        buf_put_u64(out, f->pieces[i].offset);
        buf_put_u64(out, f->pieces[i].bytes);
    }
    buf_put_u32(out, f->chunk_count);
    for (uint32_t i = 0; i < f->chunk_count; i++) {
        buf_put(out, span_make(f->chunks[i].sum.bytes, OBJECT_SUM_BYTES));
        buf_put_u32(out, f->chunks[i].bytes);
    }
}

int object_manifest_format(const struct object_manifest *m, struct buf *out)
{
    buf_put_u32(out, MAGIC);
    buf_put_u32(out, VERSION);
    buf_put_block(out, span_of_str(m->owner));
    buf_put_u32(out, m->has_base ? 1 : 0);
    if (m->has_base) {
        buf_put(out, span_make(m->base.bytes, OBJECT_SUM_BYTES));
    }
    buf_put_u32(out, m->file_count);
    for (uint32_t i = 0; i < m->file_count; i++) {
        put_file(&m->files[i], out);
    }
    return buf_error(out);
}

/* ---- reading ---- */

/* A count of what takes at least `each` bytes, so that nothing is allocated for what is not there.
 */
static int get_count(struct reader *r, uint32_t max, size_t each, uint32_t *ret)
{
    uint32_t n = reader_get_u32(r);

    if (r->error != 0 || n > max || n > r->rest.n / each) {
        return -EBADMSG;
    }
    *ret = n;
    return 0;
}

static int get_sum(struct reader *r, struct object_sum *ret)
{
    struct span bytes = reader_get_bytes(r, OBJECT_SUM_BYTES);

    if (bytes.n != OBJECT_SUM_BYTES) {
        return -EBADMSG;
    }
    memcpy(ret->bytes, bytes.p, OBJECT_SUM_BYTES);
    return 0;
}

static int get_pieces(struct reader *r, struct object_file *f, uint64_t *ret_total)
{
    uint64_t next = 0;
    uint64_t total = 0;
    uint32_t n;

    if (get_count(r, OBJECT_PIECES_MAX, PIECE_BYTES, &n) < 0) {
        return -EBADMSG;
    }
    f->pieces = calloc(n > 0 ? n : 1, sizeof(*f->pieces));
    if (f->pieces == NULL) {
        return -ENOMEM;
    }
    f->piece_count = n;
    for (uint32_t i = 0; i < n; i++) {
        struct object_piece p;

        p.offset = reader_get_u64(r);
        p.bytes = reader_get_u64(r);
        if (p.bytes == 0 || p.offset < next || p.offset > f->bytes ||
            p.bytes > f->bytes - p.offset) {
            return -EBADMSG;
        }
        next = p.offset + p.bytes;
        total += p.bytes;
        f->pieces[i] = p;
    }
    *ret_total = total;
    return 0;
}

static int get_chunks(struct reader *r, struct object_file *f, uint64_t total)
{
    uint64_t sum = 0;
    uint32_t n;

    if (get_count(r, UINT32_MAX, REF_BYTES, &n) < 0) {
        return -EBADMSG;
    }
    f->chunks = calloc(n > 0 ? n : 1, sizeof(*f->chunks));
    if (f->chunks == NULL) {
        return -ENOMEM;
    }
    f->chunk_count = n;
    for (uint32_t i = 0; i < n; i++) {
        if (get_sum(r, &f->chunks[i].sum) < 0) {
            return -EBADMSG;
        }
        f->chunks[i].bytes = reader_get_u32(r);
        if (f->chunks[i].bytes == 0 || f->chunks[i].bytes > OBJECT_CHUNK_MAX) {
            return -EBADMSG;
        }
        sum += f->chunks[i].bytes;
    }
    return sum == total ? 0 : -EBADMSG;
}

static int get_file(struct reader *r, struct object_file *f)
{
    uint64_t total = 0;
    uint64_t time;
    uint32_t flags;
    int e;

    if (span_copy_str(reader_get_block(r, OBJECT_NAME_SIZE - 1), f->name, sizeof(f->name)) < 0 ||
        !object_name_is_valid(f->name)) {
        return -EBADMSG;
    }
    flags = reader_get_u32(r);
    f->bytes = reader_get_u64(r);
    time = reader_get_u64(r);
    if (r->error != 0 || flags > FLAG_TEMPLATE || f->bytes > OBJECT_LENGTH_MAX ||
        time > INT64_MAX) {
        return -EBADMSG;
    }
    f->time_ns = (int64_t)time;
    f->is_inline = flags == FLAG_INLINE;
    f->over = flags == FLAG_TEMPLATE ? OBJECT_OVER_TEMPLATE : OBJECT_OVER_HOLES;
    if (f->is_inline) {
        f->content = reader_get_block(r, OBJECT_INLINE_MAX);
        return r->error == 0 && f->content.n == f->bytes ? 0 : -EBADMSG;
    }
    e = get_pieces(r, f, &total);
    return e == 0 ? get_chunks(r, f, total) : e;
}

static int get_files(struct reader *r, struct object_manifest *m)
{
    uint32_t n;
    int e = 0;

    if (get_count(r, OBJECT_FILES_MAX, FILE_BYTES, &n) < 0) {
        return -EBADMSG;
    }
    m->files = calloc(n > 0 ? n : 1, sizeof(*m->files));
    if (m->files == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; e == 0 && i < n; i++) {
        m->file_count++;
        e = get_file(r, &m->files[i]);
    }
    return e;
}

static int get_all(struct reader *r, struct object_manifest *m)
{
    uint32_t has_base;
    int e;

    if (reader_get_u32(r) != MAGIC || reader_get_u32(r) != VERSION ||
        span_copy_str(reader_get_block(r, ID_SIZE - 1), m->owner, sizeof(m->owner)) < 0) {
        return -EBADMSG;
    }
    has_base = reader_get_u32(r);
    if (has_base > 1 || (has_base == 1 && get_sum(r, &m->base) < 0)) {
        return -EBADMSG;
    }
    m->has_base = has_base == 1;
    e = get_files(r, m);
    return e == 0 ? reader_finish(r) : e;
}

int object_manifest_parse(struct span bytes, struct object_manifest *ret)
{
    struct reader r = reader_make(bytes);
    struct object_manifest m = {0};
    int e = get_all(&r, &m);

    if (e < 0) {
        object_manifest_done(&m);
        return e;
    }
    *ret = m;
    return 0;
}

void object_manifest_done(struct object_manifest *m)
{
    for (uint32_t i = 0; i < m->file_count; i++) {
        free(m->files[i].pieces);
        free(m->files[i].chunks);
    }
    free(m->files);
    *m = (struct object_manifest){0};
}

const struct object_file *object_manifest_find(const struct object_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->file_count; i++) {
        if (strcmp(m->files[i].name, name) == 0) {
            return &m->files[i];
        }
    }
    return NULL;
}
