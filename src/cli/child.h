/* Runs another program to its end. */
#pragma once

#include "base/error.h"

struct buf;

#define CHILD_CANNOT_RUN 127 /* exit status of a child that could not become the program */

struct child_options {
    struct buf *output;     /* collects stdout; NULL: inherited */
    const char *const *env; /* NULL: inherited */
    bool quiet;             /* stderr goes to /dev/null */
    bool merged;            /* stderr is collected with stdout */
    const char *user;       /* runs as this user with its groups; NULL: as we are */
    int timeout_ms;         /* then it is killed and the result is -ETIMEDOUT; 0: none */
};

/* argv[0] is a path, or a name found in PATH. Returns its exit status (128+n after a signal), or
 * negative with err. */
int child_run(const char *const argv[], const struct child_options *options, struct error *err)
    _must_check_;
/* Becomes the user, for good: groups, gid, uid. 0 or -errno. */
int child_become(const char *user);
