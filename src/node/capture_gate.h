/* How many captures there are at once.
 *
 * Rules may have hundreds of sandboxes suspended in one moment. Each capture synchronises a guest
 * and writes its memory, so they go one after the other: what waits runs on as before, and can be
 * deleted. What somebody has asked for goes before what a rule wants. */
#pragma once

#define CAPTURES_MAX 2U

struct sandbox;
struct sandbox_capture;

/* Calls go(c->sb) when there is a place for c: now, or from inside of a capture_gate_leave. */
void capture_gate_enter(struct sandbox_capture *c, void (*go)(struct sandbox *sb));
/* Gives its place, or its turn, to others. Of one that never entered: nothing. */
void capture_gate_leave(struct sandbox_capture *c);
