/* Names for `space cp`: what the user typed, and what a guest put into an archive. */
#pragma once

#include <limits.h>
#include <stdbool.h>

#include "base/error.h"

#define COPY_NAME_SIZE PATH_MAX

struct copy_place {
    bool is_remote;
    bool is_stream;    /* "-" */
    char sandbox[128]; /* remote: id or name, as typed */
    const char *path;  /* after the colon; "." when there was nothing */
};

/* "SANDBOX:PATH" where the part before the first colon can be a sandbox's name or id; everything
 * else is a path of this machine ("./a:b" is one too). */
void copy_place_parse(const char *word, struct copy_place *ret);

/* The name of an archive's entry as a relative path that stays below where it is unpacked: without
 * "." components, doubled slashes and slashes at the end; "" is the top itself. -EPERM for an
 * absolute name or one with "..", -ENAMETOOLONG, -EBADMSG without a name. */
int copy_name_check(const char *name, char ret[COPY_NAME_SIZE]);
/* The last component of a path ("c" of "/a/b/c//"); "" for "/", ".", ".." and what ends in them:
 * such a path means what is in it. -ENAMETOOLONG. */
int copy_name_base(const char *path, char ret[NAME_MAX + 1]);
/* Whether a path ends with "/": it means a directory. */
bool copy_name_is_directory(const char *path);
