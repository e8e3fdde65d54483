/* Inside of the HTTP client: calls and their connections. Only src/io/http_cl*.c and http_call.c
 * include it.
 *
 * A call owns its connection from start to end; then the connection goes back to the pool or is
 * closed. Events and the application's calls only move bytes and mark; the end of a call (retry,
 * on_done, free) happens in client_turn, at the end of the loop's turn. */
#pragma once

#include <sys/un.h>

#include <event2/event_struct.h>

#include "base/buf.h"
#include "base/list.h"
#include "io/http_client.h"
#include "io/http_output.h"
#include "wire/http1.h"

#define CALL_MAX_FIELDS       100U
#define CALL_MAX_HEAD_BYTES   65536U
#define CALL_MAX_BODY_BYTES   16777216U
#define CALL_WRITE_HIGH_BYTES 262144U
#define CALL_FLUSH_BYTES      65536U
#define CALL_READ_BYTES       65536U
#define CALL_CONNECT_TRIES    200U /* while the server's backlog is full */
#define CALL_CONNECT_WAIT_MS  5
#define CALL_MAX_INTERIM      64U    /* 1xx answers before the real one */
#define CALL_MAX_REFUSAL      65536U /* an envelope */

struct client_link {
    struct http_client *client;
    struct list link; /* of the idle or of the busy ones */
    struct http_call *call;
    struct http_transport transport;
    struct event event_read;
    struct event event_write;
    bool reads;
    bool writes;
    bool is_reused;
    bool write_blocked;
    bool write_failed; /* the answer may still be readable */
    struct buf in;     /* bytes not yet consumed */
    struct http_output out;
};

struct http_call {
    struct http_client *client;
    struct list link;      /* of the client's calls */
    struct list turn_link; /* of those that want a turn */
    struct client_link *conn;
    struct http_call_callbacks callbacks;
    void *arg;
    struct loop_timer *timer;
    struct loop_timer *connect_timer;
    unsigned int connect_tries;

    /* Request. */
    struct buf request; /* head and body, kept for a second try */
    struct buf tunnel;  /* the request for the tunnel */
    char *upgrade;      /* the protocol asked for, or NULL */
    bool is_tunnelled;
    bool in_tunnel_request; /* it is not yet open */
    bool is_streamed;
    bool has_length;      /* the streamed body is sent as it is */
    uint64_t stream_left; /* of its length */
    bool is_sent;         /* nothing more will be queued */
    bool has_streamed;
    bool was_retried;
    bool is_head;
    bool is_blocked;
    bool missed_drain;
    void (*on_drain)(void *arg);
    void *drain_arg;

    /* Answer. */
    bool got_bytes;
    bool has_head;
    bool is_paused;
    bool wants_input; /* look at the connection's buffer in the turn */
    bool may_take;    /* on_head of a 101 is running */
    bool is_taken;
    struct byte_stream *stream; /* until it was begun, or is gone already */
    unsigned int interim_count;
    size_t max_body;
    char *text;
    enum http1_body body;
    uint64_t body_left;
    struct http1_chunks chunks;
    struct buf collected;

    bool is_done;
    bool is_cancelled;
    struct error error; /* code none: complete */
    struct http1_head head;
    struct http1_field fields[CALL_MAX_FIELDS];
};

struct client_token {
    struct http_client *client;
    bool pending;
};

struct http_client {
    struct loop *loop;
    struct sockaddr_un address;
    unsigned int max_idle;
    unsigned int idle_count;
    struct list idle; /* the last used one first */
    struct list busy;
    struct list calls;
    struct list turns;
    struct client_token *token;
    bool is_freeing;
    uint8_t *scratch;
};

/* ---- http_client.c ---- */
void client_schedule(struct http_call *call);
/* Makes the events of a call's connection fit its needs. */
void client_link_update(struct client_link *conn);
void client_link_flush(struct client_link *conn);
/* Writes or queues bytes. */
void client_link_send(struct client_link *conn, struct span bytes);
/* Removes its events. */
void client_link_silence(struct client_link *conn);

/* ---- http_call_request.c ---- */
/* Fills the call from the request. 0, -EINVAL or -ENOMEM. */
int call_build(struct http_call *call, const struct http_call_request *request) _must_check_;

/* ---- http_call_upgrade.c ---- */
/* A head with status 101 is complete: the tunnel is open, or the connection is offered to the
 * application. */
void call_on_switch(struct http_call *call, struct span head);
/* The server refused the tunnel; its answer is complete. */
void call_tunnel_refused(struct http_call *call);

/* ---- http_call.c ---- */
/* The call has its result; on_done comes in the turn. Only the first end counts. */
void call_end_ok(struct http_call *call);
void call_end_error(struct http_call *call, enum error_code code, int errnum, const char *what);
void call_bad_answer(struct http_call *call, const char *what);
void call_out_of_memory(struct http_call *call);
/* Keeps a complete head for the accessors. False (and the call has ended) without memory. */
bool call_keep_head(struct http_call *call, struct span head);
/* Takes bytes of the answer; returns how many were used (fewer when paused). */
size_t call_feed(struct http_call *call, struct span bytes);
/* The server closed the connection: properly (errnum 0) or not. */
void call_at_end(struct http_call *call, int errnum);
void call_reset_answer(struct http_call *call);
void call_check_drain(struct http_call *call);
/* Whether the connection can serve another call. */
bool call_leaves_connection_clean(const struct http_call *call);
void call_free(struct http_call *call);
