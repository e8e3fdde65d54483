/* Which processes the kernel ended because the guest had no memory left, at its own decision or
 * when the agent asked for it (pressure.h).
 *
 * Only the kernel's log says that of a process. Its line is written before the process can be
 * reaped, so a channel whose main process was killed is known in time. A process that a command
 * had started is looked up when the line comes, by the control group that it is in; when its
 * parent was faster, nothing is known. Lines that users write are told apart by their facility. */
#pragma once

#include <sys/types.h>

#include "base/span.h"

struct agent;

/* Begins to watch from the end of the log; without it nothing is known. */
void killed_open(struct agent *a);
/* Reads what has come and marks channels. */
void killed_read(struct agent *a);

/* ---- pure parts ---- */

/* The process that a record of /dev/kmsg says was ended for want of memory, or 0. */
pid_t killed_parse_record(struct span record);
/* The number of the channel's group in a text of /proc/PID/cgroup, or 0. */
uint32_t killed_parse_group(struct span text);
