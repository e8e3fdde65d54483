/* The processes of a sandbox: commands started by a client, each with a channel of the agent and a
 * session that keeps its output. Records outlive the process by node.session_keep_minutes.
 *
 * States (deadline; exits):
 *   starting  60 s (the agent's);  -> running, exited, lost; cannot be started: removed, or exited
 *             when its client knows of it already. While it waits for its first reader or for its
 *             turn (enum process_wait) there is no deadline: a signal ends it.
 *   running   the command's own;   -> exited, lost
 *   exited    kept; removed by retention or by newer ones over node.max_processes
 *   lost      the same; the sandbox ended or forgot it, no status exists
 * On disk (unless the table is ephemeral): `sessions/<se>.json`, written before START, when it is
 * resized and at the end, `sessions/<se>.in` with the input that came with the command, and the
 * spool's files. The guest is told to forget a process only when its end is on disk. A START that
 * the guest never got is known by its missing report, and goes out again from the record. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"
#include "base/list.h"
#include "node/command_request.h"
#include "node/gather.h"
#include "node/process_timeout.h"
#include "node/spool.h"
#include "wire/agent_process.h"

struct agent;
struct agent_channel;
struct data;
struct loop_timer;
struct process;
struct sandbox;

enum process_state {
    PROCESS_STATE_STARTING,
    PROCESS_STATE_RUNNING,
    PROCESS_STATE_EXITED,
    PROCESS_STATE_LOST,
    PROCESS_STATE_COUNT
};

/* Why a process is not started yet. */
enum process_wait {
    PROCESS_WAIT_NONE,
    PROCESS_WAIT_ATTACH, /* for its first reader */
    PROCESS_WAIT_TURN,   /* another command of its shell state runs */
    PROCESS_WAIT_COUNT
};

struct process_table {
    struct data *data;
    struct sandbox *sandbox;
    struct list processes; /* oldest first */
    size_t count;
    size_t argv_bytes;
    size_t attached;           /* readers of all its processes */
    struct spool_group spools; /* limited by node.spool_total_mib */
    bool held;                 /* a writer waits because of that limit */
    uint64_t last_turn;        /* given to those that wait for their turn */
    bool ephemeral;            /* nothing is written down: the sandbox goes with its first answer */
    bool loaded;               /* what an earlier run of this program left was read */
    bool is_incomplete;        /* but not all of it: who is not here may run all the same */
    struct list expired;       /* of processes that were removed, so that they are `gone` */
    size_t expired_count;
    size_t expired_lines; /* in their file */
};

