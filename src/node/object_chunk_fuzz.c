/* A stored object as any store may send it. What opens packs and opens again to the same bytes, and
 * nothing grows beyond the length that its head is allowed to name. */
#include "node/object_chunk.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf stored = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    struct object_sum sum;
    char text[OBJECT_SUM_TEXT];

    if (object_sum_parse(span_make(data, size), &sum) == 0) {
        object_sum_format(&sum, text);
        require(span_equals_str(span_make(data, size), text));
    }
    if (object_unpack(span_make(data, size), OBJECT_CHUNK_MAX, &raw) < 0) {
        return 0;
    }
    require(raw.n <= OBJECT_CHUNK_MAX);
    require(object_pack(buf_span(&raw), &stored) == 0);
    require(stored.n <= raw.n + OBJECT_HEAD_BYTES);
    require(object_sum_of(buf_span(&raw), &sum) == 0);
    require(object_open(buf_span(&stored), &sum, OBJECT_CHUNK_MAX, &again) == 0);
    require(span_equals(buf_span(&raw), buf_span(&again)));
    return 0;
}
