/* Ends a VM when all together leave too little of their limit for files: one that waits in a pool,
 * else the sandbox that uses most, those that are being written down last.
 *
 * At the limit of all VMs the kernel first takes the page cache back, which their base snapshots
 * are read through. It ends a process only when there is nothing more to take: with a little cache
 * left every VM waits for the same pages to be read again and again, and none is ended. So part of
 * the limit is not for memory that the kernel cannot take back. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct memory_guard;
struct node;

struct memory_guard *memory_guard_new(struct node *node, struct error *err);
void memory_guard_free(struct memory_guard *guard);
void memory_guard_start(struct memory_guard *guard);
/* What is not for such memory: a 64th of the limit, at least 48 MiB. */
uint64_t memory_guard_kept(uint64_t limit_bytes);
