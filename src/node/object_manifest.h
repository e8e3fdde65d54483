/* The manifest of one snapshot in the object store: which files it has, and which chunks hold them.
 *
 * A file is its length, pieces (ranges of it that are stored, ascending), and chunks that hold the
 * bytes of the pieces one after the other; what lies between is a hole, or, with `over`, what the
 * named other content has there. Short files stand in the manifest itself. The base of a snapshot,
 * the memory image that its pages differ from, is a manifest of its own, since all sandboxes of a
 * template and size share it. Integers are little-endian; docs/objects.md has the format.
 *
 * Parsing is pure and takes what the formatter writes, nothing else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/id.h"
#include "node/object_chunk.h"
#include "node/object_name.h"

#define OBJECT_FILES_MAX  4096U
#define OBJECT_PIECES_MAX (4U * 1024U * 1024U) /* of one file */
#define OBJECT_INLINE_MAX 65536U               /* of one file */
#define OBJECT_LENGTH_MAX (1ULL << 46U)

enum object_over {
    OBJECT_OVER_HOLES,
    OBJECT_OVER_TEMPLATE /* the disk of the template */
};

struct object_piece {
    uint64_t offset;
    uint64_t bytes;
};

struct object_ref {
    struct object_sum sum;
    uint32_t bytes;
};

struct object_file {
    char name[OBJECT_NAME_SIZE]; /* "NAME" or "DIRECTORY/NAME" */
    enum object_over over;
    uint64_t bytes;
    int64_t time_ns; /* when it was last written */
    bool is_inline;
    struct span content; /* of an inline one; borrowed */
    uint32_t piece_count;
    uint32_t chunk_count;
    struct object_piece *pieces;
    struct object_ref *chunks;
};

struct object_manifest {
    char owner[ID_SIZE]; /* sandbox or checkpoint; of a base "" */
    bool has_base;
    struct object_sum base;
    uint32_t file_count;
    struct object_file *files;
};

/* 0 or -errno of the buffer. */
int object_manifest_format(const struct object_manifest *m, struct buf *out) _must_check_;
/* -EBADMSG, -ENOMEM. `bytes` must outlive it. End it with object_manifest_done. */
int object_manifest_parse(struct span bytes, struct object_manifest *ret) _must_check_;
void object_manifest_done(struct object_manifest *m);
const struct object_file *object_manifest_find(const struct object_manifest *m, const char *name);
