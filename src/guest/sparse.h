/* Writing content so that a sparse file stays one: blocks of zeros become holes. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

/* Writes bytes of a file at that offset, where nothing was written before. 1 when they ended with a
 * hole, so that at the end of the file its length must be set, else 0, or -errno. */
int sparse_write(int fd, uint64_t offset, struct span bytes) _must_check_;
