#include "api/idempotency.h"

#include <errno.h>

#include <openssl/evp.h>

#include "api/api.h"
#include "api/route.h"
#include "api/tokens.h"
#include "base/log.h"
#include "io/http_server.h"
#include "io/json_request.h"

#define KEEP_MAX (16U * 1024U * 1024U) /* of an answer */

int idempotency_check_header(const struct request *rq, struct error *err)
{
    const char *value = http_exchange_header(rq->exchange, "Idempotency-Key");
    size_t n;

    if (value == NULL) {
        return 0;
    }
    n = strnlen(value, 256);
    if (n == 0 || n > 255 || http_exchange_header_count(rq->exchange, "Idempotency-Key") > 1) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Idempotency-Key",
                              "Idempotency-Key must be one value of 1 to 255 characters");
    }
    for (size_t i = 0; i < n; i++) {
        if (value[i] < 0x20 || value[i] > 0x7e) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "Idempotency-Key",
                                  "Idempotency-Key must be printable ASCII");
        }
    }
    return 1;
}

static bool digest_text(EVP_MD_CTX *ctx, const char *text)
{
    return EVP_DigestUpdate(ctx, text, strlen(text) + 1) == 1;
}

/* Over method, path, query without `wait`, and body. */
static int
hash_request(const struct request *rq, struct span raw, uint8_t out[IDEMPOTENCY_HASH_SIZE])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;

    good = good && digest_text(ctx, http_exchange_method(rq->exchange)) &&
           digest_text(ctx, http_exchange_path(rq->exchange));
    for (size_t i = 0; good && i < rq->query.count; i++) {
        const struct query_item *item = &rq->query.items[i];

        if (strcmp(item->name, "wait") != 0) {
            good = digest_text(ctx, item->name) && digest_text(ctx, item->value);
        }
    }
    good = good && digest_text(ctx, "") && EVP_DigestUpdate(ctx, raw.p, raw.n) == 1 &&
           EVP_DigestFinal_ex(ctx, out, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    return good ? 0 : -ENOMEM;
}

static struct idempotency_flight *find_flight(struct api *api, const char *key_id, const char *text)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->flights)
    {
        struct idempotency_flight *flight = list_entry(it, struct idempotency_flight, link);

        if (strcmp(flight->text, text) == 0 && strcmp(flight->key_id, key_id) == 0) {
            return flight;
        }
    }
    return NULL;
}

static void fail_conflict(struct request *rq)
{
    struct error err;

    (void)error_set_code(&err, ERROR_IDEMPOTENCY_CONFLICT, NULL,
                         "this Idempotency-Key was used for another request");
    request_fail(rq, &err);
}

static bool gives_token(const struct request *rq, int status)
{
    return (rq->route->flags & ROUTE_GIVES_TOKEN) != 0 && status >= 200 && status < 300;
}

static int replay(struct request *rq, int status, struct span body)
{
    rq->replayed = true;
    if (gives_token(rq, status)) {
        tokens_answer_again(rq, status, body);
    } else {
        request_answer_json_text(rq, status, body, NULL);
    }
    return 0;
}

static int start_flight(struct request *rq, const char *text, const uint8_t *hash)
{
    struct error err = {0};
    struct idempotency_record fresh = {.status = 0};
    struct idempotency_record record = {.status = 0};
    _cleanup_buf_ struct buf body = buf_make(0);
    struct idempotency_use use = {rq->key->record.id, text};
    struct idempotency_flight *flight;
    int r = random_bytes(fresh.seed, sizeof(fresh.seed));

    memcpy(fresh.hash, hash, sizeof(fresh.hash));
    r = r < 0 ? error_set(&err, -r, "no random bytes")
              : store_idempotency_start(rq->api->store, &use, &fresh, &record, &body, &err);
    if (r < 0) {
        request_fail(rq, &err);
        return 0;
    }
    if (r == 1) {
        record = fresh;
    } else if (memcmp(record.hash, hash, sizeof(record.hash)) != 0) {
        fail_conflict(rq);
        return 0;
    } else if (record.status != 0) {
        return replay(rq, record.status, buf_span(&body));
    }
    flight = calloc(1, sizeof(*flight));
    if (flight == NULL) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return 0;
    }
    flight->api = rq->api;
    flight->owner = rq;
    list_init(&flight->waiters);
    (void)snprintf(flight->key_id, sizeof(flight->key_id), "%s", rq->key->record.id);
    (void)snprintf(flight->text, sizeof(flight->text), "%s", text);
    memcpy(flight->hash, hash, sizeof(flight->hash));
    memcpy(flight->seed, record.seed, sizeof(flight->seed));
    flight->is_begun = r == 0; /* by an attempt before, for all that is known */
    list_append(&rq->api->flights, &flight->link);
    rq->flight = flight;
    return 1;
}

