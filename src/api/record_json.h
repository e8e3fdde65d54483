/* Records as the public API shows them. All return a new reference, NULL without memory. */
#pragma once

#include <jansson.h>

#include "api/store_checkpoint.h"
#include "api/store_key.h"
#include "api/store_operation.h"
#include "api/store_sandbox.h"

json_t *sandbox_json(const struct sandbox *sandbox);
json_t *operation_json(const struct operation *operation);
json_t *checkpoint_json(const struct checkpoint *checkpoint);
json_t *key_json(const struct key_record *key);
/* A time, or null for 0. */
json_t *time_json(int64_t real_ms);
/* The object as stored in operations.error for an error envelope: its "error" without request_id.
 */
char *error_text_of_envelope(const json_t *envelope);
char *error_text(const struct error *err);
