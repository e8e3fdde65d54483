#include "cli/follow.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static int on_event(void *arg, const struct sse_event *event)
{
    return follow_event(arg, event);
}

void follow_init(struct follow *f,
                 struct rest *rest,
                 const char *session_id,
                 uint64_t tail_bytes,
                 const struct follow_sink *sink,
                 void *arg)
{
    *f = (struct follow){.sink = sink, .arg = arg};
    (void)snprintf(f->session_id, sizeof(f->session_id), "%s", session_id);
    if (tail_bytes > 0) {
        (void)snprintf(f->path, sizeof(f->path), "/v1/sessions/%s/events?tail_bytes=%" PRIu64,
                       f->session_id, tail_bytes);
    } else {
        (void)snprintf(f->path, sizeof(f->path), "/v1/sessions/%s/events", f->session_id);
        f->offset_known[FOLLOW_STDOUT] = true;
        f->offset_known[FOLLOW_STDERR] = true;
    }
    event_stream_init(&f->events, rest, f->path, on_event, f);
}

void follow_done(struct follow *f)
{
    event_stream_done(&f->events);
    *f = (struct follow){0};
}

int follow_step(struct follow *f, int64_t now_ms, struct error *err)
{
    int r;

    if (f->end != FOLLOW_END_NONE) {
        return 1;
    }
    r = event_stream_step(&f->events, now_ms, err);
    if (r == -ENOTCONN) {
        return error_set(err, ENOTCONN,
                         "lost the output; the process goes on, `space logs --follow %s` reads it",
                         f->session_id);
    }
    return r;
}

int follow_wait_ms(const struct follow *f, int64_t now_ms)
{
    return f->end != FOLLOW_END_NONE ? 0 : event_stream_wait_ms(&f->events, now_ms);
}

int follow_exit_status(const struct follow *f)
{
    if (f->timed_out) {
        return EXIT_STATUS_TIMED_OUT;
    }
    return f->exit_code >= 0 ? f->exit_code : 128 + f->exit_signal;
}

void follow_exit_note(const struct follow *f, double limit_s, char ret[FOLLOW_NOTE_SIZE])
{
    const char *memory = f->out_of_memory ? FOLLOW_OUT_OF_MEMORY : "";
    const char *both = f->out_of_memory ? "; " : "";

    if (!f->timed_out) {
        (void)snprintf(ret, FOLLOW_NOTE_SIZE, "%s", memory);
    } else if (limit_s > 0) {
        (void)snprintf(ret, FOLLOW_NOTE_SIZE,
                       "timed out: the command was killed after %.10g s (--timeout)%s%s", limit_s,
                       both, memory);
    } else {
        (void)snprintf(ret, FOLLOW_NOTE_SIZE,
                       "timed out: the command was killed at the end of the time it was given%s%s",
                       both, memory);
    }
}

int signal_number(const char *name)
{
    const char *bare = strncmp(name, "SIG", 3) == 0 ? &name[3] : name;

    for (int i = 1; i < NSIG; i++) {
        const char *known = sigabbrev_np(i);

        if (known != NULL && strcmp(known, bare) == 0) {
            return i;
        }
    }
    return 0;
}
