/* Steps: named points between which a process may be killed. Every record that a daemon makes
 * durable or takes away lies between two of them, so that a test can kill it at each.
 *
 * For tests only, and inert in every installation that is not made for one: without the file
 * RUN_DIR/steps/PROGRAM, which nothing of the product makes, step() is one comparison. A file that
 * others than root and the daemon's own user could write is not taken. With it each name goes to
 * RUN_DIR/steps/PROGRAM.log, one a line, and the file itself is shared memory through which a test
 * asks for a stop:
 *
 *   0  u32 armed    1: `name` is waited for. The program takes it away when it is there
 *   4  u32 count    the how manieth step of that name is meant; goes down to 0
 *   8  u32 reached  1 when the program stands there
 *  12  u32 go       1 lets it go on
 *  16  name, with a NUL
 *
 * Both files are opened before privileges are dropped, and nothing but memory and one descriptor is
 * used later. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"

#define STEP_FILE_BYTES 4096U
#define STEP_NAME_SIZE  120U

/* Once, before there is a second thread. */
void step_init(const char *run_dir, const char *program);
bool step_is_watched(void);
/* From any thread. Returns when the test lets it, if this is where it wants the program. */
void step(const char *format, ...) _printf_(1, 2);
