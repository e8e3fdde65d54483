#include "api/request.h"

#include <errno.h>

#include <openssl/sha.h>

#include "api/api.h"
#include "api/auth.h"
#include "api/cors.h"
#include "api/expiry.h"
#include "api/idempotency.h"
#include "api/port_front.h"
#include "api/route.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"

#define WAIT_MAX_MS   300000
#define READY_WAIT_MS 30000

static bool is_request_id(const char *text)
{
    size_t n = strnlen(text, REQUEST_ID_SIZE);

    return n > 0 && n < REQUEST_ID_SIZE &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static void choose_id(struct request *rq)
{
    const char *given = http_exchange_header(rq->exchange, "X-Request-Id");

    if (given != NULL && is_request_id(given)) {
        (void)snprintf(rq->id, sizeof(rq->id), "%s", given);
    } else if (id_make("rq", rq->id) < 0) {
        (void)snprintf(rq->id, sizeof(rq->id), "unknown");
    }
}

/* ---- the end ---- */

/* Nothing calls the request back after this. */
static void release(struct request *rq)
{
    request_gone_fn fn = rq->on_gone;

    rq->on_gone = NULL;
    list_remove(&rq->wait_link);
    list_remove(&rq->flight_link);
    loop_timer_free(rq->timer);
    rq->timer = NULL;
    if (fn != NULL) {
        fn(rq->gone_arg);
    }
}

static void log_request(const struct request *rq, bool complete)
{
    double ms = (double)(clock_monotonic_ns() - rq->started_ns) / 1e6;

    /* Never the query: it may hold a token, and names of files. */
    log_info("request", "id=%s key=%s%s%s peer=%s method=%s route=%s status=%d ms=%.2f%s", rq->id,
             rq->key == NULL ? "-" : rq->key->record.id, rq->has_token ? " scope=" : "",
             rq->has_token ? token_kind_name(rq->token.kind) : "", http_exchange_peer(rq->exchange),
             LOG_STR(http_exchange_method(rq->exchange)), rq->route == NULL ? "-" : rq->route->path,
             rq->status, ms, complete ? "" : " cut=true");
}

static void on_close(void *arg, struct http_exchange *exchange, bool complete)
{
    struct request *rq = arg;

    (void)exchange;
    release(rq);
    if (rq->guest_id[0] != '\0') {
        expiry_touch(rq->api, rq->guest_id); /* it has been active until now */
    }
    spill_done(&rq->spill);
    log_request(rq, complete);
    list_remove(&rq->all_link);
    list_remove(&rq->key_link);
    if (rq->taken) {
        key_give_back(rq->key, (rq->route->flags & ROUTE_STREAM) != 0);
    }
    rq->answered = true;
    idempotency_leave(rq);
    query_done(&rq->query);
    json_decref(rq->body);
    rq->body = NULL;
}

bool request_is_stream(const struct request *rq)
{
    return rq->route != NULL && (rq->route->flags & ROUTE_STREAM) != 0;
}

void request_on_gone(struct request *rq, request_gone_fn fn, void *arg)
{
    rq->on_gone = fn;
    rq->gone_arg = arg;
}

void request_cut_key(struct key_entry *key, const struct request *except)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &key->open)
    {
        struct request *rq = list_entry(it, struct request, key_link);
        struct error err;

        if (rq == except) {
            continue;
        }
        release(rq);
        if (http_exchange_is_started(rq->exchange)) {
            http_exchange_abort(rq->exchange);
        } else if (!rq->answered) {
            (void)error_set_code(&err, ERROR_UNAUTHORIZED, NULL, "this API key has been revoked");
            request_fail(rq, &err);
        }
    }
    key_cut_held(key);
}

/* ---- from the head to the handler ---- */

static int find_route(struct request *rq, struct error *err)
{
    struct route_match match;
    const char *path = http_exchange_path(rq->exchange);
    int r = route_find(route_table(), http_exchange_method(rq->exchange), path, &match);

    if (r == 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "route",
                              "there is nothing at this path; calls begin with /v1/, and "
                              "/openapi.json, /readyz and /version need no key");
    }
    if (r < 0) {
        memcpy(rq->allow, match.allow, sizeof(rq->allow));
        return error_set_code(err, ERROR_METHOD_NOT_ALLOWED, NULL, "this path knows only %s",
                              match.allow);
    }
    rq->route = match.route;
    memcpy(rq->params, match.params, sizeof(rq->params));
    return 0;
}

int request_parse_query(struct request *rq, struct error *err)
{
    bool any_bytes = (rq->route->flags & ROUTE_ANY_BYTES) != 0;
    int r = 0;

    if (!rq->has_query) {
        r = query_parse(http_exchange_query(rq->exchange), any_bytes, &rq->query, err);
        rq->has_query = r == 0;
    }
    return r;
}

