/* Calls that need the guest: they wake a paused sandbox first.
 *
 * Such a call is activity from its begin to its end. */
#pragma once

#include "api/request.h"

struct api;
struct http_call;

/* Runs fn(rq) when the node is ready and the sandbox of the path awake. One that is paused, or will
 * be when what is on its way has ended, is woken if its lifecycle.auto_wake says so and the caller
 * may start something, else failed_precondition. Without a sandbox fn runs at once: it answers. */
void wake_need(struct request *rq, request_fn fn);
/* The node has refused or cut a call, before any answer, because a suspend began that nobody knew
 * of when the call was sent. For those that only look: true when the sandbox is woken and the call
 * made again. The caller has given up its own. */
bool wake_may_repeat(const struct request *rq, const struct http_call *call);
void wake_repeat(struct request *rq);
