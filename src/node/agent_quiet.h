/* Inside the host end of the agent protocol: what a silence of the guest holds back. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct agent;
struct buf;

/* Whether frames may be queued in a conversation whose reports were read: not behind SILENCE. */
bool agent_is_open(const struct agent *agent);
/* Where a frame goes that a silence delays: `out`, `held`, or NULL for nowhere. */
struct buf *agent_out_or_held(struct agent *agent);
/* Whether a WAKE is what the guest waits for. */
bool agent_is_hushed(const struct agent *agent);
/* The silence is over, or was refused. */
void agent_end_hush(struct agent *agent);
/* Nobody expects answers from now on; and the end of that. */
void agent_begin_quiet(struct agent *agent);
void agent_end_quiet(struct agent *agent);
/* Whether the guest has yet to read a SILENCE that was given up, and the WAKE behind it: what waits
 * for that was never sent, and is no reason to end it. */
bool agent_is_stalled(const struct agent *agent);
/* Whether the guest has yet to read a SILENCE, given up or not, in a VM that runs: what was sent
 * before that is late for the same reason. */
bool agent_is_behind(const struct agent *agent);
/* The command of a START that was given up is killed, if it came to run, when the guest reads on;
 * nobody hears of it. */
void agent_kill_given_up(struct agent *agent, uint32_t channel);
/* SILENCEs whose time is over, and what waits for a stalled guest. Their callers may free the
 * agent: to be called in agent_enter. */
void agent_give_up_requests(struct agent *agent, int64_t now_ms);
void agent_give_up_starts(struct agent *agent, int64_t now_ms);
/* Of one that stands still: an answer to an earlier WAKE says nothing of the time after that. */
void agent_cancel_wakes(struct agent *agent);
/* Moves the deadlines of what has not been sent, or cannot be answered. */
void agent_shift_requests(struct agent *agent, int64_t by_ms);
void agent_shift_channels(struct agent *agent, int64_t by_ms);
