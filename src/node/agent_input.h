/* Input of all channels of an agent: each has the guest's window, and together they have a queue,
 * so that what waits for a guest has a bound and nothing else waits behind everybody's windows.
 * Used by the agent_*.c files only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/agent_limits.h"

struct agent;

/* More waits at its source until the guest has taken the half of it, then each in turn. */
#define AGENT_INPUT_QUEUE_MAX (4U * AGENT_STDIN_WINDOW)
/* What a channel may send however much of others waits: keystrokes. */
#define AGENT_INPUT_SMALL 512U

struct agent_input {
    bool waits;    /* some channel's stdin_waits */
    uint32_t turn; /* the channel that is told of room now; 0: none */
    uint32_t last; /* the one that was told last */
};

size_t agent_queued(const struct agent *agent); /* bytes that were not written yet */
/* Whether input waits for the queue, and the guest has taken enough for it to go on. */
bool agent_has_input_turn(const struct agent *agent);
/* Lets it go on. false: the agent is gone. */
bool agent_wake_input(struct agent *agent);
