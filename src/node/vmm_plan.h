/* What the stage program (space-vmm) is told: one header of numbers in its argv, then the VMM's own
 * command line. Shared by its two ends, vmm_spawn.c and vmm_main.c.
 *
 * argv: space-vmm PPID FD-MASK NETNS-FD CGROUP-FDS FSIZE NOFILE KEEP PATH... -- VMM ARGS...
 *   PPID       the parent's pid: if it has changed after the cgroups were joined, nobody owns the
 *              new process and it exits
 *   FD-MASK    set of descriptors (a number) that the VMM keeps (all others are closed)
 *   NETNS-FD   descriptor of its network namespace, or -1
 *   KEEP       number of paths that follow, which the VMM opens by name; mounts that hold none of
 *              them, nor the system's programs, are dropped from its namespace
 *   CGROUP-FDS number of descriptors from RUNTIME_FD_STAGE on that are cgroup.procs files */
#pragma once

#define VMM_STAGE_ARGS 8 /* argv[0] to argv[7], before the paths */
#define VMM_KEEP_MAX   8
