#include "io/json_request.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"

#define STRINGIFY_RAW(x) #x
#define STRINGIFY(x)     STRINGIFY_RAW(x)

/* Bounds what jansson makes of the text before it sees it: it recurses per level, and a value of
 * two bytes takes hundreds in memory. NULL, or what is wrong with the body. */
static const char *find_excess(struct span body)
{
    unsigned int depth = 0;
    unsigned int values = 1;
    bool in_string = false;

    for (size_t i = 0; i < body.n; i++) {
        uint8_t c = body.p[i];

        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            values++;
            if (++depth > JSON_DEPTH_MAX) {
                return "is nested more than " STRINGIFY(JSON_DEPTH_MAX) " levels deep";
            }
        } else if (c == ',') {
            values++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
        if (values > JSON_VALUES_MAX) {
            return "has more than " STRINGIFY(JSON_VALUES_MAX) " values";
        }
    }
    return NULL;
}

static int load_object(struct span body, size_t flags, json_t **ret_object, struct error *err)
{
    _cleanup_json_ json_t *root = NULL;
    json_error_t problem;

    root = json_loadb((const char *)body.p, body.n, flags, &problem);
    if (root == NULL) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "body",
                              "the body is not valid JSON (line %d, column %d): %s", problem.line,
                              problem.column, problem.text);
    }
    if (!json_is_object(root)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "body", "the body must be a JSON object");
    }
    *ret_object = TAKE(root);
    return 0;
}

int json_request_parse(struct span body, bool optional, json_t **ret_object, struct error *err)
{
    const char *excess;

    if (body.n == 0 && optional) {
        json_t *empty = json_object();

        if (empty == NULL) {
            return error_set(err, ENOMEM, "out of memory");
        }
        *ret_object = empty;
        return 0;
    }
    if (body.n == 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "body", "a JSON body is required");
    }
    excess = find_excess(body);
    if (excess != NULL) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "body", "the body %s", excess);
    }
    return load_object(body, JSON_REJECT_DUPLICATES, ret_object, err);
}

int json_answer_parse(struct span body, json_t **ret_object, struct error *err)
{
    return load_object(body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, ret_object, err);
}

void json_fields_start(struct json_fields *f, json_t *object, const char *prefix, struct error *err)
{
    memset(f, 0, sizeof(*f));
    f->object = object;
    f->err = err;
    (void)snprintf(f->prefix, sizeof(f->prefix), "%s", prefix);
}

static void fail_with(struct json_fields *f, const char *name, const char *text)
{
    char full[sizeof(f->err->field)];

    if (f->error != 0) {
        return;
    }
    (void)snprintf(full, sizeof(full), "%s%s", f->prefix, name);
    f->error = error_set_code(f->err, ERROR_INVALID_REQUEST, full, "%s %s", full, text);
}

void json_fields_fail(struct json_fields *f, const char *name, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fail_with(f, name, text);
}

int json_fields_finish(struct json_fields *f)
{
    const char *key;
    json_t *value;

    if (f->error != 0 && !f->misses) {
        return f->error;
    }
    json_object_foreach(f->object, key, value) {
        size_t i = 0;

        while (i < f->known_count && strcmp(f->known[i], key) != 0) {
            i++;
        }
        if (i == f->known_count) {
            char full[sizeof(f->err->field)];

            (void)snprintf(full, sizeof(full), "%s%s", f->prefix, key);
            f->error =
                error_set_code(f->err, ERROR_INVALID_REQUEST, full, "unknown field %s", full);
            return f->error;
        }
    }
    return f->error;
}

void json_fields_skip(struct json_fields *f, const char *name)
{
    if (f->known_count < JSON_FIELDS_MAX) {
        f->known[f->known_count++] = name;
    }
}

/* The value to check, or NULL when the default applies: absent, or an earlier failure. */
static json_t *take(struct json_fields *f, const char *name)
{
    json_fields_skip(f, name);
    return f->error == 0 ? json_object_get(f->object, name) : NULL;
}

bool json_fields_has(const struct json_fields *f, const char *name)
{
    return json_object_get(f->object, name) != NULL;
}