/* Grouped by what they are about. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct process {
    struct list link;       /* in its table */
    struct list ended_link; /* in data->ended, and so on */
    struct list save_link;
    struct list start_link;
    struct list hold_link;
    struct list watches;
    struct list readers; /* attached ones */
    struct process_table *table;
    char id[ID_SIZE];
    char session_id[ID_SIZE];
    enum process_state state;
    json_t *argv;
    size_t argv_bytes;
    char *cwd;      /* NULL: the home, until the guest has said which that is */
    bool cwd_given; /* by the client */
    char *user;
    json_t *env; /* the client's own variables, until it was started; or NULL */
    struct command_tty tty;
    bool tty_resized;                /* after START was formatted */
    unsigned int sizes;              /* PROCESS_SIZE_*, of process_private.h */
    struct loop_timer *resize_timer; /* made when it is needed */
    char shell_state[COMMAND_SHELL_STATE_MAX + 1];
    enum process_wait wait;
    uint64_t turn;     /* order among those that wait for their turn */
    bool announced;    /* its client knows of it: a START that fails is an end like others */
    bool is_resumable; /* a START that the guest does not know may be sent again */
    uint32_t pid;      /* 0: not known yet */
    int exit_code;     /* -1: none */
    int signal;        /* 0: none */
    bool timed_out;
    bool out_of_memory; /* the guest's kernel ended something of it for want of memory */
    bool pipe_held;     /* something it left behind held its output open */
    bool exit_held;     /* it has exited; that is told when its output is kept */
    char lost_reason[16];
    int64_t created_at_ms;
    int64_t started_at_ms;    /* 0: not yet */
    int64_t paused_before_ms; /* sandbox_paused_ms when it was started */
    int64_t exited_at_ms;
    uint64_t duration_ns;
    int64_t timeout_ms; /* 0: none */
    bool leave_on_timeout;
    uint64_t max_output_bytes;
    enum command_encoding encoding;
    struct error start_error;

    struct agent_channel *channel; /* NULL when there is none */
    uint32_t channel_number;
    bool slept; /* it was left by an agent, and not read from its record */
    struct spool *spool;
    uint64_t spool_bytes;
    bool block_when_full;
    struct order_position asked;  /* how far GET output came in each stream (block_when_full), */
    struct order_position polled; /* and on the path: what is before it was given out */
    struct order_position left;   /* the furthest reader, when the last one went */
    struct gather gather;
    struct process_timeout timeout;

    /* stdin: the offsets of the bytes in `input` begin at input_base */
    bool has_stdin;
    bool input_eof;    /* nothing comes after `input` */
    bool input_closed; /* by the guest */
    bool eof_sent;
    bool input_saved;    /* sessions/<se>.in exists */
    struct call *writer; /* the stdin call that is under way, or NULL */
    struct buf input;
    uint64_t input_base; /* consumed by the guest */
    uint64_t input_sent; /* sent to the guest */
};
/* ---- tables ---- */
/* The table of a sandbox; makes it, or reads what an earlier run left. NULL without memory. */
struct process_table *process_table_get(struct data *data, struct sandbox *sb);
void process_table_free(struct process_table *table);
/* The agent of an adopted sandbox is about to be greeted: attach to what runs. */
void process_table_adopt(struct process_table *table, struct agent *agent);
int process_table_flush(struct process_table *table) _must_check_; /* of all output into files */
/* The agent goes, and what runs is adopted later by another one. */
void process_table_sleep(struct process_table *table);
/* The VM is gone: what runs becomes lost ("deleted" or "crashed"). */
void process_table_lose(struct process_table *table, const char *reason);

struct process *process_find(struct process_table *table, const char *id);
struct process *process_find_session(struct process_table *table, const char *session_id);
/* Whether a process or session with this id was removed. */
bool process_is_expired(const struct process_table *table, const char *id);
/* Whether there is a record with this session that could not be read: its command may have run. */
bool process_is_unread(const struct process_table *table, const char *session_id);
/* ---- one process ---- */
/* Starts a command, or makes the record of one that waits; takes the request's content over when it
 * succeeds. The sandbox needs an agent that takes frames. Errors: limit_exceeded, conflict (the id
 * exists), invalid_request, service_unavailable. */
int process_start(struct process_table *table,
                  struct command_request *request,
                  struct process **ret_process,
                  struct error *err) _must_check_;
/* Tells the next VM of a command whose own died unheard; conflict if it has started. */
int process_start_again(struct process *p, struct error *err) _must_check_;
static inline bool process_is_ended(const struct process *p)
{
    return p->state == PROCESS_STATE_EXITED || p->state == PROCESS_STATE_LOST;
}
static inline bool process_is_waiting(const struct process *p)
{
    return p->state == PROCESS_STATE_STARTING && p->wait != PROCESS_WAIT_NONE;
}
void process_release(struct process *p); /* its first reader has come */
void process_on_start_timer(void *arg);  /* fn of data->start_timer */
void process_on_hold_timer(void *arg);   /* fn of data->hold_timer */
/* Gives its terminal a new size. failed_precondition without one, or after the end. */
int process_resize(struct process *p, const struct command_tty *size, struct error *err)
    _must_check_;
const char *process_state_name(enum process_state state);
json_t *process_describe(const struct process *p);      /* the public object; NULL without memory */
void process_remove(struct process *p);                 /* and its files */
int process_save(const struct process *p) _must_check_; /* its record; 0 or -errno */
