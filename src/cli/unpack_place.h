/* Directories below a top, opened without following a symbolic link anywhere below it. */
#pragma once

#include "cli/copy_name.h"

struct place {
    int top_fd; /* borrowed */
    int parent_fd;
    char parent[COPY_NAME_SIZE]; /* whose descriptor parent_fd is; valid when parent_fd >= 0 */
};

void place_init(struct place *p, int top_fd);
void place_done(struct place *p);
/* The directory that `name` (of copy_name_check, not empty) is in, made with its parents where it
 * is missing. The descriptor is the place's, until the next call; ret_base points into name. -ELOOP
 * or -ENOTDIR when a link or file is in the way, or another -errno. */
int place_open_parent(struct place *p, const char *name, const char **ret_base);
/* A descriptor of the caller's for reading the directory `name` ("" is the top). */
int place_open_directory(const struct place *p, const char *name);
