#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/agent_hold.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/sandbox.h"

#define ARGV_BYTES_MAX (4U * 1024U * 1024U)

struct process *process_new(struct process_table *table)
{
    struct process *p = calloc(1, sizeof(*p));

    if (p == NULL) {
        return NULL;
    }
    p->table = table;
    p->exit_code = -1;
    p->input = buf_make(0);
    list_init(&p->link);
    list_init(&p->ended_link);
    list_init(&p->save_link);
    list_init(&p->start_link);
    list_init(&p->hold_link);
    list_init(&p->watches);
    list_init(&p->readers);
    return p;
}

void process_discard(struct process *p)
{
    list_remove(&p->link);
    list_remove(&p->ended_link);
    list_remove(&p->save_link);
    list_remove(&p->start_link);
    list_remove(&p->hold_link);
    while (!list_is_empty(&p->watches)) {
        list_remove(p->watches.next);
    }
    while (!list_is_empty(&p->readers)) {
        list_remove(p->readers.next);
    }
    if (p->channel != NULL) {
        agent_channel_abandon(TAKE(p->channel)); /* only process_remove makes the guest forget */
    }
    spool_free(p->spool);
    process_timeout_stop(p);
    loop_timer_free(p->resize_timer);
    json_decref(p->argv);
    json_decref(p->env);
    free(p->cwd);
    free(p->user);
    buf_done(&p->input);
    free(p);
}

/* Into the list of ended processes, by time; nearly always at its end. */
void process_insert_ended(struct process *p)
{
    struct list *before = &p->table->data->ended;

    while (before->prev != &p->table->data->ended &&
           list_entry(before->prev, struct process, ended_link)->exited_at_ms > p->exited_at_ms) {
        before = before->prev;
    }
    list_append(before, &p->ended_link);
}

void process_insert(struct process *p)
{
    struct process_table *table = p->table;
    struct list *before = &table->processes;

    while (before->prev != &table->processes &&
           list_entry(before->prev, struct process, link)->created_at_ms > p->created_at_ms) {
        before = before->prev;
    }
    list_append(before, &p->link);
    table->count++;
    table->argv_bytes += p->argv_bytes;
    if (process_is_ended(p)) {
        process_insert_ended(p);
    }
}

void process_drop(struct process *p)
{
    struct process_table *table = p->table;
    char shell_state[sizeof(p->shell_state)];

    memcpy(shell_state, p->shell_state, sizeof(shell_state));
    process_notify(p, PROCESS_EVENT_GONE);
    if (p->channel != NULL) {
        agent_channel_close(TAKE(p->channel));
    }
    process_remove_files(p);
    table->count--;
    table->argv_bytes -= p->argv_bytes;
    process_discard(p);
    process_table_wake(table);
    if (shell_state[0] != '\0') {
        process_pass_turn(table, shell_state);
    }
}

void process_remove(struct process *p)
{
    process_expired_add(p);
    process_drop(p);
}

/* Makes room for one more: the oldest ended record goes. */
static bool evict_one(struct process_table *table)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (process_is_ended(p) && list_is_empty(&p->watches)) {
            process_remove(p);
            return true;
        }
    }
    return false;
}

int process_table_make_room(struct process_table *table, size_t argv_bytes, struct error *err)
{
    uint64_t max = table->data->node->settings.node_max_processes;

    while (table->count >= max) {
        if (!evict_one(table)) {
            return error_set_code(err, ERROR_LIMIT_EXCEEDED, "node.max_processes",
                                  "the sandbox has %zu running processes, as many as it may",
                                  table->count);
        }
    }
    while (table->argv_bytes + argv_bytes > ARGV_BYTES_MAX) {
        if (!evict_one(table)) {
            return error_set_code(err, ERROR_LIMIT_EXCEEDED, "argv_bytes",
                                  "the command lines of the sandbox's running processes are "
                                  "longer than %u bytes together",
                                  ARGV_BYTES_MAX);
        }
    }
    return 0;
}

void process_table_load(struct process_table *table)
{
    int r;

    if (table->loaded) {
        return;
    }
    table->loaded = true;
    process_expired_load(table);
    r = process_load_all(table);
    if (r < 0) {
        table->is_incomplete = true;
        log_warning("sessions not read", "sandbox=%s error=\"%s\"",
                    sandbox_info(table->sandbox)->id, strerror(-r));
    }
}

struct process_table *process_table_get(struct data *data, struct sandbox *sb)
{
    struct process_table *table = sandbox_processes(sb);

    if (table != NULL) {
        return table;
    }
    table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    table->data = data;
    table->sandbox = sb;
    list_init(&table->processes);
    list_init(&table->expired);
    /* A sandbox that is being created has no directory yet, and nothing in it. */
    if (sandbox_info(sb)->state != SANDBOX_STATE_CREATING) {
        process_table_load(table);
    }
    sandbox_set_processes(sb, table);
    if (sandbox_info(sb)->state == SANDBOX_STATE_ERROR) {
        process_table_lose(table, "crashed");
    }
    return table;
}

void process_table_free(struct process_table *table)
{
    if (table == NULL) {
        return;
    }
    while (!list_is_empty(&table->processes)) {
        struct process *p = list_entry(table->processes.next, struct process, link);

        process_notify(p, PROCESS_EVENT_GONE);
        process_discard(p);
    }
    process_expired_clear(table);
    free(table);
}

void process_table_adopt(struct process_table *table, struct agent *agent)
{
    struct list *it;
    struct list *following;

    process_table_load(table);
    if (table->is_incomplete) {
        agent_spare_unknown(agent);
    }
    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (!process_is_ended(p)) {
            process_adopt(p, agent);
        }
    }
}

int process_table_flush(struct process_table *table)
{
    struct list *it;
    struct list *following;

    int first = 0;

    list_foreach(it, following, &table->processes)
    {
        int r = table->ephemeral ? 0 : process_settle(list_entry(it, struct process, link));

        first = first < 0 ? first : r; /* what one has too much, another may still have room for */
    }
    return first;
}

void process_table_sleep(struct process_table *table)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (p->channel != NULL) {
            agent_channel_abandon(TAKE(p->channel));
        }
        process_timeout_stop(p);
        p->slept = true;
    }
}

void process_table_lose(struct process_table *table, const char *reason)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (!process_is_ended(p)) {
            process_lose(p, reason);
        }
        if (strcmp(reason, "deleted") == 0) {
            spool_detach(p->spool);
        }
    }
}

struct process *process_find(struct process_table *table, const char *id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (strcmp(p->id, id) == 0) {
            return p;
        }
    }
    return NULL;
}

struct process *process_find_session(struct process_table *table, const char *session_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (strcmp(p->session_id, session_id) == 0) {
            return p;
        }
    }
    return NULL;
}
