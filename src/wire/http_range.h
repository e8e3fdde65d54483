/* The Range header of a request, as far as one range of bytes goes (RFC 9110, section 14). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/span.h"

#define HTTP_RANGE_TEXT_SIZE 48

struct http_range {
    bool is_suffix; /* the last `first` bytes */
    bool is_open;   /* from `first` to the end */
    uint64_t first;
    uint64_t last; /* included */
};

/* Reads "bytes=A-B", "bytes=A-" or "bytes=-N". -EBADMSG for everything else (other units, several
 * ranges, A above B): such a header is to be ignored. */
int http_range_parse(struct span value, struct http_range *ret) _must_check_;
/* "A-B", "A-" or "-N". */
void http_range_format(const struct http_range *range, char out[HTTP_RANGE_TEXT_SIZE]);
/* What it means for content of `size` bytes: at least one byte, or -ERANGE. */
int http_range_resolve(const struct http_range *range,
                       uint64_t size,
                       uint64_t *ret_offset,
                       uint64_t *ret_length) _must_check_;
