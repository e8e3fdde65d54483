#include "api/token.h"

#include <errno.h>
#include <stdio.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/cleanup.h"
#include "base/reader.h"

#define PREFIX        "spt_"
#define PREFIX_LENGTH 4
#define VERSION       1
#define MAC_SIZE      32
#define ID_TAIL       (ID_LENGTH - 2)
#define PAYLOAD_FIXED (5 + 8 + 8 + 2 * ID_TAIL)
#define PAYLOAD_MAX   (PAYLOAD_FIXED + ID_TAIL)
#define RAW_MAX       (PAYLOAD_MAX + MAC_SIZE)

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

_Static_assert(PREFIX_LENGTH + (RAW_MAX * 4 + 2) / 3 < TOKEN_TEXT_SIZE, "a token fits its text");

const char *token_kind_name(enum token_kind kind)
{
    static const char *const names[] = {
        [TOKEN_SANDBOX] = "sandbox", [TOKEN_SESSION] = "session", [TOKEN_PORT] = "port"};

    return names[kind];
}

bool token_is_token(const char *text)
{
    return strncmp(text, PREFIX, PREFIX_LENGTH) == 0;
}

/* ---- base64url without padding ---- */

static void encode(struct span in, char *out)
{
    uint32_t bits = 0;
    unsigned int have = 0;

    for (size_t i = 0; i < in.n; i++) {
        bits = (bits << 8U) | in.p[i];
        for (have += 8; have >= 6; have -= 6) {
            *out++ = alphabet[(bits >> (have - 6)) & 63U];
        }
    }
    if (have > 0) {
        *out++ = alphabet[(bits << (6 - have)) & 63U];
    }
    *out = '\0';
}

/* The number of bytes, or -EBADMSG; only what `encode` makes is taken. */
static int decode(struct span in, uint8_t out[RAW_MAX])
{
    uint32_t bits = 0;
    unsigned int have = 0;
    int n = 0;

    for (size_t i = 0; i < in.n; i++) {
        const char *at = in.p[i] == '\0' ? NULL : strchr(alphabet, in.p[i]);

        if (at == NULL) {
            return -EBADMSG;
        }
        bits = (bits << 6U) | (uint32_t)(at - alphabet);
        have += 6;
        if (have >= 8) {
            if (n == RAW_MAX) {
                return -EBADMSG;
            }
            have -= 8;
            out[n++] = (uint8_t)(bits >> have);
        }
    }
    return have >= 6 || (bits & ((1U << have) - 1U)) != 0 ? -EBADMSG : n;
}

/* ---- the payload ---- */

static uint8_t *put(uint8_t *to, uint64_t value, unsigned int bytes)
{
    for (unsigned int i = 0; i < bytes; i++) {
        *to++ = (uint8_t)(value >> (8 * i));
    }
    return to;
}

static uint8_t *put_id(uint8_t *to, const char *id)
{
    memcpy(to, &id[2], ID_TAIL);
    return &to[ID_TAIL];
}

static size_t write_payload(const struct token *token, uint8_t out[PAYLOAD_MAX])
{
    uint8_t *to = put(out, VERSION, 1);

    to = put(to, (uint64_t)token->kind, 1);
    to = put(to, token->may_write ? 1 : 0, 1);
    to = put(to, token->port, 2);
    to = put(to, (uint64_t)token->expires_at, 8);
    to = put(to, (uint64_t)token->renew_until, 8);
    to = put_id(to, token->key_id);
    to = put_id(to, token->sandbox_id);
    if (token->kind == TOKEN_SESSION) {
        to = put_id(to, token->session_id);
    }
    return (size_t)(to - out);
}

static bool get_id(struct reader *r, const char *kind, char out[ID_SIZE])
{
    struct span tail = reader_get_bytes(r, ID_TAIL);

    if (tail.n != ID_TAIL) {
        return false;
    }
    memcpy(out, kind, 2);
    memcpy(&out[2], tail.p, ID_TAIL);
    out[ID_LENGTH] = '\0';
    return id_is_valid(out, kind);
}

int token_parse_payload(struct span payload, struct token *ret_token)
{
    struct reader r = reader_make(payload);
    struct token t = {0};
    uint8_t version = reader_get_u8(&r);
    uint8_t kind = reader_get_u8(&r);
    uint8_t access = reader_get_u8(&r);
    uint64_t expires_at;
    uint64_t renew_until;

    t.port = reader_get_u16(&r);
    expires_at = reader_get_u64(&r);
    renew_until = reader_get_u64(&r);
    if (version != VERSION || kind < TOKEN_SANDBOX || kind > TOKEN_PORT || access > 1 ||
        (t.port != 0) != (kind == TOKEN_PORT) || expires_at > INT64_MAX ||
        renew_until > INT64_MAX) {
        return -EBADMSG;
    }
    t.kind = (enum token_kind)kind;
    t.may_write = access == 1;
    t.expires_at = (int64_t)expires_at;
    t.renew_until = (int64_t)renew_until;
    if (!get_id(&r, "ky", t.key_id) || !get_id(&r, "sb", t.sandbox_id) ||
        (t.kind == TOKEN_SESSION && !get_id(&r, "se", t.session_id)) || reader_finish(&r) < 0) {
        return -EBADMSG;
    }
    *ret_token = t;
    return 0;
}

/* ---- the whole ---- */

static int sign(const uint8_t *secret, struct span payload, uint8_t out[MAC_SIZE])
{
    unsigned int n = 0;

    return HMAC(EVP_sha256(), secret, TOKEN_SECRET_SIZE, payload.p, payload.n, out, &n) == NULL ||
                   n != MAC_SIZE
               ? -ENOMEM
               : 0;
}

int token_format(const uint8_t secret[TOKEN_SECRET_SIZE],
                 const struct token *token,
                 char out[TOKEN_TEXT_SIZE])
{
    uint8_t raw[RAW_MAX];
    size_t n = write_payload(token, raw);

    if (sign(secret, span_make(raw, n), &raw[n]) < 0) {
        return -ENOMEM;
    }
    (void)snprintf(out, TOKEN_TEXT_SIZE, "%s", PREFIX);
    encode(span_make(raw, n + MAC_SIZE), &out[PREFIX_LENGTH]);
    return 0;
}

int token_parse(const uint8_t secret[TOKEN_SECRET_SIZE], const char *text, struct token *ret_token)
{
    uint8_t raw[RAW_MAX];
    uint8_t mac[MAC_SIZE];
    size_t length = strnlen(text, TOKEN_TEXT_SIZE);
    struct span payload;
    int n;

    if (length >= TOKEN_TEXT_SIZE || !token_is_token(text)) {
        return -EBADMSG;
    }
    n = decode(span_make(&text[PREFIX_LENGTH], length - PREFIX_LENGTH), raw);
    if (n < PAYLOAD_FIXED + MAC_SIZE) {
        return -EBADMSG;
    }
    payload = span_make(raw, (size_t)n - MAC_SIZE);
    if (sign(secret, payload, mac) < 0 || CRYPTO_memcmp(mac, &raw[payload.n], MAC_SIZE) != 0) {
        return -EBADMSG;
    }
    return token_parse_payload(payload, ret_token);
}
