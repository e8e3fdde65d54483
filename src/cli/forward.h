/* Carries TCP connections of this machine to ports of a sandbox: each accepted connection gets a
 * tunnel of its own. Directions end on their own (half-close), neither side is read faster than the
 * other takes it. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

struct cli;
struct rest;

#define FORWARD_PORTS_MAX       64
#define FORWARD_CONNECTIONS_MAX 512
#define FORWARD_BUFFER_BYTES    262144U /* per direction */

struct forward_port {
    uint16_t local; /* 0: any free one */
    uint16_t remote;
    int listen_fd;
    char address[80]; /* "127.0.0.1:8080", as bound */
};

struct forward {
    struct rest *rest;
    int signal_fd;
    char sandbox_id[ID_SIZE];
    const char *sandbox_word; /* as the user named it, for messages */
    struct forward_port ports[FORWARD_PORTS_MAX];
    size_t port_count;
};

/* Binds and listens on `address` (numeric). */
int forward_listen(struct forward_port *port, const char *address, struct error *err) _must_check_;
/* Runs until a signal (its number is returned), or until the sandbox is gone (negative with err).
 */
int forward_run(struct forward *f, struct error *err) _must_check_;
