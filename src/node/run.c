#include "node/run.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "io/json_request.h"
#include "node/base64.h"
#include "node/process.h"
#include "node/signal_name.h"

struct collected {
    struct buf bytes;
    uint64_t omitted_bytes;
    uint64_t omitted_at;
};

/* Which bytes of a stream are shown: [0, head) and [tail, end). */
static int collect(struct process *p, unsigned int stream, uint64_t max, struct collected *ret)
{
    uint64_t end = spool_end(p->spool)->at[stream];
    uint64_t start = spool_start(p->spool)->at[stream];
    uint64_t head = spool_head(p->spool, stream);
    uint64_t tail;
    size_t cut;
    size_t before;
    int r;

    if (end > max && head > max / 2) {
        head = max / 2;
    }
    tail = end > max ? end - (max - max / 2) : 0;
    tail = tail < start ? start : tail;
    tail = tail < head ? head : tail;
    r = spool_read(p->spool, stream, 0, (size_t)head, &ret->bytes);
    if (r < 0) {
        return r;
    }
    if (tail == head) {
        return head == end ? 0
                           : spool_read(p->spool, stream, head, (size_t)(end - head), &ret->bytes);
    }
    cut = ret->bytes.n - utf8_cut_end(buf_span(&ret->bytes));
    ret->bytes.n -= cut;
    head -= cut;
    before = ret->bytes.n;
    r = spool_read(p->spool, stream, tail, (size_t)(end - tail), &ret->bytes);
    if (r < 0) {
        return r;
    }
    cut = utf8_skip_begin(span_skip(buf_span(&ret->bytes), before));
    if (cut > 0) {
        memmove(&ret->bytes.p[before], &ret->bytes.p[before + cut], ret->bytes.n - before - cut);
        ret->bytes.n -= cut;
        tail += cut;
    }
    ret->omitted_bytes = tail - head;
    ret->omitted_at = head;
    return 0;
}

static json_t *as_base64(struct span bytes)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    base64_format(bytes, &text);
    return buf_error(&text) != 0 ? NULL : json_stringn_nocheck((const char *)text.p, text.n);
}

static json_t *as_text(struct span bytes)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    utf8_repair(bytes, &text);
    return buf_error(&text) != 0 ? NULL : json_stringn((const char *)text.p, text.n);
}

/* The value, and which encoding it has. */
static json_t *encode(struct span bytes, enum command_encoding encoding, const char **ret_name)
{
    json_t *value = NULL;

    *ret_name = encoding == COMMAND_ENCODING_BASE64 ? "base64" : "utf8";
    if (bytes.n == 0) {
        return json_string("");
    }
    if (encoding != COMMAND_ENCODING_BASE64) {
        value = json_stringn((const char *)bytes.p, bytes.n);
    }
    if (value == NULL && encoding == COMMAND_ENCODING_UTF8) {
        value = as_text(bytes);
    } else if (value == NULL) {
        *ret_name = "base64";
        value = as_base64(bytes);
    }
    return value;
}

static int add_stream(struct process *p,
                      unsigned int stream,
                      const struct run_options *options,
                      json_t *result,
                      struct error *err)
{
    static const char *const keys[ORDER_STREAMS][4] = {
        {"stdout", "stdout_encoding", "stdout_omitted_bytes", "stdout_omitted_at"},
        {"stderr", "stderr_encoding", "stderr_omitted_bytes", "stderr_omitted_at"},
    };
    const char *const *key = keys[stream];
    struct collected collected = {.bytes = buf_make(0)};
    const char *encoding;
    int r = collect(p, stream, options->max_output_bytes, &collected);

    if (r < 0) {
        buf_done(&collected.bytes);
        return error_set(err, -r, "the output of %s cannot be read: %s", p->id, strerror(-r));
    }
    r |= json_object_set_new(result, key[0],
                             encode(buf_span(&collected.bytes), options->encoding, &encoding));
    buf_done(&collected.bytes);
    r |= json_object_set_new(result, key[1], json_string(encoding));
    r |= json_object_set_new(result, key[2], json_integer((json_int_t)collected.omitted_bytes));
    r |= json_object_set_new(
        result, key[3],
        collected.omitted_bytes > 0 ? json_integer((json_int_t)collected.omitted_at) : json_null());
    return r == 0 ? 0 : error_set(err, ENOMEM, "out of memory");
}

json_t *run_result(struct process *p, const struct run_options *options, struct error *err)
{
    _cleanup_json_ json_t *result = NULL;
    double seconds = (double)p->duration_ns / 1e9;
    char name[16];

    if (p->state == PROCESS_STATE_LOST) {
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION, "lost",
                             "process %s was lost (%s): it has no status", p->id, p->lost_reason);
        return NULL;
    }
    if (p->state != PROCESS_STATE_EXITED) {
        seconds = (double)(clock_real_ms() - p->started_at_ms) / 1000.0;
    }
    signal_name(p->signal, name);
    result = json_pack("{s:s, s:o, s:s?, s:b, s:b, s:f}", "process_id", p->id, "exit_code",
                       p->exit_code >= 0 ? json_integer(p->exit_code) : json_null(), "signal",
                       p->signal != 0 ? name : NULL, "timed_out", p->timed_out, "out_of_memory",
                       p->out_of_memory, "duration_seconds", seconds);
    if (result == NULL) {
        (void)error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    if (add_stream(p, 0, options, result, err) < 0 || add_stream(p, 1, options, result, err) < 0) {
        return NULL;
    }
    return TAKE(result);
}
