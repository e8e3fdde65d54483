#include "base/id.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <sys/random.h>

/* No i, l, o, u: nothing that reads as another character. */
static const char id_alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

int random_bytes(void *out, size_t n)
{
    uint8_t *p = out;

    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);

        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        p += got;
        n -= (size_t)got;
    }
    return 0;
}

int id_make(const char *kind, char out[ID_SIZE])
{
    uint8_t random[ID_LENGTH - 2];
    int r = random_bytes(random, sizeof(random));

    if (r < 0) {
        return r;
    }
    out[0] = kind[0];
    out[1] = kind[1];
    for (size_t i = 0; i < sizeof(random); i++) {
        out[2 + i] = id_alphabet[random[i] & 31U];
    }
    out[ID_LENGTH] = '\0';
    return 0;
}

int id_make_within(const char *kind, const char *owner_id, char out[ID_SIZE])
{
    int r = id_make(kind, out);

    if (r == 0) {
        memcpy(&out[2], &owner_id[2], ID_SHARD_CHARS);
    }
    return r;
}

bool id_is_valid(const char *text, const char *kind)
{
    if (strnlen(text, ID_SIZE) != ID_LENGTH || strncmp(text, kind, 2) != 0) {
        return false;
    }
    return strspn(&text[2], id_alphabet) == ID_LENGTH - 2;
}
