/* Inside of the HTTP server: connections and exchanges. Only src/io/http_*.c includes it.
 *
 * A connection goes HANDSHAKE -> IDLE -> HEAD -> EXCHANGE -> IDLE … and ends over LINGER or at
 * once. Its states, and what ends each:
 *   HANDSHAKE  TLS is being set up          header_timeout since accept
 *   IDLE       no byte of a request yet     idle_timeout (header_timeout for the first one)
 *   HEAD       part of a head is here       header_timeout since its first byte
 *   EXCHANGE   a request is being served    idle_timeout without progress while we wait for the
 *                                           client; none while the application thinks, but a look
 *                                           every probe_ms for a client of which nothing is read
 *   LINGER     all is sent and our side is shut down; input is dropped until the client closes,
 *              so that it can read the answer before it sees a reset: LINGER_MS
 *   UPGRADED   the socket belongs to a byte_stream; at the end of this turn that gets the input
 *              which is still here, the exchange ends, and this is freed
 *   CLOSED     to be freed at the end of this turn
 * Handlers never free: whatever happens to a connection marks it and schedules a turn
 * (conn_schedule); conn_turn, at the end of the loop's turn, finishes exchanges, frees, and sets
 * events and deadline to fit the state. The application is called from event handlers and from
 * conn_turn, never from inside a function that it called. */
#pragma once

#include <event2/event_struct.h>

#include "base/buf.h"
#include "base/list.h"
#include "io/http_exchange.h"
#include "io/http_output.h"
#include "io/http_server.h"
#include "io/http_transport.h"

enum conn_state {
    CONN_HANDSHAKE,
    CONN_IDLE,
    CONN_HEAD,
    CONN_EXCHANGE,
    CONN_LINGER,
    CONN_UPGRADED,
    CONN_CLOSED,
};

enum conn_deadline {
    DEADLINE_NONE,
    DEADLINE_HEADER,
    DEADLINE_IDLE,
    DEADLINE_LINGER,
    DEADLINE_PROBE, /* a look whether the client is there still */
    DEADLINE_COUNT,
};

#define CONN_READ_BYTES    65536U
#define CONN_AHEAD_BYTES   16384U  /* read beyond the current request */
#define CONN_DROP_BYTES    262144U /* of a body nobody wants, before we rather close */
#define CONN_LINGER_MS     10000
#define CONN_LINGER_BYTES  1073741824U /* an upload that was refused early still hears why */
#define CONN_FLUSH_BYTES   65536U /* queued bytes that are written without waiting for the turn */
#define CONN_REFUSED_EXTRA 64U    /* connections above max_connections that get an answer */

struct http_conn {
    struct http_server *server;
    struct list link;          /* of the server's connections */
    struct list turn_link;     /* of those that want a turn */
    struct list deadline_link; /* ordered by deadline_ms */
    int64_t deadline_ms;
    enum conn_deadline deadline;
    enum conn_state state;
    struct http_transport transport;
    struct event event_read;
    struct event event_write;
    bool reads;  /* event_read is added */
    bool writes; /* event_write is added */
    bool write_blocked;
    bool made_progress;
    bool closes_after; /* the current answer is the last one */
    bool served;       /* at least one request was complete */
    bool resets;       /* close with a reset */
    bool read_ahead;   /* bytes may wait in `in` or in TLS: look at them in the turn */
    uint32_t lingered;
    struct byte_stream *stream; /* when UPGRADED, unless it is gone already */
    struct buf in;              /* bytes not yet consumed */
    struct http_output out;
    struct http_exchange *exchange; /* in HEAD and EXCHANGE */
    char peer[46];
};

struct http_listener {
    struct http_server *server;
    int fd;
    struct event event;
    struct ssl_ctx_st *tls;
    char *unix_path; /* NULL: TCP */
    ino_t unix_inode;
};

#define HTTP_MAX_LISTENERS 4U

/* The deferred call of a server's turn; it outlives the server when it is pending. */
struct turn_token {
    struct http_server *server;
    bool pending;
};

struct http_server {
    struct loop *loop;
    struct http_server_limits limits;
    struct http_server_callbacks callbacks;
    void *ctx;
    struct http_listener listeners[HTTP_MAX_LISTENERS];
    unsigned int listener_count;
    struct list conns;
    struct list streams; /* upgraded ones */
    unsigned int conn_count;
    size_t collected_bytes; /* memory of the bodies being collected */
    struct list turns;
    struct list deadlines[DEADLINE_COUNT];
    struct loop_timer *deadline_timer;
    int64_t armed_ms; /* when deadline_timer fires; 0: not armed */
    struct loop_timer *accept_timer;
    struct turn_token *token;
    bool is_freeing;
    bool is_stopped;
    int64_t date_second;
    char date[32];
    struct buf head;  /* scratch for building answers */
    uint8_t *scratch; /* CONN_READ_BYTES for reading */
};

/* ---- http_server.c ---- */
/* Puts the connection on the deadline list of this kind, or on none. */
void server_set_deadline(struct http_conn *conn, enum conn_deadline deadline);
const char *server_date(struct http_server *server);

/* ---- http_conn.c ---- */
/* Takes over an accepted socket. `is_surplus`: only to tell that there are too many. */
void conn_open(
    struct http_server *server, int fd, struct ssl_ctx_st *tls, const char *peer, bool is_surplus);
void conn_schedule(struct http_conn *conn);
void conn_turn(struct http_conn *conn);
void conn_expire(struct http_conn *conn, enum conn_deadline deadline);
/* The connection is of no more use; freed in its turn. */
void conn_kill(struct http_conn *conn);
void conn_free(struct http_conn *conn);
/* Writes what is queued as far as the socket takes it. */
void conn_flush(struct http_conn *conn);
/* Removes its events: the socket belongs to another. */
void conn_set_upgraded(struct http_conn *conn);
/* Answers with the application's error body and closes after it. */
void conn_refuse(struct http_conn *conn, const struct error *err);
