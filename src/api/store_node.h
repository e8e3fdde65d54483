/* What the store knows of nodes: whether one is to be drained, and in which states its sandboxes
 * are. One node serves an installation, so that its sandboxes are all there are, by whatever name
 * it had when they were made. */
#pragma once

#include <stdint.h>

#include "api/store_sandbox.h"

struct store_node {
    int64_t drain_at;   /* when a drain was asked for; 0: it is not to be drained */
    int64_t drained_at; /* since when nothing runs there; 0: something does, or nobody looked */
};

struct store_node_sandbox {
    int64_t seq;
    char id[ID_SIZE];
};

/* One that has no row is not to be drained. */
int store_node_get(struct store *store,
                   const char *name,
                   struct store_node *ret_node,
                   struct error *err) _must_check_;
int store_node_set(struct store *store,
                   const char *name,
                   const struct store_node *node,
                   struct error *err) _must_check_;
/* How many living sandboxes are in each state. Looks at all of them, as store_node_next does over a
 * whole walk: an index by state would cost every change of state, and the planner would prefer it
 * to those of the rules. */
int store_node_count(struct store *store,
                     int64_t ret_counts[SANDBOX_STATE_COUNT],
                     struct error *err) _must_check_;
/* The first living sandbox above `after` that runs, is paused, or is on its way between these and
 * suspended: 1, 0 when there is no more, -errno. */
int store_node_next(struct store *store,
                    int64_t after,
                    struct store_node_sandbox *ret_sandbox,
                    struct error *err) _must_check_;
