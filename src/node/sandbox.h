/* Sandboxes of this node: records, creation, deletion, lookup.
 *
 * State machine (deadline; exits):
 *   creating   start or boot timeout       running, or an error for its waiters and then deleting
 *   running    none                        pausing, suspending, deleting, error (the VM ended)
 *   pausing    SILENCE's, then stop's      paused, running (the guest refused), deleting, error
 *   paused     none; memory resident       waking, pausing, suspending, deleting, error
 *   suspending SILENCE's, stop's, save's   suspended, running (undone), deleting, error
 *   suspended  none; memory on disk        waking, deleting
 *   waking     cont's, then WAKE's; boot's running, paused, suspended or error (undone), deleting
 *   error      none; keeps the disk        waking (boots from it), deleting
 *   deleting   retried until done          deleted
 *   deleted    end of the loop turn        freed
 * Pointers are valid within a loop turn; across turns keep the id and use sandbox_find. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

struct agent;
struct buf;
struct node;
struct process_table;
struct sandbox;
struct services;
struct json_t;

enum sandbox_state {
    SANDBOX_STATE_CREATING,
    SANDBOX_STATE_RUNNING,
    SANDBOX_STATE_PAUSING,
    SANDBOX_STATE_PAUSED,
    SANDBOX_STATE_WAKING,
    SANDBOX_STATE_SUSPENDING,
    SANDBOX_STATE_SUSPENDED,
    SANDBOX_STATE_DELETING,
    SANDBOX_STATE_ERROR,
    SANDBOX_STATE_DELETED,
    SANDBOX_STATE_COUNT
};

/* Bits of sandbox_info.identity_done, as IDENTITY_OK has them. */
#define SANDBOX_IDENTITY_ENTROPY    1U
#define SANDBOX_IDENTITY_CLOCK      2U
#define SANDBOX_IDENTITY_HOSTNAME   4U
#define SANDBOX_IDENTITY_MACHINE_ID 8U
#define SANDBOX_IDENTITY_TOKENS     16U
#define SANDBOX_IDENTITY_DISK       32U

/* The reason of one whose journal cannot be read: an error, with its files left as they are. */
#define SANDBOX_JOURNAL_DAMAGED "journal_damaged"

#define SANDBOX_TEMPLATE_SIZE 64
#define SANDBOX_HOSTNAME_SIZE 64

#define SANDBOX_VCPUS_MAX      8U /* these of a create */
#define SANDBOX_MEMORY_MIB_MIN 128U
#define SANDBOX_MEMORY_MIB_MAX 16384U
#define SANDBOX_DISK_MIB_MAX   (1024U * 1024U)
#define SANDBOX_ENV_MAX        256U
#define SANDBOX_ENV_BYTES_MAX  262144U

/* The S record of the node protocol. */
struct sandbox_info {
    char id[ID_SIZE];
    enum sandbox_state state;
    char reason_code[32]; /* "" : none */
    char reason_message[320];
    char template_name[SANDBOX_TEMPLATE_SIZE];
    char template_version[ID_SIZE];
    char base_version[ID_SIZE]; /* whose base its memory differs from; "": template_version */
    char hostname[SANDBOX_HOSTNAME_SIZE];
    unsigned int vcpus;
    unsigned int memory_mib;
    unsigned int disk_mib;
    int64_t created_at_ms;
    int64_t running_at_ms; /* 0: never yet */
    int64_t active_at_ms;
    int64_t paused_at_ms;    /* of a pause that has not ended; 0: none */
    int64_t paused_total_ms; /* of all that have ended */
    uint64_t identity_epoch; /* 0: no identity yet */
    uint32_t identity_done;
    int64_t identity_confirmed_at_ms;
    uint8_t machine_id[16]; /* all zero: none given yet */
    bool asleep;            /* its memory is in `suspended/`, and nowhere else that counts */
    uint64_t capture_id;    /* while `suspending`: of the `suspended/` to come; 0: none */
    bool booting;           /* while `waking`: from `error`, and the reason is that of the error */
    char user[64];          /* the template's default user */
};

/* What PUT asks for. 0 and "" mean the template's default. */
struct sandbox_spec {
    const char *id;
    const char *template_name;
    const char *template_version;
    const char *hostname;
    unsigned int vcpus;
    unsigned int memory_mib;
    unsigned int disk_mib;
    const char *checkpoint; /* instead of a template and sizes; NULL: none */
    const char *manifest;   /* of its snapshot in the object store; NULL: none */
    struct json_t *env;     /* object of strings, already checked; borrowed; NULL: none */
};

/* Called exactly once, on the loop, never from inside the call that registered it. err NULL: the
 * sandbox is running (wait) or gone (delete). A sandbox that is deleted meanwhile gives conflict,
 * sb is NULL whenever err is set. */
typedef void (*sandbox_wait_fn)(void *arg, struct sandbox *sb, const struct error *err);

