/* The control group that this process is in, which others made: systemd, a container, an operator.
 * What it may still use is limited by each group above it too. */
#pragma once

#include <stdint.h>

#include "base/span.h"

#define CGROUP_OWN_TEXT_MAX 16384U /* of /proc/self/cgroup */

/* Bytes that the group and those above it leave, the cache of files not counted as used: the least
 * of all; UINT64_MAX where none is limited, or none can be read. root: "/sys/fs/cgroup"; self: as
 * /proc/self/cgroup has it. Reads a few small files for each level. */
uint64_t cgroup_own_room(const char *root, struct span self);
