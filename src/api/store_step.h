/* Every commit of the store is a step (base/step.h), named after what it changes: "commit update
 * sandboxes, insert operations", and "committed ..." behind it. */
#pragma once

#include <sqlite3.h>

#define STORE_CHANGES_SIZE 100

/* Of a store: what the transaction under way changes. */
struct store_step {
    char changes[STORE_CHANGES_SIZE];
};

/* When somebody watches; else nothing. `s` lives as long as the handle. */
void store_step_watch(sqlite3 *db, struct store_step *s);
/* From the hook that tells of a commit. */
void store_step_committed(struct store_step *s);
