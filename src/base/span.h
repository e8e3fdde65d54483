/* A borrowed run of bytes: hostile input is carried as one and read only through struct reader. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct span {
    const uint8_t *p;
    size_t n;
};

static inline struct span span_make(const void *p, size_t n)
{
    return (struct span){(const uint8_t *)p, n};
}

static inline struct span span_of_str(const char *s)
{
    return span_make(s, strlen(s));
}

static inline bool span_equals(struct span a, struct span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool span_equals_str(struct span a, const char *s)
{
    return span_equals(a, span_of_str(s));
}

/* The part from `start` on; empty when start is past the end. */
static inline struct span span_skip(struct span s, size_t start)
{
    if (start >= s.n) {
        return span_make(NULL, 0);
    }
    return span_make(&s.p[start], s.n - start);
}

/* The first n bytes, or all of it when it is shorter. */
static inline struct span span_head(struct span s, size_t n)
{
    return span_make(s.p, n < s.n ? n : s.n);
}

/* Index of byte c at or after `start`, or s.n when there is none. */
size_t span_find(struct span s, size_t start, uint8_t c);
/* ASCII case-insensitive equality. */
bool span_equals_nocase(struct span a, const char *s);
/* Parses all of s as an unsigned decimal (1 to 20 digits, no sign, no blank).
 * 0, -EBADMSG, or -ERANGE when above max. */
int span_parse_u64(struct span s, uint64_t max, uint64_t *ret_value);
/* Copies s into out as a NUL-terminated string. -EMSGSIZE when it does not fit, -EBADMSG when it
 * holds a NUL byte. */
int span_copy_str(struct span s, char *out, size_t out_size);
