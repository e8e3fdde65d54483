#include "node/snapshot_room.h"

#include <assert.h>
#include <errno.h>

#include "node/disk.h"

#define MIB 1048576U

int snapshot_room_init(struct snapshot_room *room)
{
    room->promised_bytes = 0;
    return -pthread_mutex_init(&room->lock, NULL);
}

/* Locked. */
static int promise(struct snapshot_room *room, const char *dir, uint64_t bytes, uint64_t reserve)
{
    uint64_t total_mib;
    uint64_t free_mib;
    uint64_t wanted;
    int r = disk_space(dir, &total_mib, &free_mib);

    if (r < 0) {
        return r;
    }
    if (__builtin_add_overflow(room->promised_bytes, bytes, &wanted) ||
        free_mib < wanted / MIB + reserve + 1) {
        return -ENOSPC;
    }
    room->promised_bytes = wanted;
    return 0;
}

int snapshot_room_promise(struct snapshot_room *room,
                          const char *dir,
                          uint64_t bytes,
                          uint64_t reserve_mib)
{
    int r;

    (void)pthread_mutex_lock(&room->lock);
    r = promise(room, dir, bytes, reserve_mib);
    (void)pthread_mutex_unlock(&room->lock);
    return r;
}

void snapshot_room_give_back(struct snapshot_room *room, uint64_t bytes)
{
    (void)pthread_mutex_lock(&room->lock);
    assert(bytes <= room->promised_bytes);
    room->promised_bytes -= bytes;
    (void)pthread_mutex_unlock(&room->lock);
}
