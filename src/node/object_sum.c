#include "node/object_sum.h"

#include <errno.h>
#include <stdio.h>

#include <openssl/evp.h>

int object_sum_of(struct span bytes, struct object_sum *ret)
{
    unsigned int n = 0;

    return EVP_Digest(bytes.p, bytes.n, ret->bytes, &n, EVP_sha256(), NULL) == 1 &&
                   n == sizeof(ret->bytes)
               ? 0
               : -ENOMEM;
}

bool object_sum_equals(const struct object_sum *a, const struct object_sum *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void object_sum_format(const struct object_sum *sum, char out[OBJECT_SUM_TEXT])
{
    for (size_t i = 0; i < sizeof(sum->bytes); i++) {
        (void)snprintf(&out[2 * i], 3, "%02x", sum->bytes[i]);
    }
}

static int digit_of(uint8_t c, unsigned int *ret)
{
    if (c >= '0' && c <= '9') {
        *ret = c - (unsigned int)'0';
    } else if (c >= 'a' && c <= 'f') {
        *ret = c - (unsigned int)'a' + 10U;
    } else {
        return -EBADMSG;
    }
    return 0;
}

int object_sum_parse(struct span text, struct object_sum *ret)
{
    struct object_sum sum;

    if (text.n != (size_t)2 * OBJECT_SUM_BYTES) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < sizeof(sum.bytes); i++) {
        unsigned int high;
        unsigned int low;

        if (digit_of(text.p[2 * i], &high) < 0 || digit_of(text.p[2 * i + 1], &low) < 0) {
            return -EBADMSG;
        }
        sum.bytes[i] = (uint8_t)(high << 4U | low);
    }
    *ret = sum;
    return 0;
}
