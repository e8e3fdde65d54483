/* Any text is refused unless it is signed, and a payload that is taken comes back as it was. */
#include "api/token.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[TOKEN_SECRET_SIZE] = {1, 2, 3};
    char text[TOKEN_TEXT_SIZE];
    char again[TOKEN_TEXT_SIZE];
    struct token token;
    struct token copy;
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;

    for (size_t i = 0; i < n; i++) {
        text[i] = (char)(data[i] == 0 ? 'A' : data[i]);
    }
    text[n] = '\0';
    if (token_parse(secret, text, &token) == 0) {
        /* Only what was signed by us: the corpus has such ones. */
        if (token_format(secret, &token, again) < 0 || strcmp(text, again) != 0) {
            abort();
        }
    }
    if (token_parse_payload(span_make(data, size), &token) < 0) {
        return 0;
    }
    if (token_format(secret, &token, text) < 0 || token_parse(secret, text, &copy) < 0 ||
        token_format(secret, &copy, again) < 0 || strcmp(text, again) != 0 ||
        copy.expires_at != token.expires_at || strcmp(copy.key_id, token.key_id) != 0) {
        abort();
    }
    return 0;
}
