/* Entries of a guest's filesystem as the API shows them. */
#pragma once

#include <jansson.h>

#include "base/span.h"
#include "wire/service_record.h"

/* The public Entry. NULL without memory. */
json_t *file_entry_describe(const struct service_entry *entry);
/* Sets `key` to the text of a name, and `base64_key` to its bytes when it is no UTF-8, else null.
 * 0 or -1 without memory. */
int file_name_set(json_t *object, const char *key, const char *base64_key, struct span name)
    __attribute__((warn_unused_result));