int idempotency_begin(struct request *rq, struct span raw)
{
    struct error err = {0};
    uint8_t hash[IDEMPOTENCY_HASH_SIZE];
    const char *text = http_exchange_header(rq->exchange, "Idempotency-Key");
    struct idempotency_flight *flight;

    if (text == NULL) {
        return 1;
    }
    if (hash_request(rq, raw, hash) < 0) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return 0;
    }
    flight = find_flight(rq->api, rq->key->record.id, text);
    if (flight == NULL) {
        return start_flight(rq, text, hash);
    }
    if (memcmp(flight->hash, hash, sizeof(hash)) != 0) {
        fail_conflict(rq);
        return 0;
    }
    list_append(&flight->waiters, &rq->flight_link);
    return 0;
}

void idempotency_begun(struct request *rq)
{
    if (rq->flight != NULL) {
        rq->flight->is_begun = true;
    }
}

static struct request *take_waiter(struct idempotency_flight *flight)
{
    struct list *first = flight->waiters.next;

    list_remove(first);
    return list_entry(first, struct request, flight_link);
}

static void drop_waiters(struct idempotency_flight *flight)
{
    while (!list_is_empty(&flight->waiters)) {
        (void)take_waiter(flight);
    }
}

static void free_flight(struct idempotency_flight *flight)
{
    list_remove(&flight->link);
    free(flight);
}

/* What was done is not done again, though its answer is too long to be kept. */
static int format_gone(struct buf *text)
{
    struct error gone;

    (void)error_set_code(&gone, ERROR_GONE, "Idempotency-Key",
                         "this request was carried out, but its answer was too long to be kept");
    json_error_format(&gone, "", text);
    return error_code_status(gone.code);
}

static int keep_gone(struct store *store, const struct idempotency_use *use, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int status = format_gone(&text);

    return store_idempotency_finish(store, use, status, buf_span(&text), err);
}

static int
keep_answer(struct idempotency_flight *flight, int status, struct span body, struct error *err)
{
    struct idempotency_use use = {flight->key_id, flight->text};

    if (body.n <= KEEP_MAX) {
        return store_idempotency_finish(flight->api->store, &use, status, body, err);
    }
    return flight->is_begun ? 0 : keep_gone(flight->api->store, &use, err);
}

static int keep_none(struct idempotency_flight *flight, struct error *err)
{
    struct idempotency_use use = {flight->key_id, flight->text};

    return flight->is_begun ? 0 : store_idempotency_forget(flight->api->store, &use, err);
}

void idempotency_finish(struct idempotency_flight *flight, int status, struct span body, bool keep)
{
    struct error err = {0};
    int r;

    if (flight->owner != NULL) {
        flight->owner->flight = NULL;
        flight->owner = NULL;
    }
    r = keep ? keep_answer(flight, status, body, &err) : keep_none(flight, &err);
    if (r < 0) {
        log_warning("idempotency", "problem=%s", LOG_STR(err.message));
    }
    /* Nobody joins from here on: those who come now ask the store. */
    list_remove(&flight->link);
    while (!list_is_empty(&flight->waiters)) {
        struct request *waiter = take_waiter(flight);

        if (keep) {
            (void)replay(waiter, status, body);
        } else {
            request_answer_json_text(waiter, status, body, "1");
        }
    }
    free_flight(flight);
}

/* The first of those who wait begins anew. */
static void pass_on(struct idempotency_flight *flight)
{
    struct request *next;

    if (flight->owner != NULL) {
        flight->owner->flight = NULL;
        flight->owner = NULL;
    }
    if (list_is_empty(&flight->waiters) || flight->api->stopping) {
        drop_waiters(flight);
        free_flight(flight);
        return;
    }
    /* The record stays, so the next attempt has the same seed; the others line up behind it. */
    next = take_waiter(flight);
    flight->owner = next;
    next->flight = flight;
    next->route->handle(next);
}

void idempotency_leave(struct request *rq)
{
    list_remove(&rq->flight_link);
    if (rq->flight != NULL) {
        pass_on(rq->flight);
    }
}

void idempotency_finish_unkept(struct idempotency_flight *flight)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    if (flight->is_begun) {
        pass_on(flight);
    } else {
        int status = format_gone(&text);

        idempotency_finish(flight, status, buf_span(&text), true);
    }
}

struct idempotency_flight *idempotency_detach(struct request *rq)
{
    struct idempotency_flight *flight = rq->flight;

    rq->flight = NULL;
    if (flight != NULL) {
        flight->owner = NULL;
    }
    return flight;
}

void idempotency_done(struct api *api)
{
    while (!list_is_empty(&api->flights)) {
        struct idempotency_flight *flight =
            list_entry(api->flights.next, struct idempotency_flight, link);

        if (flight->owner != NULL) {
            flight->owner->flight = NULL;
        }
        drop_waiters(flight);
        free_flight(flight);
    }
}
