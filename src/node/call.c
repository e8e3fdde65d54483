/* What the handlers of the node protocol share: answers, arguments, waiting. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "wire/url.h"

#define WAIT_MAX_MS 300000

/* `extra` may be NULL. */
static void
respond_text(struct call *call, int status, const struct http_header *extra, struct span text)
{
    struct http_header headers[4] = {
        {"Content-Type", "application/json"},
        {"X-Request-Id", call->request_id},
    };
    size_t count = 2;

    if (call->answered) {
        return; /* an event and a timer of the same turn */
    }
    if (status == 503) {
        headers[count++] = (struct http_header){"Retry-After", "1"};
    }
    if (extra != NULL) {
        headers[count++] = *extra;
    }
    call->answered = true;
    http_exchange_respond(call->exchange, status, headers, count, text);
}

void call_respond_text(struct call *call, int status, struct span text)
{
    respond_text(call, status, NULL, text);
}

void call_respond(struct call *call, int status, json_t *value)
{
    _cleanup_json_ json_t *own = value;
    _cleanup_buf_ struct buf text = buf_make(0);
    struct error err = {0};

    if (own != NULL) {
        json_write(own, &text);
    }
    if (own == NULL || buf_error(&text) != 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    respond_text(call, status, NULL, buf_span(&text));
}

/* Whether it is a suspend that is in the way, after which the same call may be made again. */
static bool is_asleep(const struct error *err)
{
    return err->code == ERROR_FAILED_PRECONDITION &&
           (strcmp(err->field, "suspending") == 0 || strcmp(err->field, "suspended") == 0 ||
            strcmp(err->field, "waking") == 0);
}

void call_fail(struct call *call, const struct error *err)
{
    static const struct http_header asleep = {"X-Space-Asleep", "true"};

    call_fail_with(call, err, is_asleep(err) ? &asleep : NULL);
}

void call_fail_with(struct call *call, const struct error *err, const struct http_header *extra)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int status = error_code_status(err->code);

    if (status >= 500) {
        log_warning("request failed", "request_id=%s code=%s message=%s", call->request_id,
                    error_code_name(err->code), LOG_STR(err->message));
    }
    json_error_format(err, call->request_id, &text);
    respond_text(call, status, extra, buf_span(&text));
}

void call_touch(struct call *call)
{
    call->is_activity = true;
    data_touch(call->data, call->sandbox_id);
}

struct sandbox *call_sandbox(struct call *call)
{
    struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);
    struct error err = {0};

    if (sb == NULL || sandbox_info(sb)->state == SANDBOX_STATE_DELETED) {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "sandbox", "no sandbox %.20s",
                             call->sandbox_id);
        call_fail(call, &err);
        return NULL;
    }
    return sb;
}

static struct process_table *call_table(struct call *call)
{
    struct sandbox *sb = call_sandbox(call);
    struct process_table *table;
    struct error err = {0};

    if (sb == NULL) {
        return NULL;
    }
    table = process_table_get(call->data, sb);
    if (table == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
    }
    return table;
}

struct process *call_process(struct call *call)
{
    struct process_table *table = call_table(call);
    struct process *p;
    struct error err = {0};

    if (table == NULL) {
        return NULL;
    }
    p = process_find(table, call->process_id);
    if (p == NULL && call->route->handle == handle_result &&
        process_is_expired(table, call->process_id)) {
        (void)error_set_code(&err, ERROR_GONE, "process",
                             "the result of process %s is not kept any more", call->process_id);
        call_fail(call, &err);
    } else if (p == NULL) {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "process", "no process %.20s",
                             call->process_id);
        call_fail(call, &err);
    }
    return p;
}

struct process *call_session(struct call *call)
{
    struct process_table *table = call_table(call);
    struct process *p;
    struct error err = {0};

    if (table == NULL) {
        return NULL;
    }
    p = process_find_session(table, call->session_id);
    if (p != NULL) {
        return p;
    }
    if (process_is_expired(table, call->session_id)) {
        (void)error_set_code(&err, ERROR_GONE, "session",
                             "the output of session %s is not kept any more", call->session_id);
    } else {
        (void)error_set_code(&err, ERROR_NOT_FOUND, "session", "no session %.20s",
                             call->session_id);
    }
    call_fail(call, &err);
    return NULL;
}

