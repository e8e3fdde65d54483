#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

struct error_code_row {
    const char *name;
    int status;
    int errnum;
    bool retryable;
    const char *detail_key;
};

static const struct error_code_row error_codes[ERROR_CODE_COUNT] = {
    [ERROR_NONE] = {"none", 200, 0, false, NULL},
    [ERROR_INVALID_REQUEST] = {"invalid_request", 400, EINVAL, false, "field"},
    [ERROR_UNAUTHORIZED] = {"unauthorized", 401, EACCES, false, NULL},
    [ERROR_FORBIDDEN] = {"forbidden", 403, EPERM, false, NULL},
    [ERROR_NOT_FOUND] = {"not_found", 404, ENOENT, false, "resource"},
    [ERROR_METHOD_NOT_ALLOWED] = {"method_not_allowed", 405, ENOTSUP, false, NULL},
    [ERROR_CONFLICT] = {"conflict", 409, EEXIST, false, "field"},
    [ERROR_IDEMPOTENCY_CONFLICT] = {"idempotency_conflict", 409, EEXIST, false, NULL},
    [ERROR_FAILED_PRECONDITION] = {"failed_precondition", 409, EBUSY, false, "state"},
    [ERROR_LIMIT_EXCEEDED] = {"limit_exceeded", 409, EDQUOT, false, "limit"},
    [ERROR_GONE] = {"gone", 410, ESTALE, false, "resource"},
    [ERROR_PAYLOAD_TOO_LARGE] = {"payload_too_large", 413, EMSGSIZE, false, "field"},
    [ERROR_RANGE_NOT_SATISFIABLE] = {"range_not_satisfiable", 416, ERANGE, false, NULL},
    [ERROR_RATE_LIMITED] = {"rate_limited", 429, EAGAIN, true, "limit"},
    [ERROR_INTERNAL] = {"internal", 500, EIO, false, "reason"},
    [ERROR_BAD_GATEWAY] = {"bad_gateway", 502, ECONNREFUSED, true, NULL},
    [ERROR_CAPACITY_UNAVAILABLE] = {"capacity_unavailable", 503, ENOMEM, true, "reason"},
    [ERROR_SERVICE_UNAVAILABLE] = {"service_unavailable", 503, EAGAIN, true, "reason"},
    [ERROR_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504, ETIMEDOUT, true, "reason"},
    [ERROR_STORAGE_FULL] = {"storage_full", 507, ENOSPC, false, NULL},
};

static const struct error_code_row *error_code_row(enum error_code code)
{
    if ((unsigned int)code >= ERROR_CODE_COUNT) {
        return &error_codes[ERROR_INTERNAL];
    }
    return &error_codes[code];
}

const char *error_code_name(enum error_code code)
{
    return error_code_row(code)->name;
}

int error_code_status(enum error_code code)
{
    return error_code_row(code)->status;
}

bool error_code_is_retryable(enum error_code code)
{
    return error_code_row(code)->retryable;
}

const char *error_code_detail_key(enum error_code code)
{
    return error_code_row(code)->detail_key;
}

enum error_code error_code_find(const char *name)
{
    for (int i = ERROR_INVALID_REQUEST; i < ERROR_CODE_COUNT; i++) {
        if (strcmp(error_codes[i].name, name) == 0) {
            return (enum error_code)i;
        }
    }
    return ERROR_NONE;
}

_printf_(2, 0) static void error_fill(struct error *err, const char *format, va_list args)
{
    (void)vsnprintf(err->message, sizeof(err->message), format, args);
    for (char *p = err->message; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            *p = ' ';
        }
    }
}

int error_set(struct error *err, int errnum, const char *format, ...)
{
    if (err != NULL) {
        va_list args;

        err->code = ERROR_INTERNAL;
        err->errnum = errnum;
        err->shows_errno = false;
        err->field[0] = '\0';
        va_start(args, format);
        error_fill(err, format, args);
        va_end(args);
    }
    return -errnum;
}

static void error_begin(struct error *err, enum error_code code, const char *field, int errnum)
{
    err->code = code;
    err->errnum = errnum;
    err->shows_errno = false;
    (void)snprintf(err->field, sizeof(err->field), "%s", field != NULL ? field : "");
}

int error_set_errno(
    struct error *err, enum error_code code, const char *field, int errnum, const char *format, ...)
{
    if (err != NULL) {
        va_list args;

        error_begin(err, code, field, errnum);
        err->shows_errno = true;
        va_start(args, format);
        error_fill(err, format, args);
        va_end(args);
    }
    return -errnum;
}

int error_set_code(
    struct error *err, enum error_code code, const char *field, const char *format, ...)
{
    int errnum = error_code_row(code)->errnum;

    if (err != NULL) {
        va_list args;

        error_begin(err, code, field, errnum);
        va_start(args, format);
        error_fill(err, format, args);
        va_end(args);
    }
    return -errnum;
}

int error_wrap(struct error *err, const char *format, ...)
{
    char inner[sizeof(err->message)];
    char prefix[sizeof(err->message)];
    va_list args;

    if (err == NULL) {
        return -EIO;
    }
    (void)snprintf(inner, sizeof(inner), "%s", err->message);
    va_start(args, format);
    (void)vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    (void)snprintf(err->message, sizeof(err->message), "%.150s: %.165s", prefix, inner);
    return -(err->errnum != 0 ? err->errnum : EIO);
}
