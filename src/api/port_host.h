/* Host names of sandboxes' ports: `<port>-<sandbox id>.<domain>`. Pure: a Host or Origin header is
 * read, nothing is looked up. */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/id.h"
#include "base/span.h"

#define PORT_HOST_SIZE 384 /* of a formatted name, its port and its NUL */

enum port_host_kind {
    PORT_HOST_OUTSIDE, /* not below the domain: the API itself */
    PORT_HOST_PORT,    /* a port of a sandbox */
    PORT_HOST_UNKNOWN, /* below the domain and nothing that we serve */
};

struct port_host {
    uint16_t port;
    char sandbox_id[ID_SIZE];
};

/* Reads a Host header's value, with or without `:PORT` and a final dot, in any case. The domain
 * itself is outside; an empty one makes everything so. ret_host is filled for PORT_HOST_PORT. */
enum port_host_kind
port_host_parse(struct span host, const char *domain, struct port_host *ret_host);
/* The decimal port of a path or a name: 1 to 65535 without leading zeros. 0 or -EINVAL. */
int port_number_parse(struct span text, uint16_t *ret_port) _must_check_;
/* Whether a URL's host is below the domain, where only sandboxes may be. */
bool port_host_is_below(struct span url, const char *domain);
/* Whether an Origin header's value is a page of this port of this sandbox. */
bool port_host_is_origin(const struct port_host *host, struct span origin, const char *domain);
