/* Processes named by a record on disk: pid and start time together, so that a reused pid is never
 * taken for the process that the record means. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"

struct proc_ref {
    pid_t pid;           /* 0: none */
    uint64_t start_time; /* clock ticks since boot, field 22 of /proc/PID/stat */
};

/* The running process `pid`. -ESRCH when there is none or it is a zombie. */
int proc_find(pid_t pid, struct proc_ref *ret) _must_check_;
/* Writes and reads a record file ("PID START OWNER\n"; OWNER: for whom it runs, a path). A missing
 * or malformed one is -ENOENT, and so is one without an owner to proc_record_owner. */
int proc_record_write(const char *path, const struct proc_ref *ref, const char *owner) _must_check_;
int proc_record_read(const char *path, struct proc_ref *ret) _must_check_;
int proc_record_owner(const char *path, char *out, size_t out_size) _must_check_;
/* Whether exactly this process still runs. */
bool proc_is_alive(const struct proc_ref *ref);
/* A pidfd of exactly this process, or -ESRCH. */
int proc_open(const struct proc_ref *ref) _must_check_;
/* Sends a signal to exactly this process. 0, -ESRCH, or another -errno. */
int proc_signal(const struct proc_ref *ref, int number);
/* Waits for its end. 0, or -ETIMEDOUT. */
int proc_wait_end(const struct proc_ref *ref, int timeout_ms) _must_check_;
/* Whether its executable is this very file (not an older one of that name); true when that cannot
 * be told. */
bool proc_runs_file(const struct proc_ref *ref, const char *path);
/* The base name of its executable, without " (deleted)". 0 or -errno. */
int proc_exe_name(const struct proc_ref *ref, char *out, size_t out_size) _must_check_;
/* When it began, in ms since 1970. 0 or -errno. */
int proc_started_at(const struct proc_ref *ref, int64_t *ret_real_ms) _must_check_;
