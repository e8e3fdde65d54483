/* Starts one daemon of an installation as the supervisor's child. */
#pragma once

#include "base/error.h"
#include "cli/installation.h"

struct supervise_start_options {
    const struct settings *settings;
    const char *config_path;
    const char *libexec;
    enum daemon_id id;
};

/* Forks and executes `<libexec>/<name> --config FILE --ready-fd N` with its output appended to its
 * log file; space-api as the service user. Returns a pidfd when the record is written and the
 * program runs; ret_ready_fd gives one byte when it serves, and does not block. */
int supervise_start(const struct supervise_start_options *o,
                    struct proc_ref *ret,
                    int *ret_ready_fd,
                    struct error *err) _must_check_;
