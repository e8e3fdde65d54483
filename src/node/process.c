#include "node/process.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/process_stream.h"
#include "node/sandbox.h"

static const char *const state_names[] = {
    [PROCESS_STATE_STARTING] = "starting",
    [PROCESS_STATE_RUNNING] = "running",
    [PROCESS_STATE_EXITED] = "exited",
    [PROCESS_STATE_LOST] = "lost",
};
_Static_assert(sizeof(state_names) / sizeof(state_names[0]) == PROCESS_STATE_COUNT, "one each");

const char *process_state_name(enum process_state state)
{
    return state_names[state];
}

/* ---- watches ---- */

void process_watch_add(struct process *p, struct process_watch *watch)
{
    list_append(&p->watches, &watch->link);
}

void process_watch_remove(struct process_watch *watch)
{
    if (watch->link.next != NULL) {
        list_remove(&watch->link);
    }
}

void process_notify(struct process *p, unsigned int events)
{
    struct list pending;

    /* Moved aside and back one by one: a watch may remove any watch, or add one. */
    list_init(&pending);
    while (!list_is_empty(&p->watches)) {
        struct list *first = p->watches.next;

        list_remove(first);
        list_append(&pending, first);
    }
    while (!list_is_empty(&pending)) {
        struct process_watch *watch = list_entry(pending.next, struct process_watch, link);

        list_remove(&watch->link);
        list_append(&p->watches, &watch->link);
        watch->fn(watch->arg, p, events);
    }
}

/* ---- the end ---- */

void process_set_state(struct process *p, enum process_state state)
{
    log_debug("process state", "process=%s from=%s to=%s", p->id, state_names[p->state],
              state_names[state]);
    p->state = state;
}

void process_end(struct process *p, enum process_state state)
{
    struct data *data = p->table->data;

    process_set_state(p, state);
    p->exited_at_ms = clock_real_ms();
    p->wait = PROCESS_WAIT_NONE;
    process_timeout_stop(p);
    loop_timer_free(TAKE(p->resize_timer));
    buf_done(&p->input);
    p->input = buf_make(0);
    json_decref(TAKE(p->env));
    list_remove(&p->start_link);
    list_remove(&p->hold_link);
    process_insert_ended(p);
    if (!p->table->ephemeral) {
        list_append(&data->unsaved, &p->save_link);
        loop_timer_start(data->save_timer, 0);
    }
    if (p->shell_state[0] != '\0') {
        process_pass_turn(p->table, p->shell_state);
    }
    process_notify(p, PROCESS_EVENT_ENDED);
}

void process_lose(struct process *p, const char *reason)
{
    if (p->channel != NULL) {
        agent_channel_close(TAKE(p->channel));
    }
    spool_let_go(p->spool);
    if (p->exit_held) {
        process_end(p, PROCESS_STATE_EXITED);
        return;
    }
    (void)snprintf(p->lost_reason, sizeof(p->lost_reason), "%s", reason);
    process_end(p, PROCESS_STATE_LOST);
}

/* ---- what the guest says ---- */

static void on_started(void *arg, uint32_t pid, uint64_t stdin_offset)
{
    struct process *p = arg;
    bool first = p->state == PROCESS_STATE_STARTING;

    p->pid = pid;
    /* With a shell state the directory is that of the state, which only the guest knows. */
    if (p->cwd == NULL && p->shell_state[0] == '\0' && agent_channel_cwd(p->channel)[0] != '\0') {
        p->cwd = strdup(agent_channel_cwd(p->channel));
    }
    if (first) {
        process_set_state(p, PROCESS_STATE_RUNNING);
        json_decref(TAKE(p->env));
    }
    if (p->tty.on && (!first || p->tty_resized)) {
        agent_channel_resize(p->channel, p->tty.cols, p->tty.rows);
    }
    if (p->has_stdin) {
        process_restart_input(p, stdin_offset);
    }
    process_acknowledge(p);
    if (first) {
        process_notify(p, PROCESS_EVENT_STARTED);
    }
}

