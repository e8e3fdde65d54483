/* The argument and environment arrays of a program to start. */
#pragma once

#include "base/buf.h"
#include "wire/agent_process.h"

struct user;

/* NULL-terminated arrays in one allocation. */
struct environment {
    char **argv;
    char **envp;
    const char *path_list; /* the value of PATH in envp */
    void *memory;
};

/* Builds argv, and envp out of what is usual for the user, then `identity_env`, then `start`'s:
 * a later setting of a name wins. 0 or -ENOMEM. */
int environment_build(struct environment *e,
                      const struct agent_start *start,
                      const struct user *user,
                      const struct agent_strings *identity_env) _must_check_;
void environment_done(struct environment *e);
