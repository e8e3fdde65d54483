/* Network namespaces made ahead by workers, so that a create does not wait for one. */
#pragma once

#include "base/cleanup.h"

struct node;
struct netns_pool;

struct netns_lease {
    unsigned int n; /* its name is <installation>-<n> */
    int netns_fd;
    int tap_fd;
};

/* fn comes once, maybe from inside netns_pool_take. n is 0 when none could be made. */
typedef void (*netns_take_fn)(void *arg, const struct netns_lease *lease, const char *problem);

/* NULL for lack of memory. */
struct netns_pool *netns_pool_new(struct node *node, unsigned int target);
/* Begins to fill up to `target` in the background; what an earlier run left must be gone. */
void netns_pool_start(struct netns_pool *pool);
void netns_pool_free(struct netns_pool *pool); /* forgets; names are left for the reaper */
void netns_pool_take(struct netns_pool *pool, netns_take_fn fn, void *arg);
/* Numbers below or equal to n are not used for new ones (adopted ones live there). */
void netns_pool_skip(struct netns_pool *pool, unsigned int n);
void netns_lease_name(const struct node *node, unsigned int n, char *out, size_t size);
