/* Bytes that are kept until somebody asks for all of them: a few in memory, more in a file without
 * a name in the store's directory, so that what many clients make us keep costs no memory. Such
 * files take SPILL_ALL_MAX together, those of one key a quarter of it. */
#pragma once

#include <stdint.h>

#include "base/buf.h"

#define SPILL_MEMORY_MAX 65536U
#define SPILL_ALL_MAX    (4ULL * 1024 * 1024 * 1024)
#define SPILL_KEY_MAX    (SPILL_ALL_MAX / 4)

struct api;
struct key_entry;

struct spill {
    struct api *api;       /* borrowed */
    struct key_entry *key; /* whose it counts as; borrowed, may be NULL */
    uint64_t max;
    uint64_t n;
    uint64_t counted; /* of it, in the sums of api and key */
    int fd;           /* -1: all of it is in memory */
    int error;        /* sticks: 0, -EMSGSIZE beyond max, -EDQUOT where there is no room, -errno */
    uint8_t *mapped;  /* by spill_read */
    struct buf memory;
};

/* Embed one and init it. */
void spill_init(struct spill *spill, struct api *api, struct key_entry *key, uint64_t max);
void spill_done(struct spill *spill);
void spill_put(struct spill *spill, struct span bytes);
/* What takes the place of a file without a name where the filesystem has none: one that loses its
 * name at once. A descriptor or -errno. */
int spill_open_named(const char *dir) _must_check_;
/* All of it, valid until spill_done; nothing is put any more. 0, or the error that has stuck. */
int spill_read(struct spill *spill, struct span *ret_bytes) _must_check_;
