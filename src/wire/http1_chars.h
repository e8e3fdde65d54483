/* Character sets of HTTP/1, shared by the parsers and the formatter. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct char_set {
    uint64_t low;  /* 0 to 63 */
    uint64_t high; /* 64 to 127 */
};

static inline bool char_set_has(struct char_set set, uint8_t c)
{
    if (c < 64) {
        return ((set.low >> c) & 1U) != 0;
    }
    return c < 128 && ((set.high >> (c - 64U)) & 1U) != 0;
}

/* Letters, digits and !#$%&'*+-.^_`|~ */
static inline bool is_token_char(uint8_t c)
{
    return char_set_has((struct char_set){0x03ff6cfa00000000U, 0x57ffffffc7fffffeU}, c);
}

/* What RFC 3986 allows in a path and a query, and []{}| which clients send raw in queries. */
static inline bool is_target_char(uint8_t c)
{
    return char_set_has((struct char_set){0xaffffff200000000U, 0x7ffffffeafffffffU}, c);
}

/* Of a host name: unreserved, sub-delims and '%'. */
static inline bool is_host_char(uint8_t c)
{
    return char_set_has((struct char_set){0x2bff7ff200000000U, 0x47fffffe87fffffeU}, c);
}

static inline bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* Visible ASCII, blanks and bytes above 127. */
static inline bool is_value_char(uint8_t c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7f);
}

static inline bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* 0 to 15, or -1. */
static inline int hex_value(uint8_t c)
{
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
