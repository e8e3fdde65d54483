#include "wire/http_range.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) {
        s.n--;
    }
    return s;
}

int http_range_parse(struct span value, struct http_range *ret)
{
    size_t equals = span_find(value, 0, '=');
    struct span range = trim(span_skip(value, equals + 1));
    size_t dash = span_find(range, 0, '-');
    struct span first = span_head(range, dash);
    struct span last = span_skip(range, dash + 1);
    struct http_range m = {.is_suffix = first.n == 0, .is_open = last.n == 0};

    if (!span_equals_nocase(span_head(value, equals), "bytes") || equals == value.n ||
        dash == range.n || (m.is_suffix && m.is_open)) {
        return -EBADMSG;
    }
    if (m.is_suffix) {
        m.first = 0;
        if (span_parse_u64(last, UINT64_MAX, &m.first) < 0) {
            return -EBADMSG;
        }
    } else if (span_parse_u64(first, UINT64_MAX, &m.first) < 0 ||
               (!m.is_open && span_parse_u64(last, UINT64_MAX, &m.last) < 0) ||
               (!m.is_open && m.last < m.first)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void http_range_format(const struct http_range *range, char out[HTTP_RANGE_TEXT_SIZE])
{
    if (range->is_suffix) {
        (void)snprintf(out, HTTP_RANGE_TEXT_SIZE, "-%" PRIu64, range->first);
    } else if (range->is_open) {
        (void)snprintf(out, HTTP_RANGE_TEXT_SIZE, "%" PRIu64 "-", range->first);
    } else {
        (void)snprintf(out, HTTP_RANGE_TEXT_SIZE, "%" PRIu64 "-%" PRIu64, range->first,
                       range->last);
    }
}

int http_range_resolve(const struct http_range *range,
                       uint64_t size,
                       uint64_t *ret_offset,
                       uint64_t *ret_length)
{
    if (range->is_suffix) {
        uint64_t length = range->first < size ? range->first : size;

        if (length == 0) {
            return -ERANGE;
        }
        *ret_offset = size - length;
        *ret_length = length;
        return 0;
    }
    if (range->first >= size) {
        return -ERANGE;
    }
    *ret_offset = range->first;
    *ret_length = size - range->first;
    if (!range->is_open && range->last - range->first < *ret_length) {
        *ret_length = range->last - range->first + 1;
    }
    return 0;
}
