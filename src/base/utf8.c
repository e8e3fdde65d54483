#include "base/utf8.h"

#include "base/buf.h"

static const uint8_t replacement[] = {0xef, 0xbf, 0xbd};

static bool is_continuation(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

/* Length that a first byte announces, 0 for one that cannot be first. */
static size_t announced(uint8_t c)
{
    if (c < 0x80) {
        return 1;
    }
    if (c >= 0xc2 && c <= 0xdf) {
        return 2;
    }
    if (c >= 0xe0 && c <= 0xef) {
        return 3;
    }
    return c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

/* Length of the well-formed character at `at`, or 0. */
static size_t character(struct span text, size_t at)
{
    size_t n = announced(text.p[at]);
    uint8_t second;

    if (n == 0 || n > text.n - at) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if (!is_continuation(text.p[at + i])) {
            return 0;
        }
    }
    if (n < 3) {
        return n;
    }
    second = text.p[at + 1];
    switch (text.p[at]) {
    case 0xe0:
        return second >= 0xa0 ? n : 0; /* overlong */
    case 0xed:
        return second <= 0x9f ? n : 0; /* surrogates */
    case 0xf0:
        return second >= 0x90 ? n : 0;
    case 0xf4:
        return second <= 0x8f ? n : 0; /* beyond U+10FFFF */
    default:
        return n;
    }
}

bool utf8_is_valid(struct span text)
{
    size_t at = 0;

    while (at < text.n) {
        uint64_t word;
        size_t n;

        /* Eight characters of ASCII at once. */
        if (text.n - at >= sizeof(word)) {
            memcpy(&word, &text.p[at], sizeof(word));
            if ((word & 0x8080808080808080U) == 0) {
                at += sizeof(word);
                continue;
            }
        }
        n = character(text, at);
        if (n == 0) {
            return false;
        }
        at += n;
    }
    return true;
}

size_t utf8_cut_end(struct span text)
{
    for (size_t back = 1; back <= 3 && back <= text.n; back++) {
        uint8_t c = text.p[text.n - back];

        if (!is_continuation(c)) {
            return announced(c) > back ? text.n - back : text.n;
        }
    }
    return text.n;
}

size_t utf8_skip_begin(struct span text)
{
    size_t n = 0;

    while (n < 3 && n < text.n && is_continuation(text.p[n])) {
        n++;
    }
    return n;
}

void utf8_repair(struct span text, struct buf *out)
{
    size_t begin = 0;
    size_t at = 0;

    while (at < text.n) {
        size_t n = character(text, at);

        if (n > 0) {
            at += n;
            continue;
        }
        buf_put(out, span_make(&text.p[begin], at - begin));
        buf_put(out, span_make(replacement, sizeof(replacement)));
        at++;
        begin = at;
    }
    buf_put(out, span_make(text.n > 0 ? &text.p[begin] : NULL, at - begin));
}
