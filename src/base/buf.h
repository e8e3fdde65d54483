/* A growable byte buffer with a cap, used for text and for binary messages alike.
 *
 * The first failure (-ENOMEM, or -EMSGSIZE past the cap) sticks: later appends do nothing, and the
 * owner checks buf_error once. The bytes are always followed by a NUL that is not counted. */
#pragma once

#include <stdarg.h>

#include "base/cleanup.h"
#include "base/span.h"

struct buf {
    uint8_t *p;
    size_t n;
    size_t room;
    size_t max; /* 0 means no cap */
    int error;
};

#define _cleanup_buf_ _cleanup_(buf_done)

static inline struct buf buf_make(size_t max)
{
    return (struct buf){NULL, 0, 0, max, 0};
}

void buf_done(struct buf *b);
/* Empties it and forgets the error; keeps the memory. */
void buf_clear(struct buf *b);
/* Makes sure that `more` bytes fit and returns where to write them, or NULL. */
uint8_t *buf_reserve(struct buf *b, size_t more);
/* The memory it would hold after `more` bytes were put. */
size_t buf_room_for(const struct buf *b, size_t more);
/* Counts n bytes that were written at buf_reserve's pointer. */
void buf_commit(struct buf *b, size_t n);
void buf_put(struct buf *b, struct span s);
void buf_put_str(struct buf *b, const char *s);
void buf_put_u8(struct buf *b, uint8_t v);
void buf_put_u16(struct buf *b, uint16_t v); /* little-endian, like all that follow */
void buf_put_u32(struct buf *b, uint32_t v);
void buf_put_u64(struct buf *b, uint64_t v);
/* A u32 length and the bytes. */
void buf_put_block(struct buf *b, struct span s);
void buf_printf(struct buf *b, const char *format, ...) _printf_(2, 3);
void buf_vprintf(struct buf *b, const char *format, va_list args) _printf_(2, 0);
/* Removes the first n bytes. */
void buf_consume(struct buf *b, size_t n);
/* 0 or the sticky -errno. */
int buf_error(const struct buf *b);
/* The text so far, "" when nothing was put. */
const char *buf_str(const struct buf *b);

static inline struct span buf_span(const struct buf *b)
{
    return span_make(b->p, b->n);
}
