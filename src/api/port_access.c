#include "api/port_access.h"

#include <errno.h>
#include <strings.h>

#include "api/api.h"
#include "api/auth.h"
#include "api/port_cookie.h"
#include "api/port_front.h"
#include "api/request.h"
#include "api/store_port.h"
#include "api/store_sandbox.h"

#define TOKEN_HEADER  "X-Space-Token"
#define BEARER        "Bearer "
#define BEARER_LENGTH 7
#define COOKIES_MAX   16 /* of our name that are looked at */

/* A credential of ours in one of the Authorization headers, which may also be the application's. */
static const char *find_bearer(const struct request *rq)
{
    struct http_header header;

    for (unsigned int i = 0; http_exchange_header_at(rq->exchange, i, &header); i++) {
        if (strcasecmp(header.name, "Authorization") == 0 &&
            strncasecmp(header.value, BEARER, BEARER_LENGTH) == 0 &&
            port_credential_is_ours(span_of_str(&header.value[BEARER_LENGTH]))) {
            return &header.value[BEARER_LENGTH];
        }
    }
    return NULL;
}

/* Whether a cookie's value is a good token of this very port. */
static bool
is_good_cookie(const struct request *rq, const struct port_request *port, const char *text)
{
    struct token token;
    struct error err;

    return auth_find_token(rq->api, text, &token, &err) != NULL && token.kind == TOKEN_PORT &&
           token.port == port->at.port && strcmp(token.sandbox_id, port->at.sandbox_id) == 0;
}

/* A page can plant further cookies of our name: the good one counts, among the first few. */
static bool
find_cookie(const struct request *rq, const struct port_request *port, char out[TOKEN_TEXT_SIZE])
{
    bool secure = strcmp(port_front_scheme(rq), "https") == 0;
    struct http_header header;
    unsigned int tries = 0;

    for (unsigned int i = 0; http_exchange_header_at(rq->exchange, i, &header); i++) {
        struct span rest = span_of_str(header.value);
        struct span value;

        if (strcasecmp(header.name, "Cookie") != 0) {
            continue;
        }
        while (tries < COOKIES_MAX && port_cookie_next(&rest, secure, &value)) {
            tries++;
            if (span_copy_str(value, out, TOKEN_TEXT_SIZE) == 0 && is_good_cookie(rq, port, out)) {
                return true;
            }
        }
    }
    return false;
}

/* Without a credential: whoever has an outdated address learns that nothing is there any more. */
static int refuse_stranger(struct request *rq, const struct port_request *port, struct error *err)
{
    _cleanup_sandbox_ struct sandbox sandbox = {0};
    int r = 1;

    if (!port->by_path) {
        r = store_sandbox_get(rq->api->store, port->at.sandbox_id, &sandbox, err);
    }
    if (r < 0) {
        return r;
    }
    if (r == 0 || sandbox.deleted_at != 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox", "there is no sandbox %s",
                              port->at.sandbox_id);
    }
    return error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                          "port %u of this sandbox is private: open it with the URL of a port "
                          "token, or send a key or token in " TOKEN_HEADER,
                          port->at.port);
}

static bool is_safe(const struct port_request *port, const char *method)
{
    return port->upgrade == NULL && (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 ||
                                     strcmp(method, "OPTIONS") == 0);
}

/* The browser sends our cookie whoever makes it send a request; only the port's own pages may have
 * it change anything, or speak through a WebSocket. */
static int
check_origin(const struct request *rq, const struct port_request *port, struct error *err)
{
    const char *origin = http_exchange_header(rq->exchange, "Origin");
    const char *site = http_exchange_header(rq->exchange, "Sec-Fetch-Site");
    bool own =
        origin == NULL
            ? site == NULL || strcmp(site, "same-origin") == 0 || strcmp(site, "none") == 0
            : http_exchange_header_count(rq->exchange, "Origin") == 1 &&
                  port_host_is_origin(&port->at, span_of_str(origin), rq->api->settings.api_domain);

    if (own || is_safe(port, http_exchange_method(rq->exchange))) {
        return 0;
    }
    return error_set_code(err, ERROR_FORBIDDEN, NULL,
                          "a page of another site may not do this with the cookie of this port");
}

int port_access_check(struct request *rq, struct port_request *port, struct error *err)
{
    const char *credential = http_exchange_header(rq->exchange, TOKEN_HEADER);
    char cookie[TOKEN_TEXT_SIZE];
    int r = store_port_is_public(rq->api->store, port->at.sandbox_id, port->at.port, err);

    port->is_public = r == 1;
    if (r != 0) {
        return r < 0 ? r : 0;
    }
    if (http_exchange_header_count(rq->exchange, TOKEN_HEADER) > 1) {
        return error_set_code(err, ERROR_UNAUTHORIZED, NULL, "more than one " TOKEN_HEADER);
    }
    if (credential == NULL) {
        credential = find_bearer(rq);
    }
    if (credential == NULL && port->token[0] != '\0') {
        if (!token_is_token(port->token)) {
            return error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                                  "a key does not belong in a URL: send it as " TOKEN_HEADER
                                  ", or make a token for this port");
        }
        credential = port->token;
    }
    if (credential == NULL && !port->by_path && find_cookie(rq, port, cookie)) {
        credential = cookie;
        port->by_cookie = true;
    }
    if (credential == NULL) {
        port->is_strange = true;
        return refuse_stranger(rq, port, err);
    }
    r = auth_check_credential(rq, credential, err);
    return r == 0 && port->by_cookie ? check_origin(rq, port, err) : r;
}
