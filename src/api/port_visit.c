#include "api/port_visit.h"

#include <string.h>

void port_visit_begin(struct port_visit *visit,
                      struct list *visits,
                      const struct port_host *at,
                      void (*cut)(void *arg),
                      void *arg)
{
    visit->at = *at;
    visit->cut = cut;
    visit->arg = arg;
    list_append(visits, &visit->link);
}

void port_visit_end(struct port_visit *visit)
{
    if (visit->cut != NULL) {
        list_remove(&visit->link);
        visit->cut = NULL;
    }
}

void port_visits_cut(struct list *visits, const struct port_host *at)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, visits)
    {
        struct port_visit *visit = list_entry(it, struct port_visit, link);

        if (visit->at.port == at->port && strcmp(visit->at.sandbox_id, at->sandbox_id) == 0) {
            visit->cut(visit->arg);
        }
    }
}
