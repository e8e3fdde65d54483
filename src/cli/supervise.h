/* space-supervisor: keeps space-node and space-api running where no systemd does.
 *
 * Theory of operation. One supervisor per run directory: it holds a lock file for as long as it
 * lives. Each daemon has a record file (pid and start time), written by the child itself between
 * fork and exec, with SIGKILL as its parent-death signal until the record is there: a daemon that
 * runs has a record, whenever the supervisor dies. A new supervisor reads the records, takes over
 * (adopts) what lives and starts only what is missing. Daemons are watched through pidfds, ours
 * and adopted ones alike; what ends is started again, at once after a long life, with growing
 * pauses when it keeps dying: up to 1 s when it had served (base/ready.h), else up to 10 s. Daemons
 * write their logs straight to files, so the supervisor's death costs no line; it only rotates
 * them. The supervisor is a child subreaper: VMMs that outlive their space-node are reaped here.
 *
 * Signals: SIGTERM and SIGINT stop the daemons (space-api first) and end it; SIGUSR1 ends it and
 * leaves them running, for an upgrade of the supervisor itself. Nothing is forwarded. */
#pragma once

#include "base/error.h"
#include "base/settings.h"

struct supervise_options {
    const char *config_path;
    const char *libexec;
    uint64_t log_limit_bytes; /* a log file is rotated beyond this */
    int ready_fd; /* gets one byte when all daemons are started or adopted, then is closed; -1: none
                   */
};

/* Runs until told to stop. 0, or negative with err; -EEXIST when another supervisor runs here. */
int supervise_run(const struct settings *settings,
                  const struct supervise_options *options,
                  struct error *err) _must_check_;
