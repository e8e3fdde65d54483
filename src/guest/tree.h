/* A walk through a directory tree by descriptors, of any depth: the stack is on the heap, and only
 * some directories are open at once; the others are reached again by "..", which must lead to where
 * the walk came from. Symbolic links are never followed. */
#pragma once

#include <sys/stat.h>

#include "base/buf.h"

/* Of the path below the top: so long a path is refused with -ENAMETOOLONG. */
#define TREE_PATH_MAX 1048576U

enum tree_event {
    TREE_END = 0,
    TREE_OTHER = 1, /* anything but a directory */
    TREE_ENTER = 2, /* a directory, before its entries */
    TREE_LEAVE = 3, /* the same, after them */
};

struct tree_level {
    int fd; /* -1: closed for now */
    dev_t dev;
    ino_t ino;
    off_t position; /* behind the last entry taken */
    size_t path_bytes;
    uint8_t *bytes; /* of getdents64, NULL when there is none */
    size_t at;
    size_t n;
};

struct tree {
    struct tree_level *levels;
    size_t n_levels;
    size_t room;
    size_t first_open; /* levels below it are closed */
    struct buf path;   /* of the entry, relative to the top */
    size_t name_at;
    bool enter;   /* the last event was TREE_ENTER, and not skipped */
    bool restart; /* a directory that was closed is read from its start again: all that was seen
                   * of it is gone (a removal) */
};

#define _cleanup_tree_ _cleanup_(tree_done)

/* Takes the top directory, opened for reading. 0 or -errno. */
int tree_init(struct tree *t, int fd) _must_check_;
void tree_done(struct tree *t);
/* The next event (enum tree_event), or -errno about the entry that tree_path names. */
int tree_next(struct tree *t) _must_check_;
/* After TREE_ENTER: does not go into it, and there will be no TREE_LEAVE. */
void tree_skip(struct tree *t);

/* Of the last event: the directory it is in, its name in there, and its path below the top. */
int tree_dir_fd(const struct tree *t);
const char *tree_name(const struct tree *t);
const char *tree_path(const struct tree *t);
