/* The head parsers and the chunk decoder. The first byte chooses: request, response or chunks, and
 * the size of the pieces. Whole and piecewise feeding must agree; an accepted head must come out
 * of the formatter as something that is accepted and means the same. */
#include "wire/http1.h"

#include <stdlib.h>

#include "base/buf.h"

#define FIELDS         32U
#define MAX_HEAD_BYTES 4096U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static bool same_slice(struct http1_slice a, struct http1_slice b)
{
    return a.start == b.start && a.n == b.n;
}

static void require_same_head(const struct http1_head *a, const struct http1_head *b)
{
    require(a->fault == b->fault && a->field_count == b->field_count && a->status == b->status &&
            a->minor == b->minor && a->content_length == b->content_length &&
            a->is_chunked == b->is_chunked && a->is_keep_alive == b->is_keep_alive &&
            a->expects_continue == b->expects_continue && a->wants_upgrade == b->wants_upgrade);
    require(same_slice(a->method, b->method) && same_slice(a->target, b->target) &&
            same_slice(a->host, b->host) && same_slice(a->status_text, b->status_text));
    for (unsigned int i = 0; i < a->field_count; i++) {
        require(same_slice(a->fields[i].name, b->fields[i].name) &&
                same_slice(a->fields[i].value, b->fields[i].value));
    }
}

/* Formats an accepted head again and parses that. */
static void check_round_trip(const struct http1_head *head, struct span bytes)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    struct http1_field fields[FIELDS];
    struct http1_head again;

    if (head->kind == HTTP1_REQUEST) {
        require(http1_put_request_line(&out, http1_slice_span(bytes, head->method),
                                       http1_slice_span(bytes, head->target)) == 0);
    } else {
        require(http1_put_status_line(&out, head->status) == 0);
    }
    for (unsigned int i = 0; i < head->field_count; i++) {
        require(http1_put_field(&out, http1_slice_span(bytes, head->fields[i].name),
                                http1_slice_span(bytes, head->fields[i].value)) == 0);
    }
    http1_put_end(&out);
    http1_head_init(&again, head->kind, fields, FIELDS, HTTP1_MAX_HEAD_BYTES);
    if (http1_head_parse(&again, buf_span(&out)) != (int)out.n) {
        /* Written as 1.1, a head of 1.0 may lack its Host. */
        require(head->minor == 0 && again.fault == HTTP1_FAULT_HOST);
        return;
    }
    require(again.field_count == head->field_count && again.status == head->status &&
            again.content_length == head->content_length && again.is_chunked == head->is_chunked);
    for (unsigned int i = 0; i < head->field_count; i++) {
        require(span_equals(http1_slice_span(bytes, head->fields[i].value),
                            http1_slice_span(buf_span(&out), again.fields[i].value)));
    }
}

static void fuzz_head(enum http1_kind kind, struct span bytes, size_t step)
{
    struct http1_field fields[2][FIELDS];
    struct http1_head whole;
    struct http1_head pieces;
    int r;
    int piecewise = 0;

    http1_head_init(&whole, kind, fields[0], FIELDS, MAX_HEAD_BYTES);
    http1_head_init(&pieces, kind, fields[1], FIELDS, MAX_HEAD_BYTES);
    r = http1_head_parse(&whole, bytes);
    for (size_t n = step; piecewise == 0; n += step) {
        piecewise = http1_head_parse(&pieces, span_head(bytes, n));
        if (n >= bytes.n) {
            break;
        }
    }
    require(r == piecewise);
    require_same_head(&whole, &pieces);
    require(r <= (int)MAX_HEAD_BYTES && r <= (int)bytes.n);
    if (r > 0) {
        check_round_trip(&whole, span_head(bytes, (size_t)r));
    }
}

/* Returns the result: 1 complete, 0 more, or the error; the body goes to out. */
static int decode(struct span bytes, size_t step, struct buf *out, size_t *ret_used)
{
    struct http1_chunks chunks;

    *ret_used = 0;
    http1_chunks_init(&chunks);
    while (bytes.n > 0 && !http1_chunks_is_done(&chunks)) {
        struct span body;
        int r = http1_chunks_next(&chunks, span_head(bytes, step), &body);

        if (r < 0) {
            return r;
        }
        require(r > 0 && body.n <= (size_t)r);
        buf_put(out, body);
        *ret_used += (size_t)r;
        bytes = span_skip(bytes, (size_t)r);
    }
    return http1_chunks_is_done(&chunks) ? 1 : 0;
}

static void fuzz_chunks(struct span bytes, size_t step)
{
    _cleanup_buf_ struct buf whole = buf_make(0);
    _cleanup_buf_ struct buf pieces = buf_make(0);
    size_t used[2];
    int r = decode(bytes, bytes.n, &whole, &used[0]);

    require(decode(bytes, step, &pieces, &used[1]) == r);
    require(span_equals(buf_span(&whole), buf_span(&pieces)));
    require(r < 0 || used[0] == used[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span bytes = span_skip(span_make(data, size), 1);
    size_t step;

    if (bytes.n == 0) {
        return 0;
    }
    step = (size_t)(data[0] / 3U) % 16U + 1U;
    switch (data[0] % 3U) {
    case 0:
        fuzz_head(HTTP1_REQUEST, bytes, step);
        break;
    case 1:
        fuzz_head(HTTP1_RESPONSE, bytes, step);
        break;
    default:
        fuzz_chunks(bytes, step);
        break;
    }
    return 0;
}
