/* Listening sockets for host programs. */
#pragma once

#include <sys/types.h>

#include "base/error.h"

#define LISTEN_BACKLOG 1024

/* Listens on "ADDRESS:PORT" or "[V6]:PORT" (numeric; port 0 lets the kernel choose). Returns a
 * non-blocking descriptor; a port in use is -EADDRINUSE with a message that names it. */
int listen_tcp(const char *address, struct error *err) _must_check_;
/* Listens on a unix socket with this mode and group (-1: unchanged). A path where nobody answers
 * is replaced in one step, one that answers is -EADDRINUSE. Returns a non-blocking descriptor. */
int listen_unix(const char *path, mode_t mode, gid_t group, struct error *err) _must_check_;
