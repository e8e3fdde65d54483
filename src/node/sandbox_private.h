/* struct sandbox, for the sandbox_*.c files. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/list.h"
#include "node/agent.h"
#include "node/base_snapshot.h"
#include "node/objects.h"
#include "node/restore_gate.h"
#include "node/sandbox.h"

struct checkpoint;
struct pool_request;
struct sandbox_capture;
struct sandbox_fetch;
struct sandbox_restore;
struct sandbox_resume;
struct snapshot_facts;
struct vm;

enum waiter_kind {
    WAITER_RUNNING,
    WAITER_PAUSED,
    WAITER_SUSPENDED,
    WAITER_AWAKE,
    WAITER_ROLLED_BACK,
    WAITER_GONE,
};

struct sandbox_waiter {
    struct list link;
    enum waiter_kind kind;
    struct sandbox *sb; /* NULL: the answer is that it is gone */
    sandbox_wait_fn fn;
    void *arg;
};

struct sandbox {
    struct list link;
    struct node *node;
    struct sandbox_info info;
    struct base_key key;
    struct checkpoint *origin; /* in use: what it is being made from */
    struct vm *vm;
    struct pool_request *request; /* while it waits for a VM */
    struct process_table *processes;
    struct services *services;
    json_t *env;
    int dir_fd;
    bool agent_told;        /* on_agent came, on_lost is due */
    bool counted;           /* pool_settle is due */
    bool identified;        /* the guest has its identity; running follows when no hold is left */
    unsigned int holds;     /* on the creation */
    bool failed;            /* the creation failed: fail_err is for the waiters */
    unsigned int vms_going; /* VMs that ended and whose parts are being removed */
    unsigned int attempts;  /* VMs that were given to its creation */
    bool await_reap;        /* found at the start: what it left behind is being reaped */
    bool is_left_over;      /* found at the start, and not whole: it goes, and may be made again */
    bool remove_wanted;
    char manifest[OBJECTS_NAME_SIZE]; /* of its snapshot in the object store; "": not there */
    bool fetched;                     /* created from there, and has not run yet */
    struct sandbox_fetch *fetch;      /* while its snapshot comes from there */
    bool snapshot_stays; /* it could not be removed: its wake may not be on stable storage */
    unsigned int jobs;   /* workers are at work in its directory */
    void (*when_idle)(struct sandbox *sb); /* once, when there are none and it is not settling */
    bool was_loud;                         /* its guest did not fall silent for the last capture */
    struct sandbox_capture *capture;       /* while it is suspending */
    struct sandbox_resume *resume;         /* while it wakes from there */
    struct sandbox_restore *restore;       /* while a checkpoint is put into its directory */
    struct restore_turn gate;              /* before that */
    struct error fail_err;
    struct error change_err; /* why the last pause or wake came to nothing */
    void (*continued)(void *arg, int result);
    bool greet_wanted;        /* paused since before this program started: no conversation yet */
    bool settling;            /* adopted, and the VMM has not said yet whether the guest runs */
    bool stop_wanted;         /* a pause waits for that */
    int64_t paused_since_ms;  /* info.paused_at_ms, on the monotonic clock */
    struct loop_timer *timer; /* retries of a removal */
    int64_t started_ns;
};

struct sandbox_set {
    struct list sandboxes;
    struct list waiters;
    struct list delivering;
    unsigned int count;
    bool sweep_queued;
};

struct sandbox_admitted {
    uint64_t memory_mib;
    uint64_t vcpus;
};

/* sandbox.c */
/* What all that have a VM or are getting one have been promised. */
struct sandbox_admitted sandbox_admitted(const struct node *node);
struct sandbox *sandbox_new(struct node *node, const char *id);
/* Checks the transition, logs it, tells the hook and the waiters. */
void sandbox_set_state(struct sandbox *sb, enum sandbox_state state);
void sandbox_notify(struct node *node);
void sandbox_free(struct sandbox *sb);
int sandbox_write_journal(struct sandbox *sb);
/* What a power cut should not take away: journal and variables go to the disk by a worker, since
 * nobody who waits for an answer waits for that. */
void sandbox_sync_later(struct sandbox *sb);
/* The record as it will be in that state. */
int sandbox_write_journal_as(struct sandbox *sb, enum sandbox_state state);
/* Opens (and with `make`, makes) the directory. 0 or -errno. */
int sandbox_open_dir(struct sandbox *sb, bool make);
void sandbox_dir_path(const struct sandbox *sb, const char *file, char *out, size_t size);
int sandbox_add_waiter(
    struct node *node, struct sandbox *sb, enum waiter_kind kind, sandbox_wait_fn fn, void *arg);
