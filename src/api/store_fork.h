/* The children of forks that have not ended, and what became of each so far. With the end of the
 * fork its result has all of it, and they go. */
#pragma once

#include "api/store.h"
#include "base/id.h"

struct fork_child {
    char sandbox_id[ID_SIZE];
    bool ended;
    char *error; /* JSON object, or NULL: it runs, or has not ended */
};

void fork_children_done(struct fork_child *children, int count);

int store_fork_add(struct store *store,
                   const char *operation_id,
                   int position,
                   const char *sandbox_id,
                   struct error *err) _must_check_;
/* One has come to its end (error NULL: it runs). 1, or 0 when it had ended before, or is none. */
int store_fork_end(struct store *store,
                   const char *operation_id,
                   const char *sandbox_id,
                   const char *error,
                   struct error *err) _must_check_;
/* How many have not ended. */
int store_fork_count_open(struct store *store, const char *operation_id, struct error *err)
    _must_check_;
/* All of them in their order, at most max; how many, or -errno. End them with fork_children_done.
 */
int store_fork_read(struct store *store,
                    const char *operation_id,
                    struct fork_child *ret_children,
                    int max,
                    struct error *err) _must_check_;
int store_fork_remove(struct store *store, const char *operation_id, struct error *err)
    _must_check_;
