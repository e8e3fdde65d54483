/* TCP sockets that listen, from /proc/net/tcp and tcp6. */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/span.h"
#include "wire/service_record.h"

struct listener {
    struct service_listener record; /* pid 0 */
    uint64_t inode;
};

/* Lists those of a port (0: all), at most max, IPv4 first. Returns how many; none when the kernel
 * does not tell. */
size_t listeners_read(uint16_t port, struct listener *ret, size_t max);

/* The pure part: one line of the file of that family (4 or 6). 1 a listener, 0 another socket,
 * -EBADMSG none (the title). */
int listener_parse(struct span line, uint8_t family, struct listener *ret) _must_check_;
