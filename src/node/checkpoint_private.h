/* Shared by checkpoint.c (records) and checkpoint_files.c (what is on disk). */
#pragma once

#include "node/checkpoint.h"

/* From `<ck>.new` to `<ck>`. Blocks. 0 or -errno. */
int checkpoint_put_in_place(const char *building) _must_check_;
/* `path`, `path`.old and `path`.new; its name goes first. Blocks. 0 or -errno. */
int checkpoint_remove_files(const char *path) _must_check_;
