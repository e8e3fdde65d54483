#include "wire/agent_roundtrip.h"

#include <errno.h>
#include <stdlib.h>

#include "wire/agent_process.h"

#define ROUNDTRIP(name, format_call)                                                               \
    static int roundtrip_##name(const struct agent_frame *f, struct buf *b)                        \
    {                                                                                              \
        struct agent_##name m;                                                                     \
        int r = agent_##name##_parse(f, &m);                                                       \
                                                                                                   \
        if (r == 0) {                                                                              \
            format_call;                                                                           \
        }                                                                                          \
        return r;                                                                                  \
    }

ROUNDTRIP(hello, agent_hello_format(b, &m))
ROUNDTRIP(welcome, agent_welcome_format(b, &m))
ROUNDTRIP(wake, agent_wake_format(b, &m))
ROUNDTRIP(identity, agent_identity_format(b, &m))
ROUNDTRIP(identity_ok, agent_identity_ok_format(b, &m))
ROUNDTRIP(write_file, agent_write_file_format(b, &m))
ROUNDTRIP(started, agent_started_format(b, f->channel, &m))
ROUNDTRIP(start_failed, agent_start_failed_format(b, f->channel, &m))
ROUNDTRIP(stdin, agent_stdin_format(b, f->channel, &m))
ROUNDTRIP(stdin_ack, agent_stdin_ack_format(b, f->channel, &m))
ROUNDTRIP(output, agent_output_format(b, f->channel, &m))
ROUNDTRIP(output_ack, agent_output_ack_format(b, f->channel, &m))
ROUNDTRIP(signal, agent_signal_format(b, f->channel, &m))
ROUNDTRIP(result, agent_result_format(b, f->channel, &m))
ROUNDTRIP(exited, agent_exited_format(b, f->channel, &m))
ROUNDTRIP(resume_from, agent_resume_from_format(b, f->channel, &m))
ROUNDTRIP(process, agent_process_format(b, f->channel, &m))
ROUNDTRIP(resize, agent_resize_format(b, f->channel, &m))

static int roundtrip_id(const struct agent_frame *f, struct buf *b)
{
    uint32_t id;
    int r = agent_id_parse(f, &id);

    if (r == 0) {
        agent_id_format(b, f->type, f->flags, id);
    }
    return r;
}

static int roundtrip_process_end(const struct agent_frame *f, struct buf *b)
{
    uint32_t count;
    int r = agent_process_end_parse(f, &count);

    if (r == 0) {
        agent_process_end_format(b, count);
    }
    return r;
}

static int roundtrip_forget(const struct agent_frame *f, struct buf *b)
{
    int r = agent_forget_parse(f);

    if (r == 0) {
        agent_forget_format(b, f->channel);
    }
    return r;
}

static int (*const roundtrips[AGENT_TYPE_COUNT])(const struct agent_frame *, struct buf *) = {
    [AGENT_HELLO] = roundtrip_hello,
    [AGENT_WELCOME] = roundtrip_welcome,
    [AGENT_IDENTITY] = roundtrip_identity,
    [AGENT_IDENTITY_OK] = roundtrip_identity_ok,
    [AGENT_STARTED] = roundtrip_started,
    [AGENT_START_FAILED] = roundtrip_start_failed,
    [AGENT_STDIN] = roundtrip_stdin,
    [AGENT_STDIN_ACK] = roundtrip_stdin_ack,
    [AGENT_OUTPUT] = roundtrip_output,
    [AGENT_OUTPUT_ACK] = roundtrip_output_ack,
    [AGENT_SIGNAL] = roundtrip_signal,
    [AGENT_RESULT] = roundtrip_result,
    [AGENT_EXITED] = roundtrip_exited,
    [AGENT_FORGET] = roundtrip_forget,
    [AGENT_RESUME_FROM] = roundtrip_resume_from,
    [AGENT_PROCESS] = roundtrip_process,
    [AGENT_PROCESS_END] = roundtrip_process_end,
    [AGENT_SILENCE] = roundtrip_id,
    [AGENT_WAKE] = roundtrip_wake,
    [AGENT_POWEROFF] = roundtrip_id,
    [AGENT_PING] = roundtrip_id,
    [AGENT_PONG] = roundtrip_id,
    [AGENT_RESET] = roundtrip_id,
    [AGENT_RESIZE] = roundtrip_resize,
    [AGENT_WRITE_FILE] = roundtrip_write_file,
};

int agent_roundtrip(const struct agent_frame *f, struct buf *b)
{
    if (f->type >= AGENT_TYPE_COUNT || roundtrips[f->type] == NULL) {
        return -ENOTSUP;
    }
    return roundtrips[f->type](f, b);
}

/* A list that was parsed has as many strings as it says. */
static void check_strings(const struct agent_strings *list)
{
    struct span rest = list->raw;
    struct span s;
    uint32_t count = 0;

    while (agent_strings_next(&rest, &s)) {
        count++;
    }
    if (count != list->count || rest.n != 0) {
        abort();
    }
}

static void check_start(struct span joined)
{
    _cleanup_buf_ struct buf frames = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    struct agent_start m;
    struct span rest;

    if (agent_start_parse(joined, &m) < 0) {
        return;
    }
    check_strings(&m.argv);
    check_strings(&m.env);
    agent_start_format(&frames, 7, &m);
    for (rest = buf_span(&frames); rest.n > 0;) {
        struct agent_frame f;
        int used = agent_frame_parse(rest, &f);

        if (used <= 0) {
            abort();
        }
        buf_put(&again, f.payload);
        rest = span_skip(rest, (size_t)used);
    }
    if (!span_equals(buf_span(&again), joined)) {
        abort();
    }
}

static void check_frame(const struct agent_frame *f, struct buf *transcript)
{
    _cleanup_buf_ struct buf original = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);

    agent_frame_format(&original, f);
    if (f->type == AGENT_START) {
        check_start(f->payload);
    } else if (agent_roundtrip(f, &again) == 0 &&
               !span_equals(buf_span(&original), buf_span(&again))) {
        abort();
    }
    buf_put(transcript, buf_span(&original));
}

static void run_stream(struct span in, struct agent_reader *r, size_t step, struct buf *transcript)
{
    while (in.n > 0) {
        struct agent_frame f;
        size_t room;
        uint8_t *to = agent_reader_space(r, &room);
        size_t n = in.n < step ? in.n : step;

        n = n < room ? n : room;
        memcpy(to, in.p, n);
        agent_reader_commit(r, n);
        in = span_skip(in, n);
        while (agent_reader_next(r, &f) > 0) {
            check_frame(&f, transcript);
        }
    }
}

void agent_fuzz_stream(struct span in, uint8_t expect, bool resync)
{
    static const size_t steps[] = {AGENT_FRAME_MAX, 1, 7};
    _cleanup_buf_ struct buf first = buf_make(0);

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        _cleanup_buf_ struct buf transcript = buf_make(0);
        struct agent_reader r;

        if (agent_reader_init(&r, expect, resync) < 0) {
            return;
        }
        run_stream(in, &r, steps[i], i == 0 ? &first : &transcript);
        agent_reader_done(&r);
        if (i > 0 && !span_equals(buf_span(&first), buf_span(&transcript))) {
            abort();
        }
    }
    check_start(in);
}