/* sandbox_pause.c */
void sandbox_set_reason(struct sandbox *sb, const struct sandbox_reason *reason);
/* Writes the record before anybody hears of the state. 0 or -errno. */
int sandbox_enter(struct sandbox *sb, enum sandbox_state state) _must_check_;
/* From here until the end its processes' time stands still. */
void sandbox_begin_rest(struct sandbox *sb);
void sandbox_end_rest(struct sandbox *sb);
/* info.paused_at_ms comes from an earlier run of this program. */
void sandbox_continue_rest(struct sandbox *sb);
/* failed_precondition; "a sandbox that is STATE cannot VERB". */
int sandbox_refuse(const struct sandbox *sb, const char *verb, struct error *err);
int sandbox_fail_journal(struct error *err, int r);
/* The errno with which its guest answered SILENCE, or did not. */
void sandbox_fail_silence(struct error *err, int result);
/* Calls when_idle, if no worker is in its directory and it has settled. */
void sandbox_tell_idle(struct sandbox *sb);
/* One that is pausing, and whose guest did not fall silent for that, stands still all the same. */
void sandbox_pause_loud(struct sandbox *sb);
/* A paused one continues; `done` comes when it has the right time. */
void sandbox_continue(struct sandbox *sb, void (*done)(void *arg, int result));
/* sandbox_suspend.c */
void sandbox_suspended_path(const struct sandbox *sb, char *out, size_t size);
void sandbox_free_suspend(struct sandbox *sb);
/* Its VM has ended. True when a worker is about to know whether all of it is written down: then
 * this file goes on. */
bool sandbox_outlive_vm(struct sandbox *sb, struct vm *vm, const char *code, const char *message);
/* Its VM is gone or going: what was being made of it comes to nothing. */
void sandbox_lose_capture(struct sandbox *sb);
/* The template's version whose base snapshot its memory stands on. */
const char *sandbox_base_version(const struct sandbox *sb);
void sandbox_snapshot_facts(const struct sandbox *sb, struct snapshot_facts *f); /* here and now */
/* Whether `suspended/` is whole, and what its journal's `suspending` was to make. */
bool sandbox_has_snapshot(const struct sandbox *sb);
/* Before `suspending` is written down: info.capture_id names what will be there, and nothing that
 * is there now. */
int sandbox_name_capture(struct sandbox *sb, struct error *err) _must_check_;
/* Whether there is something to wake from, a disk to boot included. */
bool sandbox_can_wake(const struct sandbox *sb);
/* An adopted one that can wake: its memory is on disk. */
void sandbox_adopt_suspended(struct sandbox *sb);
/* An adopted one that runs: what a suspend or wake left is removed. */
void sandbox_drop_snapshot(struct sandbox *sb);
/* What an interrupted rollback left beside it. */
void sandbox_drop_rollback(struct sandbox *sb);
/* A name of the base's image in the sandbox's directory, which no eviction takes away. */
void sandbox_link_ram(struct sandbox *sb, const char *ram_path);
/* sandbox_pause.c */
/* An adopted one that is paused, or shall run: stops or continues the VM as its record says. */
void sandbox_settle_adopted(struct sandbox *sb);
/* The guest has answered HELLO and expects WAKE: goes on with that, or makes sure it speaks. */
void sandbox_finish_wake(struct sandbox *sb);
/* sandbox_env.c */
int sandbox_store_env(struct sandbox *sb);
int sandbox_load_env(struct sandbox *sb);
int sandbox_check_env(const json_t *env, struct error *err);
/* sandbox_run.c */
void sandbox_fail_create(struct sandbox *sb, enum error_code code, const char *message);
extern const struct vm_owner sandbox_vm_owner;
/* `exists`: it has its place and its disk, and asks for memory only. */
int sandbox_check_admission(struct node *node,
                            unsigned int memory_mib,
                            bool exists,
                            struct error *err) _must_check_;
/* HELLO and IDENTITY of the next epoch, queued; known_silent as in agent_begin. 0 or -errno. */
int sandbox_send_identity(struct sandbox *sb, bool known_silent, agent_identity_fn done)
    _must_check_;
/* sandbox_delete.c */
void sandbox_begin_delete(struct sandbox *sb);
void sandbox_lose_agent(struct sandbox *sb, const char *reason);
/* The VM goes, its processes are kept. */
void sandbox_sleep_agent(struct sandbox *sb);
/* Ends a VM that is not the sandbox's any more. */
void sandbox_end_vm(struct sandbox *sb, struct vm *vm);
/* A worker has left its directory: a removal that waited goes on. */
void sandbox_end_job(struct sandbox *sb);
/* The VM has ended by itself (on_end): waits for the removal of its parts. */
void sandbox_lose_vm(struct sandbox *sb, struct vm *vm);
/* The same, for a creation that goes on with another VM: processes are not told. */
void sandbox_change_vm(struct sandbox *sb, struct vm *vm);
/* The reaper is through: removals that waited for it go on. */
void sandbox_tell_reaped(struct node *node);
/* sandbox_console.c */
void sandbox_seed_console(struct sandbox *sb);
void sandbox_save_console(struct sandbox *sb);
