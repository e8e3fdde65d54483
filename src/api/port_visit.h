/* Who is at a port because it is public: requests that are being answered and upgraded connections.
 * They end when it is made private. */
#pragma once

#include "api/port_host.h"
#include "base/list.h"

struct port_visit {
    struct list link; /* of all */
    struct port_host at;
    void (*cut)(void *arg);
    void *arg;
};

/* `cut` ends the visit. */
void port_visit_begin(struct port_visit *visit,
                      struct list *visits,
                      const struct port_host *at,
                      void (*cut)(void *arg),
                      void *arg);
/* Also for one that is all zeros and for one that has ended. */
void port_visit_end(struct port_visit *visit);
void port_visits_cut(struct list *visits, const struct port_host *at);
