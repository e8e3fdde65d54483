/* Calls that need the guest: they wake a paused sandbox first.
 *
 * Such a call is activity from its begin to its end. */
#pragma once

#include "api/request.h"

struct api;

/* Runs fn(rq) when the node is ready and the sandbox of the path awake. One that is paused, or will
 * be when what is on its way has ended, is woken if its lifecycle.auto_wake says so and the caller
 * may start something, else failed_precondition. Without a sandbox fn runs at once: it answers. */
void wake_need(struct request *rq, request_fn fn);
