/* Collected results: what `run` and `…/result` answer, as JSON text that is made piece by piece
 * from the session's output, so that a result of any size costs its reader's pace and no memory.
 *
 * The text owns what it reads: the process may go meanwhile, and its sandbox. What it has still to
 * read is pinned in the spool. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "node/command_request.h"

struct buf;
struct process;
struct run_text;

struct run_options {
    uint64_t max_output_bytes; /* per stream; beyond it the first and last halves are kept */
    enum command_encoding encoding;
};

/* The result object of a process that has ended, or of one that runs on after its timeout.
 * sandbox_id NULL: without it. On an error: failed_precondition for a lost one, gone, internal. */
int run_text_new(struct process *p,
                 const struct run_options *options,
                 const char *sandbox_id,
                 struct run_text **ret_text,
                 struct error *err) _must_check_;
void run_text_free(struct run_text *text);
/* How many bytes of output it shows. */
uint64_t run_text_shown(const struct run_text *text);
/* Appends the next piece, at most 64 KiB of output. 1: there is more, 0: that was all, -errno. */
int run_text_next(struct run_text *text, struct buf *out) _must_check_;
/* Whether its reader is so slow that the process, which runs on, keeps far more than it may. */
bool run_text_is_behind(const struct run_text *text, const struct process *p);
