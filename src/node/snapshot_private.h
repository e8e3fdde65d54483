/* Shared by snapshot.c (the directory) and snapshot_ram.c (memory in and out). */
#pragma once

#include "node/snapshot.h"

/* Opens one of the files of `dir` + `suffix`; descriptor or -errno. */
int snapshot_open_file(const char *dir, const char *suffix, const char *name, int flags);
/* storage_full where it is that, else internal. */
int snapshot_fail(struct error *err, int r, const char *what);
/* Of a layer over this image. 0 or -errno. */
int snapshot_place(const struct snapshot_facts *facts, int image_fd, struct ram_layer_place *ret);
/* Of `dir`.new, onto stable storage. 0 or -errno. */
int snapshot_sync_file(const char *dir, const char *name);
