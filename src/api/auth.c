#include "api/auth.h"

#include <strings.h>

#include "api/api.h"
#include "api/request.h"
#include "api/route.h"
#include "base/clock.h"

#define BEARER        "Bearer "
#define BEARER_LENGTH 7

/* ---- the credential ---- */

/* The scheme's name has no case; what follows is exact. */
static const char *bearer_of(const char *authorization)
{
    if (authorization == NULL || strncasecmp(authorization, BEARER, BEARER_LENGTH) != 0) {
        return NULL;
    }
    return &authorization[BEARER_LENGTH];
}

/* `?token=`, where a browser cannot send a header. 1 found, 0 none. Keys are not for URLs. */
static int query_token(struct request *rq, const char **ret_text, struct error *err)
{
    const char *text;
    int r = request_parse_query(rq, err);

    if (r < 0) {
        return r;
    }
    text = query_find(&rq->query, "token");
    if (text == NULL) {
        return 0;
    }
    if (!token_is_token(text)) {
        return error_set_code(err, ERROR_UNAUTHORIZED, NULL, "the parameter token is no token");
    }
    *ret_text = text;
    return 1;
}

static int find_credential(struct request *rq, const char **ret_text, struct error *err)
{
    const char *header = http_exchange_header(rq->exchange, "Authorization");
    int r = 0;

    if (http_exchange_header_count(rq->exchange, "Authorization") > 1) {
        return error_set_code(err, ERROR_UNAUTHORIZED, NULL, "more than one Authorization header");
    }
    if ((rq->route->flags & ROUTE_TOKEN_QUERY) != 0) {
        r = query_token(rq, ret_text, err);
    }
    if (r < 0) {
        return r;
    }
    if (r == 1 && header != NULL) {
        return error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                              "send Authorization or the parameter token, not both");
    }
    if (r == 0) {
        *ret_text = bearer_of(header);
    }
    if (*ret_text == NULL) {
        return error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                              "send an API key or a token as `Authorization: Bearer KEY`");
    }
    return 0;
}

struct key_entry *
auth_find_token(struct api *api, const char *text, struct token *ret_token, struct error *err)
{
    int64_t now = clock_real_ms();
    struct key_entry *key;
    struct token token;

    if (token_parse(api->token_secret, text, &token) < 0) {
        (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL, "this token is not known");
        return NULL;
    }
    if (token.expires_at <= now) {
        (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL, "this token has expired");
        return NULL;
    }
    key = key_table_find_id(&api->keys, token.key_id, now, err);
    if (key == NULL) {
        if (err->code == ERROR_UNAUTHORIZED) {
            (void)error_set_code(err, ERROR_UNAUTHORIZED, NULL,
                                 "the API key of this token has expired or been revoked");
        }
        return NULL;
    }
    *ret_token = token;
    return key;
}

static struct key_entry *find_key(struct request *rq, const char *credential, struct error *err)
{
    struct api *api = rq->api;
    struct key_entry *key;

    if (token_is_token(credential)) {
        key = auth_find_token(api, credential, &rq->token, err);
        rq->has_token = key != NULL;
    } else {
        key = key_table_find(&api->keys, credential, clock_real_ms(), err);
    }
    return key;
}

static enum key_role role_of(const struct request *rq)
{
    enum key_role role = rq->key->record.role;

    if (rq->has_token && (!rq->token.may_write || role == KEY_ROLE_READ)) {
        return KEY_ROLE_READ;
    }
    return rq->has_token ? KEY_ROLE_MEMBER : role;
}

/* ---- scope ---- */

int auth_check_scope(const struct request *rq,
                     const char *sandbox_id,
                     const char *session_id,
                     unsigned int port,
                     struct error *err)
{
    const struct token *t = &rq->token;
    bool good = !rq->has_token;

    if (rq->has_token && strcmp(t->sandbox_id, sandbox_id) == 0) {
        good = t->kind == TOKEN_SANDBOX ||
               (t->kind == TOKEN_SESSION && session_id != NULL &&
                strcmp(t->session_id, session_id) == 0) ||
               (t->kind == TOKEN_PORT && port != 0 && t->port == port);
    }
    return good ? 0
                : error_set_code(err, ERROR_FORBIDDEN, NULL, "this token is for another %s",
                                 token_kind_name(t->kind));
}

/* What the path names must be what the token is for. */
static int check_path(const struct request *rq, struct error *err)
{
    const struct token *t = &rq->token;
    unsigned int flags = rq->route->flags;
    uint64_t port = 0;

    if (!rq->has_token || (flags & ROUTE_TOKEN_BODY) != 0) {
        return 0;
    }
    if ((flags & ROUTE_TOKEN) == 0) {
        return error_set_code(err, ERROR_FORBIDDEN, NULL, "this call takes an API key, no token");
    }
    if ((flags & ROUTE_SESSION) != 0) {
        /* A session's id begins as its sandbox's: that is how its sandbox is found. */
        bool same = id_is_valid(rq->params[0], "se") &&
                    memcmp(&rq->params[0][2], &t->sandbox_id[2], ID_SHARD_CHARS) == 0;

        return auth_check_scope(rq, same ? t->sandbox_id : "", rq->params[0], 0, err);
    }
    if ((flags & ROUTE_PORT) != 0 &&
        span_parse_u64(span_of_str(rq->params[1]), UINT16_MAX, &port) < 0) {
        port = 0;
    }
    return auth_check_scope(rq, rq->params[0], NULL, (unsigned int)port, err);
}

/* ---- both ---- */

int auth_check_credential(struct request *rq, const char *credential, struct error *err)
{
    struct api *api = rq->api;
    bool stream = (rq->route->flags & ROUTE_STREAM) != 0;
    int r;

    rq->key = find_key(rq, credential, err);
    if (rq->key == NULL) {
        return -err->errnum;
    }
    rq->role = role_of(rq);
    r = key_take(&api->keys, rq->key, stream, rq->started_ns, &rq->retry_after, err);
    if (r < 0) {
        return r;
    }
    rq->taken = true;
    list_append(&rq->key->open, &rq->key_link);
    r = check_path(rq, err);
    if (r < 0 || rq->role >= rq->route->role) {
        return r;
    }
    if (rq->has_token) {
        return error_set_code(err, ERROR_FORBIDDEN, NULL, "this token is only for reading");
    }
    return error_set_code(
        err, ERROR_FORBIDDEN, NULL, "a key with role %s may not do this: it takes role %s",
        key_role_name(rq->role), rq->route->role == KEY_ROLE_ADMIN ? "admin" : "member or admin");
}

int auth_check(struct request *rq, struct error *err)
{
    const char *credential = NULL;
    int r;

    if ((rq->route->flags & ROUTE_PUBLIC) != 0) {
        return 0;
    }
    r = find_credential(rq, &credential, err);
    return r < 0 ? r : auth_check_credential(rq, credential, err);
}
