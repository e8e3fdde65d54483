/* Test support: answers of the fake node. */
#pragma once

#include <stdbool.h>

#include <jansson.h>

struct http_exchange;

/* Takes `body`. */
void fake_respond(struct http_exchange *exchange, int status, json_t *body);
/* As the node answers a PUT with `run`: the result, and the sandbox in the head. */
void fake_respond_put(struct http_exchange *exchange, const json_t *answer, bool is_cut);
/* An error of this code, with the status that belongs to it. */
void fake_respond_error(struct http_exchange *exchange, const char *code, const char *field);
