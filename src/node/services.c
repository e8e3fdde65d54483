#include "node/services.h"

#include "node/data.h"
#include "node/node.h"
#include "node/ports.h"
#include "node/sandbox.h"
#include "node/service.h"
#include "node/watch.h"

#define TRANSFERS_WAITING_MAX 256U
#define CALLS_MAX             64U
#define CALLS_WAITING_MAX     1024U

struct services *services_get(struct data *data, struct sandbox *sb)
{
    struct services *services = sandbox_services(sb);

    if (services != NULL) {
        return services;
    }
    services = calloc(1, sizeof(*services));
    if (services == NULL) {
        return NULL;
    }
    services->data = data;
    services->sandbox = sb;
    list_init(&services->open);
    list_init(&services->watches);
    metrics_init(&services->metrics, services);
    if (gate_init(&services->transfers, data->node->loop,
                  (unsigned int)data->node->settings.node_max_transfers,
                  TRANSFERS_WAITING_MAX) < 0) {
        free(services);
        return NULL;
    }
    if (gate_init(&services->calls, data->node->loop, CALLS_MAX, CALLS_WAITING_MAX) < 0) {
        gate_done(&services->transfers);
        free(services);
        return NULL;
    }
    sandbox_set_services(sb, services);
    return services;
}

void services_lose(struct services *services)
{
    metrics_stop(&services->metrics);
    service_cut_all(services);
    gate_flush(&services->transfers);
    gate_flush(&services->calls);
    watches_end(services);
    port_poll_end(services);
}

void services_free(struct services *services)
{
    if (services == NULL) {
        return;
    }
    services_lose(services);
    metrics_done(&services->metrics);
    gate_done(&services->transfers);
    gate_done(&services->calls);
    sandbox_set_services(services->sandbox, NULL);
    free(services);
}
