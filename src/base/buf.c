#include "base/buf.h"

#include <errno.h>

void buf_done(struct buf *b)
{
    free(b->p);
    *b = buf_make(b->max);
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->error = 0;
    if (b->p != NULL) {
        b->p[0] = 0;
    }
}

/* The room that a buffer gets which needs so much; 0 when there is no such number. */
static size_t next_room(const struct buf *b, size_t needed)
{
    size_t room = b->room < 64 ? 64 : b->room;

    while (room < needed) {
        if (__builtin_mul_overflow(room, 2U, &room)) {
            return 0;
        }
    }
    return room;
}

size_t buf_room_for(const struct buf *b, size_t more)
{
    size_t needed;

    if (__builtin_add_overflow(b->n, more, &needed) ||
        __builtin_add_overflow(needed, 1U, &needed)) {
        return SIZE_MAX;
    }
    if (needed <= b->room) {
        return b->room;
    }
    needed = next_room(b, needed);
    return needed != 0 ? needed : SIZE_MAX;
}

static int buf_grow(struct buf *b, size_t needed)
{
    size_t room = next_room(b, needed);
    uint8_t *p;

    if (room == 0) {
        return -ENOMEM;
    }
    p = realloc(b->p, room);
    if (p == NULL) {
        return -ENOMEM;
    }
    if (b->p == NULL) {
        p[0] = 0; /* a string also when nothing is committed */
    }
    b->p = p;
    b->room = room;
    return 0;
}

uint8_t *buf_reserve(struct buf *b, size_t more)
{
    size_t total;
    size_t needed;

    if (b->error != 0) {
        return NULL;
    }
    if (__builtin_add_overflow(b->n, more, &total) || __builtin_add_overflow(total, 1U, &needed) ||
        (b->max != 0 && total > b->max)) {
        b->error = -EMSGSIZE;
        return NULL;
    }
    if (needed > b->room) {
        b->error = buf_grow(b, needed);
        if (b->error != 0) {
            return NULL;
        }
    }
    return &b->p[b->n];
}

void buf_commit(struct buf *b, size_t n)
{
    b->n += n;
    b->p[b->n] = 0;
}

void buf_put(struct buf *b, struct span s)
{
    uint8_t *to = buf_reserve(b, s.n);

    if (to != NULL) {
        if (s.n > 0) {
            memcpy(to, s.p, s.n);
        }
        buf_commit(b, s.n);
    }
}

void buf_put_str(struct buf *b, const char *s)
{
    buf_put(b, span_of_str(s));
}

static void buf_put_le(struct buf *b, uint64_t v, size_t n)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(v >> (8U * i));
    }
    buf_put(b, span_make(bytes, n));
}

void buf_put_u8(struct buf *b, uint8_t v)
{
    buf_put_le(b, v, 1);
}

void buf_put_u16(struct buf *b, uint16_t v)
{
    buf_put_le(b, v, 2);
}

void buf_put_u32(struct buf *b, uint32_t v)
{
    buf_put_le(b, v, 4);
}

void buf_put_u64(struct buf *b, uint64_t v)
{
    buf_put_le(b, v, 8);
}

void buf_put_block(struct buf *b, struct span s)
{
    if (s.n > UINT32_MAX) {
        b->error = -EMSGSIZE;
        return;
    }
    buf_put_u32(b, (uint32_t)s.n);
    buf_put(b, s);
}

void buf_vprintf(struct buf *b, const char *format, va_list args)
{
    va_list again;
    int n;
    uint8_t *to;

    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0) {
        b->error = -EINVAL;
        return;
    }
    to = buf_reserve(b, (size_t)n);
    if (to != NULL) {
        (void)vsnprintf((char *)to, (size_t)n + 1, format, args);
        buf_commit(b, (size_t)n);
    }
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    buf_vprintf(b, format, args);
    va_end(args);
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->n) {
        buf_clear(b);
        return;
    }
    memmove(b->p, &b->p[n], b->n - n);
    b->n -= n;
    b->p[b->n] = 0;
}

int buf_error(const struct buf *b)
{
    return b->error;
}

const char *buf_str(const struct buf *b)
{
    return b->p == NULL ? "" : (const char *)b->p;
}
