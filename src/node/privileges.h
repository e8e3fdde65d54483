/* What space-node gives up before it does anything, and with it every VMM that it starts.
 *
 * It stays root, since jails, namespaces, control groups and disks are what it is there for. What
 * goes is the rest of root: the capabilities of below, the way back to them (no_new_privs, the
 * bounding set), and the system calls by which a process changes the kernel or looks into others
 * beyond what is needed here. That list names what is forbidden, not what is allowed: a filter is
 * inherited, and a VMM, which then adds its own, needs more than can be listed for every version.
 * Landlock would forbid mounts, which network namespaces have names by. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* Of the capabilities that the process has, only those that a node needs stay, in its own sets and
 * in the bounding set. Of the calling thread: before others are started. */
int privileges_limit_capabilities(struct error *err) _must_check_;
/* A forbidden system call kills the process, here and in whatever is started from here. */
int privileges_limit_syscalls(struct error *err) _must_check_;
/* The capabilities that stay, a bit each. */
uint64_t privileges_kept_capabilities(void);
