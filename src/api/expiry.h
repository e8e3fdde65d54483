/* What happens by the clock: sandboxes that expire or were suspended for long enough (never early,
 * within a second), records that have been kept long enough, idle ones (idle.h), activity that is
 * written down in batches. */
#pragma once

#include <stdint.h>

#include "api/store_sandbox.h"

struct api;
struct expiry;

struct expiry *expiry_new(struct api *api);
void expiry_free(struct expiry *expiry);
/* Pauses or suspends for the reason in *s, with an operation of its key. */
int expiry_rest(struct api *api,
                const struct sandbox *s,
                enum lifecycle_action action,
                const char *operation_id,
                struct error *err) _must_check_;
/* A sandbox now expires, or is idle for long enough, at this time (0: no longer). */
void expiry_changed(struct api *api, int64_t expires_at);
/* Notes activity of a sandbox: the record gets it within a second, not on the request's path. */
void expiry_touch(struct api *api, const char *sandbox_id);
/* Writes noted activity down now. */
void expiry_flush(struct api *api);