static void on_start_failed(void *arg, const struct agent_start_failed *failure)
{
    struct process *p = arg;
    const char *why = strerrordesc_np((int)failure->errnum);
    const char *program = json_string_value(json_array_get(p->argv, 0));

    p->channel = NULL;
    why = why != NULL ? why : "unknown error";
    why = failure->errnum == ETIMEDOUT ? "the guest is too busy" : why;
    switch ((enum agent_start_what)failure->what) {
    case AGENT_WHAT_CWD:
        (void)error_set_code(&p->start_error, ERROR_INVALID_REQUEST, "cwd",
                             "cwd %.100s cannot be entered: %s", p->cwd != NULL ? p->cwd : "", why);
        break;
    case AGENT_WHAT_USER:
        (void)error_set_code(&p->start_error, ERROR_INVALID_REQUEST, "user",
                             "user %.100s cannot be used: %s", p->user != NULL ? p->user : "", why);
        break;
    case AGENT_WHAT_EXEC:
        (void)error_set_code(&p->start_error, ERROR_INVALID_REQUEST, "argv",
                             "%.100s cannot be executed: %s", program != NULL ? program : "", why);
        break;
    case AGENT_WHAT_RESOURCES:
    case AGENT_WHAT_TTY:
        (void)error_set_code(&p->start_error, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox could not start the command: %s", why);
        break;
    }
    p->start_error.errnum = (int)failure->errnum;
    if (p->announced) {
        process_fail_start(p, &p->start_error);
        return;
    }
    process_notify(p, PROCESS_EVENT_FAILED);
    process_drop(p);
}

static void on_output(void *arg, unsigned int stream, uint64_t offset, struct span bytes)
{
    struct process *p = arg;

    (void)offset; /* the channel has checked that it is the next */
    gather_note(&p->gather, bytes.n, clock_monotonic_ms());
    spool_append(p->spool, stream - AGENT_STDOUT, bytes);
    if (spool_is_holding(p->spool)) {
        process_hold(p);
    }
    process_table_limit_spools(p->table);
    process_acknowledge(p);
    sandbox_touch(p->table->sandbox);
    process_notify(p, PROCESS_EVENT_OUTPUT);
}

static void on_skipped(void *arg, unsigned int stream, uint64_t bytes)
{
    struct process *p = arg;

    log_warning("output lost", "process=%s stream=%u bytes=%llu", p->id, stream,
                (unsigned long long)bytes);
    spool_skip(p->spool, stream - AGENT_STDOUT, bytes);
}

static void on_stdin_ack(void *arg, uint64_t offset, bool closed)
{
    process_on_input_ack(arg, offset, closed);
}

static void on_exited(void *arg, const struct agent_exited *exited)
{
    struct process *p = arg;

    p->duration_ns = exited->duration_ns & INT64_MAX;
    p->timed_out = p->timed_out || (exited->flags & AGENT_EXITED_TIMED_OUT) != 0;
    p->pipe_held = (exited->flags & AGENT_EXITED_PIPE_HELD) != 0;
    p->out_of_memory = (exited->flags & AGENT_EXITED_OUT_OF_MEMORY) != 0;
    if (exited->kind == AGENT_EXIT_CODE) {
        p->exit_code = exited->status;
    } else {
        p->signal = exited->status;
    }
    process_exit(p);
}

static void on_lost(void *arg)
{
    struct process *p = arg;

    p->channel = NULL;
    if (p->state == PROCESS_STATE_STARTING && p->is_resumable) {
        process_start_later(p, 0); /* its START never got there */
        return;
    }
    process_lose(p, "crashed");
}

static void on_detached(void *arg)
{
    struct process *p = arg;

    p->channel = NULL;
}

const struct agent_channel_ops process_channel_ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_skipped = on_skipped,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_lost,
    .on_detached = on_detached,
};
