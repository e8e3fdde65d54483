/* Drivers of virtual machine monitors behind one ops table.
 *
 * A driver plans a command line, and controls a running VMM through a socket. It knows nothing of
 * sandboxes, pools or journals (vm.h). Everything runs on the loop thread except `plan`, which is
 * pure and runs on a worker. Each command has one answer; its deadline is the caller's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"

#define RUNTIME_VERSION_SIZE 128 /* "10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)" */

struct buf;
struct loop;
struct runtime;
struct runtime_vm;
struct strv;

/* What a sandbox's record and a base snapshot are bound to. */
struct runtime_env {
    char driver[16];
    char vmm_version[RUNTIME_VERSION_SIZE];
    char accelerator[8]; /* "kvm" or "tcg" */
    char cpu_model[96];
    char kernel[96];
    char guest_id[64]; /* of kernel image and initramfs: changes with our agent too */
    uint64_t tsc_khz;  /* of the host, as measured at this start: runtime_same_clock compares */
};

/* Each measurement differs a little, by some 0.05 % where the host's clock is being slewed. */
#define RUNTIME_CLOCK_TOLERANCE 500U /* one part in so many */

/* Whether two measurements may be of one processor clock, whose guests keep its rate. */
static inline bool runtime_same_clock(uint64_t a_khz, uint64_t b_khz)
{
    uint64_t larger = a_khz > b_khz ? a_khz : b_khz;
    uint64_t smaller = a_khz > b_khz ? b_khz : a_khz;

    return larger - smaller <= larger / RUNTIME_CLOCK_TOLERANCE;
}

enum runtime_event {
    RUNTIME_EVENT_POWEROFF, /* the guest powered itself off; the VMM waits, stopped */
    RUNTIME_EVENT_REBOOT,   /* the same after a reset or a panic */
    RUNTIME_EVENT_FAILED    /* the control connection broke or lied */
};

/* Descriptors of a VMM, at fixed numbers in its process. */
enum runtime_fd {
    RUNTIME_FD_CONTROL = 3, /* listening unix socket */
    RUNTIME_FD_AGENT,       /* listening unix socket */
    RUNTIME_FD_DISK_RW,
    RUNTIME_FD_DISK_RO,
    RUNTIME_FD_TAP,
    RUNTIME_FD_RAM,  /* a sealed memfd, where the VMM cannot map a read-only file */
    RUNTIME_FD_STAGE /* the first of those that only the stage program uses */
};

enum runtime_mode {
    RUNTIME_MODE_BOOT,    /* from kernel and initramfs, RAM in the shared file ram_path */
    RUNTIME_MODE_COLD,    /* from kernel and initramfs, RAM private over ram_path */
    RUNTIME_MODE_RESTORE, /* stopped, waiting for load; RAM private over ram_path */
    RUNTIME_MODE_PROBE    /* tiny boot without disk and network, RAM anonymous */
};

struct runtime_launch {
    enum runtime_mode mode;
    unsigned int slot;
    unsigned int vcpus;
    unsigned int memory_mib;
    uid_t uid;
    const char *ram_path;
    bool ram_is_memfd;       /* RUNTIME_FD_RAM instead of ram_path */
    const char *empty_dir;   /* the VMM's root after set-up */
    const char *accelerator; /* NULL: the runtime's */
};

/* EPIPE: the control connection broke; RUNTIME_EVENT_FAILED follows. */
typedef void (*runtime_done_fn)(void *arg, const struct error *err);
enum runtime_status {
    RUNTIME_STATUS_RUNNING,
    RUNTIME_STATUS_STOPPED,
    RUNTIME_STATUS_ENDED, /* the guest powered itself off */
};
typedef void (*runtime_status_fn)(void *arg, enum runtime_status status, const struct error *err);
typedef void (*runtime_console_fn)(void *arg, const struct buf *text, const struct error *err);

struct runtime_callbacks {
    void (*on_ready)(void *arg);
    /* FAILED is the last one. */
    void (*on_event)(void *arg, enum runtime_event event, const char *message);
};

struct runtime_ops {
    const char *name;
    /* Finds the VMM's program and version (runs it once; blocks) and fills driver, vmm_version,
     * tsc_khz and the programs. */
    int (*detect)(const char *name, struct runtime *rt, struct error *err);
    /* Sets accelerator, CPU model, and what depends on them: translation_mib, restores_cold. */
    void (*set_accelerator)(struct runtime *rt, const char *accelerator, const char *reason);
    /* Whether a restore maps the base's file itself (true) or needs a memfd. */
    bool (*maps_ram_file)(const struct runtime *rt);
    int (*plan)(const struct runtime *rt,
                const struct runtime_launch *launch,
                struct strv *ret_argv,
                struct error *err);
    /* Connects to a VMM's control socket; also to one that an earlier run started. NULL: no
     * memory or no socket. */
    struct runtime_vm *(*attach)(struct loop *loop,
                                 const char *socket_path,
                                 const struct runtime_callbacks *callbacks,
                                 void *arg);
    void (*detach)(struct runtime_vm *rvm);
    /* Device state in (RAM is mapped already) and out. The descriptor stays the caller's; the one
     * to save to is open for writing only. */
    void (*load)(struct runtime_vm *rvm, int state_fd, runtime_done_fn done, void *arg);
    void (*save)(struct runtime_vm *rvm, int state_fd, runtime_done_fn done, void *arg);
    void (*cont)(struct runtime_vm *rvm, runtime_done_fn done, void *arg);
    void (*stop)(struct runtime_vm *rvm, runtime_done_fn done, void *arg);
    /* Tells the guest the new size of its disk. */
    void (*resize_disk)(struct runtime_vm *rvm, uint64_t bytes, runtime_done_fn done, void *arg);
    /* What the console said since the last read, at most 64 KiB. */
    void (*read_console)(struct runtime_vm *rvm, runtime_console_fn done, void *arg);
    /* After an adoption: whether the guest runs, is stopped, or has ended meanwhile. */
    void (*check)(struct runtime_vm *rvm, runtime_status_fn done, void *arg);
    /* Of what a VMM wrote to standard error, the line that says why it ended; "": none. */
    void (*last_words)(const char *log, char *out, size_t size);
};

/* The driver's: nobody else reads it. */
struct runtime_own {
    char kvm_binary[256]; /* a smaller build for KVM only, which starts faster; "": none */
    unsigned int major;
};

struct runtime {
    const struct runtime_ops *ops;
    struct runtime_env env;
    char accelerator_reason[256];
    char binary[256];
    /* Set before set_accelerator, which makes it 0 where nothing is translated: memory that a VMM
     * takes for that, beside its guest's. */
    unsigned int translation_mib;
    bool restores_cold; /* set by set_accelerator: a restored guest gains by a rehearsal */
    struct runtime_own own;
    char cpu[16]; /* node.cpu, set before set_accelerator */
    char kernel_path[256];
    char initrd_path[256];
};

/* The driver that this build has. */
extern const struct runtime_ops *const runtime_driver;
