/* A look at a path that may be on a machine that does not answer. */
#pragma once

#include <sys/stat.h>

#include "base/cleanup.h"

#define DISTANT_TIMEOUT_MS 2000

/* stat() by a child that is left to itself when the filesystem does not answer in time: whoever
 * asks a dead server cannot be interrupted. 0, -errno, or -ETIMEDOUT. */
int distant_stat(const char *path, struct stat *ret) _must_check_;
