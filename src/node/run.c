#include "node/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "io/json_request.h"
#include "node/base64.h"
#include "node/process.h"
#include "node/signal_name.h"

#define PIECE_BYTES     49152U /* of output; three bytes are a group of base64 */
#define CHARACTER_BYTES 3U     /* of one that is cut, at most */

enum shown_as {
    SHOWN_AS_IS,
    SHOWN_REPAIRED,
    SHOWN_BASE64
};

/* What is shown of a stream: its bytes [0, head) and [tail, end), one behind the other. */
struct shown {
    int fd;            /* -1: they are all in memory */
    struct buf memory; /* a piece of its own: what a spool keeps there is short */
    uint64_t head;
    uint64_t tail;
    uint64_t end;
    uint64_t at; /* of what is shown, the first byte that has not been written */
    enum shown_as as;
    struct spool_pin pin;
    uint64_t start; /* of the spool, when the text was made */
};

struct run_text {
    struct buf head; /* the result's fields without the streams' */
    struct shown streams[ORDER_STREAMS];
    unsigned int stream; /* the one that is being written */
    bool is_open;        /* its value has been begun */
};

static uint64_t shown_bytes(const struct shown *s)
{
    return s->head + (s->end - s->tail);
}

/* ---- reading ---- */

/* The offset in the stream of the next byte. */
static uint64_t stream_offset(const struct shown *s)
{
    return s->at < s->head ? s->at : s->tail + (s->at - s->head);
}

static int read_file(int fd, uint64_t offset, uint8_t *to, size_t n)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = pread(fd, &to[done], n - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -EIO;
        }
        done += (size_t)got;
    }
    return 0;
}

/* Appends up to `max` of the bytes that come next, for text whole characters where there are such;
 * returns how many. */
static ssize_t shown_read(const struct shown *s, size_t max, struct buf *out)
{
    uint64_t left = shown_bytes(s) - s->at;
    size_t n = left < max ? (size_t)left : max;
    size_t first = s->at >= s->head ? 0 : s->head - s->at < n ? (size_t)(s->head - s->at) : n;
    uint8_t *to = buf_reserve(out, n);
    int r = 0;

    if (to == NULL) {
        return buf_error(out);
    }
    if (s->fd < 0) {
        memcpy(to, &s->memory.p[s->at], n);
    } else {
        r = read_file(s->fd, s->at, to, first);
        if (r == 0) {
            r = read_file(s->fd, s->tail + (s->at + first - s->head), &to[first], n - first);
        }
    }
    if (r < 0) {
        return r;
    }
    if (n < left && s->as != SHOWN_BASE64) {
        n = utf8_cut_end(span_make(to, n));
    }
    buf_commit(out, n);
    return (ssize_t)n;
}

/* ---- what is shown ---- */

/* Both sides of what is left out begin and end with whole characters. */
static int cut_characters(struct process *p, unsigned int stream, struct shown *s)
{
    _cleanup_buf_ struct buf before = buf_make(0);
    _cleanup_buf_ struct buf behind = buf_make(0);
    size_t n = s->head < CHARACTER_BYTES ? (size_t)s->head : CHARACTER_BYTES;
    size_t m = s->end - s->tail < CHARACTER_BYTES ? (size_t)(s->end - s->tail) : CHARACTER_BYTES;
    int r = spool_read(p->spool, stream, s->head - n, n, &before);

    if (r == 0) {
        r = spool_read(p->spool, stream, s->tail, m, &behind);
    }
    if (r == 0) {
        s->head -= n - utf8_cut_end(buf_span(&before));
        s->tail += utf8_skip_begin(buf_span(&behind));
    }
    return r;
}

static int choose(struct process *p, unsigned int stream, uint64_t max, struct shown *s)
{
    uint64_t end = spool_end(p->spool)->at[stream];
    uint64_t start = spool_start(p->spool)->at[stream];
    uint64_t head = spool_head(p->spool, stream);
    uint64_t tail;

    if (end > max && head > max / 2) {
        head = max / 2;
    }
    tail = end > max ? end - (max - max / 2) : 0;
    tail = tail < start ? start : tail;
    tail = tail < head ? head : tail;
    s->head = head;
    s->tail = tail;
    s->end = end;
    s->start = start;
    return tail == head ? 0 : cut_characters(p, stream, s);
}

