#include "api/tokens.h"

#include <errno.h>

#include "api/api.h"
#include "api/auth.h"
#include "api/idempotency.h"
#include "api/node_call.h"
#include "api/public_url.h"
#include "api/routes.h"
#include "base/clock.h"
#include "io/json_request.h"

#define TTL_MIN_MS 1000

static void put_url(json_t *object, const struct buf *url)
{
    (void)json_object_set_new(object, "url", buf_error(url) < 0 ? NULL : json_string(buf_str(url)));
}

/* ---- making one ---- */

/* Signs a token for the caller: it acts for the caller's key, and one that a token makes ends with
 * the day of that token. */
static int issue(const struct request *rq,
                 struct token *token,
                 int64_t ttl_ms,
                 char ret_text[TOKEN_TEXT_SIZE],
                 struct error *err)
{
    int64_t now = clock_real_ms();

    memcpy(token->key_id, rq->key->record.id, sizeof(token->key_id));
    token->renew_until = rq->has_token ? rq->token.renew_until : now + TOKEN_TTL_MAX_MS;
    token->expires_at = now + ttl_ms;
    if (token->expires_at > token->renew_until) {
        token->expires_at = token->renew_until;
    }
    return token_format(rq->api->token_secret, token, ret_text) < 0
               ? error_set(err, ENOMEM, "no memory")
               : 0;
}

static void
put_token(json_t *object, const char *expires_name, const char *text, const struct token *token)
{
    char expires[CLOCK_TEXT_SIZE];

    clock_format(token->expires_at, expires);
    (void)json_object_set_new(object, "token", json_string(text));
    (void)json_object_set_new(object, expires_name, json_string(expires));
}

/* ---- the session of a command ---- */

json_t *tokens_session(const struct request *rq, const char *session_id)
{
    json_t *session =
        json_pack("{s:s, s:n, s:n, s:n}", "id", session_id, "url", "token", "token_expires_at");
    _cleanup_buf_ struct buf url = buf_make(0);

    public_url_put(rq, &url);
    buf_printf(&url, "/v1/sessions/%s", session_id);
    put_url(session, &url);
    return session;
}

static int fill_session(const struct request *rq, json_t *session, struct error *err)
{
    const char *id = json_string_value(json_object_get(session, "id"));
    struct token token = {.kind = TOKEN_SESSION, .may_write = rq->role >= KEY_ROLE_MEMBER};
    char text[TOKEN_TEXT_SIZE];
    int r;

    if (id == NULL || !id_is_valid(id, "se") || !id_is_valid(rq->params[0], "sb")) {
        return error_set(err, EIO, "an answer without its session");
    }
    memcpy(token.sandbox_id, rq->params[0], ID_SIZE);
    memcpy(token.session_id, id, ID_SIZE);
    r = issue(rq, &token, TOKEN_TTL_DEFAULT_MS, text, err);
    if (r == 0) {
        put_token(session, "token_expires_at", text, &token);
    }
    return r;
}

/* ---- POST /v1/tokens ---- */

struct order {
    struct token token;
    int64_t ttl_ms;
};

static void read_id(struct json_fields *f, const char *name, const char *kind, char out[ID_SIZE])
{
    const char *value = json_fields_string(f, name, 1, 64, NULL);

    if (value != NULL && !id_is_valid(value, kind)) {
        json_fields_fail(f, name, "is no id of a %s", kind[1] == 'b' ? "sandbox" : "session");
    } else if (value != NULL) {
        (void)snprintf(out, ID_SIZE, "%s", value);
    }
}

static int read_order(const struct request *rq, struct order *order, struct error *err)
{
    static const char *const words[] = {"read", "write", NULL};
    struct token *t = &order->token;
    struct json_fields f;
    int access;

    memset(order, 0, sizeof(*order));
    json_fields_start(&f, rq->body, "", err);
    json_fields_require(&f, "sandbox_id");
    read_id(&f, "sandbox_id", "sb", t->sandbox_id);
    read_id(&f, "session_id", "se", t->session_id);
    t->port = (uint16_t)json_fields_unsigned(&f, "port", 1, UINT16_MAX, 0);
    t->kind = t->port != 0 ? TOKEN_PORT : t->session_id[0] != '\0' ? TOKEN_SESSION : TOKEN_SANDBOX;
    /* What the caller has. Traffic to a port changes things: it is no use to one who only looks. */
    access = json_fields_choice(&f, "access", words,
                                t->kind == TOKEN_PORT || rq->role >= KEY_ROLE_MEMBER ? 1 : 0);
    t->may_write = access == 1;
    if (t->port != 0 && t->session_id[0] != '\0') {
        json_fields_fail(&f, "port", "and session_id exclude each other");
    } else if (t->port != 0 && !t->may_write) {
        json_fields_fail(&f, "access", "must be write for a port");
    }
    order->ttl_ms = json_fields_duration_ms(&f, "ttl_seconds", TTL_MIN_MS, TOKEN_TTL_MAX_MS,
                                            TOKEN_TTL_DEFAULT_MS);
    if (order->ttl_ms == JSON_DURATION_OFF) {
        json_fields_fail(&f, "ttl_seconds", "must not be null: every token ends");
    }
    return json_fields_finish(&f);
}

