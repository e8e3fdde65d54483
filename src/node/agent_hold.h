/* What is set of a conversation before it begins.
 *
 * One that is held: for a guest that was restored, and whose restore may still be taken
 * back. Until the release nothing that the guest's processes say or take gets through, so that
 * another restore of the same snapshot finds every offset where the first one did. */
#pragma once

struct agent;

/* Before agent_begin: its reports are read, and IDENTITY is answered; everything else waits. */
void agent_hold(struct agent *agent);
/* Output and input flow, and what waited leaves. The owners of channels are called from inside.
 * Before the reports have come: as if it had not been held. */
void agent_release(struct agent *agent);
/* Not every record of an earlier run could be read: whom the guest reports and nobody adopted is
 * forgotten, and not killed as one whose START was given up. Before agent_begin, and for good. */
void agent_spare_unknown(struct agent *agent);
