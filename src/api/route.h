/* The table of routes: method and path to handler, with what each takes. */
#pragma once

#include "api/request.h"

enum route_body {
    ROUTE_BODY_NONE,
    ROUTE_BODY_JSON,
    ROUTE_BODY_OPTIONAL_JSON, /* an empty body is {} */
    ROUTE_BODY_RAW,           /* the handler streams it */
};

enum route_flag {
    ROUTE_PUBLIC = 1,        /* no key needed */
    ROUTE_STREAM = 2,        /* counts as an event stream */
    ROUTE_TOKEN = 4,         /* taken with a token for what the path names; with CORS */
    ROUTE_TOKEN_BODY = 8,    /* taken with any token: the handler checks the scope; with CORS */
    ROUTE_TOKEN_QUERY = 16,  /* the token may come as ?token= */
    ROUTE_SESSION = 32,      /* the first segment is a session, not a sandbox */
    ROUTE_PORT = 64,         /* the second segment is a port: its token opens it too */
    ROUTE_ANY_BYTES = 128,   /* parameters may hold any bytes but NUL: paths of files */
    ROUTE_GIVES_TOKEN = 256, /* the answer holds one: see tokens.h */
    ROUTE_PROXY = 512,       /* an application of a sandbox answers: see port_front.h */
};

struct route {
    const char *method;
    const char *path; /* "/v1/sandboxes/{}/console": {} is one segment */
    request_fn handle;
    enum key_role role; /* at least */
    unsigned int flags;
    enum route_body body;
    const char *query;       /* see query_check */
    int64_t default_wait_ms; /* when the query allows `wait` */
};

struct route_match {
    const struct route *route;
    char params[REQUEST_PARAMS][REQUEST_PARAM_SIZE];
    char allow[64]; /* "GET, POST" */
};

#define ROUTE_METHODS_SIZE 64

/* Ends with a row without method. */
const struct route *route_table(void);
/* Finds the route and decodes its variable segments. 1 found; 0 no such path; -ENOTSUP when the
 * path knows other methods, which are in ret_match->allow. HEAD is served by GET. */
/* The methods of this path whose routes have one of the flags: "GET, POST". False when none has. */
bool route_find_methods(const struct route *table,
                        const char *path,
                        unsigned int flags,
                        char ret_methods[ROUTE_METHODS_SIZE]);
int route_find(const struct route *table,
               const char *method,
               const char *path,
               struct route_match *ret_match) _must_check_;
