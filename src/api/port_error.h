/* Our own answers where otherwise an application's come: marked by X-Space-Error, as JSON or as a
 * plain page for browsers. */
#pragma once

#include "base/error.h"
#include "base/span.h"

struct request;

/* Answers with this error, whose JSON envelope is `json`. retry_after: seconds, for a retryable
 * one. */
void port_error_answer(struct request *rq,
                       const struct error *err,
                       struct span json,
                       const char *retry_after);
