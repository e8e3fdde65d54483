/* Descriptor and small-file helpers with errno-style results. */
#pragma once

#include <stdbool.h>

#include <sys/types.h>

#include "base/cleanup.h"
#include "base/span.h"

struct buf;

/* Writes all bytes, over EINTR and short writes. 0 or -errno. */
int fd_write_all(int fd, struct span s) _must_check_;
int fd_pwrite_all(int fd, struct span s, off_t offset) _must_check_;
/* Reads until end of file into b (its cap applies). 0 or -errno. */
int fd_read_all(int fd, struct buf *b) _must_check_;
/* Reads a whole regular file below dirfd (AT_FDCWD allowed), at most max bytes. */
int file_read(int dirfd, const char *path, size_t max, struct buf *ret_content) _must_check_;
/* Replaces a file atomically: temporary name, write, optional fsync of file and directory, rename.
 * A crash leaves the old or the new content, never a mix. */
int file_write_atomic(int dirfd, const char *path, struct span content, mode_t mode, bool sync)
    _must_check_;
int fd_set_nonblock(int fd) _must_check_;
/* mkdir -p below dirfd. 0 or -errno. */
int dir_make_all(int dirfd, const char *path, mode_t mode) _must_check_;
/* Removes a file or a whole tree below dirfd without following symbolic links; a missing one is
 * success. 0 or the first -errno. */
int dir_remove_tree(int dirfd, const char *path) _must_check_;
