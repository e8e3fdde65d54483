/* Inside of process.h: shared by the process_*.c files only. */
#pragma once

#include "node/agent.h"
#include "node/process.h"
#include "node/process_watch.h"

/* An empty record of the table, in no list yet. */
struct process *process_new(struct process_table *table);
/* Frees a record; its files stay. */
void process_discard(struct process *p);
/* Puts it into its table, and among the ended ones if it is. */
void process_insert(struct process *p);
void process_insert_ended(struct process *p);
/* Room for one more record, or limit_exceeded. */
int process_table_make_room(struct process_table *table, size_t argv_bytes, struct error *err)
    _must_check_;
/* Whoever runs on from an earlier run of this program, or waits. */
void process_adopt(struct process *p, struct agent *agent);
/* Removes a record that nobody was told of: its session is not `gone`, it never was. */
void process_drop(struct process *p);
/* Reads what an earlier run of this program left, once. */
void process_table_load(struct process_table *table);
/* No status will come. */
void process_lose(struct process *p, const char *reason);

/* ---- on disk (process_store.c) ---- */
int process_save_input(struct process *p) _must_check_;
void process_remove_input(struct process *p);
void process_remove_files(struct process *p);
/* Reads all records of a sandbox that the table has not into it. 0 or -errno. */
int process_load_all(struct process_table *table) _must_check_;

/* ---- process_expired.c ---- */
/* Remembers a process that is being removed, over restarts of this program. */
void process_expired_add(const struct process *p);
void process_expired_load(struct process_table *table);
void process_expired_clear(struct process_table *table);

/* ---- process_hold.c ---- */
/* Exited: told as soon as its output is kept. */
void process_exit(struct process *p);
/* Its spool holds output: it is tried again. */
void process_hold(struct process *p);
/* spool_settle, and what follows when nothing is held any more. 0 or -errno. */
int process_settle(struct process *p) _must_check_;

/* ---- process_quota.c ---- */
/* Whether another command may block with so much output: limit_exceeded. */
int process_table_check_block(struct process_table *table, uint64_t spool_bytes, struct error *err)
    _must_check_;
/* Makes the spools fit node.spool_total_mib after one has grown. */
void process_table_limit_spools(struct process_table *table);
bool process_table_is_over(const struct process_table *table);
/* Spools have shrunk: writers that waited for that go on. */
void process_table_wake(struct process_table *table);

/* ---- process_readers.c ---- */
/* Drops what has been read but for the last `behind` bytes of it. */
void process_trim(struct process *p, uint64_t behind);

/* ---- process.c ---- */
extern const struct agent_channel_ops process_channel_ops;
void process_set_state(struct process *p, enum process_state state);
/* Exited or lost: kept, told and written down. */
void process_end(struct process *p, enum process_state state);

/* ---- process_start.c ---- */
/* Of the sizes that a terminal gets within this time the first one counts at once, the last one at
 * its end, or when input follows. */
#define PROCESS_RESIZE_MS      50
#define PROCESS_SIZE_UNSENT    1U
#define PROCESS_SIZE_UNSAVED   2U
#define PROCESS_SIZES_GATHERED 4U /* resize_timer runs */
/* Tells the guest of a size that waits. */
void process_send_size(struct process *p);
/* Starts it from the loop, if it may by then. */
void process_start_later(struct process *p, int64_t delay_ms);
/* The one that waits longest for its turn in this shell state may start. */
void process_pass_turn(struct process_table *table, const char *shell_state);
/* An announced process could not be started: exit status and message as a shell would say it. */
void process_fail_start(struct process *p, const struct error *err);