/* Takes the bytes, or what they can be read from, for the time when the spool is gone. */
static int take_source(struct process *p, unsigned int stream, struct shown *s)
{
    int fd;
    int r;

    if (shown_bytes(s) == 0) {
        return 0;
    }
    fd = spool_stream_fd(p->spool, stream);
    if (fd == -ENODATA) {
        r = spool_read(p->spool, stream, 0, (size_t)s->head, &s->memory);
        return r < 0
                   ? r
                   : spool_read(p->spool, stream, s->tail, (size_t)(s->end - s->tail), &s->memory);
    }
    if (fd < 0) {
        return fd;
    }
    s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (s->fd < 0) {
        return -errno;
    }
    s->pin.stream = stream;
    s->pin.from = stream_offset(s);
    spool_pin_set(p->spool, &s->pin);
    return 0;
}

/* Whether all of it is UTF-8: 1, 0, -errno. */
static int is_text(struct shown *s)
{
    _cleanup_buf_ struct buf piece = buf_make(0);
    bool is_valid = true;
    ssize_t n = 0;

    while (n >= 0 && is_valid && s->at < shown_bytes(s)) {
        buf_clear(&piece);
        n = shown_read(s, PIECE_BYTES, &piece);
        is_valid = n >= 0 && utf8_is_valid(buf_span(&piece));
        s->at += n < 0 ? 0 : (uint64_t)n;
    }
    s->at = 0;
    return n < 0 ? (int)n : is_valid;
}

static int prepare_stream(struct process *p,
                          unsigned int stream,
                          const struct run_options *options,
                          struct shown *s)
{
    int r = choose(p, stream, options->max_output_bytes, s);

    if (r == 0) {
        r = take_source(p, stream, s);
    }
    if (r < 0) {
        return r;
    }
    if (options->encoding == COMMAND_ENCODING_BASE64) {
        s->as = SHOWN_BASE64;
        return 0;
    }
    r = is_text(s);
    if (r == 0) {
        s->as = options->encoding == COMMAND_ENCODING_UTF8 ? SHOWN_REPAIRED : SHOWN_BASE64;
    }
    return r < 0 ? r : 0;
}

/* ---- the text ---- */

static int put_head(const struct process *p, const char *sandbox_id, struct buf *out)
{
    _cleanup_json_ json_t *fields = NULL;
    double seconds = (double)p->duration_ns / 1e9;
    char name[16];

    if (p->state != PROCESS_STATE_EXITED) {
        seconds = (double)(clock_real_ms() - p->started_at_ms) / 1000.0;
    }
    signal_name(p->signal, name);
    fields =
        json_pack("{s:s*, s:s, s:o, s:s?, s:b, s:b, s:f}", "sandbox_id", sandbox_id, "process_id",
                  p->id, "exit_code", p->exit_code >= 0 ? json_integer(p->exit_code) : json_null(),
                  "signal", p->signal != 0 ? name : NULL, "timed_out", p->timed_out,
                  "out_of_memory", p->out_of_memory, "duration_seconds", seconds);
    if (fields == NULL) {
        return -ENOMEM;
    }
    json_write(fields, out);
    if (buf_error(out) == 0) {
        out->n--; /* the brace: the streams follow */
    }
    return buf_error(out);
}

int run_text_new(struct process *p,
                 const struct run_options *options,
                 const char *sandbox_id,
                 struct run_text **ret_text,
                 struct error *err)
{
    struct run_text *text;
    int r;

