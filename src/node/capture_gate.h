/* How many captures there are at once.
 *
 * Rules may have hundreds of sandboxes suspended in one moment. Each capture synchronises a guest
 * and writes its memory, so they go one after the other: what waits runs on as before, and can be
 * deleted. What somebody has asked for goes before what a rule wants, unless the guest did not fall
 * silent for the last one.
 *
 * A guest that is busy may take long to fall silent, and keeps its place for a short time only.
 * Once it is silent it goes before all others. */
#pragma once

#include "base/cleanup.h"

#define CAPTURES_MAX 2U
/* More than a guest takes that freezes its processes as long as it may. */
#define CAPTURE_PATIENCE_MS 6000

struct sandbox;
struct sandbox_capture;

/* Sets c->sb and c->node. 0 or -ENOMEM. */
int capture_gate_init(struct sandbox_capture *c, struct sandbox *sb) _must_check_;
/* Calls go(c->sb) when there is a place for c: now, or from inside of a capture_gate_leave. */
void capture_gate_enter(struct sandbox_capture *c, void (*go)(struct sandbox *sb));
/* The guest is being asked to fall silent: c's place goes to others if that takes long. */
void capture_gate_ask(struct sandbox_capture *c);
/* It is silent: calls go(c->sb) when there is a place for c, now if it still has its own. */
void capture_gate_answered(struct sandbox_capture *c, void (*go)(struct sandbox *sb));
/* Gives its place, or its turn, to others. Of one that never entered: nothing. */
void capture_gate_leave(struct sandbox_capture *c);
