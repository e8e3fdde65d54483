/* QEMU's command line for one VM, and its words at the end. */
#pragma once

#include <stddef.h>

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

/* The argument of -cpu. `cpu` is node.cpu and matters under KVM. */
const char *qemu_cpu_model(const char *accelerator, const char *cpu);
/* What a snapshot's environment calls it: it differs where a guest would see another processor. */
void qemu_cpu_name(const char *accelerator, const char *cpu, char *out, size_t size);
/* The program for an accelerator. */
const char *qemu_binary(const struct runtime *rt, const char *accelerator);
/* Of what QEMU wrote to standard error, the line that says why it ended: the last one that is no
 * warning, or which feature of node.cpu the processor lacks; "" when there is none. */
void qemu_last_words(const char *log, char *out, size_t size);
int qemu_detect(const char *name, struct runtime *rt, struct error *err) _must_check_;
void qemu_set_accelerator(struct runtime *rt, const char *accelerator, const char *reason);
int qemu_build_args(const struct runtime *rt,
                    const struct runtime_launch *launch,
                    struct strv *ret_argv,
                    struct error *err) _must_check_;
