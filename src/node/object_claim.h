/* Whose store a directory is: a file in it, OBJECT_CLAIM_NAME, says so.
 *
 * An object store begins in an empty directory, and from then on that file has to be there: the
 * empty place of a disk that is not mounted, and a directory with something else in it, are never
 * taken for a store. One of before there was such a file, which has a store's directories of our
 * own and nothing else in it, is taken over as it is, but not on the disk of the data directory:
 * there it may be what was left in the place of a disk that is not mounted. Runs as the user of the
 * store, who has to own the directory. Everything blocks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define OBJECT_CLAIM_NAME    ".space-store"
#define OBJECT_CLAIM_ID_SIZE 33

struct object_claim {
    const char *path; /* for messages */
    const char *installation;
    const char *id;       /* of the store that it was before; "": none */
    bool may_begin;       /* an empty directory becomes a store */
    uint64_t home_device; /* of the data directory's file system; 0: not known */
};

/* at_fd: of the directory, O_PATH is enough. Its number to work with, or -errno: with
 * failed_precondition (state "object_store") when it is not to be used, service_unavailable when it
 * may be later. */
int object_claim_open(int at_fd,
                      const struct object_claim *claim,
                      char ret_id[OBJECT_CLAIM_ID_SIZE],
                      struct error *err) _must_check_;
