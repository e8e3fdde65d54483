/* The node's feed of sandboxes, set against the store: the store says which sandboxes there shall
 * be, the node what has become of them. See docs/node-protocol.md, "How space-api stays right". */
#pragma once

#include "base/span.h"

struct api;
struct feed;

struct feed *feed_new(struct api *api);
void feed_free(struct feed *feed);
/* A new stream begins: forgets what the last one has shown. */
void feed_begin(struct api *api);
/* One `sandbox` event. 0 or -errno, which ends the stream. */
/* The same of a checkpoint that is in the object store. */
int feed_on_checkpoint(struct api *api, struct span data);
int feed_on_sandbox(struct api *api, struct span data, bool synced);
/* All sandboxes have been shown: what the store has and the node has not is marked. */
int feed_on_synced(struct api *api);
/* The link is ready: sends what waits, asks for what must go. */
void feed_after_synced(struct api *api);
