/* Test support: the fake node's raw streams. What a sandbox would have on a port is looked for on
 * the same port of this machine's loopback. */
#pragma once

#include <stdbool.h>

#include <jansson.h>

struct http_exchange;
struct loop;

/* Answers 101 and carries the bytes; false when nothing listens there (nothing was answered). */
bool fake_tcp_serve(struct loop *loop, struct http_exchange *exchange, unsigned int port);
/* Whether something listens there. */
bool fake_tcp_listens(unsigned int port);
/* The port as a node's list of ports has it. */
json_t *fake_tcp_describe(unsigned int port);
