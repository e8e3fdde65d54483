#include "node/base64.h"

#include <errno.h>

#include "base/buf.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_format(struct span bytes, struct buf *out)
{
    size_t total = (bytes.n + 2) / 3 * 4;
    uint8_t *to = buf_reserve(out, total);
    size_t i = 0;

    if (to == NULL) {
        return;
    }
    for (; i + 3 <= bytes.n; i += 3) {
        uint32_t v = ((uint32_t)bytes.p[i] << 16) | ((uint32_t)bytes.p[i + 1] << 8) |
                     (uint32_t)bytes.p[i + 2];

        *to++ = (uint8_t)alphabet[v >> 18];
        *to++ = (uint8_t)alphabet[(v >> 12) & 63];
        *to++ = (uint8_t)alphabet[(v >> 6) & 63];
        *to++ = (uint8_t)alphabet[v & 63];
    }
    if (i < bytes.n) {
        bool two = bytes.n - i == 2;
        uint32_t v = (uint32_t)bytes.p[i] << 16;

        if (two) {
            v |= (uint32_t)bytes.p[i + 1] << 8;
        }
        *to++ = (uint8_t)alphabet[v >> 18];
        *to++ = (uint8_t)alphabet[(v >> 12) & 63];
        *to++ = two ? (uint8_t)alphabet[(v >> 6) & 63] : '=';
        *to++ = '=';
    }
    buf_commit(out, total);
}

/* 0 to 63, or -1. */
static int value_of(uint8_t c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    if (c == '+') {
        return 62;
    }
    return c == '/' ? 63 : -1;
}

/* Bits of the last group that carry no byte must be zero. */
static int parse_group(struct span text, size_t at, unsigned int pads, uint8_t *to)
{
    uint32_t v = 0;

    for (size_t k = 0; k < 4; k++) {
        int digit = k >= 4 - pads ? 0 : value_of(text.p[at + k]);

        if (digit < 0) {
            return -EBADMSG;
        }
        v = (v << 6) | (uint32_t)digit;
    }
    if ((pads == 1 && (v & 0xff) != 0) || (pads == 2 && (v & 0xffff) != 0)) {
        return -EBADMSG;
    }
    to[0] = (uint8_t)(v >> 16);
    if (pads < 2) {
        to[1] = (uint8_t)(v >> 8);
    }
    if (pads < 1) {
        to[2] = (uint8_t)v;
    }
    return 0;
}

int base64_parse(struct span text, struct buf *ret_bytes)
{
    unsigned int pads = 0;
    uint8_t *to;

    if (text.n % 4 != 0) {
        return -EBADMSG;
    }
    if (text.n == 0) {
        return 0;
    }
    if (text.p[text.n - 1] == '=') {
        pads = text.p[text.n - 2] == '=' ? 2 : 1;
    }
    to = buf_reserve(ret_bytes, text.n / 4 * 3);
    if (to == NULL) {
        return buf_error(ret_bytes);
    }
    for (size_t at = 0; at < text.n; at += 4) {
        if (parse_group(text, at, at + 4 == text.n ? pads : 0, &to[at / 4 * 3]) < 0) {
            return -EBADMSG;
        }
    }
    buf_commit(ret_bytes, text.n / 4 * 3 - pads);
    return 0;
}
