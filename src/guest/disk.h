/* The root filesystem's size. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"

#define DISK_DEVICE "/dev/vda"

/* Grows the mounted ext4 to `bytes` (0, or less than it has: nothing to do). Waits a little for the
 * device to show its new size. 0 or -errno. */
int disk_grow(uint64_t bytes) _must_check_;
