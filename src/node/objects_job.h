/* One process of space-objects: starting it, and what it answers.
 *
 * It gets a user id that no VMM has (node.vmm_uid_first itself, the slots count from 1) and nothing
 * but descriptors: of the store, of the files of a snapshot. Runs on the loop. */
#pragma once

#include <jansson.h>

#include "base/error.h"

struct loop;
struct objects_job;

/* The caller's descriptors stay its own. */
struct objects_order {
    const char *program;
    unsigned int uid;
    json_t *request; /* borrowed */
    int store_fd;
    const int *fds; /* become OBJECT_FD_FIRST and on */
    unsigned int fd_count;
};

/* Once. err: what the process says, or that it said nothing. The result is borrowed. */
typedef void (*objects_job_fn)(void *arg, const json_t *result, const struct error *err);
/* NULL with err. */
struct objects_job *objects_job_start(struct loop *loop,
                                      const struct objects_order *order,
                                      objects_job_fn fn,
                                      void *arg,
                                      struct error *err);
/* Ends it; fn does not come. For the end of the program: the loop may not run again. NULL is fine.
 */
void objects_job_cancel(struct objects_job *job);
