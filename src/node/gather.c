#include "node/gather.h"

#define PIECE_BYTES  16384U
#define ENOUGH_BYTES 524288U

void gather_note(struct gather *gather, size_t bytes, int64_t now_ms)
{
    if (bytes >= PIECE_BYTES) {
        gather->flooded_ms = now_ms;
    }
}

bool gather_wants(const struct gather *gather,
                  uint64_t unread,
                  uint64_t spool_bytes,
                  int64_t now_ms)
{
    uint64_t enough = spool_bytes / 4 < ENOUGH_BYTES ? spool_bytes / 4 : ENOUGH_BYTES;

    return gather->flooded_ms != 0 && now_ms - gather->flooded_ms < GATHER_MS && unread > 0 &&
           unread < enough;
}
