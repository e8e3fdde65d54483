/* Inside of io/websocket.c, for it and its test. */
#pragma once

#include "io/websocket.h"
#include "wire/websocket.h"

struct loop_timer;

#define WEBSOCKET_PING_MS    15000
#define WEBSOCKET_DROP_MS    45000
#define WEBSOCKET_CLOSE_MS   10000
#define WEBSOCKET_LEAD_BYTES 64U     /* of a message, that are joined with the frame's head */
#define WEBSOCKET_PONG_QUEUE 262144U /* queued bytes, above which pings are not answered */

struct websocket {
    struct websocket_callbacks callbacks;
    void *arg;
    struct byte_stream *stream;
    struct loop_timer *timer; /* pings; once we close, the end of patience */
    struct websocket_parser parser;
    int64_t ping_ms;
    int64_t drop_ms;
    int64_t close_ms;
    int64_t heard_ms;        /* when the peer last sent something */
    int64_t taken_ms;        /* closing: when it last took something of ours */
    size_t queued;           /* closing: what it had still to take then */
    uint64_t given;          /* bytes of messages that the stream was given */
    uint64_t taken;          /* of them, what the peer had taken at the last look (held back) */
    unsigned int close_code; /* for on_closed */
    bool is_paused;
    bool sent_close;
    bool got_close;
    bool has_failed; /* the peer broke the protocol: its bytes are dropped */
    bool is_busy;    /* one of its handlers is on the stack */
    bool is_gone;
};
