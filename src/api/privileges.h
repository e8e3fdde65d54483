/* What space-api gives up before it serves: root, capabilities, most of the file system, and every
 * system call that it does not need. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/* Unless root: the capability to bind a port, which it was started with, goes, and all others.
 * Before the first thread. */
int privileges_drop_capabilities(struct error *err) _must_check_;
/* As root: becomes `user` for good, in every thread. As another user: does nothing. In both cases
 * no program started from here gains privileges. */
int privileges_drop(const char *user, struct error *err) _must_check_;
/* Only these directories stay within reach (Landlock): `writable` with all rights, `readable` for
 * reading. A kernel without Landlock is no error: returns 0, 1 when it is in force. */
int privileges_limit_files(const char *writable, const char *readable, struct error *err)
    _must_check_;
/* A system call that is not on the list kills the process, in every thread. */
int privileges_limit_syscalls(struct error *err) _must_check_;
