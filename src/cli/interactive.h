/* Stays with a command that has a terminal: our keys to it, its output to us, as ssh -t.
 *
 * With `is_raw` our terminal is in raw mode until this returns, whichever way; what is typed goes
 * to the command as it is, Ctrl-C included. `~.` after Enter leaves the command running, `~~` is a
 * tilde. While there is no connection, Ctrl-C leaves. SIGTERM, SIGHUP and SIGQUIT hang the command
 * up. Without raw mode SIGINT goes to the command, a second one ends us. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "cli/attach.h"

/* The exit status to leave with, or negative with err when the session cannot be followed. */
int interactive_run(const struct attach *a, uint64_t stdout_offset, struct error *err) _must_check_;
