#include "api/cursor.h"

#include <errno.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

/* 20 bytes: the position (8) and the head of an HMAC-SHA256 (12), in hexadecimal. */
#define CURSOR_BYTES (CURSOR_LENGTH / 2)
#define CURSOR_MAC   (CURSOR_BYTES - 8)

static const char hex_digits[] = "0123456789abcdef";

static void put_be(uint8_t out[8], uint64_t v)
{
    for (unsigned int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(v >> (56U - 8U * i));
    }
}

static uint64_t get_be(const uint8_t in[8])
{
    uint64_t v = 0;

    for (unsigned int i = 0; i < 8; i++) {
        v = (v << 8U) | in[i];
    }
    return v;
}

/* FNV-1a: only binds cursors to filters; the code below is what cannot be made up. */
static uint64_t hash_text(uint64_t h, const char *text)
{
    const char *p = text;

    do {
        h = (h ^ (uint8_t)*p) * 0x100000001b3ULL;
    } while (*p++ != '\0');
    return h;
}

uint64_t cursor_scope(const char *list, const struct query *query)
{
    uint64_t h = hash_text(0xcbf29ce484222325ULL, list);

    for (size_t i = 0; i < query->count; i++) {
        const char *name = query->items[i].name;

        if (strcmp(name, "cursor") != 0 && strcmp(name, "limit") != 0 &&
            strcmp(name, "fields") != 0) {
            h = hash_text(hash_text(h, name), query->items[i].value);
        }
    }
    return h;
}

static void
make_code(const uint8_t secret[32], uint64_t scope, int64_t seq, uint8_t out[CURSOR_BYTES])
{
    uint8_t message[16];
    uint8_t mac[EVP_MAX_MD_SIZE] = {0};
    unsigned int n = sizeof(mac);

    put_be(message, scope);
    put_be(&message[8], (uint64_t)seq);
    (void)HMAC(EVP_sha256(), secret, 32, message, sizeof(message), mac, &n);
    memcpy(out, &message[8], 8);
    memcpy(&out[8], mac, CURSOR_MAC);
}

void cursor_format(const uint8_t secret[32], uint64_t scope, int64_t seq, char out[CURSOR_SIZE])
{
    uint8_t bytes[CURSOR_BYTES];

    make_code(secret, scope, seq, bytes);
    for (size_t i = 0; i < CURSOR_BYTES; i++) {
        out[2 * i] = hex_digits[bytes[i] >> 4U];
        out[2 * i + 1] = hex_digits[bytes[i] & 15U];
    }
    out[CURSOR_LENGTH] = '\0';
}

int cursor_parse(const uint8_t secret[32], uint64_t scope, const char *text, int64_t *ret_seq)
{
    uint8_t bytes[CURSOR_BYTES];
    uint8_t expected[CURSOR_BYTES];
    uint64_t seq;

    if (strnlen(text, CURSOR_SIZE) != CURSOR_LENGTH) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < CURSOR_BYTES; i++) {
        const char *high = strchr(hex_digits, text[2 * i]);
        const char *low = strchr(hex_digits, text[2 * i + 1]);

        if (high == NULL || low == NULL) {
            return -EBADMSG;
        }
        bytes[i] = (uint8_t)(((high - hex_digits) << 4U) | (low - hex_digits));
    }
    seq = get_be(bytes);
    if (seq == 0 || seq > INT64_MAX) {
        return -EBADMSG;
    }
    make_code(secret, scope, (int64_t)seq, expected);
    if (CRYPTO_memcmp(bytes, expected, CURSOR_BYTES) != 0) {
        return -EBADMSG;
    }
    *ret_seq = (int64_t)seq;
    return 0;
}
