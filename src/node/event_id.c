#include "node/event_id.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/span.h"

int output_event_id_parse(const char *text, unsigned int phase_max, struct output_event_id *ret_id)
{
    struct output_event_id id = {.phase = 0};
    struct span all = span_of_str(text);
    size_t first = span_find(all, 0, '-');
    size_t second = first < all.n ? span_find(all, first + 1, '-') : all.n;
    uint64_t phase;

    if (second >= all.n || span_parse_u64(span_head(all, first), INT64_MAX, &id.at[0]) < 0 ||
        span_parse_u64(span_make(&all.p[first + 1], second - first - 1), INT64_MAX, &id.at[1]) <
            0 ||
        span_parse_u64(span_skip(all, second + 1), phase_max, &phase) < 0) {
        return -EBADMSG;
    }
    id.phase = (unsigned int)phase;
    *ret_id = id;
    return 0;
}

void output_event_id_format(const struct output_event_id *id, char out[EVENT_ID_SIZE])
{
    (void)snprintf(out, EVENT_ID_SIZE, "%" PRIu64 "-%" PRIu64 "-%u", id->at[0], id->at[1],
                   id->phase);
}

int watch_event_id_parse(const char *text, struct watch_event_id *ret_id)
{
    struct span all = span_of_str(text);
    size_t dash = span_find(all, 0, '-');

    if (dash >= all.n || span_parse_u64(span_head(all, dash), UINT64_MAX, &ret_id->name) < 0 ||
        span_parse_u64(span_skip(all, dash + 1), UINT64_MAX, &ret_id->position) < 0) {
        return -EBADMSG;
    }
    return 0;
}

void watch_event_id_format(const struct watch_event_id *id, char out[EVENT_ID_SIZE])
{
    (void)snprintf(out, EVENT_ID_SIZE, "%" PRIu64 "-%" PRIu64, id->name, id->position);
}
