#include "api/fake_respond.h"

#include "base/buf.h"
#include "io/http_server.h"
#include "io/json_request.h"

void fake_respond(struct http_exchange *exchange, int status, json_t *body)
{
    static const struct http_header type[] = {{"Content-Type", "application/json"}};
    _cleanup_json_ json_t *owned = body;
    _cleanup_buf_ struct buf text = buf_make(0);

    json_write(owned, &text);
    http_exchange_respond(exchange, status, type, 1, buf_span(&text));
}

void fake_respond_put(struct http_exchange *exchange, const json_t *answer, bool is_cut)
{
    json_t *sandbox = json_object_get(answer, "sandbox");
    json_t *run = json_object_get(answer, "run");
    _cleanup_free_ char *record = json_dumps(sandbox, JSON_COMPACT | JSON_ENSURE_ASCII);
    const struct http_header headers[] = {{"Content-Type", "application/json"},
                                          {"X-Space-Sandbox", record}};
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)json_object_set(run, "sandbox_id", json_object_get(sandbox, "id"));
    json_write(run == NULL ? answer : run, &text);
    http_exchange_start(exchange, 200, headers, run == NULL ? 1 : 2, (int64_t)text.n);
    (void)http_exchange_write(exchange, span_head(buf_span(&text), is_cut ? 6 : text.n));
    if (!is_cut) {
        http_exchange_end(exchange);
    }
}

void fake_respond_error(struct http_exchange *exchange, const char *code, const char *field)
{
    struct error err;
    enum error_code value = error_code_find(code);

    (void)error_set_code(&err, value, field, "the fake node says %s", code);
    fake_respond(exchange, error_code_status(value), json_error_make(&err, "", NULL));
}
