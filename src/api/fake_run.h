/* Test support: what the fake node's commands print. */
#pragma once

#include <jansson.h>

/* The result of a command, of the request's `process_id`: made once and kept among `processes`.
 * `big` and `huge` print 2.7 and 11 MB, one that may print 65,536 bytes says so. */
json_t *fake_run_result(json_t *processes, const json_t *body);
