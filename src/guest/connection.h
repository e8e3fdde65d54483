/* The service `connect`: a TCP connection to a port of this guest, by the agent's loop.
 *
 * state        from                    to
 * connecting   start                   open, or refused when no address is left
 * open         an address answered     half open when the port closes its direction first
 * half open    the end was told        ended when the input is closed too
 * (any)                                cut by a reset, FORGET and HELLO
 *
 * What the host sends waits in the channel's input until it is open. Once open, the socket belongs
 * to the channel's stream, and a duplicate of it to its input. */
#pragma once

#include "guest/channel.h"

/* Begins to connect to a port (decimal). The answer, refusals included, is in the channel's output.
 * 0, or -errno when nothing was begun. */
int connection_start(struct channel *c, struct span port, bool with_input) _must_check_;
/* The port closed its direction, or the connection failed. */
void connection_on_output_end(struct channel *c);
/* Something became of the input: ends the service when both directions are closed. Any channel. */
void connection_on_input(struct channel *c);
/* Ends it at once. Unless all input was delivered, the other end sees a reset and no end. */
void connection_cut(struct channel *c);
/* When the channel is freed. */
void connection_free(struct channel *c);
