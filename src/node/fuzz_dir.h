/* For fuzz targets whose parser reads files: a directory of its own for each input, since targets
 * run side by side, and an input that is several files, one behind the other. */
#pragma once

#include <stdbool.h>

#include "base/span.h"

#define FUZZ_DIR_SIZE 64

/* Ends the program, as a finding. */
void fuzz_require(bool good);
/* In memory where there is such a place. */
void fuzz_dir_make(char path[FUZZ_DIR_SIZE]);
void fuzz_dir_remove(const char *path);
/* Writes a file below it, whole. */
void fuzz_put(const char *dir, const char *name, struct span content);
/* What is before the next NUL; `rest` begins behind that. */
struct span fuzz_take(struct span *rest);
