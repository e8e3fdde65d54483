/* Control groups of processes: one below CGROUP_SPACE per channel, and one for all services, which
 * the limit on users' processes does not touch. In a host's test, or should the
 * kernel have none, there are no groups and every call falls back on sessions and process groups.
 * Groups that were left empty are used again: making and removing one costs more than starting a
 * program. The first is made ahead of time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include "base/cleanup.h"

#define CGROUP_ROOT     "/sys/fs/cgroup"
#define CGROUP_SPACE    CGROUP_ROOT "/space"
#define CGROUP_SERVICES CGROUP_ROOT "/space-services"

#define CGROUP_SPARES 8

struct cgroup {
    uint32_t number; /* names the directory; 0 without groups */
    int fd;          /* -1 when not open */
};

struct cgroups {
    int fd;          /* of CGROUP_SPACE; -1 without groups */
    int services_fd; /* of CGROUP_SERVICES; -1 likewise */
    uint32_t last_number;
    size_t n_spares;
    struct cgroup spares[CGROUP_SPARES];
};

/* Opens (and makes) CGROUP_SPACE when use is set. Never fails: no groups is a state. */
void cgroups_init(struct cgroups *g, bool use);
void cgroups_done(struct cgroups *g);
/* Makes a spare group if there is none. */
void cgroups_prepare(struct cgroups *g);

/* 0 with an open group (number 0 and fd -1 without groups), or -errno. */
int cgroup_open(struct cgroups *g, struct cgroup *ret_group) _must_check_;
/* Gives it back, to be used again or removed. -EBUSY while processes are in it. */
int cgroup_remove(struct cgroups *g, struct cgroup *group);
void cgroup_close(struct cgroup *group);
/* SIGKILL for all that is in it, atomically. */
int cgroup_kill(const struct cgroup *group) _must_check_;
/* Sends a signal to each process in it (to those of process group pgid, when that is not 0).
 * Returns how many got it, or -errno. */
int cgroup_signal(const struct cgroup *group, int signal, pid_t pgid) _must_check_;

/* Freezes or thaws everything in both; freezing completes later. */
int cgroups_freeze(struct cgroups *g, bool frozen);
/* Whether the freeze is complete. -errno when it cannot be known. */
int cgroups_is_frozen(struct cgroups *g) _must_check_;
