/* Range headers: no crash, what is read is written and read again the same, and a range never
 * leaves its content. */
#include "wire/http_range.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t sizes[] = {0, 1, 1000, UINT64_MAX};
    char text[HTTP_RANGE_TEXT_SIZE];
    char header[HTTP_RANGE_TEXT_SIZE + 8];
    struct http_range range;
    struct http_range again;

    if (http_range_parse(span_make(data, size), &range) < 0) {
        return 0;
    }
    http_range_format(&range, text);
    (void)snprintf(header, sizeof(header), "bytes=%s", text);
    require(http_range_parse(span_of_str(header), &again) == 0);
    require(range.first == again.first && range.last == again.last &&
            range.is_open == again.is_open && range.is_suffix == again.is_suffix);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t offset;
        uint64_t length;

        if (http_range_resolve(&range, sizes[i], &offset, &length) == 0) {
            require(length > 0 && offset < sizes[i] && length <= sizes[i] - offset);
        }
    }
    return 0;
}
