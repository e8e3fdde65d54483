/* Signals to processes, those that wait for their start included. */
#pragma once

#include "node/process.h"

/* done hears 0 or an errno (ESRCH: it has ended; ENOTCONN: no agent; ECHILD: this one cannot be
 * given to a process that waits for its start), maybe from inside the call. One that waits is ended
 * by whatever ends a process by default. SIGKILL to the tree reaches what an exited one has left.
 */
void process_signal(struct process *p,
                    int signal,
                    enum agent_scope scope,
                    void (*done)(void *arg, int result),
                    void *arg);
/* The error to answer for such a result. */
void process_signal_error(const struct process *p, int result, struct error *err);
