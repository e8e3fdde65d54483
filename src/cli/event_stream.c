#include "cli/event_stream.h"

#include <errno.h>
#include <string.h>

#define FIRST_PAUSE_MS 100
#define LAST_PAUSE_MS  2000

void event_stream_init(
    struct event_stream *s, struct rest *rest, const char *path, sse_event_fn on_event, void *arg)
{
    *s = (struct event_stream){
        .rest = rest, .path = path, .on_event = on_event, .arg = arg, .pause_ms = FIRST_PAUSE_MS};
    sse_init(&s->parser);
}

void event_stream_done(struct event_stream *s)
{
    if (s->open) {
        rest_finish(s->rest, &s->transfer);
    }
    sse_done(&s->parser);
    *s = (struct event_stream){0};
}

static int on_event(void *arg, const struct sse_event *event)
{
    struct event_stream *s = arg;
    int r = s->on_event(s->arg, event);

    if (r >= 0) {
        (void)snprintf(s->last_id, sizeof(s->last_id), "%s", event->id);
        s->progressed = true;
        s->had_events = true;
    }
    return r;
}

/* The callback's own failure has to survive libcurl, which knows only "stopped". */
static int on_data(void *arg, struct span piece)
{
    struct event_stream *s = arg;

    if (s->stopped == 0) {
        s->stopped = sse_feed(&s->parser, piece, on_event, s);
    }
    return s->stopped;
}

static int open_stream(struct event_stream *s, struct error *err)
{
    s->request = (struct rest_request){
        .method = "GET",
        .path = s->path,
        .last_event_id = s->last_id,
        .silence_ms = EVENT_STREAM_SILENCE_MS,
        .on_data = on_data,
        .arg = s,
    };
    sse_clear(&s->parser);
    s->progressed = false;
    if (rest_start(s->rest, &s->transfer, &s->request, err) < 0) {
        return -ENOMEM;
    }
    s->open = true;
    return 0;
}

#define STATUS_OVER 204 /* nothing comes behind the last id */

static bool is_worth_a_retry(const struct event_stream *s)
{
    int status = s->transfer.status;

    return (status < 300 && status != STATUS_OVER) || status == 429 || status == 502 ||
           status == 503 || status == 504;
}

static int plan_retry(struct event_stream *s, int64_t now_ms, struct error *err)
{
    bool again = is_worth_a_retry(s);
    bool is_over = s->transfer.status == STATUS_OVER;
    int64_t patience_ms = s->had_events ? EVENT_STREAM_LOST_MS : EVENT_STREAM_FIRST_MS;
    int r = rest_result(s->rest, &s->transfer, err);

    rest_finish(s->rest, &s->transfer);
    s->open = false;
    if (s->progressed || s->lost_since_ms == 0) {
        s->lost_since_ms = now_ms;
        s->pause_ms = FIRST_PAUSE_MS;
    }
    if (!again) {
        return r == 0 && is_over
                   ? error_set(err, EPROTO, "the stream is over, its end was not said")
                   : r;
    }
    if (now_ms - s->lost_since_ms > patience_ms) {
        return r < 0 ? r : error_set(err, ENOTCONN, "%.120s ends every stream", rest_url(s->rest));
    }
    s->retry_at_ms = now_ms + s->pause_ms;
    s->pause_ms = s->pause_ms * 2 < LAST_PAUSE_MS ? s->pause_ms * 2 : LAST_PAUSE_MS;
    return 0;
}

int event_stream_step(struct event_stream *s, int64_t now_ms, struct error *err)
{
    if (!s->open) {
        return now_ms >= s->retry_at_ms ? open_stream(s, err) : 0;
    }
    if (!s->transfer.done) {
        return 0;
    }
    if (s->stopped != 0) {
        return error_set(err, -s->stopped, "cannot pass the output on: %s", strerror(-s->stopped));
    }
    return plan_retry(s, now_ms, err);
}

int event_stream_wait_ms(const struct event_stream *s, int64_t now_ms)
{
    if (s->open) {
        return s->transfer.done ? 0 : -1;
    }
    return s->retry_at_ms > now_ms ? (int)(s->retry_at_ms - now_ms) : 0;
}

int64_t event_stream_lost_since(const struct event_stream *s)
{
    return s->open && s->transfer.status == 200 ? 0 : s->lost_since_ms;
}
