/* Idle rules: what is carried out when nobody has used a running sandbox for a while.
 *
 * The record says when a rule may be due (active_at and idle_timeout). Before it is carried out
 * nothing may be open here (calls that need the guest, connections to it), and the node is asked,
 * which alone knows of output and of what is typed into terminals. Never early, within a second. */
#pragma once

#include <stdint.h>

struct api;

/* Begins with those that are due. */
void idle_check(struct api *api, int64_t now);
/* Drops what is under way: the program ends. */
void idle_done(struct api *api);
