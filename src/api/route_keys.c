/* API keys: made, listed, revoked. A key itself is in one answer, once, and nowhere else. */
#include <errno.h>

#include "api/api.h"
#include "api/idempotency.h"
#include "api/key_text.h"
#include "api/page.h"
#include "api/record_json.h"
#include "api/routes.h"
#include "base/clock.h"
#include "io/json_request.h"

static int add_key(void *arg, const struct key_record *key)
{
    return page_add(arg, key_json(key), key->seq);
}

void route_key_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct error err = {0};
    int r = page_start(&page, rq, "keys", KEY_FIELDS, &err);

    if (r == 0) {
        r = store_key_list(rq->api->store, page.before_seq, page.limit + 1, add_key, &page, &err);
    }
    if (r == -ENOMEM) {
        (void)error_set(&err, ENOMEM, "no memory");
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

static int read_key(struct request *rq, struct key_record *key, struct error *err)
{
    static const char *const roles[] = {"read", "member", "admin", NULL}; /* as enum key_role */
    struct json_fields f;
    const char *name;
    const char *expires;

    memset(key, 0, sizeof(*key));
    json_fields_start(&f, rq->body, "", err);
    json_fields_require(&f, "name");
    json_fields_require(&f, "role");
    name = json_fields_string(&f, "name", 1, KEY_NAME_SIZE - 2, "");
    (void)snprintf(key->name, sizeof(key->name), "%s", name == NULL ? "" : name);
    key->role = (enum key_role)json_fields_choice(&f, "role", roles, 0);
    expires = json_fields_string(&f, "expires_at", 1, 64, NULL);
    key->created_at = clock_real_ms();
    if (expires != NULL && clock_parse(expires, &key->expires_at) < 0) {
        json_fields_fail(&f, "expires_at", "must be an RFC 3339 time, got %.60s", expires);
    } else if (expires != NULL && key->expires_at <= key->created_at) {
        json_fields_fail(&f, "expires_at", "lies in the past: %.60s", expires);
    }
    return json_fields_finish(&f);
}

/* What an Idempotency-Key keeps has null in place of the key. */
static void answer_key(struct request *rq, const struct key_record *key, const char *text)
{
    json_t *answer = key_json(key);
    _cleanup_buf_ struct buf kept = buf_make(0);

    (void)json_object_set_new(answer, "key", json_null());
    if (rq->flight != NULL && answer != NULL) {
        json_write(answer, &kept);
        idempotency_finish(rq->flight, 201, buf_span(&kept), buf_error(&kept) == 0);
    }
    if (text != NULL) {
        (void)json_object_set_new(answer, "key", json_string(text));
    }
    request_answer(rq, 201, answer);
}

void route_key_create(struct request *rq)
{
    struct error err = {0};
    struct key_record key;
    struct key_record earlier;
    char text[KEY_TEXT_SIZE];
    int r = read_key(rq, &key, &err);

    if (r == 0) {
        r = request_make_id(rq, "ky", key.id);
    }
    /* An attempt that a crash cut off has made it, and its text is lost. */
    if (r == 0 && rq->flight != NULL && store_key_get(rq->api->store, key.id, &earlier, &err) > 0) {
        answer_key(rq, &earlier, NULL);
        return;
    }
    if (r == 0) {
        r = key_text_make(text);
    }
    if (r == 0) {
        key_text_hash(text, key.hash);
        r = store_key_insert(rq->api->store, &key, &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    answer_key(rq, &key, text);
    explicit_bzero(text, sizeof(text));
}

void route_key_delete(struct request *rq)
{
    const char *id = rq->params[0];
    struct error err = {0};
    struct key_record key;
    struct key_entry *entry;
    int r = 0;

    if (id_is_valid(id, "ky")) {
        r = store_key_get(rq->api->store, id, &key, &err);
    }
    if (r == 0) {
        request_fail_missing(rq, "key", id);
        return;
    }
    if (r > 0) {
        r = store_key_revoke(rq->api->store, id, clock_real_ms(), &err);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    entry = key_table_revoke(&rq->api->keys, id);
    if (entry != NULL) {
        request_cut_key(entry, rq);
    }
    request_answer(rq, 200, key_json(&key));
}
