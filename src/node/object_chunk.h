/* What the object store holds: blocks of bytes, compressed, named by what is in them.
 *
 * A stored object is a head of 16 bytes (magic, version, kind, length before and after) and the
 * bytes, as a zstd frame where that is shorter. Its name is the SHA-256 of the bytes before, so
 * that the same content is stored once, and what is read is what was written or is refused. */
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "node/object_sum.h"

#define OBJECT_HEAD_BYTES 16U
/* Of memory, disks and other files; a stored one is never longer than its bytes and a head. */
#define OBJECT_CHUNK_MAX (1024U * 1024U)
/* Of a manifest. */
#define OBJECT_MANIFEST_MAX (64U * 1024U * 1024U)

/* Puts the stored form behind what out has. 0 or -errno. */
int object_pack(struct span raw, struct buf *out) _must_check_;
/* The bytes of a stored one, at most max, into an empty ret_raw; -EBADMSG for anything else. */
int object_unpack(struct span stored, size_t max, struct buf *ret_raw) _must_check_;
/* The same, and -EBADMSG too unless they are what the name says. */
int object_open(struct span stored, const struct object_sum *name, size_t max, struct buf *ret_raw)
    _must_check_;
