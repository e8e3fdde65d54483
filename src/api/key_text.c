#include "api/key_text.h"

#include <openssl/sha.h>

#define KEY_PREFIX        "space_"
#define KEY_PREFIX_LENGTH 6
#define KEY_RANDOM        (KEY_TEXT_LENGTH - KEY_PREFIX_LENGTH)

static const char key_alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

int key_text_make(char out[KEY_TEXT_SIZE])
{
    uint8_t random[KEY_RANDOM];
    int r = random_bytes(random, sizeof(random));

    if (r < 0) {
        return r;
    }
    memcpy(out, KEY_PREFIX, KEY_PREFIX_LENGTH);
    for (size_t i = 0; i < KEY_RANDOM; i++) {
        out[KEY_PREFIX_LENGTH + i] = key_alphabet[random[i] & 31U];
    }
    out[KEY_TEXT_LENGTH] = '\0';
    explicit_bzero(random, sizeof(random));
    return 0;
}

bool key_text_is_valid(const char *text)
{
    return strnlen(text, KEY_TEXT_SIZE) == KEY_TEXT_LENGTH &&
           strncmp(text, KEY_PREFIX, KEY_PREFIX_LENGTH) == 0 &&
           strspn(&text[KEY_PREFIX_LENGTH], key_alphabet) == KEY_RANDOM;
}

void key_text_hash(const char *text, uint8_t out[KEY_HASH_SIZE])
{
    (void)SHA256((const unsigned char *)text, strlen(text), out);
}
