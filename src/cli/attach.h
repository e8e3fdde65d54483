/* Stays with a running command: its output to ours, our standard input to it, our signals to it.
 *
 * The first SIGINT, SIGTERM or SIGHUP goes to the command as it is, the second kills its whole
 * process tree, the third gives up at once. When our own output is closed (`… | head`) the command
 * is killed, as SIGPIPE would do to a local one. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

struct cli;

struct attach {
    struct cli *cli;
    int signal_fd;
    char sandbox_id[ID_SIZE];
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
    bool forward_input;
    uint64_t input_offset; /* what the command has had already */
    uint64_t tail_bytes;   /* of the output, to begin with; 0: all of it */
    double limit_s;        /* the time that we gave the command; 0: not known here */
};

/* Blocks SIGINT, SIGTERM and SIGHUP, ignores SIGPIPE, and returns a descriptor of the blocked ones
 * for attach_run and for rest_set_signal_fd. */
int attach_take_signals(struct error *err) _must_check_;
/* Takes a waiting signal: its number, 0 when there is none. */
int attach_read_signal(int signal_fd);
/* The exit status to leave with: the command's, 124, 130 (129, 143) after a signal to us, 141, or
 * negative with err when following failed. */
int attach_run(const struct attach *a, struct error *err) _must_check_;
