/* Upgraded connections of clients (terminals, raw TCP, WebSocket and what else an application
 * upgrades to), each joined with one of the node: bytes are carried both ways, nothing of them is
 * read here. A tunnel counts among its key's streams and ends with the key; without a key it came
 * in to a public port and ends when that is made private. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct api;
struct byte_stream;
struct http_header;
struct port_host;
struct request;

struct tunnel_order {
    const char *protocol; /* of the answer 101 */
    const struct http_header *headers;
    size_t header_count;
    const char *sandbox_id;       /* active as long as the tunnel is open */
    const struct port_host *port; /* NULL: not to a port */
};

/* Answers 101 and joins the client with `far` (taken; NULL: there was no memory for it). The
 * request is over, on failure too; without a key it needs a port. */
void tunnel_start(struct request *rq, struct byte_stream *far, const struct tunnel_order *order);
/* Cuts all. */
void tunnels_done(struct api *api);
/* Whether one to this sandbox is open. */
bool tunnels_have(const struct api *api, const char *sandbox_id);
