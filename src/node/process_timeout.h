/* The end of a command's time. The guest kills it and reports the end; with `on_timeout: leave`
 * only this program looks at the clock. It also guards the guest: one that reports no end in time
 * is broken, and its sandbox fails. But the report comes behind all output, so it has its time anew
 * whenever something has held back the acknowledgements (process_readers.c, process_hold.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct loop_timer;
struct process;

/* How long after a command's timeout the guest may take to kill it and say so: the value of
 * data->timeout_guard_ms, but for tests. */
#define PROCESS_TIMEOUT_GUARD_MS 60000

struct process_timeout {
    struct loop_timer *timer; /* NULL without a timeout */
    int64_t more_ms;          /* given to the guest beyond the first guard */
    bool withheld;            /* output is not acknowledged, and the guest may be full of it */
    bool was_withheld;        /* since the guard began */
};

/* The process has started, or was taken over from an earlier run of this program. 0 or -ENOMEM. */
int process_timeout_start(struct process *p) __attribute__((warn_unused_result));
void process_timeout_stop(struct process *p);
/* Whether its output is held back. */
void process_timeout_note(struct process *p, bool withheld);
