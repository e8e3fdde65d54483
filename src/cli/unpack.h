/* Unpacks a tar archive of a guest below a directory of this machine.
 *
 * Theory of operation. The archive is hostile: libarchive only parses it (tar alone, no filters);
 * everything on disk is done here, with rules that hold whatever it says:
 * - A name that is absolute or has ".." is refused, and ends the unpacking.
 * - Parents are opened beneath the top without following any symbolic link (openat2 with
 *   RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, or component by component with O_NOFOLLOW), so a link
 *   that an earlier entry made, or that was there before, is never walked through.
 * - A file or link is made under a name of ours and renamed to its place: nothing that exists is
 *   opened or written to, and a half-written file never has its name. A rename never replaces a
 *   directory.
 * - A hard link may only lead to a regular file that this very unpacking has made (its inode
 * changed after the start); else the guest could tie its names to files of the user.
 * - Of modes the lower nine bits are kept: no set-user-id, no set-group-id, no sticky bit. Owners,
 *   attributes and access lists are ignored. Devices, pipes and sockets are left out and counted.
 * Symbolic links are kept with whatever target they have: they are only made, never followed.
 * Memory is constant: directories get their mode and time when the walk leaves them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/copy_name.h"

struct archive;

struct unpack_count {
    uint64_t files; /* and links */
    uint64_t directories;
    uint64_t bytes;
    uint64_t left_out; /* devices, pipes, sockets */
    char first_left_out[256];
};

struct unpack {
    int top_fd;      /* borrowed */
    bool top_is_new; /* made for this: it gets the mode of the archive's top */
    /* Called after each step; negative ends it. May be NULL. */
    int (*on_progress)(void *arg, const struct unpack_count *count);
    void *arg;
    struct unpack_count count;
};

/* A reader that accepts tar and nothing else; NULL without memory. */
struct archive *unpack_new_reader(void);
/* Unpacks all of an opened archive. The counts say what was done, after a failure too. */
int unpack_all(struct unpack *u, struct archive *archive, struct error *err) _must_check_;
