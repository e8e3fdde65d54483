/* Control groups of an installation: one parent `<id>` whose memory limit leaves the daemons their
 * reserve, and one group `vm-<slot>` per VMM below it, on cgroup v2 or on v1's memory, cpu and pids
 * hierarchies. All calls touch kernfs only (a millisecond at most), except cgroup_remove, which
 * waits for processes to end and belongs on a worker. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CGROUP_PATH_SIZE 128
#define CGROUP_TREES_MAX 3

struct cgroup {
    bool v2;
    unsigned int count;                               /* of hierarchies */
    char parents[CGROUP_TREES_MAX][CGROUP_PATH_SIZE]; /* v1: memory, cpu, pids */
};

/* Instead of a slot: all of them. */
#define CGROUP_PARENT 0U

struct cgroup_memory {
    uint64_t fixed_bytes; /* anonymous and shared memory: what the kernel cannot take back */
    uint64_t limit_bytes; /* UINT64_MAX: none */
};

struct cgroup_limits {
    uint64_t memory_bytes;
    unsigned int vcpus;
    unsigned int pids;
};

/* Finds the hierarchies below root ("/sys/fs/cgroup") and makes the parents. */
int cgroup_open(const char *root, const char *installation, struct cgroup *ret, struct error *err)
    _must_check_;
int cgroup_limit_parent(const struct cgroup *cg, uint64_t memory_bytes, struct error *err)
    _must_check_;
/* Makes the group of a slot and opens its cgroup.procs files (ret_fds has room for
 * CGROUP_TREES_MAX); the caller closes them. */
int cgroup_make(const struct cgroup *cg,
                unsigned int slot,
                const struct cgroup_limits *limits,
                int *ret_fds,
                struct error *err) _must_check_;
/* In the background a VM gets a tenth of another's share of the CPUs. */
void cgroup_set_background(const struct cgroup *cg, unsigned int slot, bool background);
/* Kills what is in the group and removes it; waits up to 5 s. 0, also when there is none, or
 * -errno. */
int cgroup_remove(const struct cgroup *cg, unsigned int slot) _must_check_;
/* Whether the kernel ended a process of the group for lack of memory. */
bool cgroup_was_out_of_memory(const struct cgroup *cg, unsigned int slot);
/* Memory of a slot, or of all. 0 or -errno. */
int cgroup_read_memory(const struct cgroup *cg, unsigned int slot, struct cgroup_memory *ret)
    _must_check_;
/* Cheaper: whether all VMs, with the files that they use, are within keep(limit) of their limit. */
bool cgroup_is_memory_near(const struct cgroup *cg, uint64_t (*keep)(uint64_t limit_bytes));
/* Calls fn for each slot that has a group. */
void cgroup_each(const struct cgroup *cg, void (*fn)(void *arg, unsigned int slot), void *arg);
/* Removes the parents, when empty. */
void cgroup_remove_parents(const struct cgroup *cg);
