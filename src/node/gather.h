/* When a reader does better to wait for more.
 *
 * In the middle of a flood one that keeps up would be sent each piece as it comes from the guest,
 * and most of the processor's time would go into handing them on. A flood is known by its pieces:
 * the agent gathers what a busy pipe holds, everything else comes in small ones. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATHER_MS 8 /* the longest that anything waits */

struct gather {
    int64_t flooded_ms; /* when the last large piece came; zeroed: never */
};

/* A piece of output came. The clock is any that does not go back. */
void gather_note(struct gather *gather, size_t bytes, int64_t now_ms);
/* Whether a reader with so much unread waits. Output is dropped beyond `spool_bytes`, so it never
 * waits for more than a part of that. */
bool gather_wants(const struct gather *gather,
                  uint64_t unread,
                  uint64_t spool_bytes,
                  int64_t now_ms);
