/* Tar archives: must not crash, must tell the same whatever the pieces, and what it tells must come
 * back from an archive that is written of it. */
#include "wire/tar.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_entry(struct buf *b, const struct tar_entry *e)
{
    buf_put_u8(b, e->type);
    buf_put_block(b, e->name);
    buf_put_block(b, e->target);
    buf_put_u32(b, e->mode);
    buf_put_u64(b, e->size_bytes);
    buf_put_u64(b, (uint64_t)e->modified_s);
}

/* The same entry through the formatter; sizes without content, for there may be much of it. */
static void check_roundtrip(const struct tar_entry *e)
{
    _cleanup_buf_ struct buf archive = buf_make(0);
    _cleanup_buf_ struct buf before = buf_make(0);
    _cleanup_buf_ struct buf after = buf_make(0);
    struct tar_entry again = {.type = 0};
    struct tar_parser p;
    struct span rest;
    struct span content;

    tar_entry_format(&archive, e);
    put_entry(&before, e);
    tar_parser_init(&p);
    rest = buf_span(&archive);
    if (buf_error(&archive) != 0 || tar_parser_next(&p, &rest, &again, &content) != TAR_ENTRY ||
        rest.n != 0) {
        abort();
    }
    put_entry(&after, &again);
    if (!span_equals(buf_span(&before), buf_span(&after))) {
        abort();
    }
    tar_parser_done(&p);
}

static int parse(struct span input, size_t step, struct buf *transcript)
{
    struct tar_parser p;
    int r = TAR_MORE;

    tar_parser_init(&p);
    while (input.n > 0 && r >= 0) {
        struct span piece = span_head(input, step);

        input = span_skip(input, step);
        while (piece.n > 0 && r >= 0) {
            struct tar_entry e = {.type = 0};
            struct span content = span_make(NULL, 0);

            r = tar_parser_next(&p, &piece, &e, &content);
            if (r == TAR_ENTRY) {
                put_entry(transcript, &e);
                check_roundtrip(&e);
            } else if (r == TAR_CONTENT) {
                buf_put(transcript, content);
            }
        }
    }
    r = r < 0 ? r : tar_parser_finish(&p);
    tar_parser_done(&p);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 7, 513};
    struct span input = span_make(data, size);
    _cleanup_buf_ struct buf whole = buf_make(0);
    int r = parse(input, size + 1, &whole);

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        _cleanup_buf_ struct buf pieces = buf_make(0);

        if (parse(input, steps[i], &pieces) != r ||
            !span_equals(buf_span(&whole), buf_span(&pieces))) {
            abort();
        }
    }
    return 0;
}
