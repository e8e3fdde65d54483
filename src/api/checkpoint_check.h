/* Compares the checkpoints of the store with those of the node whenever the node is connected anew:
 * after a restore of the one or the other they may differ. What the store has never known is
 * removed from the node when it is a minute old; what the node lacks is lost, and not shown, until
 * the node has it again. */
#pragma once

struct api;
struct checkpoint_check;

struct checkpoint_check *checkpoint_check_new(struct api *api);
void checkpoint_check_free(struct checkpoint_check *check);
/* Asks the node; failures are left for the next time. */
void checkpoint_check_start(struct checkpoint_check *check);
