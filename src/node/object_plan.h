/* Which bytes of a file go into the object store, and in which chunks.
 *
 * Chunks are cut where the same content is likely to be cut again: at fixed places of a file, of
 * the guest's memory for a layer of pages. So what a sandbox has not touched since its last
 * snapshot, or shares with others, makes the same chunks. Blocks; any thread. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "node/object_manifest.h"

/* Where the bytes of a chunk begin. */
struct object_cursor {
    uint32_t piece;
    uint64_t skip; /* within it */
};

struct object_plan {
    struct object_file file; /* sums are filled in by whoever reads the chunks */
    struct object_cursor *cursors;
    int fd; /* borrowed */
};

/* Ends it with object_plan_done, whatever came of it. */
void object_plan_done(struct object_plan *plan);
/* A file with its holes left out; short ones are inline (content is allocated). */
int object_plan_file(struct object_plan *plan, const char *name, int fd) _must_check_;
/* The memory of a snapshot (ram_layer.h). */
int object_plan_layer(struct object_plan *plan, const char *name, int fd) _must_check_;
/* A disk that was cloned from the template's: what differs from it. */
int object_plan_disk(struct object_plan *plan, const char *name, int fd, int template_fd)
    _must_check_;
/* The bytes of chunk i; room for OBJECT_CHUNK_MAX. 0 or -errno. */
int object_plan_read(const struct object_plan *plan, uint32_t i, uint8_t *out) _must_check_;
/* Where each chunk of a file of a manifest goes. Allocated; NULL: no memory. */
struct object_cursor *object_plan_cursors(const struct object_file *file);
/* Writes the bytes of a chunk to their places. 0 or -errno. */
int object_plan_write(const struct object_file *f,
                      const struct object_cursor *from,
                      struct span bytes,
                      int fd) _must_check_;
