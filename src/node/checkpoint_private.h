/* Shared by checkpoint.c (records) and checkpoint_files.c (what is on disk). */
#pragma once

#include "node/checkpoint.h"

/* `path`, `path`.old and `path`.new; its name goes first. Blocks. 0 or -errno. */
int checkpoint_remove_files(const char *path) _must_check_;
