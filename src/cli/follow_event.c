#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "base/buf.h"
#include "cli/follow.h"

#define BASE64_INVALID 64U

static unsigned int base64_value(uint8_t c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26U;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52U;
    }
    return c == '+' ? 62U : c == '/' ? 63U : BASE64_INVALID;
}

/* Padded base64 only. */
static int base64_decode(struct span text, struct buf *out)
{
    uint8_t *to = buf_reserve(out, text.n / 4 * 3);

    if (to == NULL || text.n % 4 != 0) {
        return to == NULL ? buf_error(out) : -EBADMSG;
    }
    for (; text.n > 0; text = span_skip(text, 4)) {
        size_t pad = text.n > 4 ? 0 : (text.p[3] == '=' ? 1U : 0U) + (text.p[2] == '=' ? 1U : 0U);
        uint32_t group = 0;

        for (size_t i = 0; i < 4; i++) {
            unsigned int value = i >= 4 - pad ? 0 : base64_value(text.p[i]);

            if (value == BASE64_INVALID) {
                return -EBADMSG;
            }
            group = group << 6 | value;
        }
        *to++ = (uint8_t)(group >> 16);
        *to++ = (uint8_t)(group >> 8);
        *to++ = (uint8_t)group;
        buf_commit(out, 3 - pad);
    }
    return 0;
}

static int get_stream(const json_t *data, enum follow_stream *ret_stream, uint64_t *ret_offset)
{
    const char *stream = json_string_value(json_object_get(data, "stream"));
    const json_t *offset = json_object_get(data, "offset");

    if (stream == NULL || !json_is_integer(offset) || json_integer_value(offset) < 0) {
        return -EBADMSG;
    }
    if (strcmp(stream, "stdout") != 0 && strcmp(stream, "stderr") != 0) {
        return -EBADMSG;
    }
    *ret_stream = strcmp(stream, "stdout") == 0 ? FOLLOW_STDOUT : FOLLOW_STDERR;
    *ret_offset = (uint64_t)json_integer_value(offset);
    return 0;
}

/* Moves the expected offset to `to` and reports what is passed over. */
static void pass_over(struct follow *f, enum follow_stream stream, uint64_t to)
{
    if (f->offset_known[stream] && to > f->offset[stream]) {
        f->sink->on_gap(f->arg, stream, to - f->offset[stream]);
    }
    if (!f->offset_known[stream] || to > f->offset[stream]) {
        f->offset[stream] = to;
    }
    f->offset_known[stream] = true;
}

static int take_output(struct follow *f, const json_t *data)
{
    const char *text = json_string_value(json_object_get(data, "data"));
    _cleanup_buf_ struct buf bytes = buf_make(0);
    enum follow_stream stream;
    uint64_t offset;
    struct span fresh;

    if (text == NULL || get_stream(data, &stream, &offset) < 0 ||
        base64_decode(span_of_str(text), &bytes) < 0) {
        return -EBADMSG;
    }
    pass_over(f, stream, offset);
    if (f->offset[stream] - offset >= bytes.n) {
        return 0; /* all of it was seen before */
    }
    fresh = span_skip(buf_span(&bytes), (size_t)(f->offset[stream] - offset));
    f->offset[stream] += fresh.n;
    return f->sink->on_output(f->arg, stream, fresh);
}

static int take_gap(struct follow *f, const json_t *data)
{
    const json_t *bytes = json_object_get(data, "bytes");
    enum follow_stream stream;
    uint64_t offset;
    uint64_t end;

    if (get_stream(data, &stream, &offset) < 0 || !json_is_integer(bytes) ||
        json_integer_value(bytes) < 0 ||
        __builtin_add_overflow(offset, (uint64_t)json_integer_value(bytes), &end)) {
        return -EBADMSG;
    }
    pass_over(f, stream, end);
    return 0;
}

static int take_exit(struct follow *f, const json_t *data)
{
    const json_t *code = json_object_get(data, "exit_code");
    const json_t *signal = json_object_get(data, "signal");

    f->exit_code = json_is_integer(code) ? (int)(json_integer_value(code) & 0xff) : -1;
    f->exit_signal = json_is_integer(signal)  ? (int)(json_integer_value(signal) & 0x7f)
                     : json_is_string(signal) ? signal_number(json_string_value(signal))
                                              : 0;
    f->timed_out = json_is_true(json_object_get(data, "timed_out"));
    f->out_of_memory = json_is_true(json_object_get(data, "out_of_memory"));
    f->end = FOLLOW_END_EXITED;
    return 0;
}

static int take_lost(struct follow *f, const json_t *data)
{
    const char *reason = json_string_value(json_object_get(data, "reason"));

    (void)snprintf(f->lost_reason, sizeof(f->lost_reason), "%.31s",
                   reason != NULL ? reason : "unknown");
    f->end = FOLLOW_END_LOST;
    return 0;
}

int follow_output(struct follow *f, enum follow_stream stream, struct span bytes)
{
    f->offset[stream] += bytes.n;
    return f->sink->on_output(f->arg, stream, bytes);
}

int follow_message(struct follow *f, const char *name, const json_t *data)
{
    static const struct {
        const char *name;
        int (*take)(struct follow *f, const json_t *data);
    } known[] = {
        {"output", take_output},
        {"gap", take_gap},
        {"process_exited", take_exit},
        {"process_lost", take_lost},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, known[i].name) == 0) {
            return json_is_object(data) ? known[i].take(f, data) : -EBADMSG;
        }
    }
    return 0; /* events of later versions are skipped */
}

int follow_event(struct follow *f, const struct sse_event *event)
{
    json_t *data = json_loadb((const char *)event->data.p, event->data.n, 0, NULL);
    int r = follow_message(f, event->name, data);

    json_decref(data);
    return r;
}
