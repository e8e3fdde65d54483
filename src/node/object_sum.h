/* Names of what is in the object store: the SHA-256 of the bytes, as 64 hexadecimal digits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/span.h"

#define OBJECT_SUM_BYTES 32U
#define OBJECT_SUM_TEXT  (2U * OBJECT_SUM_BYTES + 1U)

struct object_sum {
    uint8_t bytes[OBJECT_SUM_BYTES];
};

/* 0 or -ENOMEM. */
int object_sum_of(struct span bytes, struct object_sum *ret) _must_check_;
bool object_sum_equals(const struct object_sum *a, const struct object_sum *b);
void object_sum_format(const struct object_sum *sum, char out[OBJECT_SUM_TEXT]);
/* Exactly 64 small hexadecimal digits. 0 or -EBADMSG. */
int object_sum_parse(struct span text, struct object_sum *ret) _must_check_;
