/* Files with several names that were seen already: the first name of each, for an archive. Bounded;
 * what does not fit any more is taken for new. */
#pragma once

#include <sys/types.h>

#include "base/buf.h"

#define LINK_TABLE_MAX 65536U

struct link_slot {
    dev_t dev;
    ino_t ino;
    size_t name_at; /* in names; 0: the slot is free */
};

struct link_table {
    struct link_slot *slots;
    size_t n_slots; /* a power of two */
    size_t n_used;
    struct buf names; /* with their NULs */
};

void link_table_init(struct link_table *t);
void link_table_done(struct link_table *t);
/* The first name of the file; NULL when it was not seen before: then `name` is noted. */
const char *link_table_find(struct link_table *t, dev_t dev, ino_t ino, const char *name);
