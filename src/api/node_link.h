/* The connection to the node: whether it can serve, its templates, and the feed of its sandboxes.
 *
 * State machine (deadline; exits):
 *   ASKING   5 s for GET /n1/node;          node ready -> FEEDING; else -> WAITING
 *   FEEDING  30 s for the event `synced`;   synced -> READY; the stream ends -> WAITING
 *   READY    45 s without a byte;           the stream ends -> WAITING
 *   WAITING  50 ms doubling up to 2 s;      -> ASKING
 * Requests that need the node run at once in READY, else they wait for it up to their `wait`. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "api/request.h"

struct api;
struct node_link;

/* NULL without memory. It begins to connect at once. */
struct node_link *node_link_new(struct api *api);
void node_link_free(struct node_link *link);
bool node_link_is_ready(const struct node_link *link);
/* What it waits for, for details.waiting_for: ["node"], ["adoption"], …; [] when ready. A new
 * reference. */
json_t *node_link_waiting_for(const struct node_link *link);
/* Runs fn(rq) now or when the node is ready; answers 503 when that takes longer than the request
 * may wait. */
void node_link_need(struct request *rq, request_fn fn);
/* All versions of templates as the node told them last, of each name the current one first
 * (borrowed array, NULL before). */
const json_t *node_link_templates(const struct node_link *link);
/* The current version with this name (borrowed), or NULL. */
const json_t *node_link_find_template(struct node_link *link, const char *name);
/* The same of a version of it; "" is the current one. */
const json_t *node_link_find_version(struct node_link *link, const char *name, const char *version);
/* They have changed: whoever needs them asks anew. */
void node_link_forget_templates(struct node_link *link);
/* Asks the node for its templates anew, then runs fn(rq). Fails the request if that fails. */
void node_link_refresh_templates(struct request *rq, request_fn fn);
