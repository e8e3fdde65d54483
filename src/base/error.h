/* Errors that a human or an API client will see.
 *
 * A struct error lives on the caller's stack and never allocates. It carries the stable code of
 * the HTTP API, an errno, the request field or resource at fault, and one sentence. Functions that
 * fill one take it as their last parameter (NULL is allowed) and return -errno. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"

/* The codes of the API's error envelope; error_code_status gives each its HTTP status. */
enum error_code {
    ERROR_NONE,
    ERROR_INVALID_REQUEST,
    ERROR_UNAUTHORIZED,
    ERROR_FORBIDDEN,
    ERROR_NOT_FOUND,
    ERROR_METHOD_NOT_ALLOWED,
    ERROR_CONFLICT,
    ERROR_IDEMPOTENCY_CONFLICT,
    ERROR_FAILED_PRECONDITION,
    ERROR_LIMIT_EXCEEDED,
    ERROR_GONE,
    ERROR_PAYLOAD_TOO_LARGE,
    ERROR_RANGE_NOT_SATISFIABLE,
    ERROR_RATE_LIMITED,
    ERROR_INTERNAL,
    ERROR_BAD_GATEWAY,
    ERROR_CAPACITY_UNAVAILABLE,
    ERROR_SERVICE_UNAVAILABLE,
    ERROR_DEADLINE_EXCEEDED,
    ERROR_STORAGE_FULL,
    ERROR_CODE_COUNT,
};

struct error {
    enum error_code code;
    int errnum;       /* positive errno */
    bool shows_errno; /* errnum is the guest's: details.errno names it */
    char field[64];   /* details.field, .resource, .state, .limit or .reason, by code; "" if none */
    char message[320]; /* one sentence, no newline, valid for users */
};

/* "invalid_request" and so on; "internal" for values out of range. */
const char *error_code_name(enum error_code code);
/* The HTTP status of a code. */
int error_code_status(enum error_code code);
/* Whether the same request may succeed later without a change (`retryable`). */
bool error_code_is_retryable(enum error_code code);
/* The code with this name, or ERROR_NONE. */
enum error_code error_code_find(const char *name);
/* The key under "details" that holds `field` for this code ("field", "resource", "state",
 * "limit"), or NULL. */
const char *error_code_detail_key(enum error_code code);

/* Sets code internal with this errno; returns -errnum exactly. */
int error_set(struct error *err, int errnum, const char *format, ...) _printf_(3, 4);
/* Sets a code and the field at fault (NULL for none); the errno follows the code. Returns -errno.
 */
int error_set_code(struct error *err,
                   enum error_code code,
                   const char *field,
                   const char *format,
                   ...) _printf_(4, 5);
/* The same with an errno of the guest, which the envelope shows as details.errno. Returns -errnum.
 */
int error_set_errno(
    struct error *err, enum error_code code, const char *field, int errnum, const char *format, ...)
    _printf_(5, 6);
/* Prefixes "context: " to the message and keeps the rest. Returns -err->errnum. */
int error_wrap(struct error *err, const char *format, ...) _printf_(2, 3);
