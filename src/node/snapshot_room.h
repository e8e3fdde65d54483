/* Room on the data volume for captures. Several run at once, and what one is going to write is no
 * smaller free space yet: each has the most that it may write promised first, so that all of them
 * together leave the reserve to the guests that run. Any thread. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "base/error.h"

struct snapshot_room {
    pthread_mutex_t lock;
    uint64_t promised_bytes; /* of captures that are not on stable storage yet */
};

/* 0 or -errno. */
int snapshot_room_init(struct snapshot_room *room) _must_check_;
/* -ENOSPC when the filesystem of dir would have less than reserve_mib left after this and all that
 * was promised before; then, and after another -errno, nothing is promised. */
int snapshot_room_promise(struct snapshot_room *room,
                          const char *dir,
                          uint64_t bytes,
                          uint64_t reserve_mib) _must_check_;
/* Of what was promised; 0 is fine. */
void snapshot_room_give_back(struct snapshot_room *room, uint64_t bytes);
