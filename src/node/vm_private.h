/* struct vm, for vm.c, vm_start.c and vm_command.c. */
#pragma once

#include "base/buf.h"
#include "node/journal.h"
#include "node/netns_pool.h"
#include "node/runtime.h"
#include "node/vm.h"

#define VM_CONSOLE_BYTES 65536U
#define VM_COMMANDS_MAX  4U /* that wait for an earlier one, or for the connection */

enum vm_state {
    VM_STATE_STARTING,
    VM_STATE_READY,
    VM_STATE_STOPPED,
    VM_STATE_RUNNING,
    VM_STATE_FAILING, /* a reason is known; the console is read or the process is killed */
    VM_STATE_ENDING,  /* cleaning up */
};

struct vm_command {
    void (*run)(struct vm *vm);
    vm_fn done;
    void *arg;
};

/* Grouped by what they are about. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct vm {
    struct node *node;
    enum vm_state state;
    struct vm_spec spec;
    unsigned int slot;
    struct netns_lease netns;
    pid_t pid;
    int pidfd;
    int log_fd;
    uint64_t start_time;
    char binary[JOURNAL_BINARY_SIZE]; /* the program it runs, whatever one started now would be */
    struct runtime_env env;           /* the one it was started under; driver "": not known */
    bool ram_is_memfd;
    bool exited;
    bool job_running; /* a worker uses this struct */
    bool end_wanted;  /* vm_end came while a job ran */
    bool watched;     /* the loop holds an exit watch that refers to this struct */
    bool abandoned;
    struct runtime_vm *control;
    bool has_answered; /* it has come up: by its control connection, or in an earlier run */
    bool control_alive;
    bool control_lost; /* it was alive, or will never be: the end follows */
    struct agent *agent;
    struct buf console;
    char disk_path[VM_PATH_SIZE];
    bool disk_moved;
    char socket_dir[VM_PATH_SIZE];
    char disk_dir[VM_PATH_SIZE];

    struct vm_owner owner;
    void *owner_arg;
    vm_fn ready;
    void *ready_arg;
    bool commanding; /* one was given and has not been answered */
    vm_fn command;
    void *command_arg;
    struct vm_command waiting[VM_COMMANDS_MAX];
    unsigned int waiting_count;
    vm_result_fn saved;
    void *saved_arg;
    struct loop_timer *command_timer;
    vm_fn console_done;
    void *console_arg;
    struct loop_timer *timer; /* vm_set_deadline */
    char timer_code[32];
    char timer_message[160];

    char end_code[32];
    char end_message[320];
    void (*gone)(void *arg);
    void *gone_arg;
};

/* vm_start.c */
int vm_start_job(struct vm *vm, struct error *err);
void vm_cleanup_job(struct vm *vm);
int vm_set_paths(struct vm *vm, struct error *err);
/* Connects control and agent, watches the process. 0 or -errno with err. */
int vm_attach(struct vm *vm, struct error *err);
/* vm_command.c */
/* Gives the first command that waits, if it can. */
void vm_next_command(struct vm *vm);
/* Nobody hears of their answers any more. */
void vm_forget_commands(struct vm *vm);
/* vm.c */
void vm_set_state(struct vm *vm, enum vm_state state);
void vm_on_started(struct vm *vm, int result, const struct error *err);
void vm_free(struct vm *vm);
/* A table slot for a new vm: 0 when all are taken. */
unsigned int vm_take_slot(struct node *node, struct vm *vm);
