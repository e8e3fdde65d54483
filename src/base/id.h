/* Identifiers: two letters of kind and 18 base-32 characters (lower-case letters and digits).
 *
 * Process and session ids begin with the same 8 characters as their sandbox's id, so that the API
 * can find the sandbox of a session without a table of sessions. Clients must not rely on it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define ID_LENGTH      20
#define ID_SIZE        (ID_LENGTH + 1)
#define ID_SHARD_CHARS 8 /* of a sandbox's id, repeated in its processes' and sessions' ids */

/* Fills out with a fresh id of this kind ("sb", "op", …). 0 or -errno from getrandom. */
int id_make(const char *kind, char out[ID_SIZE]);
/* The same, with the first ID_SHARD_CHARS characters after the kind taken from owner_id. */
int id_make_within(const char *kind, const char *owner_id, char out[ID_SIZE]);
/* Whether text has the form of an id of this kind. */
bool id_is_valid(const char *text, const char *kind);
/* Cryptographic random bytes. 0 or -errno. */
int random_bytes(void *out, size_t n);
