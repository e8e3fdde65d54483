/* What the parts of bench-floor share: one VMM, its control socket, its agent's port. Whatever goes
 * wrong ends the program with a message. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#include "base/buf.h"
#include "wire/agent_frame.h"

/* Where QEMU finds its disk: to write, and to read. */
#define FLOOR_DISK_FD      5
#define FLOOR_DISK_READ_FD 6

struct floor {
    int control;
    int agent;
    pid_t pid;
    char dir[64];
    struct agent_reader reader;
    struct buf out;
    uint32_t channel;
    uint32_t id;
    uint64_t epoch;
};

double floor_now_ms(void);
void floor_die(const char *what) __attribute__((noreturn));
void floor_open_at(const char *path, int flags, int wanted);
/* Spawns the VMM and greets it; it has nothing loaded yet. */
void floor_start(struct floor *f, char **argv);
void floor_load(struct floor *f, const char *state);
/* Reads lines until one contains `wanted`. */
void floor_qmp_expect(struct floor *f, const char *wanted);
void floor_qmp_write(struct floor *f, const char *command, int pass_fd);
/* What is put leaves with the next flush. */
void floor_put_hello(struct floor *f);
void floor_put_identity(struct floor *f);
void floor_flush(struct floor *f);
/* Reads until a frame of this type came. */
void floor_await(struct floor *f, uint8_t type);

/* Suspends the running VM and wakes it in a new VMM, by the bare steps, then by QEMU's own
 * migration. `disk` is the path behind FLOOR_DISK_FD; the files that it makes lie beside it, and
 * are removed. */
void floor_measure_suspend(struct floor *f, const char *disk, char **qemu);
