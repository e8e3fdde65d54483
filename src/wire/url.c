#include "wire/url.h"

#include <errno.h>

#include "base/buf.h"
#include "wire/http1_chars.h"

/* The byte at text[*at], which is moved past it, or -EBADMSG. */
static int decode_byte(struct span text, bool plus_is_blank, size_t *at)
{
    uint8_t c = text.p[*at];
    int high;
    int low;

    if (c != '%') {
        *at += 1;
        return plus_is_blank && c == '+' ? ' ' : c;
    }
    if (text.n - *at < 3) {
        return -EBADMSG;
    }
    high = hex_value(text.p[*at + 1]);
    low = hex_value(text.p[*at + 2]);
    *at += 3;
    return high < 0 || low < 0 ? -EBADMSG : high * 16 + low;
}

int url_decode(struct span text, bool plus_is_blank, char *out, size_t out_size)
{
    size_t at = 0;
    size_t n = 0;

    while (at < text.n) {
        int byte = decode_byte(text, plus_is_blank, &at);

        if (byte <= 0) {
            return -EBADMSG;
        }
        if (n + 1 >= out_size) {
            return -EMSGSIZE;
        }
        out[n++] = (char)byte;
    }
    if (n >= out_size || n > INT32_MAX) {
        return -EMSGSIZE;
    }
    out[n] = '\0';
    return (int)n;
}

int url_path_next(struct span *path, struct span *ret_segment)
{
    size_t end;

    if (path->n == 0 || path->p[0] != '/') {
        return 0;
    }
    end = span_find(*path, 1, '/');
    *ret_segment = span_skip(span_head(*path, end), 1);
    *path = span_skip(*path, end);
    return 1;
}

int url_query_next(struct span *query, struct url_pair *ret_pair)
{
    struct span pair;
    size_t end;
    size_t equals;

    if (query->n == 0) {
        return 0;
    }
    end = span_find(*query, 0, '&');
    pair = span_head(*query, end);
    equals = span_find(pair, 0, '=');
    if (equals == 0 || pair.n == 0 || end + 1 == query->n) {
        return -EBADMSG; /* no name, or nothing after the last '&' */
    }
    ret_pair->name = span_head(pair, equals);
    ret_pair->value = span_skip(pair, equals + 1);
    ret_pair->has_value = equals < pair.n;
    *query = span_skip(*query, end + 1);
    return 1;
}

/* Whether an encoded name stands for `name`. 1, 0 or -EBADMSG. */
static int name_is(struct span encoded, const char *name)
{
    size_t length = strlen(name);
    size_t at = 0;
    size_t n = 0;
    bool same = true;

    while (at < encoded.n) {
        int byte = decode_byte(encoded, true, &at);

        if (byte <= 0) {
            return -EBADMSG;
        }
        same = same && n < length && (uint8_t)name[n] == byte;
        n++;
    }
    return same && n == length;
}

int url_query_get(struct span query, const char *name, char *out, size_t out_size)
{
    struct url_pair pair;
    struct span value = {NULL, 0};
    bool found = false;
    int r;

    while ((r = url_query_next(&query, &pair)) > 0) {
        r = name_is(pair.name, name);
        if (r < 0) {
            return r;
        }
        if (r > 0 && found) {
            return -EEXIST;
        }
        if (r > 0) {
            found = true;
            value = pair.value;
        }
    }
    if (r < 0) {
        return r;
    }
    return found ? url_decode(value, true, out, out_size) : -ENOENT;
}

static bool is_unreserved(uint8_t c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void url_encode(struct buf *out, struct span text, bool keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";

    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];

        if (is_unreserved(c) || (keep_slash && c == '/')) {
            buf_put_u8(out, c);
        } else {
            buf_put_u8(out, '%');
            buf_put_u8(out, (uint8_t)digits[c >> 4U]);
            buf_put_u8(out, (uint8_t)digits[c & 15U]);
        }
    }
}
