/* The byte stream to the host: a virtio-serial port, or for tests a Unix socket.
 *
 * Events are edge-triggered: `readable` and `blocked` hold what is known. When the host's end
 * closes, the port is opened anew, which discards what was queued in either direction. */
#pragma once

#include <stdbool.h>

#include <sys/types.h>

#include "base/span.h"
#include "guest/source.h"

struct port {
    struct source source;
    struct source listener; /* test socket by path; -1 otherwise */
    char path[128];
    int epoll_fd;
    bool is_device;
    bool connected; /* the host's end was seen open */
    bool readable;
    bool blocked; /* a write did not fit; an edge will say when to go on */
    bool lost;    /* set when the connection ended; the owner clears it */
    bool gone;    /* it can never come back (an inherited socket that ended) */
};

/* The device whose name is "space.agent" under /sys/class/virtio-ports. 0 or -errno. */
int port_open_device(struct port *p, int epoll_fd) _must_check_;
/* A connected descriptor. */
int port_open_fd(struct port *p, int epoll_fd, int fd) _must_check_;
/* Listens at path; a new connection replaces the one before. */
int port_open_path(struct port *p, int epoll_fd, const char *path) _must_check_;
void port_close(struct port *p);

/* Bytes read; 0 when there is nothing now. */
size_t port_read(struct port *p, uint8_t *to, size_t room);
/* Bytes taken of s; less than all when it does not fit now. Nothing is taken while nobody is
 * connected. */
size_t port_write(struct port *p, struct span s);
