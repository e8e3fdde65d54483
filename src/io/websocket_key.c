#include "io/websocket_key.h"

#include <errno.h>

#include <openssl/evp.h>
#include <openssl/rand.h>

#define KEY_BYTES  16
#define HASH_BYTES 20 /* of SHA-1, which is no protection here, only proof of having understood */

int websocket_key_make(char out[WEBSOCKET_KEY_SIZE])
{
    uint8_t bytes[KEY_BYTES];

    if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
        return -EIO;
    }
    (void)EVP_EncodeBlock((unsigned char *)out, bytes, sizeof(bytes));
    return 0;
}

bool websocket_key_is_valid(const char *key)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strspn(key, alphabet);

    /* The last digit has four bits too many, which are zero. */
    return n == 22 && strcmp(&key[n], "==") == 0 && strchr("AQgw", key[n - 1]) != NULL;
}

int websocket_key_accept(const char *key, char out[WEBSOCKET_ACCEPT_SIZE])
{
    static const char suffix[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[WEBSOCKET_KEY_SIZE + sizeof(suffix)];
    uint8_t hash[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    int length = snprintf(text, sizeof(text), "%s%s", key, suffix);

    if (length < 0 || (size_t)length >= sizeof(text) ||
        EVP_Digest(text, (size_t)length, hash, &n, EVP_sha1(), NULL) != 1 || n != HASH_BYTES) {
        return -EIO;
    }
    (void)EVP_EncodeBlock((unsigned char *)out, hash, HASH_BYTES);
    return 0;
}
