/* Answers: the standard headers, the error envelope, and the end of an idempotent attempt. */
#include <errno.h>

#include "api/api.h"
#include "api/cors.h"
#include "api/idempotency.h"
#include "api/port_error.h"
#include "api/request.h"
#include "api/route.h"
#include "io/json_request.h"

#define JSON_TYPE "application/json"
#define WHOLE_MAX 524288U /* of an answer that is held in memory until it is read */

void request_headers_add(struct request_headers *headers, const char *name, const char *value)
{
    if (value != NULL && headers->count < REQUEST_HEADERS_MAX) {
        headers->list[headers->count++] = (struct http_header){name, value};
    }
}

static void
add_number(struct request_headers *headers, size_t slot, const char *name, unsigned int value)
{
    (void)snprintf(headers->numbers[slot], sizeof(headers->numbers[slot]), "%u", value);
    request_headers_add(headers, name, headers->numbers[slot]);
}

void request_headers_make(const struct request *rq,
                          const char *content_type,
                          struct request_headers *ret_headers)
{
    struct request_headers *h = ret_headers;

    memset(h, 0, sizeof(*h));
    request_headers_add(h, "X-Request-Id", rq->id);
    request_headers_add(h, "Content-Type", content_type);
    request_headers_add(h, "Cache-Control", "no-store");
    request_headers_add(h, "X-Content-Type-Options", "nosniff");
    if (rq->key != NULL) {
        struct key_budget budget = key_budget_get(&rq->api->keys, rq->key);

        add_number(h, 0, "RateLimit-Limit", budget.limit);
        add_number(h, 1, "RateLimit-Remaining", budget.remaining);
        add_number(h, 2, "RateLimit-Reset", budget.reset_seconds);
    }
    if (rq->replayed) {
        request_headers_add(h, "Idempotency-Replayed", "true");
    }
    cors_add_headers(rq, h);
}

/* There is no room for a long answer until others are read. Made from what little it needs. */
static void respond_later(struct request *rq)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct request_headers headers;
    struct error err;

    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL,
                         "too many long answers wait to be read");
    json_error_format(&err, rq->id, &text);
    rq->status = error_code_status(err.code);
    rq->replayed = false;
    request_headers_make(rq, JSON_TYPE, &headers);
    request_headers_add(&headers, "Retry-After", "1");
    http_exchange_respond(rq->exchange, rq->status, headers.list, headers.count, buf_span(&text));
}

/* A long answer waits for its reader in a file. */
static void
respond(struct request *rq, int status, const struct request_headers *headers, struct span body)
{
    if (body.n <= WHOLE_MAX) {
        http_exchange_respond(rq->exchange, status, headers->list, headers->count, body);
        return;
    }
    rq->spill.key = rq->key;
    spill_put(&rq->spill, body);
    if (rq->spill.error < 0) {
        respond_later(rq);
        return;
    }
    http_exchange_start(rq->exchange, status, headers->list, headers->count, (int64_t)body.n);
    if (http_exchange_write_file(rq->exchange, rq->spill.fd, 0, (int64_t)body.n) < 0) {
        http_exchange_abort(rq->exchange);
    } else {
        http_exchange_end(rq->exchange);
    }
}

/* Sends a whole answer. retry_after NULL: none. */
static void send_answer(
    struct request *rq, int status, const char *type, struct span body, const char *retry_after)
{
    struct request_headers headers;

    if (rq->answered) {
        return;
    }
    rq->answered = true;
    rq->on_gone = NULL;
    rq->status = status;
    if (rq->flight != NULL) {
        idempotency_finish(rq->flight, status, body, retry_after == NULL);
    }
    request_headers_make(rq, type, &headers);
    request_headers_add(&headers, "Retry-After", retry_after);
    if (status == 401) {
        request_headers_add(&headers, "WWW-Authenticate", "Bearer");
    }
    request_headers_add(&headers, "Allow", rq->allow[0] == '\0' ? NULL : rq->allow);
    respond(rq, status, &headers, body);
}

void request_answer_headers(struct request *rq,
                            int status,
                            const struct request_headers *headers,
                            struct span body)
{
    rq->answered = true;
    rq->on_gone = NULL;
    rq->status = status;
    respond(rq, status, headers, body);
}

void request_answer_text(struct request *rq, int status, const char *type, struct span body)
{
    send_answer(rq, status, type, body, NULL);
}

void request_answer_json_text(struct request *rq,
                              int status,
                              struct span body,
                              const char *retry_after)
{
    send_answer(rq, status, JSON_TYPE, body, retry_after);
}

void request_answer(struct request *rq, int status, json_t *body)
{
    _cleanup_json_ json_t *owned = body;
    _cleanup_buf_ struct buf text = buf_make(0);

    if (owned != NULL) {
        json_write(owned, &text);
    }
    if (owned == NULL || buf_error(&text) < 0) {
        struct error err;

        (void)error_set(&err, ENOMEM, "no memory for the answer");
        request_fail(rq, &err);
        return;
    }
    send_answer(rq, status, JSON_TYPE, buf_span(&text), NULL);
}

void request_fail_more(struct request *rq, const struct error *err, json_t *more_details)
{
    static const char no_memory[] =
        "{\"error\": {\"code\": \"internal\", \"message\": \"no memory\", "
        "\"details\": {}, \"retryable\": false, \"request_id\": \"\"}}";
    _cleanup_json_ json_t *envelope = json_error_make(err, rq->id, more_details);
    _cleanup_buf_ struct buf text = buf_make(0);
    char after[16];

    if (envelope != NULL) {
        json_write(envelope, &text);
    }
    if (envelope == NULL || buf_error(&text) < 0) {
        send_answer(rq, 500, JSON_TYPE, span_of_str(no_memory), NULL);
        return;
    }
    (void)snprintf(after, sizeof(after), "%u", rq->retry_after == 0 ? 1 : rq->retry_after);
    if (rq->route != NULL && (rq->route->flags & ROUTE_PROXY) != 0) {
        port_error_answer(rq, err, buf_span(&text), after);
        return;
    }
    send_answer(rq, error_code_status(err->code), JSON_TYPE, buf_span(&text),
                error_code_is_retryable(err->code) ? after : NULL);
}

void request_fail(struct request *rq, const struct error *err)
{
    request_fail_more(rq, err, NULL);
}

void request_fail_missing(struct request *rq, const char *resource, const char *id)
{
    struct error err;

    (void)error_set_code(&err, ERROR_NOT_FOUND, resource, "there is no %s %.80s", resource, id);
    request_fail(rq, &err);
}

void request_on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char id[ID_SIZE] = "";
    struct http_header headers[] = {
        {"X-Request-Id", id}, {"Content-Type", JSON_TYPE}, {"Retry-After", "1"}};

    (void)ctx;
    (void)id_make("rq", id);
    json_error_format(err, id, &text);
    http_exchange_respond(exchange, error_code_status(err->code), headers,
                          error_code_is_retryable(err->code) ? 3 : 2, buf_span(&text));
}
