/* The archive of `space doctor --bundle`: what a bug report needs, without secrets.
 *
 * Holds the doctor's document, the node's description, versions, the settings file, the ends of the
 * log files (and of systemd's journal), and the sandboxes' journals. Key files, environment files,
 * disks, output of commands and the store are never read. All text passes through redact.h. */
#pragma once

#include <jansson.h>

#include "base/error.h"

struct cli;

/* Whether a file can be made there, before all is gathered that goes into it. */
int bundle_check_place(const char *path, struct error *err) _must_check_;
/* Writes the .tar.gz, mode 0600. */
int bundle_write(struct cli *cli, const json_t *doctor, const char *path, struct error *err)
    _must_check_;
