/* One HTTP request to a port of a sandbox, and its answer, through the node's raw stream.
 *
 * Nothing is copied raw: the request was parsed by our strict parser and is formatted anew, and so
 * is the guest's answer, so that nobody behind or before us can read another message into it.
 * Bodies stream both ways with back-pressure; an answer to an upgrade joins the two connections
 * (tunnel.h). A request without a byte in either direction for an hour is ended. */
#pragma once

struct port_request;
struct request;

/* The request has been let in and its sandbox runs. It will be answered. */
void port_proxy_start(struct request *rq, struct port_request *port);
