/* One process of space-objects: starting it, and what it answers.
 *
 * It gets a user id that no VMM has (node.vmm_uid_first itself, the slots count from 1), the path
 * of a directory store, which nobody but it looks at, and descriptors: of the files of a snapshot,
 * of a bucket's keys. It gives a sign of life every second (object_pulse.h). One that does not is
 * killed and given up at once, for a filesystem that does not answer holds killed processes too.
 * Runs on the loop. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "base/list.h"

struct loop;
struct objects_job;

/* The caller's descriptors stay its own. */
struct objects_order {
    const char *program;
    unsigned int uid;
    json_t *request;       /* borrowed */
    const char *dir;       /* the store's, or NULL: a bucket */
    int keys_fd;           /* of a bucket; or -1 */
    const char *run_dir;   /* of a test that watches its steps, or NULL */
    struct list *given_up; /* those that have not ended yet; outlives them, or cancels them */
    const int *fds;        /* become OBJECT_FD_FIRST and on */
    unsigned int fd_count;
};

/* Once. err: what the process says, or that it said nothing (service_unavailable when it gave no
 * sign of life). The result is borrowed. */
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
/* The same for those that were given up. */
void objects_job_cancel_all(struct list *given_up);
