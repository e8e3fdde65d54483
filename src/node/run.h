/* Collected results: what `run` and `…/result` answer. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "node/command_request.h"

struct process;

struct run_options {
    uint64_t max_output_bytes; /* per stream; beyond it the first and last halves are kept */
    enum command_encoding encoding;
};

/* The result object of a process that has ended, or of one that runs on after its timeout.
 * NULL with err: failed_precondition for a lost one, gone, internal. */
json_t *run_result(struct process *p, const struct run_options *options, struct error *err);
