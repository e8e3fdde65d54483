/* CORS: pages from anywhere may use what a token opens. No cookie is ever read, so that a page has
 * no more than the token it was given. */
#pragma once

#include <stdbool.h>

struct request;
struct request_headers;

/* Answers OPTIONS on a path that tokens open; false when it is none. No key is needed. */
bool cors_answer_preflight(struct request *rq);
/* What a browser asks before a page sends our token to a private port: it carries no credential, so
 * the application is not to see it, and is answered here. True when it was one. */
bool cors_answer_port_preflight(struct request *rq);
/* Of our own answers in place of an application's. */
void cors_add_port_headers(struct request_headers *headers);
/* Adds the headers to an answer of such a route. */
void cors_add_headers(const struct request *rq, struct request_headers *headers);
