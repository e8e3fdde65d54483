/* How many sandboxes come up from a checkpoint at once.
 *
 * A fork asks for up to a hundred in one moment. Each takes a VMM of its own, checks and fills its
 * memory, and wakes a guest whose first answers cost the most: more of them at once than there are
 * processors make each of them slower, up to its deadlines, and none of them sooner. Those that
 * wait are `creating`, in the order in which they came, and can be deleted. */
#pragma once

#include <stdbool.h>

#include "base/list.h"

struct sandbox;

/* Of a sandbox. */
struct restore_turn {
    struct list link;
    void (*go)(struct sandbox *sb); /* NULL: it has neither a place nor a turn */
    bool has_place;
};

/* Calls go(sb) when there is a place for it: now, or from inside of a restore_gate_leave. */
void restore_gate_enter(struct sandbox *sb, void (*go)(struct sandbox *sb));
/* It is there, or going: its place, or its turn, is others'. Of one that has none: nothing. */
void restore_gate_leave(struct sandbox *sb);
