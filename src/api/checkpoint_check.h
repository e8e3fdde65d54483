/* Compares the checkpoints of the store with those of the node whenever the node is connected anew:
 * after a restore of the one or the other they may differ. What the store has never known is
 * removed from the node, at the earliest when it is a minute old and
 * api.unknown_checkpoint_seconds have passed since this process found it: the store may be an older
 * one. What the node lacks is lost, and not shown, until the node has it again. */
#pragma once

struct api;
struct checkpoint_check;

struct checkpoint_check *checkpoint_check_new(struct api *api);
void checkpoint_check_free(struct checkpoint_check *check);
/* Asks the node; failures are left for the next time. */
void checkpoint_check_start(struct checkpoint_check *check);
