/* A stream of server-sent events, over broken connections.
 *
 * When the connection ends, the stream is asked for again with Last-Event-ID, with growing pauses;
 * without any event for EVENT_STREAM_LOST_MS it fails with the last reason. Only the callback knows
 * when a stream is really over: it then stops calling event_stream_step. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"
#include "cli/rest.h"
#include "wire/sse.h"

#define EVENT_STREAM_LOST_MS    60000
#define EVENT_STREAM_FIRST_MS   10000 /* before the first event */
#define EVENT_STREAM_SILENCE_MS 45000 /* three missed comment lines */

struct event_stream {
    struct rest *rest;
    const char *path; /* borrowed */
    sse_event_fn on_event;
    void *arg;
    struct sse_parser parser;
    struct rest_request request;
    struct rest_transfer transfer;
    bool open;
    bool progressed; /* an event came on this connection */
    bool had_events; /* … or on one before */
    char last_id[SSE_ID_SIZE];
    int64_t lost_since_ms;
    int64_t retry_at_ms;
    int64_t pause_ms;
    int stopped; /* the negative result that ended it */
};

void event_stream_init(
    struct event_stream *s, struct rest *rest, const char *path, sse_event_fn on_event, void *arg);
void event_stream_done(struct event_stream *s);
/* To be called after every rest_poll: 0 to go on; negative with err: what the callback returned,
 * -ENOTCONN when the connection stayed away too long, or as rest_result. */
int event_stream_step(struct event_stream *s, int64_t now_ms, struct error *err) _must_check_;
/* How long rest_poll may wait before the next step; -1: until something happens. */
int event_stream_wait_ms(const struct event_stream *s, int64_t now_ms);
/* Since when there is no connection; 0: there is one. */
int64_t event_stream_lost_since(const struct event_stream *s);
