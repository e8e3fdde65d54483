/* Incremental parser of server-sent events, the client's side of `…/events`.
 *
 * Fed with pieces of any size; calls back once per complete event. An event whose lines are not
 * closed by a blank line never comes out. Comment lines and unknown fields are skipped, as the
 * format demands. A NUL byte in a name or id, and anything over a limit, is an error. */
#pragma once

#include "base/buf.h"
#include "base/span.h"

#define SSE_MAX_LINE  (2U * 1024U * 1024U)
#define SSE_MAX_DATA  (4U * 1024U * 1024U)
#define SSE_NAME_SIZE 64
#define SSE_ID_SIZE   128

struct sse_event {
    const char *name; /* "message" when the event names none */
    const char *id;   /* of this event or the last one that had one; "" before */
    struct span data; /* valid during the callback */
};

/* A negative result ends sse_feed with it. */
typedef int (*sse_event_fn)(void *arg, const struct sse_event *event);

struct sse_parser {
    struct buf line;
    struct buf data;
    char name[SSE_NAME_SIZE];
    char id[SSE_ID_SIZE];
    bool after_cr;
    bool has_data;
};

void sse_init(struct sse_parser *p);
void sse_done(struct sse_parser *p);
/* Forgets a half-received event (the connection broke) and keeps the last id. */
void sse_clear(struct sse_parser *p);
/* 0, -EMSGSIZE over a limit, -EBADMSG, -ENOMEM, or what the callback returned. */
int sse_feed(struct sse_parser *p, struct span piece, sse_event_fn on_event, void *arg);
