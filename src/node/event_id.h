/* Ids of server-sent events, as clients give them back (Last-Event-ID, `after`). Clients take them
 * as opaque; what they send is anything. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"

#define EVENT_ID_SIZE 64

/* Of a session: how far both streams had come, and which of the fixed events. "OUT-ERR-PHASE". */
struct output_event_id {
    uint64_t at[2]; /* up to INT64_MAX */
    unsigned int phase;
};

/* Of a watch: which watch it was, and how many events it had. "NAME-POSITION". */
struct watch_event_id {
    uint64_t name;
    uint64_t position;
};

/* 0 or -EBADMSG. */
int output_event_id_parse(const char *text, unsigned int phase_max, struct output_event_id *ret_id)
    _must_check_;
void output_event_id_format(const struct output_event_id *id, char out[EVENT_ID_SIZE]);
int watch_event_id_parse(const char *text, struct watch_event_id *ret_id) _must_check_;
void watch_event_id_format(const struct watch_event_id *id, char out[EVENT_ID_SIZE]);
