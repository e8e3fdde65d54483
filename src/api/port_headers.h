/* What passes between a client and a sandbox's page: the headers of a request on its way to the
 * guest, and those of the guest's answer. Pure: lists in, lists out, in the order they came.
 *
 * Of neither side: what belongs to one connection only (Connection and what it names, Upgrade, TE,
 * Trailer, Keep-Alive, Proxy-*) and the framing of bodies, which both ends write anew from what
 * was parsed. */
#pragma once

#include "base/cleanup.h"
#include "io/http_server.h" /* struct http_header */

#define PORT_HEADERS_MAX 112 /* what a head may have, and ours */

struct port_headers {
    struct http_header items[PORT_HEADERS_MAX];
    size_t count;
    char *owned[PORT_HEADERS_MAX]; /* values that were rewritten */
    size_t owned_count;
    int error; /* 0, -ENOMEM, or -EMSGSIZE for too many headers or too long a Connection */
};

void port_headers_done(struct port_headers *headers);
#define _cleanup_port_headers_ _cleanup_(port_headers_done)
void port_headers_add(struct port_headers *headers, const char *name, const char *value);
/* The first with this name, or NULL. */
const char *port_headers_find(const struct port_headers *headers, const char *name);

struct port_request_facts {
    bool by_path; /* below the API's own host, not on the sandbox's */
    const char *peer;
    const char *scheme;
    const char *host; /* as the client sent it, "" if it did not */
};

/* Leaves out our credentials, and for `by_path` all cookies; writes X-Forwarded-*. Host is the
 * caller's to send. `out` is empty. */
void port_headers_of_request(const struct http_header *in,
                             size_t count,
                             const struct port_request_facts *facts,
                             struct port_headers *out);

struct port_answer_facts {
    bool by_path;
    bool had_token; /* in the query: no other page may learn that URL */
    bool by_token; /* a credential that a page must have sent on purpose, not a cookie, let it in */
};

/* Leaves out what would reach beyond this page: of both forms Clear-Site-Data, Alt-Svc, and
 * cookies of ours and of other hosts; by path all cookies and whatever speaks for the origin. Where
 * the application says nothing about other origins, the page that has the token may read the answer
 * to it. `out` is empty. */
void port_headers_of_answer(const struct http_header *in,
                            size_t count,
                            const struct port_answer_facts *facts,
                            struct port_headers *out);
/* Whether an Accept header asks for a page rather than for JSON. NULL: no. */
bool port_accepts_html(const char *accept);
