/* The agent's side of services (docs/agent-protocol.md, section 7): starting them in a child that
 * is a copy of the agent, or in the loop, and ending them. */
#pragma once

#include "guest/agent.h"

/* Begins the service that m names, for plan's user in plan's directory, on a new channel.
 * 0, or -errno with the part that failed (enum agent_start_what): the caller drops the channel. */
int service_start(struct channel *c,
                  const struct agent_start *m,
                  struct spawn_plan *plan,
                  int *ret_what) _must_check_;
/* Part of channel_forget: kills it and frees the channel's number. */
void service_stop(struct channel *c);
/* Part of freeing the channel. */
void service_done(struct channel *c);
/* HELLO: ends all. */
void services_stop(struct agent *a);
