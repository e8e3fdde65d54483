#include "base/span.h"

#include <errno.h>

size_t span_find(struct span s, size_t start, uint8_t c)
{
    const uint8_t *hit;

    if (start >= s.n) {
        return s.n;
    }
    hit = memchr(&s.p[start], c, s.n - start);
    return hit == NULL ? s.n : (size_t)(hit - s.p);
}

static uint8_t ascii_lower(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') ? (uint8_t)(c + ('a' - 'A')) : c;
}

bool span_equals_nocase(struct span a, const char *s)
{
    size_t n = strlen(s);

    if (a.n != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (ascii_lower(a.p[i]) != ascii_lower((uint8_t)s[i])) {
            return false;
        }
    }
    return true;
}

int span_parse_u64(struct span s, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (s.n == 0 || s.n > 20) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') {
            return -EBADMSG;
        }
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(s.p[i] - '0'), &value)) {
            return -ERANGE;
        }
    }
    if (value > max) {
        return -ERANGE;
    }
    *ret_value = value;
    return 0;
}

int span_copy_str(struct span s, char *out, size_t out_size)
{
    if (s.n >= out_size) {
        return -EMSGSIZE;
    }
    if (s.n > 0 && memchr(s.p, 0, s.n) != NULL) {
        return -EBADMSG;
    }
    if (s.n > 0) {
        memcpy(out, s.p, s.n);
    }
    out[s.n] = '\0';
    return 0;
}
