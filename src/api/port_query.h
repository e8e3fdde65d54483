/* Our tokens in URLs on their way to a sandbox. Pure. */
#pragma once

#include "base/buf.h"
#include "base/span.h"

#define PORT_TOKEN_SIZE 512 /* of a token's text and its NUL; longer is none of ours */

/* Whether text has the form of one of our keys or tokens: such a credential is never handed to a
 * guest, whether it is good or not. What an application itself calls a token is its own. */
bool port_credential_is_ours(struct span text);
/* Copies a query (without '?') leaving out every pair `token=` with a credential of ours; all else
 * stays byte for byte. ret_token gets the first one, decoded, or "". Returns whether any was left
 * out. */
bool port_query_strip(struct span query, struct buf *out, char ret_token[PORT_TOKEN_SIZE]);
/* The same for a whole URL (a Referer's value). */
bool port_url_strip(struct span url, struct buf *out);
