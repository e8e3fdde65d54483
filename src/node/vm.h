/* One VMM process with everything that belongs to it: slot, uid, cgroup, network namespace,
 * sockets, disk, control connection and agent.
 *
 * States: starting -> ready -> (load) -> stopped <-> running -> ending -> gone. Each command has a
 * deadline. A command's `done` comes only when it succeeded; every failure, timeout and unasked end
 * comes once by the owner's on_end, after which the vm cleans up after itself and the pointer is
 * dead for the owner. Nothing calls
 * back from inside a function of this header, except vm_read_console. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/span.h"
#include "node/runtime.h"

struct agent;
struct journal_vm;
struct node;
struct vm;

#define VM_PATH_SIZE 512

struct vm_spec {
    enum runtime_mode mode;
    unsigned int vcpus;
    unsigned int memory_mib;
    char ram_path[VM_PATH_SIZE];
    int ram_memfd; /* -1: ram_path is mapped; borrowed, valid while the vm starts */
    char disk_source[VM_PATH_SIZE]; /* cloned for this vm */
    uint64_t disk_bytes;            /* at least this length */
    const char *accelerator;        /* probe only; NULL: the runtime's */
    bool background;                /* nobody waits for it */
};

struct vm_owner {
    /* code: "vmm_crashed", "out_of_memory", "guest_poweroff", "guest_panic", "agent_protocol",
     * "agent_timeout", "start_failed", "accelerator_unavailable". */
    void (*on_end)(void *arg, struct vm *vm, const char *code, const char *message);
};

typedef void (*vm_fn)(void *arg, struct vm *vm);
typedef void (*vm_result_fn)(void *arg, struct vm *vm, const struct error *err);

/* Starts a VMM. done: its control connection is up (RESTORE: it waits for vm_load; BOOT: the guest
 * boots). NULL when there is no slot or memory (err filled: capacity_unavailable). */
struct vm *vm_start(struct node *node,
                    const struct vm_spec *spec,
                    const struct vm_owner *owner,
                    void *owner_arg,
                    struct error *err);
/* To be set right after vm_start or vm_adopt. */
void vm_on_ready(struct vm *vm, vm_fn done, void *arg);
/* Takes a VMM of an earlier run back, after checking pid, start time and program. NULL when it is
 * not there any more. `disk_path` is where its disk is. */
struct vm *vm_adopt(struct node *node,
                    const struct journal_vm *record,
                    const char *disk_path,
                    const struct vm_owner *owner,
                    void *owner_arg);
void vm_set_owner(struct vm *vm, const struct vm_owner *owner, void *owner_arg);
/* Ends it. gone (may be NULL) comes when nothing of it is left; its disk too, unless it was moved
 * away by vm_move_disk. No on_end comes any more. */
void vm_end(struct vm *vm, void (*gone)(void *arg), void *gone_arg);
/* For an owner that has just heard on_end: gone comes when nothing is left. */
void vm_when_gone(struct vm *vm, void (*gone)(void *arg), void *gone_arg);
/* Ends it with a reason: on_end comes after the console was saved. */
void vm_fail(struct vm *vm, const char *code, const char *message);
/* Lets it yield the CPUs to other VMs, or not. */
void vm_set_background(struct vm *vm, bool background);
/* Closes descriptors and forgets it; the VMM goes on (end of space-node). */
void vm_abandon(struct vm *vm);
/* Frees an abandoned one, when the loop is gone. */
void vm_forget(struct vm *vm);

/* Commands; one at a time. Stop, continue and check wait for an earlier one, and for the
 * connection of an adopted VM. */
void vm_load(struct vm *vm, int state_fd, vm_fn done, void *arg);
/* A save that fails is no end: done hears why. The descriptor is open for writing only. */
void vm_save(struct vm *vm, int state_fd, vm_result_fn done, void *arg);
void vm_cont(struct vm *vm, vm_fn done, void *arg);
void vm_stop(struct vm *vm, vm_fn done, void *arg);
/* Grows the disk's file and tells the guest. */
void vm_resize_disk(struct vm *vm, uint64_t bytes, vm_fn done, void *arg);
/* After an adoption: asks whether the guest runs (vm_is_stopped knows it then); on_end comes if it
 * has ended meanwhile. */
void vm_check(struct vm *vm, vm_fn done, void *arg);
bool vm_is_stopped(const struct vm *vm);
/* Reads the console; then vm_console holds it. Comes also when nothing could be read. */
void vm_read_console(struct vm *vm, vm_fn done, void *arg);
/* Arms a deadline for something the caller waits for (agent work): vm_fail(code) when it passes.
 * 0 disarms. */
void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message);

unsigned int vm_slot(const struct vm *vm);
pid_t vm_pid(const struct vm *vm);
/* A descriptor of its /proc directory, which is never that of another process. -errno. */
int vm_open_process(const struct vm *vm) _must_check_;
/* What it was started under, whatever one started now would be: its snapshots are bound to that.
 * NULL: an earlier release started it, and the node's own is not known yet. */
const struct runtime_env *vm_environment(const struct vm *vm);
/* Whether its RAM is a memory file instead of the image. */
bool vm_ram_is_memfd(const struct vm *vm);
/* The image that it maps; "" when it was adopted. */
const char *vm_ram_path(const struct vm *vm);
struct agent *vm_agent(const struct vm *vm);
/* The last 64 KiB that were read. */
const struct buf *vm_console(const struct vm *vm);
/* What an earlier run of this program had read. */
void vm_seed_console(struct vm *vm, struct span text);
/* What an adoption needs. */
void vm_describe(const struct vm *vm, struct journal_vm *out);
/* Renames its disk to path; 0 or -errno. */
int vm_move_disk(struct vm *vm, const char *path) _must_check_;
/* Number of VMs that exist, ending ones included. */
unsigned int vm_count(const struct node *node);
