/* What the services of one sandbox share: the list of those that are open, the gates that bound
 * them, its watches, its connections and its metrics. Made with the first use, lives as long as the
 * sandbox's record. */
#pragma once

#include "base/list.h"
#include "node/gate.h"
#include "node/metrics.h"

struct data;
struct port_poll;
struct sandbox;

struct services {
    struct data *data;
    struct sandbox *sandbox;
    struct list open;      /* struct service */
    struct gate transfers; /* node.max_transfers */
    struct gate calls;     /* short ones */
    struct list watches;   /* struct watch */
    unsigned int watch_count;
    unsigned int connection_count;
    struct port_poll *port_poll; /* while somebody waits for a port */
    struct metrics metrics;
};

/* Those of a sandbox; NULL without memory. */
struct services *services_get(struct data *data, struct sandbox *sb);
/* The agent is gone, or the sandbox is going: all of it ends, who waits hears why. */
void services_lose(struct services *services);
void services_free(struct services *services); /* NULL is fine */