bool json_fields_is_null(const struct json_fields *f, const char *name)
{
    return json_is_null(json_object_get(f->object, name));
}

void json_fields_require(struct json_fields *f, const char *name)
{
    const json_t *value = json_object_get(f->object, name);

    if (f->error == 0 && (value == NULL || json_is_null(value))) {
        json_fields_skip(f, name);
        fail_with(f, name, "is required");
        f->misses = true;
    }
}

const char *json_fields_string(
    struct json_fields *f, const char *name, size_t min, size_t max, const char *initial)
{
    const json_t *value = take(f, name);
    size_t n;

    if (value == NULL) {
        return initial;
    }
    if (json_is_null(value)) {
        return NULL;
    }
    if (!json_is_string(value)) {
        fail_with(f, name, "must be a string");
        return initial;
    }
    n = json_string_length(value);
    if (n < min || n > max) {
        json_fields_fail(f, name, "must have %zu to %zu bytes, got %zu", min, max, n);
        return initial;
    }
    return json_string_value(value);
}

struct span json_fields_text(struct json_fields *f, const char *name, size_t max)
{
    const char *text = json_fields_string(f, name, 0, max, NULL);

    return text == NULL ? span_make(NULL, 0)
                        : span_make(text, json_string_length(json_object_get(f->object, name)));
}

uint64_t json_fields_unsigned(
    struct json_fields *f, const char *name, uint64_t min, uint64_t max, uint64_t initial)
{
    const json_t *value = take(f, name);
    json_int_t number;

    if (value == NULL) {
        return initial;
    }
    if (!json_is_integer(value)) {
        json_fields_fail(f, name, "must be a whole number from %" PRIu64 " to %" PRIu64, min, max);
        return initial;
    }
    number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max) {
        json_fields_fail(f, name,
                         "must be between %" PRIu64 " and %" PRIu64 ", got %" JSON_INTEGER_FORMAT,
                         min, max, number);
        return initial;
    }
    return (uint64_t)number;
}

int64_t json_fields_duration_ms(
    struct json_fields *f, const char *name, int64_t min_ms, int64_t max_ms, int64_t initial_ms)
{
    const json_t *value = take(f, name);
    double seconds;

    if (value == NULL) {
        return initial_ms;
    }
    if (json_is_null(value)) {
        return JSON_DURATION_OFF;
    }
    if (!json_is_number(value)) {
        fail_with(f, name, "must be a number of seconds");
        return initial_ms;
    }
    seconds = json_number_value(value);
    if (!(seconds * 1000.0 >= (double)min_ms && seconds * 1000.0 <= (double)max_ms)) {
        json_fields_fail(f, name, "must be between %.10g and %.10g seconds, got %.10g",
                         (double)min_ms / 1000.0, (double)max_ms / 1000.0, seconds);
        return initial_ms;
    }
    return (int64_t)(seconds * 1000.0 + 0.5);
}

bool json_fields_bool(struct json_fields *f, const char *name, bool initial)
{
    const json_t *value = take(f, name);

    if (value == NULL) {
        return initial;
    }
    if (!json_is_boolean(value)) {
        fail_with(f, name, "must be true or false");
        return initial;
    }
    return json_is_true(value);
}

int json_fields_choice(struct json_fields *f,
                       const char *name,
                       const char *const *words,
                       int initial)
{
    const json_t *value = take(f, name);
    char list[200] = "";
    size_t used = 0;

    if (value == NULL) {
        return initial;
    }
    for (int i = 0; words[i] != NULL; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) {
            return i;
        }
        if (used < sizeof(list)) {
            used += (size_t)snprintf(&list[used], sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                     words[i]);
        }
    }
    json_fields_fail(f, name, "must be one of: %s", list);
    return initial;
}

json_t *json_fields_object(struct json_fields *f, const char *name, size_t max_items)
{
    json_t *value = take(f, name);

    if (value == NULL || json_is_null(value)) {
        return NULL;
    }
    if (!json_is_object(value)) {
        fail_with(f, name, "must be an object");
        return NULL;
    }
    if (json_object_size(value) > max_items) {
        json_fields_fail(f, name, "must have at most %zu entries, got %zu", max_items,
                         json_object_size(value));
        return NULL;
    }
    return value;
}

