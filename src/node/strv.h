/* A list of strings that grows, for command lines: NULL-terminated, the first failure sticks. */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"

#define STRV_MAX 128U

struct strv {
    char *items[STRV_MAX + 1];
    size_t count;
    int error;
};

#define _cleanup_strv_ _cleanup_(strv_done)

/* 0 or -ENOMEM, -E2BIG (sticky in error). */
void strv_add(struct strv *v, const char *format, ...) _printf_(2, 3);
void strv_done(struct strv *v);
