/* Adoption of living sandboxes at the start, and reaping of what belongs to nobody. */
#pragma once

#include "base/error.h"

struct node;

/* done comes once, later: when the reaper is through and every adopted agent has answered, or some
 * seconds have passed. No VM may be started before. */
int adopt_all(struct node *node, void (*done)(void *arg), void *arg, struct error *err)
    _must_check_;
