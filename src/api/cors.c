#include "api/cors.h"

#include "api/request.h"
#include "api/route.h"

#define ALLOWED_HEADERS                                                                            \
    "Authorization, Content-Type, Content-Encoding, Idempotency-Key, If-Match, "                   \
    "If-Modified-Since, If-None-Match, If-Range, If-Unmodified-Since, Last-Event-ID, Range, "      \
    "X-Request-Id"
#define EXPOSED_HEADERS                                                                            \
    "Accept-Ranges, Content-Encoding, Content-Length, Content-Range, ETag, Idempotency-Replayed, " \
    "Last-Modified, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After, "          \
    "X-Request-Id, X-Space-End, X-Space-Next-Offset"
#define PORT_EXPOSED_HEADERS "Retry-After, X-Request-Id, X-Space-Error"
#define MAX_AGE_SECONDS      "7200"
/* Short: once the port is public its application decides. */
#define PORT_MAX_AGE_SECONDS "60"

void cors_add_headers(const struct request *rq, struct request_headers *headers)
{
    if (rq->route == NULL || (rq->route->flags & (ROUTE_TOKEN | ROUTE_TOKEN_BODY)) == 0 ||
        (rq->route->flags & ROUTE_PROXY) != 0) {
        return;
    }
    request_headers_add(headers, "Access-Control-Allow-Origin", "*");
    request_headers_add(headers, "Access-Control-Expose-Headers", EXPOSED_HEADERS);
}

bool cors_answer_preflight(struct request *rq)
{
    struct request_headers headers;
    char methods[64];

    if (strcmp(http_exchange_method(rq->exchange), "OPTIONS") != 0 ||
        !route_find_methods(route_table(), http_exchange_path(rq->exchange),
                            ROUTE_TOKEN | ROUTE_TOKEN_BODY, methods)) {
        return false;
    }
    request_headers_make(rq, NULL, &headers);
    request_headers_add(&headers, "Access-Control-Allow-Origin", "*");
    request_headers_add(&headers, "Access-Control-Allow-Methods", methods);
    request_headers_add(&headers, "Access-Control-Allow-Headers", ALLOWED_HEADERS);
    request_headers_add(&headers, "Access-Control-Max-Age", MAX_AGE_SECONDS);
    request_answer_headers(rq, 204, &headers, span_make(NULL, 0));
    return true;
}

void cors_add_port_headers(struct request_headers *headers)
{
    request_headers_add(headers, "Access-Control-Allow-Origin", "*");
    request_headers_add(headers, "Access-Control-Expose-Headers", PORT_EXPOSED_HEADERS);
}

/* Any page, any method, any header, but never with cookies ("*"): what then comes is let in by its
 * token or not at all. */
bool cors_answer_port_preflight(struct request *rq)
{
    const char *method = http_exchange_header(rq->exchange, "Access-Control-Request-Method");
    struct request_headers headers;

    if (strcmp(http_exchange_method(rq->exchange), "OPTIONS") != 0 || method == NULL ||
        http_exchange_header(rq->exchange, "Origin") == NULL) {
        return false;
    }
    request_headers_make(rq, NULL, &headers);
    request_headers_add(&headers, "Access-Control-Allow-Origin", "*");
    request_headers_add(&headers, "Access-Control-Allow-Methods", method);
    request_headers_add(&headers, "Access-Control-Allow-Headers",
                        http_exchange_header(rq->exchange, "Access-Control-Request-Headers"));
    request_headers_add(&headers, "Access-Control-Max-Age", PORT_MAX_AGE_SECONDS);
    request_headers_add(&headers, "Vary",
                        "Access-Control-Request-Headers, Access-Control-Request-Method");
    request_answer_headers(rq, 204, &headers, span_make(NULL, 0));
    return true;
}
