/* Requests for ports of sandboxes: by a host name below api.domain, or by path below
 * /v1/sandboxes/{id}/ports/{port}/proxy.
 *
 * From the head to the proxy: whose it is (the name decides before anything else does: no name
 * below the domain is ever answered by the API, and none above it by a sandbox), who may come in
 * (port_access.h), the browser's login with a token in the URL, the state of the sandbox. */
#pragma once

#include "api/port_host.h"
#include "api/port_query.h"
#include "api/port_visit.h"

struct request;

/* What a request for a port is. It lives as long as its exchange. */
struct port_request {
    struct port_host at;
    bool by_path;
    bool is_public;
    bool by_cookie;              /* our cookie let it in */
    bool is_strange;             /* it came without any credential of ours to a private port */
    bool had_token;              /* in its query */
    char token[PORT_TOKEN_SIZE]; /* the first one of the query, or "" */
    const char *upgrade;         /* the protocols asked for, or NULL */
    const char *target;          /* path and query for the guest, without our tokens */
    struct port_visit visit;     /* while it is answered, if is_public */
};

/* Takes the request when it is for a port; it will be answered. False: it is the API's own. */
bool port_front_take(struct request *rq);
/* "http" or "https": how clients see us. */
const char *port_front_scheme(const struct request *rq);
