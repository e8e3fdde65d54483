/* Calls to the node on behalf of a request. When the client goes away the call is dropped; what
 * the node has begun goes on. */
#pragma once

#include <jansson.h>

#include "api/request.h"
#include "api/store_sandbox.h"

/* Finds the sandbox of params[0], a deleted one too as long as it is remembered (deleted_at is not
 * 0); answers 404 and returns false when there is none. */
bool node_call_known(struct request *rq, struct sandbox *ret_sandbox);
/* Finds the living sandbox of params[0]; answers 404 and returns false when there is none. */
bool node_call_sandbox(struct request *rq, struct sandbox *ret_sandbox);
/* The same, and it must be running. */
bool node_call_running(struct request *rq, struct sandbox *ret_sandbox);
/* Whether params[1] is the id of a process of this sandbox; answers 404 if not. */
bool node_call_process(struct request *rq, const struct sandbox *sandbox);

/* Sends the call, collects a JSON answer and gives it to fn. Anything but an answer of status 2xx
 * is passed on to the client instead. fn must answer rq; `answer` is borrowed. */
typedef void (*node_answer_fn)(struct request *rq, int status, json_t *answer);
void node_call_json(struct request *rq,
                    const char *method,
                    const char *path,
                    const json_t *body,
                    node_answer_fn fn);