/* Whether the caller may have it, and whether there is something to have it for. */
static int check_order(const struct request *rq, const struct token *t, struct error *err)
{
    const char *session_id = t->kind == TOKEN_SESSION ? t->session_id : NULL;
    _cleanup_sandbox_ struct sandbox s = {0};
    int r = auth_check_scope(rq, t->sandbox_id, session_id, t->port, err);

    if (r == 0 && t->may_write && rq->role < KEY_ROLE_MEMBER) {
        r = error_set_code(err, ERROR_FORBIDDEN, NULL,
                           "who may only read gets no token with write access");
    }
    if (r == 0) {
        r = store_sandbox_get(rq->api->store, t->sandbox_id, &s, err);
        if (r == 0 || (r > 0 && s.deleted_at != 0)) {
            r = error_set_code(err, ERROR_NOT_FOUND, "sandbox", "there is no sandbox %s",
                               t->sandbox_id);
        }
    }
    if (r >= 0 && session_id != NULL &&
        memcmp(&session_id[2], &t->sandbox_id[2], ID_SHARD_CHARS) != 0) {
        r = error_set_code(err, ERROR_NOT_FOUND, "session", "the sandbox has no session %s",
                           session_id);
    }
    return r < 0 ? r : 0;
}

/* What the token opens. A port's URL is for a browser, which cannot send a header. */
static void
put_scope_url(const struct request *rq, const struct token *t, const char *text, struct buf *url)
{
    if (t->kind == TOKEN_PORT) {
        public_url_put_port(rq, t->sandbox_id, t->port, url);
        buf_printf(url, "/?token=%s", text);
        return;
    }
    public_url_put(rq, url);
    if (t->kind == TOKEN_SESSION) {
        buf_printf(url, "/v1/sessions/%s", t->session_id);
    } else {
        buf_printf(url, "/v1/sandboxes/%s", t->sandbox_id);
    }
}

static int fill_token(const struct request *rq, json_t *answer, struct error *err)
{
    _cleanup_buf_ struct buf url = buf_make(0);
    char text[TOKEN_TEXT_SIZE];
    struct order order;
    int r = read_order(rq, &order, err);

    if (r == 0) {
        r = check_order(rq, &order.token, err);
    }
    if (r == 0) {
        r = issue(rq, &order.token, order.ttl_ms, text, err);
    }
    if (r == 0) {
        put_token(answer, "expires_at", text, &order.token);
        put_scope_url(rq, &order.token, text, &url);
        put_url(answer, &url);
    }
    return r;
}

void route_token_create(struct request *rq)
{
    struct order order;
    struct error err = {0};
    int r = read_order(rq, &order, &err);

    if (r == 0) {
        r = check_order(rq, &order.token, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    tokens_answer(rq, 201, json_pack("{s:n, s:n, s:n}", "token", "expires_at", "url"));
}

/* ---- answers ---- */

static void fill_and_answer(struct request *rq, int status, json_t *answer)
{
    _cleanup_json_ json_t *owned = answer;
    json_t *session = json_object_get(owned, "session");
    struct error err = {0};
    int r = session != NULL ? fill_session(rq, session, &err) : fill_token(rq, owned, &err);

    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    request_answer(rq, status, TAKE(owned));
}

void tokens_answer(struct request *rq, int status, json_t *answer)
{
    _cleanup_buf_ struct buf kept = buf_make(0);

    if (rq->flight != NULL && answer != NULL) {
        json_write(answer, &kept);
        idempotency_finish(rq->flight, status, buf_span(&kept), buf_error(&kept) == 0);
    }
    fill_and_answer(rq, status, answer);
}

void tokens_answer_again(struct request *rq, int status, struct span kept)
{
    json_t *answer = NULL;
    struct error err;

    if (json_answer_parse(kept, &answer, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    fill_and_answer(rq, status, answer);
}
