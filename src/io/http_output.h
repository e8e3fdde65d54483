/* What a connection still has to send: copied bytes and parts of files, in order. */
#pragma once

#include "base/list.h"
#include "base/span.h"
#include "io/http_transport.h"

struct http_output {
    struct list segments;
    uint64_t queued; /* bytes, those of files included */
};

enum http_flush {
    HTTP_FLUSH_BLOCKED, /* the socket takes no more */
    HTTP_FLUSH_EMPTY,   /* all is written */
    HTTP_FLUSH_BUSY,    /* the turn's share is used up; the socket may take more */
};

void http_output_init(struct http_output *out);
/* Moves all to the empty `to`. */
void http_output_move(struct http_output *to, struct http_output *from);
/* Drops what is queued. */
void http_output_clear(struct http_output *out);
/* Copies bytes to the end of the queue. 0 or -ENOMEM. */
int http_output_put(struct http_output *out, struct span bytes) _must_check_;
/* Appends part of a file; takes fd when it succeeds. 0 or -ENOMEM. */
int http_output_put_file(struct http_output *out, int fd, int64_t offset, uint64_t count)
    _must_check_;
/* Writes until the socket is full or the turn's share is used up. An enum http_flush, or -errno
 * (-ENODATA: a file ended early). */
int http_output_flush(struct http_output *out, struct http_transport *t) _must_check_;
/* Queues a and b, but writes them at once when nothing waits before them, without a copy of what
 * the socket takes. Returns as http_output_flush does, or -ENOMEM. */
int http_output_send(struct http_output *out,
                     struct http_transport *t,
                     struct span a,
                     struct span b) _must_check_;
