/* Server-sent events: must not crash, and must give the same events whatever the pieces. */
#include "wire/sse.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int record(void *arg, const struct sse_event *event)
{
    struct buf *out = arg;

    buf_put_str(out, event->name);
    buf_put_str(out, event->id);
    buf_put_block(out, event->data);
    return 0;
}

static int parse(struct span input, size_t step, struct buf *out)
{
    struct sse_parser p;
    int r = 0;

    sse_init(&p);
    while (input.n > 0 && r == 0) {
        r = sse_feed(&p, span_head(input, step), record, out);
        input = span_skip(input, step);
    }
    sse_done(&p);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span input = span_make(data, size);
    _cleanup_buf_ struct buf whole = buf_make(0);
    _cleanup_buf_ struct buf bytes = buf_make(0);
    int a = parse(input, size + 1, &whole);
    int b = parse(input, 1, &bytes);

    if (a != b || !span_equals(buf_span(&whole), buf_span(&bytes))) {
        abort();
    }
    return 0;
}
