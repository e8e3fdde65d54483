/* Test support: an application in a sandbox, that is, a server on a loopback port whose every byte
 * the test decides. Each connection has a thread of its own. */
#pragma once

#include <stdint.h>

#include "base/buf.h"

struct port_app;

enum port_app_mode {
    PORT_APP_ANSWER, /* reads head and body, sends the answer, closes */
    PORT_APP_HOLD,   /* the same, and keeps the connection until the peer closes */
    PORT_APP_ECHO,   /* reads the head, sends the answer, then echoes until the peer ends */
    PORT_APP_PIPE,   /* echoes from the first byte */
    PORT_APP_SINK,   /* reads a body of any length and answers with its size and sum */
    PORT_APP_FLOOD,  /* sends the answer, then `flood` bytes, closes */
    PORT_APP_EARLY,  /* sends the answer when the head is here, without reading the body */
};

struct port_app *port_app_new(void);
void port_app_free(struct port_app *app);
unsigned int port_app_port(const struct port_app *app);
/* What it does from now on. */
void port_app_set(struct port_app *app, enum port_app_mode mode, const char *answer);
void port_app_set_flood(struct port_app *app, uint64_t bytes);
/* What it read last: head and body. Waits until a request is complete. */
void port_app_last(struct port_app *app, struct buf *out);
/* Waits until all connections have ended, those that it holds by their peers. */
void port_app_wait_idle(struct port_app *app);
/* Connections so far. */
unsigned int port_app_connections(struct port_app *app);
