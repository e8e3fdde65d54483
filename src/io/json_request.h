/* Strict reading of JSON request bodies, and the error envelope.
 *
 * A struct json_fields walks one object: each getter names a field, checks its type and range and
 * remembers the name; json_fields_finish then refuses every key that nobody asked for. The first
 * failure sticks in `err` (code invalid_request, details.field the full name such as
 * "lifecycle.idle_action"); later getters return their default. Absent means the default; null
 * means none and is accepted only where a getter says so. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/span.h"

struct buf;

#define JSON_DEPTH_MAX    32
#define JSON_VALUES_MAX   65536
#define JSON_FIELDS_MAX   48
#define JSON_DURATION_OFF (-1) /* a duration given as null */

struct json_fields {
    json_t *object; /* borrowed */
    struct error *err;
    char prefix[48]; /* "" or "run." */
    const char *known[JSON_FIELDS_MAX];
    size_t known_count;
    int error;   /* 0 or the first -errno */
    bool misses; /* it is of a required field that is not there */
};

static inline void cleanup_json(json_t **p)
{
    json_decref(*p);
}
#define _cleanup_json_ _cleanup_(cleanup_json)

/* Parses a body that must be one JSON object in UTF-8: no duplicate keys, nesting at most
 * JSON_DEPTH_MAX, at most JSON_VALUES_MAX values, nothing after it. An empty body gives an empty
 * object when `optional`. The size is the caller's to limit. 0 or -EINVAL. */
int json_request_parse(struct span body, bool optional, json_t **ret_object, struct error *err)
    _must_check_;

/* Parses the answer of another daemon, which may hold what a request may not: NUL characters in
 * strings (output of a command) and any number of values (a long list). jansson bounds the depth.
 * 0 or -EINVAL. */
int json_answer_parse(struct span body, json_t **ret_object, struct error *err) _must_check_;

/* `object` must be a JSON object and outlive f; prefix is "" at the top. err must not be NULL. */
void json_fields_start(struct json_fields *f,
                       json_t *object,
                       const char *prefix,
                       struct error *err);
/* 0 when all went well and no unknown key is left, else -errno with err filled. Of an unknown key
 * and a required one that is missing the unknown one is told: it may be the other, misspelt. */
int json_fields_finish(struct json_fields *f) _must_check_;
/* Records a failure of the caller's own checks: message is "NAME " and the formatted text. */
void json_fields_fail(struct json_fields *f, const char *name, const char *format, ...)
    _printf_(3, 4);

bool json_fields_has(const struct json_fields *f, const char *name); /* present, null included */
bool json_fields_is_null(const struct json_fields *f, const char *name); /* present and null */

/* A string of min to max bytes (borrowed from the object). Null gives NULL. */
const char *json_fields_string(
    struct json_fields *f, const char *name, size_t min, size_t max, const char *initial);
/* The same, with its length. */
struct span json_fields_text(struct json_fields *f, const char *name, size_t max);
/* Fails when the field is absent or null. */
void json_fields_require(struct json_fields *f, const char *name);
/* A whole number. */
uint64_t json_fields_unsigned(
    struct json_fields *f, const char *name, uint64_t min, uint64_t max, uint64_t initial);
/* Seconds, fractions allowed, as milliseconds. Null gives JSON_DURATION_OFF. */
int64_t json_fields_duration_ms(
    struct json_fields *f, const char *name, int64_t min_ms, int64_t max_ms, int64_t initial_ms);
bool json_fields_bool(struct json_fields *f, const char *name, bool initial);
/* One of a NULL-terminated list of words; returns its index. */
int json_fields_choice(struct json_fields *f,
                       const char *name,
                       const char *const *words,
                       int initial);
/* An object or an array of at most max_items (borrowed); absent and null give NULL. */
json_t *json_fields_object(struct json_fields *f, const char *name, size_t max_items);
json_t *json_fields_array(struct json_fields *f, const char *name, size_t max_items);
/* Any value (borrowed), NULL when absent: the caller checks it. */
json_t *json_fields_any(struct json_fields *f, const char *name);
/* Marks fields as known without reading them (read elsewhere). */
void json_fields_skip(struct json_fields *f, const char *name);

/* The envelope {"error": {…}} as a new object, NULL without memory. more_details (stolen, may be
 * NULL) is merged into "details"; details.errno appears when err->shows_errno, or when errnum was
 * set to something else than its code's own. */
json_t *json_error_make(const struct error *err, const char *request_id, json_t *more_details);
/* The same as text, appended. */
void json_error_format(const struct error *err, const char *request_id, struct buf *out);
/* Reads an envelope made by another program of ours. -EBADMSG when it is none. */
int json_error_read(const json_t *envelope, struct error *ret_error) _must_check_;

/* Appends compact JSON text. The buffer's sticky error tells of a failure. */
void json_write(const json_t *value, struct buf *out);
/* Appends the characters of a string (UTF-8, not checked) as JSON has them, without the quotes. */
void json_write_characters(struct span text, struct buf *out);
