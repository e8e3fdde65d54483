/* Paths of services: bytes without NUL, relative to the working directory or absolute. What a path
 * leads to is opened once and then used by its descriptor. */
#pragma once

#include <sys/stat.h>

#include "guest/service.h"

/* Appends what records call it: absolute, without "//", "/./" and a slash at the end. Where it has
 * "..", the kernel's own name of the directory it leads to is used. 0 or -errno. */
int path_put_absolute(struct buf *b, const char *path) _must_check_;

/* Where the last component of a path is: the directory, opened with O_PATH, and the name. The name
 * is never "", "." or ".." (-EISDIR), nor has it slashes at its end. */
struct place {
    int fd;
    char name[256];
};

#define _cleanup_place_ _cleanup_(place_close)

static inline void place_close(const struct place *p)
{
    cleanup_close(&p->fd);
}

int place_open(const char *path, struct place *ret) _must_check_;
/* The same, and goes on from there as long as the name is a symbolic link. -EACCES at one of
 * somebody else's in a sticky directory that everybody may write to. */
int place_open_following(const char *path, struct place *ret) _must_check_;

/* Opens an O_PATH descriptor's file for reading or writing, whatever its name leads to by now. */
int path_reopen(int fd, int flags) _must_check_;
/* The name that a file has while it waits for its own: ".space-" and 16 digits in hexadecimal. */
#define PATH_HIDDEN_BYTES 32U
int path_make_hidden(char name[PATH_HIDDEN_BYTES]) _must_check_;
/* The one of a file that will have this name. */
void path_hidden_of(const char *name, char hidden[PATH_HIDDEN_BYTES]);
bool path_is_hidden(const char *name);
/* "/proc/self/fd/N", for calls that know no O_PATH descriptor. */
#define PATH_FD_BYTES 32U
void path_of_fd(int fd, char out[PATH_FD_BYTES]);

/* rename, both below dir_fd; without `replace` -EEXIST when the new name is taken. 0 or -errno. */
int path_rename_at(int dir_fd, const char *from, const char *to, bool replace) _must_check_;

/* mkdir -p with mode 0755 for all but the last `mode`, which is exact. Gives 1 when the last one
 * was made, 0 when it was a directory before, -errno. *ret_made counts the directories made, whose
 * removal path_remove_parents tries. */
int path_make(const char *path, mode_t mode, size_t *ret_made) _must_check_;
/* Makes the directories above a path. 0 or -errno. */
int path_make_parents(const char *path, size_t *ret_made) _must_check_;
void path_remove_parents(const char *path, size_t made);

/* Appends an ENTRY of the file behind an O_PATH descriptor under this absolute path. 0 or -errno.
 */
int path_put_entry(struct service *s, struct span absolute, int fd) _must_check_;
/* The same of what a path leads to; a symbolic link at its end is described itself. */
int path_put_entry_of(struct service *s, const char *path) _must_check_;
/* The same as it stood when *st was taken. */
int path_put_entry_as(struct service *s, struct span absolute, int fd, const struct stat *st)
    _must_check_;
/* The same of name in a directory, not following it. */
int path_put_entry_at(struct service *s, struct span absolute, int dir_fd, const char *name)
    _must_check_;
