/* Idempotency-Key: the same request again gets the same answer.
 *
 * A flight is the running attempt of one (API key, Idempotency-Key): requests that repeat it wait
 * for its end. If the client of the attempt goes away, the first of those who wait begins anew,
 * unless the flight was detached: then its work goes on without a client and ends it.
 * The store's record has a seed from which every attempt derives the same ids, also after a crash
 * in the middle, so that a repetition finds what the first attempt has made. */
#pragma once

#include "api/request.h"
#include "api/store_idempotency.h"

struct idempotency_flight {
    struct list link; /* of api->flights */
    struct api *api;
    struct request *owner; /* NULL: detached */
    struct list waiters;   /* struct request, by flight_link */
    char key_id[21];
    char text[256];
    uint8_t hash[IDEMPOTENCY_HASH_SIZE];
    uint8_t seed[IDEMPOTENCY_HASH_SIZE];
    /* The node may have begun the work, under ids made from the seed: an attempt whose outcome is
     * not known, or whose answer is too long to keep, leaves the seed to the next one, which finds
     * what is there. So does a next one that did not get as far as the node. */
    bool is_begun;
};

/* Whether the header is there and well-formed: 1, 0, -errno. */
int idempotency_check_header(const struct request *rq, struct error *err) _must_check_;
/* 1: the handler may run; 0: answered, failed or waiting. `raw` is the body as it came. */
int idempotency_begin(struct request *rq, struct span raw);
/* Ends the attempt of a flight with its answer (kept unless `keep` is false) and answers those who
 * wait. Frees it. What a later repetition gets: the kept answer; after one that was not kept, an
 * attempt of its own, with the same seed if is_begun; after one of over 16 MiB that is to be kept,
 * 410 `gone`, or with is_begun an attempt with the same seed. */
void idempotency_finish(struct idempotency_flight *flight, int status, struct span body, bool keep);
/* The same for an answer that could not be kept. */
void idempotency_finish_unkept(struct idempotency_flight *flight);
/* The node has been asked to do what the request wants, under ids made from the seed. */
void idempotency_begun(struct request *rq);
/* The request's client went away, or the request ended without an answer. */
void idempotency_leave(struct request *rq);
/* Takes the flight from its request: it lives until idempotency_finish. */
struct idempotency_flight *idempotency_detach(struct request *rq);
void idempotency_done(struct api *api);
