/* A session over a WebSocket (`…/attach`): output by offset, input, signals, the terminal's size.
 *
 * Theory of operation. The connection may break at any moment; a new one asks for the output from
 * the offsets that were reached, and is told how much of the input the session has. What was sent
 * is kept until the command has consumed it, so that it can be sent again; the server cuts the
 * connection before when it is told which one that was. Nothing is lost and nothing comes twice, as
 * long as nobody else writes to the same session. Events and offsets are judged by follow_message,
 * as for event streams. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "cli/follow.h"
#include "cli/tty.h"
#include "wire/websocket.h"

struct tunnel;

#define LIVE_INPUT_MAX       (1024U * 1024U) /* not consumed yet */
#define LIVE_ATTACHMENT_SIZE 64
#define LIVE_KEY_SIZE        32

enum live_state {
    LIVE_CONNECTING,
    LIVE_ATTACHED,
    LIVE_LOST /* was attached, and is connecting again */
};

struct live_sink {
    struct follow_sink output;
    /* The state has changed. */
    void (*on_state)(void *arg, enum live_state state);
    /* What the server says about something that we sent. */
    void (*on_error)(void *arg, const char *message);
};

struct live {
    struct rest *rest;
    const struct live_sink *sink;
    void *arg;
    int64_t patience_ms; /* how long to try without a connection */
    enum live_state state;
    struct follow follow; /* offsets and the end; its event stream is not used */

    struct tunnel *tunnel; /* NULL: none */
    bool is_open;
    char key[LIVE_KEY_SIZE];
    char attachment_id[LIVE_ATTACHMENT_SIZE];
    struct websocket_parser parser;
    struct buf received; /* not parsed yet */
    struct buf sending;  /* frames that the socket has not taken */
    bool may_read;       /* the socket may have more, whatever poll says */
    int64_t heard_at_ms;
    int64_t lost_since_ms;
    int64_t retry_at_ms;
    int64_t pause_ms;

    struct buf input;    /* from input_base on */
    uint64_t input_base; /* the command has consumed all before */
    uint64_t input_sent; /* on this connection, or known to the server */
    bool input_is_based;
    bool input_ended;
    bool end_sent;

    bool resize_due;
    struct tty_size size;
    int signal_due; /* 0: none */
};

/* `stdout_offset`: where the output begins. */
void live_init(struct live *l,
               struct rest *rest,
               const char *session_id,
               uint64_t stdout_offset,
               const struct live_sink *sink,
               void *arg);
void live_done(struct live *l);
/* To be called after every rest_poll: 1 when the process has ended (l->follow says how), 0 to go
 * on, negative with err when it failed: the sink's own result, a refusal, or no connection for
 * patience_ms. */
int live_step(struct live *l, int64_t now_ms, struct error *err) _must_check_;
/* What rest_poll is to wait for: a descriptor (-1: none), its events, and for how long. */
int live_wait(const struct live *l, int64_t now_ms, int *ret_fd, short *ret_events);
/* How many bytes of input may be given now. */
size_t live_input_room(const struct live *l);
void live_put_input(struct live *l, struct span bytes);
void live_end_input(struct live *l);
void live_resize(struct live *l, struct tty_size size);
void live_signal(struct live *l, int number);
