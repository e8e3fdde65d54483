#include <errno.h>
#include <stdio.h>

#include "base/utf8.h"
#include "wire/tar.h"
#include "wire/tar_block.h"

#define MAGIC       "ustar\00000" /* with the version, without the last NUL */
#define MAGIC_BYTES 8U
#define PAX_NAME    "./PaxHeaders/entry"
#define PAX_MODE    0644U
#define OCTAL_BITS  3U
#define NUMBER_TEXT 24U

size_t tar_padding(uint64_t size_bytes)
{
    return (size_t)((TAR_BLOCK_BYTES - size_bytes % TAR_BLOCK_BYTES) % TAR_BLOCK_BYTES);
}

/* Digits that leave room for the NUL behind them. */
static bool fits_octal(uint64_t value, struct tar_field f)
{
    return value >> (OCTAL_BITS * (f.n - 1)) == 0;
}

static void put_octal(uint8_t *block, struct tar_field f, uint64_t value)
{
    for (size_t i = f.n - 1; i > 0; i--) {
        block[f.at + i - 1] = (uint8_t)('0' + (value & 7U));
        value >>= OCTAL_BITS;
    }
}

static void put_text(uint8_t *block, struct tar_field f, struct span s)
{
    s = span_head(s, f.n);
    if (s.n > 0) {
        memcpy(&block[f.at], s.p, s.n);
    }
}

static void put_sum(uint8_t *block)
{
    put_octal(block, (struct tar_field){TAR_SUM_FIELD.at, TAR_SUM_FIELD.n - 1},
              tar_block_sum(block, TAR_BLOCK_BYTES));
    block[TAR_SUM_FIELD.at + TAR_SUM_FIELD.n - 1] = ' ';
}

/* "LENGTH KEY=VALUE\n"; the length counts its own digits. */
static void put_pax(struct buf *b, const char *key, struct span value)
{
    size_t rest = strlen(key) + value.n + 3; /* blank, equals sign, line's end */
    size_t digits = 1;
    size_t length;

    for (length = 10; rest + digits >= length; length *= 10) {
        digits++;
    }
    buf_printf(b, "%zu %s=", rest + digits, key);
    buf_put(b, value);
    buf_put_str(b, "\n");
}

static void put_pax_number(struct buf *b, const char *key, uint64_t value)
{
    char text[NUMBER_TEXT];
    int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);

    put_pax(b, key, span_make(text, (size_t)n));
}

/* What does not fit into the block. */
static void put_extra(struct buf *b, const struct tar_entry *e)
{
    bool long_name = e->name.n > TAR_NAME_FIELD.n;
    bool long_target = e->target.n > TAR_TARGET_FIELD.n;

    if ((long_name && !utf8_is_valid(e->name)) || (long_target && !utf8_is_valid(e->target))) {
        put_pax(b, "hdrcharset", span_of_str("BINARY"));
    }
    if (long_name) {
        put_pax(b, "path", e->name);
    }
    if (long_target) {
        put_pax(b, "linkpath", e->target);
    }
    if (!fits_octal(e->size_bytes, TAR_SIZE_FIELD)) {
        put_pax_number(b, "size", e->size_bytes);
    }
    if (!fits_octal(e->uid, TAR_UID_FIELD)) {
        put_pax_number(b, "uid", e->uid);
    }
    if (!fits_octal(e->gid, TAR_GID_FIELD)) {
        put_pax_number(b, "gid", e->gid);
    }
    if (e->modified_s < 0 || !fits_octal((uint64_t)e->modified_s, TAR_TIME_FIELD)) {
        char text[NUMBER_TEXT];
        int n = snprintf(text, sizeof(text), "%lld", (long long)e->modified_s);

        put_pax(b, "mtime", span_make(text, (size_t)n));
    }
}

/* 0 where a pax header says it. */
static uint64_t octal_or_zero(uint64_t value, struct tar_field f)
{
    return fits_octal(value, f) ? value : 0;
}

static void put_block(struct buf *b, const struct tar_entry *e, uint8_t type)
{
    uint8_t *block = buf_reserve(b, TAR_BLOCK_BYTES);
    uint64_t modified = e->modified_s < 0 ? 0 : (uint64_t)e->modified_s;

    if (block == NULL) {
        return;
    }
    memset(block, 0, TAR_BLOCK_BYTES);
    put_text(block, TAR_NAME_FIELD, e->name);
    put_octal(block, TAR_MODE_FIELD, e->mode);
    put_octal(block, TAR_UID_FIELD, octal_or_zero(e->uid, TAR_UID_FIELD));
    put_octal(block, TAR_GID_FIELD, octal_or_zero(e->gid, TAR_GID_FIELD));
    put_octal(block, TAR_SIZE_FIELD, octal_or_zero(e->size_bytes, TAR_SIZE_FIELD));
    put_octal(block, TAR_TIME_FIELD, octal_or_zero(modified, TAR_TIME_FIELD));
    block[TAR_TYPE_FIELD.at] = type;
    put_text(block, TAR_TARGET_FIELD, e->target);
    put_text(block, TAR_MAGIC_FIELD, span_make(MAGIC, MAGIC_BYTES));
    put_text(block, TAR_USER_FIELD, e->user);
    put_text(block, TAR_GROUP_FIELD, e->group);
    put_octal(block, TAR_MAJOR_FIELD, octal_or_zero(e->major, TAR_MAJOR_FIELD));
    put_octal(block, TAR_MINOR_FIELD, octal_or_zero(e->minor, TAR_MINOR_FIELD));
    put_sum(block);
    buf_commit(b, TAR_BLOCK_BYTES);
}

static void put_zeros(struct buf *b, size_t n)
{
    uint8_t *zeros = buf_reserve(b, n);

    if (zeros != NULL) {
        memset(zeros, 0, n);
        buf_commit(b, n);
    }
}

void tar_entry_format(struct buf *b, const struct tar_entry *e)
{
    _cleanup_buf_ struct buf extra = buf_make(TAR_EXTRA_MAX);

    if (e->name.n == 0 || e->name.n > TAR_NAME_BYTES || e->target.n > TAR_NAME_BYTES ||
        e->user.n >= TAR_USER_FIELD.n || e->group.n >= TAR_GROUP_FIELD.n) {
        b->error = -EMSGSIZE;
        return;
    }
    put_extra(&extra, e);
    if (buf_error(&extra) != 0) {
        b->error = buf_error(&extra);
        return;
    }
    if (extra.n > 0) {
        const struct tar_entry header = {
            .name = span_of_str(PAX_NAME), .mode = PAX_MODE, .size_bytes = extra.n};

        put_block(b, &header, 'x');
        buf_put(b, buf_span(&extra));
        put_zeros(b, tar_padding(extra.n));
    }
    put_block(b, e, e->type);
}

void tar_end_format(struct buf *b)
{
    put_zeros(b, 2U * TAR_BLOCK_BYTES);
}
