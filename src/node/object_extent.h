/* Where two files of a filesystem that clones may differ: everywhere but where they have the same
 * blocks of it at the same place. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"

/* Calls fn with ranges of [0, bytes), ascending; what is in none of them is equal. Neither file may
 * change meanwhile. Without knowledge of blocks (another filesystem) one range is all of it. Stops
 * at fn's first -errno. */
typedef int (*object_extent_fn)(void *arg, uint64_t offset, uint64_t bytes);
int object_extent_differences(int fd, int other_fd, uint64_t bytes, object_extent_fn fn, void *arg)
    _must_check_;
