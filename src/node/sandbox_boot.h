/* Starting a sandbox in state `error` again. It boots from the disk in its directory and, as every
 * boot does, over the base's image. */
#pragma once

#include "base/error.h"
#include "node/sandbox.h"
#include "node/snapshot.h"

/* As sandbox_wake, and one in state `error` boots; nothing that ran in it is there then.
 * failed_precondition (state "error") without a good disk. What fails leaves it, and its disk, as
 * they were. In sandbox_resume.c. */
int sandbox_boot(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err) _must_check_;

/* What it starts from. */
struct sandbox_boot {
    char dir[SNAPSHOT_PATH_SIZE];
    char base_ram[SNAPSHOT_PATH_SIZE]; /* the image, if it has no name of that in its directory */
    unsigned int memory_mib;
    unsigned int disk_mib;
};

void sandbox_boot_describe(const struct sandbox *sb, struct sandbox_boot *ret);
/* On a worker. failed_precondition (state "error") says what is gone or damaged; whether the
 * guest's kernel can mount the disk is seen only when it does. */
int sandbox_boot_check(const struct sandbox_boot *boot, struct error *err) _must_check_;
