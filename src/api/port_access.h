/* Who may come in at a port of a sandbox. */
#pragma once

#include "base/error.h"

struct port_request;
struct request;

/* A public port is open. Else a credential is needed that may write: a key, a token of the sandbox
 * or of the port; in X-Space-Token, in Authorization, in the query, or in our cookie (by host name
 * only). What a page of another site makes a browser do with our cookie is refused unless it is
 * safe. Fills is_public and by_cookie of `port`, and the request's key. 0 or -errno: unauthorized,
 * forbidden, rate_limited, not_found. */
int port_access_check(struct request *rq, struct port_request *port, struct error *err)
    _must_check_;
