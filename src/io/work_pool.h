/* A bounded pool of worker threads for blocking work; the loop's engine behind loop_submit.
 *
 * Submissions and completions belong to one owner thread. A finished job waits in the pool until
 * the owner, woken by the event descriptor, calls work_pool_finish. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"

#define WORK_POOL_MAX_THREADS 64
#define WORK_POOL_MAX_QUEUED  65536

struct work_pool;

typedef void (*work_fn)(void *arg);

/* `threads` 1 to WORK_POOL_MAX_THREADS. 0 or -errno. */
int work_pool_new(unsigned int threads, struct work_pool **ret_pool) _must_check_;
/* Waits for the running jobs, drops what work_pool_drain was not asked to finish. */
void work_pool_free(struct work_pool *pool);
/* Readable while finished jobs wait. */
int work_pool_fd(const struct work_pool *pool);
/* 0, -EAGAIN when the queue is full, -ENOMEM. Background jobs run only when no other waits, and
 * never on all threads at once when there is more than one. */
int work_pool_submit(struct work_pool *pool, work_fn work, work_fn done, void *arg, bool background)
    _must_check_;
/* Calls done for every job that has finished. */
void work_pool_finish(struct work_pool *pool);
/* Waits until every job submitted so far, and by their done functions, is finished. */
void work_pool_drain(struct work_pool *pool);
