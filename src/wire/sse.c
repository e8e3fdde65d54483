#include "wire/sse.h"

#include <errno.h>

void sse_init(struct sse_parser *p)
{
    *p = (struct sse_parser){.line = buf_make(SSE_MAX_LINE), .data = buf_make(SSE_MAX_DATA)};
}

void sse_done(struct sse_parser *p)
{
    buf_done(&p->line);
    buf_done(&p->data);
}

void sse_clear(struct sse_parser *p)
{
    buf_clear(&p->line);
    buf_clear(&p->data);
    p->name[0] = '\0';
    p->after_cr = false;
    p->has_data = false;
}

static int dispatch(struct sse_parser *p, sse_event_fn on_event, void *arg)
{
    struct sse_event event = {
        .name = p->name[0] != '\0' ? p->name : "message",
        .id = p->id,
        .data = buf_span(&p->data),
    };
    int r = p->has_data ? on_event(arg, &event) : 0;

    buf_clear(&p->data);
    p->name[0] = '\0';
    p->has_data = false;
    return r;
}

static int take_field(struct sse_parser *p, struct span name, struct span value)
{
    if (span_equals_str(name, "data")) {
        if (p->has_data) {
            buf_put_str(&p->data, "\n");
        }
        buf_put(&p->data, value);
        p->has_data = true;
        return buf_error(&p->data);
    }
    if (span_equals_str(name, "event")) {
        return span_copy_str(value, p->name, sizeof(p->name));
    }
    if (span_equals_str(name, "id")) {
        return span_copy_str(value, p->id, sizeof(p->id));
    }
    return 0;
}

static int take_line(struct sse_parser *p, struct span line, sse_event_fn on_event, void *arg)
{
    size_t colon = span_find(line, 0, ':');
    struct span value = span_skip(line, colon + 1);

    if (line.n == 0) {
        return dispatch(p, on_event, arg);
    }
    if (value.n > 0 && value.p[0] == ' ') {
        value = span_skip(value, 1);
    }
    return take_field(p, span_head(line, colon), value);
}

/* Index of the first line end, or s.n. */
static size_t find_line_end(struct span s)
{
    size_t lf = span_find(s, 0, '\n');

    return span_find(span_head(s, lf), 0, '\r');
}

int sse_feed(struct sse_parser *p, struct span piece, sse_event_fn on_event, void *arg)
{
    while (piece.n > 0) {
        size_t end;
        int r;

        if (p->after_cr && piece.p[0] == '\n') {
            p->after_cr = false;
            piece = span_skip(piece, 1);
            continue;
        }
        p->after_cr = false;
        end = find_line_end(piece);
        buf_put(&p->line, span_head(piece, end));
        if (buf_error(&p->line) != 0) {
            return buf_error(&p->line);
        }
        if (end == piece.n) {
            return 0;
        }
        p->after_cr = piece.p[end] == '\r';
        piece = span_skip(piece, end + 1);
        r = take_line(p, buf_span(&p->line), on_event, arg);
        buf_clear(&p->line);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}