    if (p->state == PROCESS_STATE_LOST) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "lost",
                              "process %s was lost (%s): it has no status", p->id, p->lost_reason);
    }
    text = calloc(1, sizeof(*text));
    if (text == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    text->head = buf_make(0);
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        text->streams[i].fd = -1;
        text->streams[i].memory = buf_make(0);
    }
    r = put_head(p, sandbox_id, &text->head);
    for (unsigned int i = 0; r == 0 && i < ORDER_STREAMS; i++) {
        r = prepare_stream(p, i, options, &text->streams[i]);
    }
    if (r < 0) {
        run_text_free(text);
        return r == -ENOMEM
                   ? error_set(err, ENOMEM, "out of memory")
                   : error_set(err, -r, "the output of %s cannot be read: %s", p->id, strerror(-r));
    }
    *ret_text = text;
    return 0;
}

static void close_stream(struct shown *s)
{
    spool_pin_clear(&s->pin);
    if (s->fd >= 0) {
        (void)close(TAKE_FD(s->fd));
    }
    buf_done(&s->memory);
}

void run_text_free(struct run_text *text)
{
    if (text == NULL) {
        return;
    }
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        close_stream(&text->streams[i]);
    }
    buf_done(&text->head);
    free(text);
}

uint64_t run_text_shown(const struct run_text *text)
{
    return shown_bytes(&text->streams[0]) + shown_bytes(&text->streams[1]);
}

static void put_encoded(enum shown_as as, struct span bytes, struct buf *out)
{
    _cleanup_buf_ struct buf repaired = buf_make(0);

    if (as == SHOWN_BASE64) {
        base64_format(bytes, out);
    } else if (as == SHOWN_AS_IS) {
        json_write_characters(bytes, out);
    } else {
        utf8_repair(bytes, &repaired);
        json_write_characters(buf_span(&repaired), out);
        out->error = buf_error(out) == 0 ? buf_error(&repaired) : out->error;
    }
}

/* The next piece of the value. */
static int put_piece(struct shown *s, struct buf *out)
{
    _cleanup_buf_ struct buf piece = buf_make(0);
    ssize_t n = shown_read(s, PIECE_BYTES, &piece);

    if (n < 0) {
        return (int)n;
    }
    put_encoded(s->as, buf_span(&piece), out);
    s->at += (uint64_t)n;
    s->pin.from = stream_offset(s);
    return buf_error(out);
}

static void put_facts(const struct shown *s, const char *name, struct buf *out)
{
    uint64_t omitted = s->tail - s->head;

    buf_printf(out, "\",\"%s_encoding\":\"%s\",\"%s_omitted_bytes\":%" PRIu64, name,
               s->as == SHOWN_BASE64 ? "base64" : "utf8", name, omitted);
    if (omitted > 0) {
        buf_printf(out, ",\"%s_omitted_at\":%" PRIu64, name, s->head);
    } else {
        buf_printf(out, ",\"%s_omitted_at\":null", name);
    }
}

int run_text_next(struct run_text *text, struct buf *out)
{
    static const char *const names[ORDER_STREAMS] = {"stdout", "stderr"};
    int r = 0;

    buf_put(out, buf_span(&text->head));
    buf_clear(&text->head);
    while (r == 0 && text->stream < ORDER_STREAMS) {
        struct shown *s = &text->streams[text->stream];

        if (!text->is_open) {
            buf_printf(out, ",\"%s\":\"", names[text->stream]);
            text->is_open = true;
        }
        if (s->at < shown_bytes(s)) {
            r = put_piece(s, out);
            if (r == 0 && s->at < shown_bytes(s)) {
                return 1;
            }
        }
        put_facts(s, names[text->stream], out);
        close_stream(s);
        text->is_open = false;
        text->stream++;
    }
    buf_put_u8(out, '}');
    return r < 0 ? r : buf_error(out);
}

bool run_text_is_behind(const struct run_text *text, const struct process *p)
{
    for (unsigned int i = text->stream; i < ORDER_STREAMS; i++) {
        const struct shown *s = &text->streams[i];
        uint64_t from = s->pin.from > s->start ? s->pin.from : s->start;

        if (s->fd >= 0 && spool_start(p->spool)->at[i] > from + p->spool_bytes) {
            return true;
        }
    }
    return false;
}