int call_query_text(struct call *call, const char *name, char *out, size_t size, struct error *err)
{
    int r = url_query_get(span_of_str(http_exchange_query(call->exchange)), name, out, size);

    if (r >= 0) {
        return 0;
    }
    if (r == -ENOENT) {
        out[0] = '\0';
        return 0;
    }
    return error_set_code(err, ERROR_INVALID_REQUEST, name, "%s is malformed or given twice", name);
}

int call_query_unsigned(
    struct call *call, const char *name, uint64_t max, uint64_t *value, struct error *err)
{
    char text[32];
    int r =
        url_query_get(span_of_str(http_exchange_query(call->exchange)), name, text, sizeof(text));

    if (r == -ENOENT) {
        return 0;
    }
    if (r < 0 || span_parse_u64(span_of_str(text), max, value) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be a whole number from 0 to %llu", name,
                              (unsigned long long)max);
    }
    return 0;
}

/* Decimal seconds with up to three places. */
static bool parse_seconds(const char *text, int64_t *ret_ms)
{
    struct span all = span_of_str(text);
    size_t dot = span_find(all, 0, '.');
    struct span places = span_head(span_skip(all, dot + 1), 3);
    uint64_t seconds;
    uint64_t fraction = 0;

    if (span_parse_u64(span_head(all, dot), 1000000, &seconds) < 0 ||
        (dot < all.n && span_parse_u64(places, 999, &fraction) < 0)) {
        return false;
    }
    for (size_t i = places.n; i < 3; i++) {
        fraction *= 10;
    }
    *ret_ms = (int64_t)(seconds * 1000 + fraction);
    return true;
}

int call_query_wait(struct call *call, int64_t *ret_ms, struct error *err)
{
    char text[32];
    int r =
        url_query_get(span_of_str(http_exchange_query(call->exchange)), "wait", text, sizeof(text));

    *ret_ms = 0;
    if (r == -ENOENT) {
        return 0;
    }
    if (r < 0 || !parse_seconds(text, ret_ms) || *ret_ms > WAIT_MAX_MS) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "wait",
                              "wait must be between 0 and 300 seconds");
    }
    return 0;
}

int call_query_flag(struct call *call, const char *name, bool *value, struct error *err)
{
    char text[8];
    int r =
        url_query_get(span_of_str(http_exchange_query(call->exchange)), name, text, sizeof(text));

    if (r == -ENOENT) {
        return 0;
    }
    if (r < 0 || (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name, "%s must be true or false", name);
    }
    *value = strcmp(text, "true") == 0;
    return 0;
}

static bool is_among(struct span name, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (span_equals_str(name, *names)) {
            return true;
        }
    }
    return false;
}

int call_query_check(struct call *call, const char *const *names, struct error *err)
{
    struct span rest = span_of_str(http_exchange_query(call->exchange));
    struct url_pair pair;
    char name[64];
    int r;

    while ((r = url_query_next(&rest, &pair)) > 0) {
        if (is_among(pair.name, names)) {
            continue;
        }
        if (url_decode(pair.name, true, name, sizeof(name)) < 0) {
            (void)snprintf(name, sizeof(name), "query");
        }
        return error_set_code(err, ERROR_INVALID_REQUEST, name, "unknown parameter %s", name);
    }
    return r == 0 ? 0
                  : error_set_code(err, ERROR_INVALID_REQUEST, "query", "the query is malformed");
}

void call_watch(struct call *call,
                struct process *p,
                void (*fn)(void *arg, struct process *p, unsigned int events))
{
    call->watch.fn = fn;
    call->watch.arg = call;
    process_watch_add(p, &call->watch);
}

int call_start_timer(struct call *call, int64_t delay_ms, void (*fn)(void *arg))
{
    if (call->timer == NULL) {
        call->timer = loop_timer_new(call->data->node->loop, fn, call);
    }
    if (call->timer == NULL) {
        return -ENOMEM;
    }
    loop_timer_start(call->timer, delay_ms);
    return 0;
}
