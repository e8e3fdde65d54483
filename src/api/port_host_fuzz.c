/* Host and Origin headers. */
#include "api/port_host.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char domain[] = "space.localhost";
    struct span text = span_make(data, size);
    struct port_host host = {0};
    struct port_host again = {0};
    char name[PORT_HOST_SIZE];

    (void)port_host_is_origin(&host, text, domain);
    if (port_host_parse(text, domain, &host) != PORT_HOST_PORT) {
        return 0;
    }
    /* What was read is exactly one port of one sandbox, and its name reads the same. */
    if (host.port == 0 || !id_is_valid(host.sandbox_id, "sb")) {
        abort();
    }
    (void)snprintf(name, sizeof(name), "http://%u-%s.%s", host.port, host.sandbox_id, domain);
    if (port_host_parse(span_of_str(&name[7]), domain, &again) != PORT_HOST_PORT ||
        again.port != host.port || strcmp(again.sandbox_id, host.sandbox_id) != 0 ||
        !port_host_is_origin(&host, span_of_str(name), domain)) {
        abort();
    }
    return 0;
}
