/* Starts a VMM through the stage program. Blocks for a moment (posix_spawn): runs on a worker. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"
#include "node/runtime.h"
#include "node/vmm_plan.h"

struct strv;

#define VMM_CGROUP_FDS_MAX 4
#define VMM_LOG_BYTES      16384

struct vmm_spawn {
    const char *stage_path;
    struct strv *argv;         /* the VMM's */
    int fds[RUNTIME_FD_STAGE]; /* by enum runtime_fd; -1: none; borrowed */
    int cgroup_fds[VMM_CGROUP_FDS_MAX];
    unsigned int cgroup_count;
    int netns_fd;                   /* -1: a network namespace of the host's, only for the probe */
    const char *keep[VMM_KEEP_MAX]; /* paths that the VMM opens by name; NULL: no more */
    int log_fd;                     /* standard error */
    uint64_t file_mib;              /* largest file it may write */
};

/* On success the process runs and ret_pidfd refers to it. */
int vmm_start(const struct vmm_spawn *spawn, pid_t *ret_pid, int *ret_pidfd, struct error *err)
    _must_check_;
/* A memory file for a VMM's messages that cannot grow: a guest that makes its VMM complain fills
 * nothing. Descriptor or -errno. */
int vmm_make_log(void);
/* What it holds, up to the first NUL, at most size - 1 bytes; "" when unreadable. */
void vmm_read_log(int log_fd, char *out, size_t size);
/* Start time of a process in clock ticks since boot, 0 when there is none. */
uint64_t vmm_start_time(pid_t pid);
