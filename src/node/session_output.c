/* GET …/sessions/{se}/output: one stream of a session as bytes, without a copy where it lies in a
 * file. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/process_stream.h"
#include "node/routes.h"

/* Handed to the connection at a time; what is handed over stays pinned in the spool. */
#define PIECE_BYTES (1024U * 1024U)

struct output_call {
    unsigned int stream;
    uint64_t offset;
    uint64_t limit;
    struct process *process; /* NULL once its record is gone */
    struct spool_pin pin;
    uint64_t next; /* first byte not handed over */
    uint64_t end;
    bool sending;
    bool waits;     /* may be answered later */
    bool gathering; /* there is something, and more to come */
};

static void on_close(struct call *call, bool complete)
{
    struct output_call *out = call->state;

    (void)complete;
    spool_pin_clear(&out->pin);
}

/* Hands over the next piece. The one before may still be on its way and stays pinned. */
static void send_piece(struct call *call)
{
    struct output_call *out = call->state;
    uint64_t n = out->end - out->next;
    int fd;

    if (out->next == out->end) {
        http_exchange_end(call->exchange);
        return;
    }
    fd = out->process != NULL ? spool_stream_fd(out->process->spool, out->stream) : -ESTALE;
    n = n < PIECE_BYTES ? n : PIECE_BYTES;
    if (fd < 0 ||
        http_exchange_write_file(call->exchange, fd, (int64_t)out->next, (int64_t)n) < 0) {
        http_exchange_abort(call->exchange);
        return;
    }
    out->pin.from = out->next > PIECE_BYTES + out->offset ? out->next - PIECE_BYTES : out->offset;
    out->next += n;
    if (out->next == out->end) {
        http_exchange_end(call->exchange);
    }
}

static void on_drain(void *arg)
{
    struct call *call = arg;
    const struct output_call *out = call->state;

    if (out->next < out->end) {
        send_piece(call);
    }
}

static void start_answer(struct call *call, uint64_t n, bool at_end)
{
    struct output_call *out = call->state;
    char next[24];
    const struct http_header headers[] = {
        {"Content-Type", "application/octet-stream"}, {"Cache-Control", "no-store"},
        {"X-Request-Id", call->request_id},           {"X-Space-Next-Offset", next},
        {"X-Space-End", at_end ? "true" : "false"},
    };
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct spool *spool = out->process->spool;
    struct error err = {0};

    (void)snprintf(next, sizeof(next), "%" PRIu64, out->offset + n);
    if (spool_flush(spool) < 0) {
        log_debug("spool not flushed", "process=%s", out->process->id);
    }
    if (n > 0 && spool_stream_fd(spool, out->stream) >= 0) {
        out->sending = true;
        out->next = out->offset;
        out->end = out->offset + n;
        out->pin.stream = out->stream;
        out->pin.from = out->offset;
        spool_pin_set(spool, &out->pin);
        call->answered = true;
        http_exchange_on_drain(call->exchange, on_drain, call);
        http_exchange_start(call->exchange, 200, headers, 5, (int64_t)n);
        send_piece(call);
        return;
    }
    if (n > 0 && spool_read(spool, out->stream, out->offset, (size_t)n, &bytes) < 0) {
        (void)error_set_code(&err, ERROR_GONE, "session", "the output is not kept any more");
        call_fail(call, &err);
        return;
    }
    if (!call->answered) {
        call->answered = true;
        http_exchange_respond(call->exchange, 200, headers, 5, buf_span(&bytes));
    }
}

/* Answers if there is something to say, or if `now`. True when it answered. */
static bool try_answer(struct call *call, bool now)
{
    struct output_call *out = call->state;
    struct spool *spool = out->process->spool;
    uint64_t start = spool_start(spool)->at[out->stream];
    uint64_t end = spool_end(spool)->at[out->stream];
    bool ended = process_is_ended(out->process);
    uint64_t n;
    struct error err = {0};

    if (out->offset < start) {
        (void)error_set_code(&err, ERROR_GONE, "session",
                             "the bytes before offset %" PRIu64 " were dropped", start);
        call_fail(call, &err);
        return true;
    }
    if (out->offset > end) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "offset",
                             "offset must be at most %" PRIu64 ", the end so far", end);
        call_fail(call, &err);
        return true;
    }
    if (out->offset == end && !ended && !now) {
        return false;
    }
    n = end - out->offset;
    n = n < out->limit ? n : out->limit;
    if (!now && out->waits && n < out->limit && process_gathers(out->process, n)) {
        if (!out->gathering) {
            out->gathering = true;
            loop_timer_start(call->timer, GATHER_MS);
        }
        return false;
    }
    start_answer(call, n, ended && out->offset + n == end);
    return true;
}

static void on_timer(void *arg)
{
    struct call *call = arg;

    if (!call->answered) {
        (void)try_answer(call, true);
    }
}

static void on_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;
    struct output_call *out = call->state;
    struct error err = {0};

    if ((events & (PROCESS_EVENT_GONE | PROCESS_EVENT_FAILED)) != 0) {
        process_watch_remove(&call->watch);
        spool_pin_clear(&out->pin);
        out->process = NULL;
        if (!call->answered) {
            (void)error_set_code(&err, ERROR_GONE, "session", "the output is not kept any more");
            call_fail(call, &err);
        }
        return;
    }
    if (!call->answered) {
        (void)try_answer(call, false);
    } else if (out->sending &&
               spool_start(p->spool)->at[out->stream] > out->pin.from + p->spool_bytes) {
        /* A reader this slow would keep all of the output on the disk. */
        http_exchange_abort(call->exchange);
    }
}

static int
read_query(struct call *call, struct output_call *out, int64_t *ret_wait_ms, struct error *err)
{
    static const char *const names[] = {"stream", "offset", "limit", "wait", NULL};
    char stream[16];

    out->limit = INT64_MAX;
    if (call_query_check(call, names, err) < 0 ||
        call_query_text(call, "stream", stream, sizeof(stream), err) < 0 ||
        call_query_unsigned(call, "offset", INT64_MAX, &out->offset, err) < 0 ||
        call_query_unsigned(call, "limit", INT64_MAX, &out->limit, err) < 0 ||
        call_query_wait(call, ret_wait_ms, err) < 0) {
        return -EINVAL;
    }
    if (stream[0] != '\0' && strcmp(stream, "stdout") != 0 && strcmp(stream, "stderr") != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "stream",
                              "stream must be one of: stdout, stderr");
    }
    out->stream = strcmp(stream, "stderr") == 0 ? 1 : 0;
    if (out->limit == 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "limit", "limit must be at least 1");
    }
    return 0;
}

void handle_session_output(struct call *call, json_t *body)
{
    struct process *p = call_session(call);
    struct output_call *out;
    struct error err = {0};
    int64_t wait_ms = 0;

    (void)body;
    if (p == NULL) {
        return;
    }
    out = http_exchange_alloc(call->exchange, sizeof(*out));
    if (out == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    memset(out, 0, sizeof(*out));
    out->process = p;
    call->state = out;
    call->on_close = on_close;
    if (read_query(call, out, &wait_ms, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (wait_ms > 0 && call_start_timer(call, wait_ms, on_timer) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    out->waits = wait_ms > 0;
    /* Who asks from here on has what is before. */
    process_note_stream_read(p, out->stream, out->offset);
    call_watch(call, p, on_event);
    (void)try_answer(call, wait_ms == 0);
}
