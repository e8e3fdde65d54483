/* Takes secrets out of text that is about to leave the machine.
 *
 * Removed: the literal secrets that the caller knows; API keys and bearer values by their form;
 * values of names that speak of secrets (password, token, secret, credential, authorization,
 * api_key, private), as `name=value`, `name: value` or `"name": "value"`; private keys in PEM.
 * Too much rather than too little: a false hit costs a word of a log. */
#pragma once

#include "base/span.h"

struct buf;

#define REDACT_MARK "[removed]"

/* `secrets` ends with NULL; empty ones are skipped. */
void redact_text(struct span text, const char *const *secrets, struct buf *out);
