/* Every commit of the store is a step (base/step.h), named after what it changes: "commit update
 * sandboxes, insert operations", and "committed ..." behind it. */
#pragma once

#include <sqlite3.h>

/* When somebody watches; else nothing. */
void store_step_watch(sqlite3 *db);
/* From the hook that tells of a commit. */
void store_step_committed(void);