/* ---- records ---- */
const struct sandbox_info *sandbox_info(const struct sandbox *sb);
const char *sandbox_state_name(enum sandbox_state state);
/* S as JSON (new reference), NULL for lack of memory. */
struct json_t *sandbox_describe(const struct sandbox *sb);
struct sandbox *sandbox_find(struct node *node, const char *id);
/* Iterates over all, deleting ones too: start with index 0, ends with NULL. */
struct sandbox *sandbox_next(struct node *node, unsigned int *index);
unsigned int sandbox_count(const struct node *node);
struct node *sandbox_node(const struct sandbox *sb);
/* ---- lifecycle ---- */
/* Admits a sandbox and begins its creation. An id that exists already is not an error: ret_sb is
 * that sandbox (conflict when it is being deleted). Errors: not_found (template, resource
 * "template"), invalid_request with the field, capacity_unavailable, storage_full,
 * service_unavailable while the node is not ready. */
int sandbox_create(struct node *node,
                   const struct sandbox_spec *spec,
                   struct sandbox **ret_sb,
                   struct error *err) _must_check_;
/* Waits until it is running. 0 or -ENOMEM. */
int sandbox_wait_running(struct sandbox *sb, sandbox_wait_fn fn, void *arg) _must_check_;
/* Begins the deletion (from any state) and waits until nothing is left. An unknown id is success.
 * fn may be NULL. 0 or -ENOMEM. */
int sandbox_delete(struct node *node, const char *id, sandbox_wait_fn fn, void *arg) _must_check_;
/* Forgets every waiter registered with arg: its fn is not called. */
void sandbox_cancel_waits(struct node *node, const void *arg);
/* A creation counts as running only when no hold on it is left: for first files, which must not be
 * lost when this program is killed. From inside of on_agent; each is released once, unless the
 * agent is gone. */
void sandbox_hold_creation(struct sandbox *sb);
void sandbox_release_creation(struct sandbox *sb);
/* Ends the sandbox with state error: the agent lied, or went silent. `code` as in the docs
 * ("agent_protocol", "agent_timeout"). */
void sandbox_fail(struct sandbox *sb, const char *code, const char *message);
/* Stops the VM with its memory resident; `fn` comes when it is paused. One that is paused already
 * is success. code and message ("" : none) become the reason that clients see. failed_precondition
 * where the state does not allow it. */
struct sandbox_reason {
    const char *code;
    const char *message;
};
int sandbox_pause(struct sandbox *sb,
                  const struct sandbox_reason *reason,
                  sandbox_wait_fn fn,
                  void *arg,
                  struct error *err) _must_check_;
/* Writes memory, devices and disk down and ends the VM; `fn` comes when all of it is on stable
 * storage. A paused one runs for that for a moment. When it fails the sandbox runs on. */
int sandbox_suspend(struct sandbox *sb,
                    const struct sandbox_reason *reason,
                    sandbox_wait_fn fn,
                    void *arg,
                    struct error *err) _must_check_;
/* The way back from both; `fn` comes when the guest has the right time and speaks. A suspended one
 * that cannot wake stays suspended. */
int sandbox_wake(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err) _must_check_;
/* Pausing, paused, suspending, suspended or waking: what waits for the guest goes on waiting. */
bool sandbox_is_resting(const struct sandbox *sb);
/* How long it has been paused in all its life, the pause of now included: what limits the guest's
 * time is counted without it. */
int64_t sandbox_paused_ms(const struct sandbox *sb);
/* When to look again at a limit of which left_ms are left. */
int64_t sandbox_timer_delay(const struct sandbox *sb, int64_t left_ms);
/* failed_precondition with details.state unless there is a guest to ask, now or when it has woken:
 * what is asked of a resting one waits. 0 or -EBUSY. */
int sandbox_require_running(const struct sandbox *sb, struct error *err) _must_check_;

/* ---- for the data side ---- */
/* NULL while there is none to talk to. Valid from on_agent to on_lost. */
struct agent *sandbox_agent(const struct sandbox *sb);
struct process_table *sandbox_processes(const struct sandbox *sb);
void sandbox_set_processes(struct sandbox *sb, struct process_table *processes);
struct services *sandbox_services(const struct sandbox *sb);
void sandbox_set_services(struct sandbox *sb, struct services *services);
/* Processor time of its VMM so far. 0, or -ESRCH without one. */
int sandbox_cpu_ns(const struct sandbox *sb, uint64_t *ret_ns);
/* Marks activity now (active_at; in memory, no journal write). */
void sandbox_touch(struct sandbox *sb);
/* Variables for later commands, which get all of them: an object of strings (borrowed). */
struct json_t *sandbox_env(const struct sandbox *sb);
/* Merges {"A": "1", "B": null} and stores env.json. invalid_request over the limits. */
int sandbox_merge_env(struct sandbox *sb, struct json_t *changes, struct error *err) _must_check_;
/* Directory `<data_dir>/volume/sandboxes/<id>` (mode 0700; `sessions/` is below it). Borrowed. */
int sandbox_dir_fd(const struct sandbox *sb);
/* Calls fn once with the last 64 KiB of the guest's console, or with an error. */
typedef void (*sandbox_console_fn)(void *arg, const struct buf *text, const struct error *err);
int sandbox_read_console(struct sandbox *sb, sandbox_console_fn fn, void *arg) _must_check_;
