/* Output of one stream that the host has not acknowledged yet, as frames ready to be written.
 *
 * The bytes of a process are read straight into a chunk, behind room for the head of an OUTPUT
 * frame, and written to the port from there: no copy for bulk. A chunk is one frame. Small reads
 * are copied into a chunk of their size, or join the last chunk while that was not sent.
 *
 *   start ............ next ............ end        offsets in the stream
 *   | acknowledged -> |                 |
 *   +---- sent -------+---- unsent -----+           all of it kept; end - start <= AGENT_WINDOW
 *
 * Memory: one pool for all streams with a budget; over it, a stream keeps only a little. */
#pragma once

#include "base/list.h"
#include "base/span.h"
#include "wire/agent_limits.h"

struct kept_chunk;

struct kept_pool {
    struct kept_chunk *scratch; /* a full-size chunk, so that a read always has a place to go */
    struct list spare;          /* full-size chunks for reuse */
    size_t n_spare;
    size_t bytes; /* allocated for kept output, all streams together */
    size_t budget;
};

struct kept {
    struct list chunks;
    struct kept_chunk *unsent; /* the first chunk with bytes at or after next; NULL when none */
    uint64_t start;
    uint64_t next;
    uint64_t end;
    size_t n_chunks;
};

void kept_pool_init(struct kept_pool *p, size_t budget);
void kept_pool_done(struct kept_pool *p);

void kept_init(struct kept *k);
/* Frees everything it keeps; the offsets stay. */
void kept_clear(struct kept *k, struct kept_pool *p);

/* Where the next bytes of the stream may be read to, and how many. NULL (and 0) while the window
 * is full or memory is short. */
uint8_t *kept_reserve(struct kept *k, struct kept_pool *p, size_t *ret_room);
/* n > 0 bytes were put at kept_reserve's place. `flows`: they will be sent at once. */
void kept_commit(struct kept *k, struct kept_pool *p, size_t n, bool flows);
/* A place for bytes that nobody wants. NULL when memory is short. */
uint8_t *kept_dustbin(struct kept_pool *p, size_t *ret_room);

static inline bool kept_has_unsent(const struct kept *k)
{
    return k->next < k->end;
}

/* The next OUTPUT frame, whole, valid until the stream is acknowledged or cleared. Only when
 * kept_has_unsent. kept_advance counts it as sent. */
struct span kept_frame(struct kept *k, uint32_t channel, uint8_t stream);
void kept_advance(struct kept *k);

/* The host keeps everything before offset. -EBADMSG when offset was never sent. */
int kept_acknowledge(struct kept *k, struct kept_pool *p, uint64_t offset);
/* Send again from offset (clamped to what is kept); what is before it counts as acknowledged. */
void kept_resume(struct kept *k, struct kept_pool *p, uint64_t offset);
/* A new conversation: everything kept counts as unsent. */
void kept_rewind(struct kept *k);
