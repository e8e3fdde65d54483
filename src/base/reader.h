/* Bounds-checked little-endian reader over a span. The first failure sticks: later gets return
 * zero values and reader_error keeps the first cause, so a parser checks once at its end. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

struct reader {
    struct span rest;
    int error; /* 0 or -EBADMSG */
};

static inline struct reader reader_make(struct span s)
{
    return (struct reader){s, 0};
}

uint8_t reader_get_u8(struct reader *r);
uint16_t reader_get_u16(struct reader *r);
uint32_t reader_get_u32(struct reader *r);
uint64_t reader_get_u64(struct reader *r);
/* n bytes, or an empty span and the sticky error. */
struct span reader_get_bytes(struct reader *r, size_t n);
/* A u32 length and that many bytes, at most max. */
struct span reader_get_block(struct reader *r, size_t max);
/* 0 when all was read without an error and nothing is left, else -EBADMSG. */
int reader_finish(const struct reader *r) _must_check_;