static int check_query(struct request *rq, struct error *err)
{
    int r = request_parse_query(rq, err);

    if (r == 0) {
        r = query_check(&rq->query, rq->route->query, err);
    }
    rq->wait_ms = rq->route->default_wait_ms;
    rq->ready_ms = READY_WAIT_MS;
    if (r == 0 && query_find(&rq->query, "wait") != NULL) {
        r = query_duration_ms(&rq->query, "wait", WAIT_MAX_MS, &rq->wait_ms, err);
        rq->ready_ms = rq->wait_ms;
    }
    return r;
}

static int check_body(const struct request *rq, struct error *err)
{
    if (rq->route->body == ROUTE_BODY_NONE && http_exchange_content_length(rq->exchange) != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "body", "this call takes no body");
    }
    return 0;
}

static void run_handler(struct request *rq, struct span raw)
{
    bool repeatable = strcmp(rq->route->method, "GET") != 0 && rq->route->body != ROUTE_BODY_RAW;

    if (!repeatable || idempotency_begin(rq, raw) == 1) {
        rq->route->handle(rq);
    }
}

static void
on_body(void *arg, struct http_exchange *exchange, struct span body, const struct error *problem)
{
    struct request *rq = arg;
    struct error err;

    (void)exchange;
    if (rq->answered) {
        return;
    }
    if (problem != NULL && problem->code == ERROR_PAYLOAD_TOO_LARGE) {
        (void)error_set_code(&err, problem->code, problem->field,
                             "%s, the setting api.max_body_bytes", problem->message);
        request_fail(rq, &err);
        return;
    }
    if (problem != NULL) {
        request_fail(rq, problem);
        return;
    }
    if (json_request_parse(body, rq->route->body == ROUTE_BODY_OPTIONAL_JSON, &rq->body, &err) <
        0) {
        request_fail(rq, &err);
        return;
    }
    run_handler(rq, body);
}

static int admit(struct request *rq, struct error *err)
{
    int r = find_route(rq, err);

    if (r == 0 && rq->api->stopping) {
        r = error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "space-api is stopping");
    }
    if (r == 0) {
        r = auth_check(rq, err);
    }
    if (r == 0) {
        r = check_query(rq, err);
    }
    if (r == 0) {
        r = check_body(rq, err);
    }
    if (r == 0) {
        r = idempotency_check_header(rq, err);
    }
    return r < 0 ? r : 0;
}

void request_on_head(void *ctx, struct http_exchange *exchange)
{
    struct api *api = ctx;
    struct request *rq = http_exchange_alloc(exchange, sizeof(*rq));
    struct error err = {0};

    if (rq == NULL) {
        http_exchange_abort(exchange);
        return;
    }
    memset(rq, 0, sizeof(*rq));
    rq->api = api;
    rq->exchange = exchange;
    rq->started_ns = clock_monotonic_ns();
    list_init(&rq->key_link);
    list_init(&rq->flight_link);
    list_init(&rq->wait_link);
    spill_init(&rq->spill, api, NULL, UINT64_MAX);
    list_append(&api->requests, &rq->all_link);
    choose_id(rq);
    http_exchange_on_close(exchange, on_close, rq);
    if (port_front_take(rq) || cors_answer_preflight(rq)) {
        return;
    }
    if (admit(rq, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (rq->route->body == ROUTE_BODY_JSON || rq->route->body == ROUTE_BODY_OPTIONAL_JSON) {
        http_exchange_set_payer(exchange, rq->key);
        http_exchange_collect_body(exchange, api->settings.api_max_body_bytes, on_body, rq);
    } else {
        run_handler(rq, span_make(NULL, 0));
    }
}

/* ---- ids ---- */

static const char id_alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

/* The n-th id of a flight: SHA-256 of seed, kind and n. */
static void derive_id(struct request *rq, const char *kind, char out[ID_SIZE])
{
    uint8_t input[IDEMPOTENCY_HASH_SIZE + 3];
    uint8_t hash[SHA256_DIGEST_LENGTH];

    memcpy(input, rq->flight->seed, IDEMPOTENCY_HASH_SIZE);
    input[IDEMPOTENCY_HASH_SIZE] = (uint8_t)kind[0];
    input[IDEMPOTENCY_HASH_SIZE + 1] = (uint8_t)kind[1];
    input[IDEMPOTENCY_HASH_SIZE + 2] = (uint8_t)rq->made_ids++;
    (void)SHA256(input, sizeof(input), hash);
    out[0] = kind[0];
    out[1] = kind[1];
    for (size_t i = 0; i < ID_LENGTH - 2; i++) {
        out[2 + i] = id_alphabet[hash[i] & 31U];
    }
    out[ID_LENGTH] = '\0';
}

int request_make_id(struct request *rq, const char *kind, char out[ID_SIZE])
{
    if (rq->flight == NULL) {
        return id_make(kind, out);
    }
    derive_id(rq, kind, out);
    return 0;
}

int request_make_id_within(struct request *rq,
                           const char *kind,
                           const char *owner,
                           char out[ID_SIZE])
{
    int r = request_make_id(rq, kind, out);

    if (r == 0) {
        memcpy(&out[2], &owner[2], ID_SHARD_CHARS);
    }
    return r;
}
