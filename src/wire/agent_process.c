#include "wire/agent_process.h"

#include <errno.h>

#include "wire/agent_field.h"

static const struct agent_strings_limits argv_limits = {AGENT_ARGV_MAX, AGENT_ARGV_BYTES, false};
static const struct agent_strings_limits env_limits = {AGENT_ENV_MAX, AGENT_ENV_BYTES, true};

/* Every message here belongs to a process: its channel is not 0. */
static bool is_channel_frame(const struct agent_frame *f, unsigned int allowed_flags)
{
    return f->channel != 0 && (f->flags & ~allowed_flags) == 0;
}

int agent_start_parse(struct span joined, struct agent_start *ret)
{
    const unsigned int known =
        AGENT_START_TTY | AGENT_START_STDIN | AGENT_START_REHEARSAL | AGENT_START_SERVICE;
    struct reader r = reader_make(joined);
    struct agent_start m = {.flags = reader_get_u32(&r)};

    if (agent_strings_get(&r, &argv_limits, &m.argv) < 0 ||
        agent_strings_get(&r, &env_limits, &m.env) < 0) {
        return -EBADMSG;
    }
    m.cwd = agent_text_get(&r, AGENT_CWD_BYTES);
    m.user = agent_text_get(&r, AGENT_USER_BYTES);
    m.timeout_ms = reader_get_u64(&r);
    m.cols = reader_get_u16(&r);
    m.rows = reader_get_u16(&r);
    m.term = agent_text_get(&r, AGENT_TERM_BYTES);
    if (reader_finish(&r) < 0 || (m.flags & ~known) != 0 || m.argv.count == 0) {
        return -EBADMSG;
    }
    if ((m.flags & AGENT_START_SERVICE) != 0 &&
        (m.flags & (AGENT_START_TTY | AGENT_START_REHEARSAL)) != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

static void start_put_payload(struct buf *b, const struct agent_start *m)
{
    buf_put_u32(b, m->flags);
    agent_strings_put(b, &m->argv, &argv_limits);
    agent_strings_put(b, &m->env, &env_limits);
    agent_text_put(b, m->cwd, AGENT_CWD_BYTES);
    agent_text_put(b, m->user, AGENT_USER_BYTES);
    buf_put_u64(b, m->timeout_ms);
    buf_put_u16(b, m->cols);
    buf_put_u16(b, m->rows);
    agent_text_put(b, m->term, AGENT_TERM_BYTES);
}

void agent_start_format(struct buf *b, uint32_t channel, const struct agent_start *m)
{
    _cleanup_buf_ struct buf payload = buf_make(AGENT_START_MAX);
    struct span rest;

    start_put_payload(&payload, m);
    if (buf_error(&payload) != 0) {
        b->error = buf_error(&payload);
        return;
    }
    rest = buf_span(&payload);
    do {
        struct agent_frame f = {.type = AGENT_START, .channel = channel};

        f.payload = span_head(rest, AGENT_PAYLOAD_MAX);
        f.flags = rest.n > AGENT_PAYLOAD_MAX ? AGENT_START_MORE : 0;
        agent_frame_format(b, &f);
        rest = span_skip(rest, f.payload.n);
    } while (rest.n > 0);
}

/* A frame on a channel whose payload is one u32. */
static int u32_parse(const struct agent_frame *f, uint32_t *ret_value)
{
    struct reader r = reader_make(f->payload);
    uint32_t value = reader_get_u32(&r);

    if (reader_finish(&r) < 0 || f->flags != 0) {
        return -EBADMSG;
    }
    *ret_value = value;
    return 0;
}

/* At the end of a payload: absent when empty, which is also what agents of earlier releases send.
 */
static struct span get_cwd(struct reader *r)
{
    struct span cwd = span_make(NULL, 0);

    if (r->error == 0 && r->rest.n > 0) {
        cwd = agent_text_get(r, AGENT_CWD_BYTES);
        if (cwd.n == 0) {
            r->error = -EBADMSG;
        }
    }
    return cwd;
}

static void put_cwd(struct buf *b, struct span cwd)
{
    if (cwd.n > 0) {
        agent_text_put(b, cwd, AGENT_CWD_BYTES);
    }
}

int agent_started_parse(const struct agent_frame *f, struct agent_started *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_started m = {.pid = reader_get_u32(&r)};

    m.cwd = get_cwd(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_started_format(struct buf *b, uint32_t channel, const struct agent_started *m)
{
    size_t mark = agent_frame_begin(b, AGENT_STARTED, 0, channel);

    buf_put_u32(b, m->pid);
    put_cwd(b, m->cwd);
    agent_frame_end(b, mark);
}

int agent_start_failed_parse(const struct agent_frame *f, struct agent_start_failed *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_start_failed m = {.errnum = reader_get_u32(&r)};

    m.what = reader_get_u8(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0) || m.what < AGENT_WHAT_CWD ||
        m.what > AGENT_WHAT_TTY) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_start_failed_format(struct buf *b, uint32_t channel, const struct agent_start_failed *m)
{
    size_t mark = agent_frame_begin(b, AGENT_START_FAILED, 0, channel);

    buf_put_u32(b, m->errnum);
    buf_put_u8(b, m->what);
    agent_frame_end(b, mark);
}

int agent_stdin_parse(const struct agent_frame *f, struct agent_stdin *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_stdin m = {.offset = reader_get_u64(&r)};

    m.bytes = r.rest;
    m.end = (f->flags & AGENT_STDIN_END) != 0;
    if (r.error != 0 || !is_channel_frame(f, AGENT_STDIN_END) || (m.bytes.n == 0 && !m.end)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_stdin_format(struct buf *b, uint32_t channel, const struct agent_stdin *m)
{
    size_t mark = agent_frame_begin(b, AGENT_STDIN, m->end ? AGENT_STDIN_END : 0, channel);

    buf_put_u64(b, m->offset);
    buf_put(b, m->bytes);
    agent_frame_end(b, mark);
}

int agent_stdin_ack_parse(const struct agent_frame *f, struct agent_stdin_ack *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_stdin_ack m = {.offset = reader_get_u64(&r)};

    m.closed = (f->flags & AGENT_STDIN_ACK_CLOSED) != 0;
    if (reader_finish(&r) < 0 || !is_channel_frame(f, AGENT_STDIN_ACK_CLOSED)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_stdin_ack_format(struct buf *b, uint32_t channel, const struct agent_stdin_ack *m)
{
    size_t mark =
        agent_frame_begin(b, AGENT_STDIN_ACK, m->closed ? AGENT_STDIN_ACK_CLOSED : 0, channel);

    buf_put_u64(b, m->offset);
    agent_frame_end(b, mark);
}

static bool is_stream(uint8_t stream)
{
    return stream == AGENT_STDOUT || stream == AGENT_STDERR;
}

int agent_output_parse(const struct agent_frame *f, struct agent_output *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_output m = {.stream = reader_get_u8(&r)};

    m.offset = reader_get_u64(&r);
    m.bytes = r.rest;
    m.end = (f->flags & AGENT_OUTPUT_END) != 0;
    if (r.error != 0 || !is_channel_frame(f, AGENT_OUTPUT_END) || !is_stream(m.stream) ||
        (m.bytes.n == 0 && !m.end)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_output_format(struct buf *b, uint32_t channel, const struct agent_output *m)
{
    size_t mark = agent_frame_begin(b, AGENT_OUTPUT, m->end ? AGENT_OUTPUT_END : 0, channel);

    buf_put_u8(b, m->stream);
    buf_put_u64(b, m->offset);
    buf_put(b, m->bytes);
    agent_frame_end(b, mark);
}

int agent_output_ack_parse(const struct agent_frame *f, struct agent_output_ack *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_output_ack m = {.stream = reader_get_u8(&r)};

    m.offset = reader_get_u64(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0) || !is_stream(m.stream)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_output_ack_format(struct buf *b, uint32_t channel, const struct agent_output_ack *m)
{
    size_t mark = agent_frame_begin(b, AGENT_OUTPUT_ACK, 0, channel);

    buf_put_u8(b, m->stream);
    buf_put_u64(b, m->offset);
    agent_frame_end(b, mark);
}

int agent_resume_from_parse(const struct agent_frame *f, struct agent_resume_from *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_resume_from m = {.stdout_offset = reader_get_u64(&r)};

    m.stderr_offset = reader_get_u64(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_resume_from_format(struct buf *b, uint32_t channel, const struct agent_resume_from *m)
{
    size_t mark = agent_frame_begin(b, AGENT_RESUME_FROM, 0, channel);

    buf_put_u64(b, m->stdout_offset);
    buf_put_u64(b, m->stderr_offset);
    agent_frame_end(b, mark);
}

int agent_signal_parse(const struct agent_frame *f, struct agent_signal *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_signal m = {.id = reader_get_u32(&r)};

    m.signal = reader_get_u8(&r);
    m.scope = reader_get_u8(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0) || m.signal == 0 || m.signal > 64 ||
        m.scope > AGENT_SCOPE_TREE) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_signal_format(struct buf *b, uint32_t channel, const struct agent_signal *m)
{
    size_t mark = agent_frame_begin(b, AGENT_SIGNAL, 0, channel);

    buf_put_u32(b, m->id);
    buf_put_u8(b, m->signal);
    buf_put_u8(b, m->scope);
    agent_frame_end(b, mark);
}

int agent_result_parse(const struct agent_frame *f, struct agent_result *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_result m = {.id = reader_get_u32(&r)};

    m.errnum = reader_get_u32(&r);
    if (reader_finish(&r) < 0 || f->flags != 0) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_result_format(struct buf *b, uint32_t channel, const struct agent_result *m)
{
    size_t mark = agent_frame_begin(b, AGENT_RESULT, 0, channel);

    buf_put_u32(b, m->id);
    buf_put_u32(b, m->errnum);
    agent_frame_end(b, mark);
}

static void get_exited(struct reader *r, struct agent_exited *ret)
{
    ret->kind = reader_get_u8(r);
    ret->status = reader_get_u8(r);
    ret->flags = reader_get_u16(r);
    ret->stdout_end = reader_get_u64(r);
    ret->stderr_end = reader_get_u64(r);
    ret->duration_ns = reader_get_u64(r);
    if (ret->kind > AGENT_EXIT_SIGNAL || (ret->flags & ~AGENT_EXITED_FLAGS) != 0) {
        r->error = -EBADMSG;
    }
}

static void put_exited(struct buf *b, const struct agent_exited *m)
{
    buf_put_u8(b, m->kind);
    buf_put_u8(b, m->status);
    buf_put_u16(b, m->flags);
    buf_put_u64(b, m->stdout_end);
    buf_put_u64(b, m->stderr_end);
    buf_put_u64(b, m->duration_ns);
}

int agent_exited_parse(const struct agent_frame *f, struct agent_exited *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_exited m = {.kind = 0};

    get_exited(&r, &m);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_exited_format(struct buf *b, uint32_t channel, const struct agent_exited *m)
{
    size_t mark = agent_frame_begin(b, AGENT_EXITED, 0, channel);

    put_exited(b, m);
    agent_frame_end(b, mark);
}

int agent_process_parse(const struct agent_frame *f, struct agent_process *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_process m = {.pid = reader_get_u32(&r)};
    uint8_t state = reader_get_u8(&r);

    m.stdout_start = reader_get_u64(&r);
    m.stdout_end = reader_get_u64(&r);
    m.stderr_start = reader_get_u64(&r);
    m.stderr_end = reader_get_u64(&r);
    m.stdin_offset = reader_get_u64(&r);
    if (state > 1) {
        return -EBADMSG;
    }
    m.exited = state == 1;
    if (m.exited) {
        get_exited(&r, &m.exit);
    }
    m.cwd = get_cwd(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0) || m.stdout_start > m.stdout_end ||
        m.stderr_start > m.stderr_end ||
        (m.exited && (m.exit.stdout_end != m.stdout_end || m.exit.stderr_end != m.stderr_end))) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_process_format(struct buf *b, uint32_t channel, const struct agent_process *m)
{
    size_t mark = agent_frame_begin(b, AGENT_PROCESS, 0, channel);

    buf_put_u32(b, m->pid);
    buf_put_u8(b, m->exited ? 1 : 0);
    buf_put_u64(b, m->stdout_start);
    buf_put_u64(b, m->stdout_end);
    buf_put_u64(b, m->stderr_start);
    buf_put_u64(b, m->stderr_end);
    buf_put_u64(b, m->stdin_offset);
    if (m->exited) {
        put_exited(b, &m->exit);
    }
    put_cwd(b, m->cwd);
    agent_frame_end(b, mark);
}

int agent_process_end_parse(const struct agent_frame *f, uint32_t *ret_count)
{
    return f->channel != 0 ? -EBADMSG : u32_parse(f, ret_count);
}

void agent_process_end_format(struct buf *b, uint32_t count)
{
    size_t mark = agent_frame_begin(b, AGENT_PROCESS_END, 0, 0);

    buf_put_u32(b, count);
    agent_frame_end(b, mark);
}

int agent_forget_parse(const struct agent_frame *f)
{
    return is_channel_frame(f, 0) && f->payload.n == 0 ? 0 : -EBADMSG;
}

void agent_forget_format(struct buf *b, uint32_t channel)
{
    agent_frame_end(b, agent_frame_begin(b, AGENT_FORGET, 0, channel));
}

int agent_resize_parse(const struct agent_frame *f, struct agent_resize *ret)
{
    struct reader r = reader_make(f->payload);
    struct agent_resize m = {.cols = reader_get_u16(&r)};

    m.rows = reader_get_u16(&r);
    if (reader_finish(&r) < 0 || !is_channel_frame(f, 0)) {
        return -EBADMSG;
    }
    *ret = m;
    return 0;
}

void agent_resize_format(struct buf *b, uint32_t channel, const struct agent_resize *m)
{
    size_t mark = agent_frame_begin(b, AGENT_RESIZE, 0, channel);

    buf_put_u16(b, m->cols);
    buf_put_u16(b, m->rows);
    agent_frame_end(b, mark);
}
