/* The files of one base snapshot: manifest, check, completion, eviction. All of it blocks: workers.
 */
#pragma once

#include <stdint.h>

#include "node/base_snapshot.h"
#include "node/runtime.h"

#define BASE_FORMAT    2
#define BASE_PATH_SIZE 480

struct base_files {
    char dir[BASE_PATH_SIZE];      /* final */
    char building[BASE_PATH_SIZE]; /* while it is built */
    uint64_t ram_bytes;
    uint64_t state_bytes;
    uint64_t disk_bytes;
};

/* Sets the paths. */
int base_files_init(struct base_files *files,
                    const char *volume,
                    const struct base_key *key,
                    struct error *err) _must_check_;
/* Whether a complete base of this key and environment is there; fills the sizes. */
bool base_files_check(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env);
/* Makes the building directory with an empty RAM file of the right length. */
int base_files_begin(const struct base_files *files, const struct base_key *key, struct error *err)
    _must_check_;
/* Everything is in the building directory and no VMM has it open: makes it read-only and durable,
 * writes the manifest, and puts it in place of an older one. */
int base_files_finish(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env,
                      struct error *err) _must_check_;
/* Removes what is over `keep` of this template name, the one used longest ago first, except the
 * `pinned` directory names (NULL-terminated). */
void base_files_evict(const char *volume,
                      const char *template_name,
                      unsigned int keep,
                      const char *const *pinned);
/* Removes what an interrupted build or replacement left. No build may run. */
void base_files_sweep(const char *volume);
/* A sealed copy of the RAM image for VMMs that cannot map a read-only file; descriptor or -errno.
 */
int base_files_copy_ram(const struct base_files *files);
