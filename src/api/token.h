/* Tokens: what a browser or a helper gets instead of a key.
 *
 * A token is stateless: "spt_" and the base64url of a payload with its HMAC-SHA256 under a secret
 * of the store. It opens one thing (a sandbox, a session or a port), for reading or writing, until
 * it expires, and only while the key behind it is good. Who holds it may have it renewed within the
 * same bounds until `renew_until`, a day after a key had the first one made.
 *
 * Payload, little-endian: version u8 (1), kind u8, access u8 (0 read, 1 write), port u16,
 * expires_at u64, renew_until u64 (milliseconds since 1970 UTC), then the 18 characters after the
 * kind of the key's id, the sandbox's id and, for a session, the session's id. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/id.h"
#include "base/span.h"

#define TOKEN_SECRET_SIZE    32
#define TOKEN_TEXT_SIZE      160
#define TOKEN_TTL_MAX_MS     86400000
#define TOKEN_TTL_DEFAULT_MS 300000

enum token_kind {
    TOKEN_SANDBOX = 1,
    TOKEN_SESSION = 2,
    TOKEN_PORT = 3,
};

struct token {
    enum token_kind kind;
    bool may_write;
    uint16_t port; /* of a port's token, else 0 */
    char key_id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    char session_id[ID_SIZE]; /* of a session's token, else "" */
    int64_t expires_at;
    int64_t renew_until;
};

/* "session" and so on. */
const char *token_kind_name(enum token_kind kind);
/* Whether a credential has the form of a token rather than of a key. */
bool token_is_token(const char *text);
/* Signs. The token must be well-formed. 0 or -ENOMEM. */
int token_format(const uint8_t secret[TOKEN_SECRET_SIZE],
                 const struct token *token,
                 char out[TOKEN_TEXT_SIZE]) _must_check_;
/* Checks form and signature, not the time. 0 or -EBADMSG. */
int token_parse(const uint8_t secret[TOKEN_SECRET_SIZE], const char *text, struct token *ret_token)
    _must_check_;
/* The payload alone. 0 or -EBADMSG. */
int token_parse_payload(struct span payload, struct token *ret_token) _must_check_;
