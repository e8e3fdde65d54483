/* Log files of daemons that write to an inherited descriptor: opened for appending, kept small by
 * the supervisor while the daemon goes on writing. */
#pragma once

#include <stdint.h>

#include "base/error.h"

#define LOGFILE_KEEP 4 /* PATH.1 … PATH.4 */

/* A descriptor for appending; the file is made with mode 0640. */
int logfile_open(const char *path, struct error *err) _must_check_;
/* When the file is larger than limit_bytes its content moves to PATH.1, what was there to PATH.2
 * and so on. Where the filesystem can collapse ranges no line is lost; elsewhere what is written
 * between the copy and the cut is. 1 when it was rotated, 0 when not, -errno. */
int logfile_rotate(const char *path, uint64_t limit_bytes);