json_t *json_fields_array(struct json_fields *f, const char *name, size_t max_items)
{
    json_t *value = take(f, name);

    if (value == NULL || json_is_null(value)) {
        return NULL;
    }
    if (!json_is_array(value)) {
        fail_with(f, name, "must be an array");
        return NULL;
    }
    if (json_array_size(value) > max_items) {
        json_fields_fail(f, name, "must have at most %zu entries, got %zu", max_items,
                         json_array_size(value));
        return NULL;
    }
    return value;
}

json_t *json_fields_any(struct json_fields *f, const char *name)
{
    return take(f, name);
}

/* ---- the envelope ---- */

#define ERRNO_MAX 133 /* EHWPOISON, the last one of Linux */

/* A string for any bytes: text may have been cut in the middle of a character. */
static json_t *make_text(const char *text)
{
    json_t *value = json_string(text);
    _cleanup_buf_ struct buf repaired = buf_make(0);

    if (value == NULL) {
        utf8_repair(span_of_str(text), &repaired);
        value = json_string(buf_str(&repaired));
    }
    return value;
}

static json_t *make_details(const struct error *err, json_t *more_details)
{
    json_t *details = more_details != NULL ? more_details : json_object();
    const char *key = error_code_detail_key(err->code);
    int own_errnum = -error_set_code(NULL, err->code, NULL, "own errno");
    const char *name = strerrorname_np(err->errnum);

    if (details != NULL && key != NULL && err->field[0] != '\0') {
        (void)json_object_set_new(details, key, make_text(err->field));
    }
    if (details != NULL && name != NULL &&
        (err->shows_errno ||
         (err->code != ERROR_INTERNAL && err->errnum > 0 && err->errnum != own_errnum))) {
        (void)json_object_set_new(details, "errno", json_string(name));
    }
    return details;
}

json_t *json_error_make(const struct error *err, const char *request_id, json_t *more_details)
{
    json_t *details = make_details(err, more_details);
    json_t *message = make_text(err->message);

    return json_pack("{s:{s:s, s:o, s:o, s:b, s:s}}", "error", "code", error_code_name(err->code),
                     "message", message, "details", details, "retryable",
                     error_code_is_retryable(err->code), "request_id", request_id);
}

void json_error_format(const struct error *err, const char *request_id, struct buf *out)
{
    _cleanup_json_ json_t *envelope = json_error_make(err, request_id, NULL);

    if (envelope != NULL) {
        json_write(envelope, out);
        return;
    }
    buf_printf(out,
               "{\"error\": {\"code\": \"%s\", \"message\": \"%s\", \"details\": {}, "
               "\"retryable\": %s, \"request_id\": \"\"}}",
               error_code_name(err->code), error_code_name(err->code),
               error_code_is_retryable(err->code) ? "true" : "false");
}

/* The errno of this name, 0 for none. */
static int find_errno(const char *name)
{
    for (int errnum = 1; name != NULL && errnum <= ERRNO_MAX; errnum++) {
        const char *known = strerrorname_np(errnum);

        if (known != NULL && strcmp(known, name) == 0) {
            return errnum;
        }
    }
    return 0;
}

int json_error_read(const json_t *envelope, struct error *ret_error)
{
    const json_t *inner = json_object_get(envelope, "error");
    const char *code = json_string_value(json_object_get(inner, "code"));
    const char *message = json_string_value(json_object_get(inner, "message"));
    const json_t *details = json_object_get(inner, "details");
    enum error_code value = code != NULL ? error_code_find(code) : ERROR_NONE;
    const char *key;
    const char *field;
    int errnum;

    if (value == ERROR_NONE || message == NULL) {
        return -EBADMSG;
    }
    key = error_code_detail_key(value);
    field = key != NULL ? json_string_value(json_object_get(details, key)) : NULL;
    errnum = find_errno(json_string_value(json_object_get(details, "errno")));
    if (errnum != 0) {
        (void)error_set_errno(ret_error, value, field, errnum, "%s", message);
    } else {
        (void)error_set_code(ret_error, value, field, "%s", message);
    }
    return 0;
}
