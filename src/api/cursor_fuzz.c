/* Cursors: nothing that this installation did not make is taken; what it made comes back. */
#include "api/cursor.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[32] = {0x42};
    char text[128];
    char again[CURSOR_SIZE];
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    int64_t seq = 0;

    memcpy(text, data, n);
    text[n] = '\0';
    if (cursor_parse(secret, 1, text, &seq) == 0) {
        cursor_format(secret, 1, seq, again);
        if (strcmp(text, again) != 0) {
            abort();
        }
    }
    if (n >= 8) {
        int64_t back = 0;

        memcpy(&seq, data, sizeof(seq));
        seq &= INT64_MAX;
        cursor_format(secret, n, seq, again);
        if (seq != 0 && (cursor_parse(secret, n, again, &back) < 0 || back != seq)) {
            abort();
        }
    }
    return 0;
}
