/* A new file that gets its name when it is complete, in place of what has the name by then or not.
 * So whatever ends the service on the way leaves the old file as it was.
 *
 * It has no name at first (O_TMPFILE). To replace something it needs one, since only rename() does
 * that: ".space-" and a hash of the name that it will have, for a moment; where the filesystem has
 * no files without names, from the start. A kill in that moment leaves such a file. Whoever makes
 * one holds a lock on it, which ends with the service; so the next one that is to have the same
 * name knows an abandoned one, and removes it. */
#pragma once

#include "guest/service_path.h"

struct replacement {
    struct place place; /* set by the user before replacement_open, with O_PATH */
    bool exists;        /* something has the name: `old` */
    struct stat old;
    int fd;                         /* the new file, or -1 */
    char hidden[PATH_HIDDEN_BYTES]; /* its name, "" while it has none */
};

#define REPLACEMENT_NONE                                                                           \
    {                                                                                              \
        .place = {.fd = -1}, .fd = -1                                                              \
    }

#define _cleanup_replacement_ _cleanup_(replacement_done)

/* Looks at what has the name now. 0 or -errno; nothing is fine. */
int replacement_look(struct replacement *n) _must_check_;
/* Makes the new file, for writing, mode 0600. 0 or -errno. */
int replacement_open(struct replacement *n) _must_check_;
/* Gives it its name. Without `replace` -EEXIST when there is something. `exists` says after it
 * whether something was replaced. */
int replacement_finish(struct replacement *n, bool replace) _must_check_;
/* Removes what has not got its name. */
void replacement_done(struct replacement *n);
