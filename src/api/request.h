/* One request: from the head to the answer. It lives as long as its exchange.
 *
 * A handler answers exactly once, now or later, by one of request_answer*, request_fail* or a
 * proxy; nothing of the request may be used after that call. One that answers later registers
 * request_on_gone to hear that the client went away first. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "api/query.h"
#include "api/spill.h"
#include "api/store_key.h"
#include "api/token.h"
#include "base/error.h"
#include "base/list.h"
#include "base/span.h"
#include "io/http_server.h"

struct api;
struct idempotency_flight;
struct key_entry;
struct loop_timer;
struct port_request;
struct request;
struct route;

#define REQUEST_ID_SIZE    65
#define REQUEST_PARAMS     2
#define REQUEST_PARAM_SIZE 96

typedef void (*request_fn)(struct request *rq);
typedef void (*request_gone_fn)(void *arg);

struct request {
    struct api *api;
    struct http_exchange *exchange;
    const struct route *route;
    struct key_entry *key; /* NULL without authentication */
    enum key_role role;    /* what the key, or the token, may do */
    bool has_token;        /* and not the key itself */
    struct token token;
    char id[REQUEST_ID_SIZE];
    char params[REQUEST_PARAMS][REQUEST_PARAM_SIZE];
    struct query query;
    json_t *body; /* a parsed body, {} for an empty optional one */
    int64_t started_ns;
    int64_t wait_ms;  /* of the call: how long its answer may be held */
    int64_t ready_ms; /* how long it may wait for the node */
    int status;
    unsigned int retry_after; /* seconds, for a retryable error; 0: 1 */
    bool taken;               /* counts against the key's limits */
    bool answered;            /* the answer has begun */
    bool has_query;           /* it was parsed */
    struct spill spill;       /* a long answer, until the exchange is closed */
    char allow[64];           /* for method_not_allowed */

    struct port_request *port; /* of a request for a port of a sandbox, else NULL */

    struct list key_link; /* of the key's open requests */
    struct list all_link; /* of all */

    /* With an Idempotency-Key: the running attempt, or the place among those who wait for it. */
    struct idempotency_flight *flight;
    struct list flight_link;
    bool replayed;
    unsigned int made_ids;
    unsigned int repeats; /* because a suspend came between (wake_repeat) */

    /* Waiting for an operation or for the node. */
    struct list wait_link;
    struct loop_timer *timer;
    char operation_id[21];
    char guest_id[21]; /* of a call that needs the guest (wake.h): its sandbox, "" for others */
    request_fn resume;
    request_fn awake; /* what runs when that is awake */

    request_gone_fn on_gone;
    void *gone_arg;
};

/* Callbacks of the server. */
void request_on_head(void *ctx, struct http_exchange *exchange);
void request_on_refused(void *ctx, const struct error *err, struct http_exchange *exchange);
/* Ends all open requests of a key but `except`: answered 401, or cut when the answer has begun; and
 * what its upgraded connections are. */
void request_cut_key(struct key_entry *key, const struct request *except);

bool request_is_stream(const struct request *rq);
/* Fills rq->query, once. */
int request_parse_query(struct request *rq, struct error *err) _must_check_;

/* fn hears that the client went away, or that the request is ended from outside, before it was
 * answered in full. NULL clears it. */
void request_on_gone(struct request *rq, request_gone_fn fn, void *arg);
/* A fresh id; with an Idempotency-Key the same one in every attempt. */
int request_make_id(struct request *rq, const char *kind, char out[21]) _must_check_;
int request_make_id_within(struct request *rq, const char *kind, const char *owner, char out[21])
    _must_check_;

/* Answers. `body` is stolen; NULL means that there was no memory. */
void request_answer(struct request *rq, int status, json_t *body);
void request_answer_text(struct request *rq, int status, const char *type, struct span body);
/* A JSON text made elsewhere: a node's answer, a stored one. retry_after NULL: none. */
void request_answer_json_text(struct request *rq,
                              int status,
                              struct span body,
                              const char *retry_after);
void request_fail(struct request *rq, const struct error *err);
/* more_details (stolen, may be NULL) is merged into error.details. */
void request_fail_more(struct request *rq, const struct error *err, json_t *more_details);
/* Shorthand: not_found with this resource. */
void request_fail_missing(struct request *rq, const char *resource, const char *id);

/* The standard headers of an answer, for those who begin one themselves. */
#define REQUEST_HEADERS_MAX 32
struct request_headers {
    struct http_header list[REQUEST_HEADERS_MAX];
    size_t count;
    char numbers[4][16];
};
void request_headers_make(const struct request *rq,
                          const char *content_type,
                          struct request_headers *ret_headers);
/* A whole answer with headers of one's own. Not for answers that an Idempotency-Key keeps. */
void request_answer_headers(struct request *rq,
                            int status,
                            const struct request_headers *headers,
                            struct span body);
/* Adds one; value NULL is skipped. */
void request_headers_add(struct request_headers *headers, const char *name, const char *value);
