/* WRITE_FILE: one part of a file that the host puts into the guest. */
#pragma once

#include "wire/agent_message.h"

/* Writes m->bytes at m->offset; with m->create the file is made or emptied first, parents are made
 * (0755, of the same owner) and mode and owner are set. Only regular files. 0 or -errno. */
int write_file_part(const struct agent_write_file *m) _must_check_;
