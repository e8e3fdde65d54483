/* A local file or tree as a tar archive, made piece by piece: memory does not grow with the tree.
 *
 * Symbolic links are kept, never followed below the top. Pipes, sockets and devices, and what
 * cannot be read, are left out and counted. A file that shrinks while it is read is filled up with
 * zeros, one that grows is cut, as tar does. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"

struct pack;

struct pack_count {
    uint64_t files;
    uint64_t bytes; /* of content */
    uint64_t left_out;
    char first_left_out[256];
    uint64_t changed; /* while they were read */
};

/* `path` is the file, link or directory; `name` is what it is called in the archive, "" for what is
 * in the directory `path` under names of their own. */
int pack_new(const char *path, const char *name, struct pack **ret, struct error *err) _must_check_;
void pack_free(struct pack *p);

static inline void cleanup_pack(struct pack **p)
{
    pack_free(*p);
}
#define _cleanup_pack_ _cleanup_(cleanup_pack)

/* The next bytes of the archive: how many, 0 at its end, negative with err. */
ssize_t pack_read(struct pack *p, void *to, size_t room, struct error *err) _must_check_;
const struct pack_count *pack_get_count(const struct pack *p);
