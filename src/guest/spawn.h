/* Starts one program as one user: the quickest safe way there is.
 *
 * On x86-64 the child borrows the agent's memory until it executes (CLONE_VM and CLONE_VFORK, on a
 * stack of its own), elsewhere and under sanitizers it is a copy. Between clone and execve it only
 * makes system calls. It is born in its control group, so not even a fork bomb escapes that.
 * Nothing is said about oom_score_adj: PID 1 has the usual one, since the kernel never chooses it,
 * and so the children have nothing to undo. */
#pragma once

#include <stdbool.h>

#include <sys/types.h>

#include "base/cleanup.h"

struct user;

struct spawn_plan {
    char *const *argv;
    char *const *envp;
    const char *path_list; /* PATH, for a program without a slash */
    const char *cwd;       /* "" for the home, or / where that is missing */
    const struct user *user;
    int stdio[3];   /* with tty all the same terminal */
    int cgroup_fd;  /* -1 for none */
    bool tty;       /* stdio[0] becomes the controlling terminal */
    bool rehearsal; /* in a mount namespace that writes nothing to the disk */
    bool switch_user;
};

/* What the child says of its way to the program. */
struct spawn_failure {
    int errnum;    /* 0: it was executed */
    int what;      /* enum agent_start_what */
    bool homeless; /* it began in / because the home cannot be entered */
};

struct spawner {
    int null_fd;                  /* /dev/null, for processes without input */
    struct spawn_failure *shared; /* written by the child */
    void *stack;
};

/* 0 or -errno. */
int spawner_init(struct spawner *s) _must_check_;
void spawner_done(struct spawner *s);

/* Starts it; returns after the execve. 0 with the pid, or -errno with *ret_failure. */
int spawn_program(struct spawner *s,
                  const struct spawn_plan *plan,
                  pid_t *ret_pid,
                  struct spawn_failure *ret_failure) _must_check_;

/* What a copy of the agent does; returns its exit status. `failure` says what of the plan did not
 * work out (errnum 0: nothing); then it has no business but to say so. */
typedef int (*spawn_work)(void *arg, const struct spawn_failure *failure);

/* Forks a copy of the agent in a session of its own, with the plan's descriptors and no other,
 * user, directory, umask and default signals, which nobody may trace; argv, envp, tty and rehearsal
 * are unused. Returns in the agent only, without waiting. 0 with the pid, or -errno. */
int spawn_copy(const struct spawn_plan *plan, spawn_work work, void *arg, pid_t *ret_pid)
    _must_check_;
