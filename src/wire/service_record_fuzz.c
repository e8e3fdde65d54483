/* What a service of the guest answers: must not crash, and whatever is accepted must come out again
 * byte for byte. */
#include "wire/service_record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROUNDTRIP(name)                                                                            \
    static int roundtrip_##name(struct span payload, struct buf *b)                                \
    {                                                                                              \
        struct service_##name m;                                                                   \
        int r = service_##name##_parse(payload, &m);                                               \
                                                                                                   \
        if (r == 0) {                                                                              \
            service_##name##_format(b, &m);                                                        \
        }                                                                                          \
        return r;                                                                                  \
    }

ROUNDTRIP(entry)
ROUNDTRIP(error)
ROUNDTRIP(body)
ROUNDTRIP(done)
ROUNDTRIP(change)
ROUNDTRIP(listener)
ROUNDTRIP(sample)

static int (*const roundtrips[])(struct span, struct buf *) = {
    [SERVICE_RECORD_ENTRY] = roundtrip_entry,   [SERVICE_RECORD_ERROR] = roundtrip_error,
    [SERVICE_RECORD_BODY] = roundtrip_body,     [SERVICE_RECORD_DONE] = roundtrip_done,
    [SERVICE_RECORD_CHANGE] = roundtrip_change, [SERVICE_RECORD_LISTENER] = roundtrip_listener,
    [SERVICE_RECORD_SAMPLE] = roundtrip_sample,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = span_make(data, size);
    struct service_record m;
    int used;

    while ((used = service_record_next(rest, &m)) > 0) {
        _cleanup_buf_ struct buf again = buf_make(0);
        struct service_record ignored;

        /* Nothing shorter is a whole record. */
        if (service_record_next(span_head(rest, (size_t)used - 1), &ignored) != 0) {
            abort();
        }
        if (roundtrips[m.type](m.payload, &again) == 0 &&
            !span_equals(buf_span(&again), span_head(rest, (size_t)used))) {
            abort();
        }
        rest = span_skip(rest, (size_t)used);
    }
    return 0;
}
