/* Copies of a sandbox's sessions: records, kept output and input of the processes that have not
 * ended. They are for a guest that was captured with them and goes on elsewhere. */
#pragma once

#include "base/error.h"

/* From the directory `from` (none: nothing to copy) into `to`, which is made. With an `owner`, a
 * sandbox's id, each process and session gets a new id of that owner's; offsets stay. Output is
 * cloned where the filesystem can. Blocks: workers. */
int sessions_copy(const char *from, const char *to, const char *owner, struct error *err)
    _must_check_;
