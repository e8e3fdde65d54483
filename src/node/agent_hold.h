/* A conversation that is held: for a guest that was restored, and whose restore may still be taken
 * back. Until the release nothing that the guest's processes say or take gets through, so that
 * another restore of the same snapshot finds every offset where the first one did. */
#pragma once

struct agent;

/* Before agent_begin: its reports are read, and IDENTITY is answered; everything else waits. */
void agent_hold(struct agent *agent);
/* Output and input flow, and what waited leaves. The owners of channels are called from inside.
 * Before the reports have come: as if it had not been held. */
void agent_release(struct agent *agent);
