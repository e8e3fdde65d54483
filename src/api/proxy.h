/* Passes a request on to the node and its answer back, piece by piece and with constant memory:
 * neither side is read faster than the other takes it. On the way, in either direction, bytes may
 * be packed or unpacked. */
#pragma once

#include <jansson.h>

#include "api/codec.h"

struct buf;
struct byte_stream;
struct http_header;
struct http_call;
struct request;

/* The node has switched protocols: `far` (taken; NULL without memory) is its side. `call` has its
 * headers. The request is still to be answered. */
typedef void (*proxy_upgraded_fn)(struct request *rq,
                                  struct http_call *call,
                                  struct byte_stream *far);

struct proxy_order {
    const char *method;
    const char *path;
    const json_t *body;       /* borrowed; NULL: none */
    bool with_query;          /* the request's is handed down, but what is ours alone */
    const char *more_query;   /* goes with it; NULL: nothing */
    bool uploads;             /* the request's own body is streamed, as it comes */
    enum codec_format unpack; /* the upload: a broken body never ends as a complete one */
    enum codec_format pack;   /* a whole answer (200) */
    /* It is a Content-Encoding of the resource, not another resource: small answers go as they are.
     */
    bool pack_encodes;
    const char *pack_type; /* the packed resource's Content-Type; NULL: as the node says */
    const char *upgrade;   /* the protocol that is asked for; NULL: none */
    proxy_upgraded_fn on_upgraded;
    const struct http_header *headers; /* go down besides */
    size_t header_count;               /* at most 4 */
};

/* Answers rq. Headers about ranges, conditions and resumption go down; those about the content come
 * up. */
void proxy_start(struct request *rq, const struct proxy_order *order);
/* Shorthands. `body` NULL: none. */
void proxy_json(
    struct request *rq, const char *method, const char *path, const json_t *body, bool with_query);
void proxy_upload(struct request *rq, const char *method, const char *path);
/* Appends "?" and the request's query without what is ours alone (the token above all), then `more`
 * unless it is NULL. */
void proxy_put_query(const struct request *rq, const char *more, struct buf *target);
