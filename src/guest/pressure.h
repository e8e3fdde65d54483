/* Ends a process when the guest has so little memory left that its programs hardly get on.
 *
 * Without swap, the kernel takes the pages of programs before it gives up, and reads them from the
 * disk again and again, for minutes. (Its own protection against that, lru_gen/min_ttl_ms, also
 * ends processes while much is written quickly, down to a panic when none is left.) So the agent
 * watches the time that is lost waiting for memory; when that is much and little memory is
 * available, the kernel's choice of a process is ended. */
#pragma once

#include "base/span.h"
#include "guest/source.h"

struct pressure {
    struct source source;
    uint64_t ended; /* a figure that grows with each process that the kernel ended so */
};

/* Begins to watch. Without the kernel's pressure figures nothing is watched. */
void pressure_open(struct pressure *p, int epoll_fd);
void pressure_close(struct pressure *p);

/* The pure part: whether by this text of /proc/meminfo little is available. */
bool pressure_is_short(struct span meminfo);
