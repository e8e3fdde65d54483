/* Disk images: reflink clones with a sparse copy as fall-back, sizes, free space. Everything here
 * blocks (a clone first writes back dirty pages of its source): workers only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Makes dst_path (mode 0600, must not exist) a copy of src_path, grown to at least `bytes`. */
int disk_clone(const char *src_path, const char *dst_path, uint64_t bytes, struct error *err)
    _must_check_;
/* Grows a file; smaller is -EINVAL. */
int disk_grow(const char *path, uint64_t bytes, struct error *err) _must_check_;
/* Whether the filesystem of dir can clone files: tried with two small files. */
bool disk_has_reflink(const char *dir);
/* Total and available MiB of the filesystem of dir. 0 or -errno. */
int disk_space(const char *dir, uint64_t *ret_total_mib, uint64_t *ret_free_mib);
/* The bytes of the disk that this file alone has: no other shares them, by reflink or as another
 * name of the same. What it has allocated, where the filesystem cannot tell; 0 when it is not
 * there. */
uint64_t disk_own_bytes(const char *path);
/* Gives the blocks that hold only zeroes back (RAM images). 0 or -errno. */
int disk_punch_zeroes(int fd, uint64_t bytes) _must_check_;
