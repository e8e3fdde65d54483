/* Inside of the HTTP server: one request and its answer. Only src/io/http_*.c includes it; what the
 * application sees is in http_server.h. */
#pragma once

#include "base/buf.h"
#include "io/http_server.h"
#include "wire/http1.h"

struct http_conn;

enum body_mode {
    BODY_UNDECIDED,
    BODY_COLLECT,
    BODY_STREAM,
    BODY_DROP
};

enum answer_state {
    ANSWER_NONE,
    ANSWER_STREAMING,
    ANSWER_ENDED
};

struct exchange_block {
    struct exchange_block *next;
    max_align_t data[];
};

struct http_exchange {
    struct http_conn *conn;
    char *text; /* the head with NULs after each part, or NULL */
    const char *method;
    const char *path;
    const char *query;
    struct exchange_block *blocks;

    /* Request body. */
    enum http1_body body;
    enum body_mode mode;
    bool body_done;
    bool body_paused;
    bool body_wants_last; /* the final piece or the collected body is still to be delivered */
    bool owes_continue;
    bool is_bad;     /* refused, or the body broke */
    bool is_crowded; /* other bodies take the memory that this one would need */
    uint64_t body_left;
    uint64_t dropped;
    struct http1_chunks chunks;
    struct buf collected;
    size_t counted; /* of it, in the server's sum */
    const void *payer;
    http_body_fn on_body;
    http_piece_fn on_piece;
    void *body_arg;

    /* Answer. */
    enum answer_state answer;
    bool is_aborted;
    bool is_head;
    bool is_chunked;
    bool is_bodiless;
    bool is_blocked; /* a write returned 0, and no drain was seen since */
    bool missed_drain;
    int64_t answer_left; /* of a declared length, or -1 */
    void (*on_drain)(void *arg);
    void *drain_arg;
    http_close_fn on_close;
    void *close_arg;

    struct http1_head head;
    struct http1_field fields[];
};

/* ---- http_body.c ---- */
/* Delivers body bytes by the exchange's mode; returns how many were used. */
size_t body_feed(struct http_exchange *exchange, struct span bytes);
/* Makes the last delivery, or refuses a body that is known to be too large, when it is due. */
void body_advance(struct http_exchange *exchange);
/* Whether more of the body should be read now. */
bool body_is_wanted(const struct http_exchange *exchange);
/* Whether the answered exchange may leave the rest of its body unread only by closing. */
bool body_is_hopeless(const struct http_exchange *exchange);
/* Frees what was collected. */
void body_release(struct http_exchange *exchange);
/* Ends delivery to the application: what follows is dropped. */
void body_drop(struct http_exchange *exchange);

/* ---- http_exchange.c ---- */
struct http_exchange *exchange_new(struct http_conn *conn);
/* Copies the complete head and prepares the accessors. 0 or -ENOMEM. */
int exchange_begin(struct http_exchange *exchange, struct span head) _must_check_;
/* Appends an answer's headers, and the date. */
void exchange_put_headers(struct http_exchange *exchange,
                          struct buf *out,
                          const struct http_header *headers,
                          size_t header_count);
/* Calls on_close and frees. */
void exchange_finish(struct http_exchange *exchange, bool complete);
/* After the queue shrank: calls on_drain when a writer waits for it. */
void exchange_check_drain(struct http_exchange *exchange);
