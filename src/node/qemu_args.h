/* QEMU's command line for one VM. */
#pragma once

#include "base/error.h"

struct runtime;
struct runtime_launch;
struct strv;

/* Both ends of every sandbox's only link; the same everywhere, so that snapshots are portable. */
#define QEMU_GUEST_MAC     "02:53:50:00:00:02"
#define QEMU_CONSOLE_BYTES 65536U
/* Without erms: the emulator copies a `rep movsb` byte by byte, so the guest is told that copying
 * and clearing memory eight bytes at a time is faster. */
#define QEMU_TCG_CPU "Haswell-noTSX,-pcid,-tsc-deadline,-invpcid,-erms"

const char *qemu_cpu_model(const char *accelerator);
int qemu_build_args(const struct runtime *rt,
                    const struct runtime_launch *launch,
                    struct strv *ret_argv,
                    struct error *err) _must_check_;
