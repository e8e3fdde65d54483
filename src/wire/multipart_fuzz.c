/* A form as a client sends it: the same parts, contents and end however it is cut into pieces, and
 * content that is as long as the body at most. */
#include "wire/multipart.h"

#include <stdlib.h>

#include "base/buf.h"

#define TYPE "multipart/form-data; boundary=XX"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_all(struct multipart *m, struct span body, size_t step, struct buf *out)
{
    int r = multipart_init(m, span_of_str(TYPE));

    if (r < 0) {
        abort();
    }
    while (r >= 0 && body.n > 0) {
        struct span piece = span_head(body, step);

        body = span_skip(body, piece.n);
        for (;;) {
            enum multipart_event event;
            struct span part;

            r = multipart_next(m, piece, &event, &part);
            if (r < 0) {
                break;
            }
            if ((size_t)r > piece.n || (event == MULTIPART_NONE && (size_t)r != piece.n) ||
                (event == MULTIPART_DATA) != (part.n > 0)) {
                abort();
            }
            if (event == MULTIPART_NONE) {
                break;
            }
            piece = span_skip(piece, (size_t)r);
            if (event == MULTIPART_PART) {
                buf_printf(out, "[%s|%s]", m->name, m->has_filename ? m->filename : "-");
            } else if (event == MULTIPART_DATA) {
                buf_put(out, part);
            } else {
                buf_put_u8(out, (uint8_t)event);
            }
        }
    }
    r = r < 0 ? r : multipart_finish(m);
    if ((r < 0) != (m->fault != NULL)) {
        abort();
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 2, 3, 7, 64};
    struct span body = span_make(data, size);
    struct multipart *m = malloc(sizeof(*m));
    _cleanup_buf_ struct buf whole = buf_make(0);
    int r;

    if (m == NULL) {
        return 0;
    }
    r = read_all(m, body, SIZE_MAX, &whole);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        _cleanup_buf_ struct buf cut = buf_make(0);

        if (read_all(m, body, steps[i], &cut) != r ||
            !span_equals(buf_span(&whole), buf_span(&cut))) {
            abort();
        }
    }
    if (whole.n > 2 * size + 64) {
        abort();
    }
    /* The header's value is the client's too. */
    (void)!multipart_init(m, body);
    free(m);
    return 0;
}
