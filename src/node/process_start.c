/* How processes begin: at once, at their first reader, when their shell state is free, or anew
 * after a restart of this program that came between the record and the guest. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/sandbox.h"
#include "node/shell_state.h"

/* A start that is due and cannot be made now (the disk is full, the agent takes no more). */
#define RETRY_MS 500
/* As a shell says it. */
#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND      127

/* ---- records ---- */

static bool copy_texts(struct process *p, const struct command_request *request)
{
    const char *user =
        request->user != NULL ? request->user : sandbox_info(p->table->sandbox)->user;

    memcpy(p->id, request->process_id, ID_SIZE);
    memcpy(p->session_id, request->session_id, ID_SIZE);
    if (request->shell_state != NULL) {
        (void)snprintf(p->shell_state, sizeof(p->shell_state), "%s", request->shell_state);
    }
    p->cwd_given = request->cwd != NULL;
    p->cwd = p->cwd_given ? strdup(request->cwd) : NULL;
    p->user = strdup(user);
    return p->user != NULL && (!p->cwd_given || p->cwd != NULL);
}

static struct process *make_process(struct process_table *table, struct command_request *request)
{
    struct process *p = process_new(table);
    const json_t *item;
    size_t i;

    if (p == NULL) {
        return NULL;
    }
    p->argv = json_incref(request->argv);
    json_array_foreach(p->argv, i, item) {
        p->argv_bytes += json_string_length(item);
    }
    p->env = json_incref(request->env);
    p->created_at_ms = clock_real_ms();
    p->timeout_ms = request->timeout_ms;
    p->leave_on_timeout = request->leave_on_timeout;
    p->max_output_bytes = request->max_output_bytes;
    p->encoding = request->encoding;
    p->tty = request->tty;
    p->has_stdin = request->stdin_open || request->tty.on || request->input.n > 0;
    p->input_eof = !request->stdin_open && !request->tty.on;
    p->input = request->input;
    request->input = buf_make(0);
    p->block_when_full = request->block_when_full;
    p->spool_bytes = request->spool_bytes;
    p->is_resumable = true;
    if (copy_texts(p, request)) {
        p->spool = spool_new(
            &table->data->spools, sandbox_dir_fd(table->sandbox), p->session_id,
            &(struct spool_limits){p->spool_bytes, p->max_output_bytes / 2, &table->spools});
    }
    if (p->spool == NULL) {
        process_discard(p);
        return NULL;
    }
    spool_set_dropping(p->spool, !p->block_when_full);
    return p;
}

/* On disk before the guest hears of it, so that no restart runs a command twice or loses one. */
static int write_down(struct process *p, struct error *err)
{
    int r = p->table->ephemeral ? 0 : process_save(p);

    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "the node's disk is full");
    }
    return r < 0 ? error_set(err, -r, "the command's record cannot be written: %s", strerror(-r))
                 : 0;
}

static int write_input(struct process *p, struct error *err)
{
    int r = p->table->ephemeral || p->input.n == 0 ? 0 : process_save_input(p);

    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "the node's disk is full");
    }
    return r < 0 ? error_set(err, -r, "the command's input cannot be written: %s", strerror(-r))
                 : 0;
}

/* ---- START ---- */

/* The sandbox's variables with the request's over them. */
static int
format_env(const struct process *p, struct agent_start *start, struct buf *raw, struct error *err)
{
    _cleanup_json_ json_t *all = json_copy(sandbox_env(p->table->sandbox));
    int r;

    if (all == NULL) {
        all = json_object();
    }
    if (all == NULL || (p->env != NULL && json_object_update(all, p->env) < 0)) {
        return error_set(err, ENOMEM, "out of memory");
    }
    r = command_env_check(all, "env", err);
    if (r < 0) {
        return r;
    }
    command_env_format(all, raw);
    start->env.count = (uint32_t)json_object_size(all);
    start->env.raw = buf_span(raw);
    return buf_error(raw) == 0 ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int
format_argv(const struct process *p, struct agent_start *start, struct buf *raw, struct error *err)
{
    const json_t *item;
    size_t i;

    if (p->shell_state[0] != '\0') {
        const struct shell_state_command command = {
            p->shell_state, json_string_value(json_array_get(p->argv, 2)), p->env, p->cwd_given};

        start->argv.count = shell_state_format(&command, raw);
    } else {
        json_array_foreach(p->argv, i, item) {
            buf_put_block(raw, span_make(json_string_value(item), json_string_length(item)));
        }
        start->argv.count = (uint32_t)json_array_size(p->argv);
    }
    start->argv.raw = buf_span(raw);
    return buf_error(raw) == 0 ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int open_channel(struct process *p, struct error *err)
{
    _cleanup_buf_ struct buf argv = buf_make(0);
    _cleanup_buf_ struct buf variables = buf_make(0);
    struct agent_start start = {.cwd = span_of_str(p->cwd_given ? p->cwd : ""),
                                .user = span_of_str(p->user)};

    if (format_argv(p, &start, &argv, err) < 0 || format_env(p, &start, &variables, err) < 0) {
        return -(err->errnum != 0 ? err->errnum : EIO);
    }
    start.flags = p->has_stdin ? AGENT_START_STDIN : 0;
    start.timeout_ms = p->leave_on_timeout ? 0 : (uint64_t)p->timeout_ms;
    if (p->tty.on) {
        start.flags |= AGENT_START_TTY;
        start.cols = p->tty.cols;
        start.rows = p->tty.rows;
        start.term = span_of_str(p->tty.term);
    }
    p->channel =
        agent_channel_start(sandbox_agent(p->table->sandbox), &start, &process_channel_ops, p, err);
    if (p->channel == NULL) {
        return -(err->errnum != 0 ? err->errnum : EIO);
    }
    return 0;
}

/* The sandbox has an agent. */
static int begin(struct process *p, struct error *err)
{
    int r;

    p->wait = PROCESS_WAIT_NONE;
    p->started_at_ms = clock_real_ms();
    p->paused_before_ms = sandbox_paused_ms(p->table->sandbox);
    p->channel_number = agent_next_channel(sandbox_agent(p->table->sandbox));
    r = write_down(p, err);
    if (r == 0 && process_timeout_start(p) < 0) {
        r = error_set(err, ENOMEM, "out of memory");
    }
    if (r == 0) {
        r = open_channel(p, err);
    }
    if (r < 0) {
        process_timeout_stop(p);
    }
    return r;
}

/* ---- those that wait ---- */

/* Whether another command of the shell state runs, or waits for longer. */
static bool turn_is_taken(struct process_table *table, const char *shell_state, uint64_t turn)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        const struct process *p = list_entry(it, struct process, link);

        if (!process_is_ended(p) && strcmp(p->shell_state, shell_state) == 0 &&
            (p->wait == PROCESS_WAIT_NONE || (p->wait == PROCESS_WAIT_TURN && p->turn < turn))) {
            return true;
        }
    }
    return false;
}

void process_pass_turn(struct process_table *table, const char *shell_state)
{
    struct process *next = NULL;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (p->wait == PROCESS_WAIT_TURN && strcmp(p->shell_state, shell_state) == 0 &&
            (next == NULL || p->turn < next->turn)) {
            next = p;
        }
    }
    if (next != NULL) {
        process_start_later(next, 0);
    }
}

void process_start_later(struct process *p, int64_t delay_ms)
{
    struct data *data = p->table->data;

    if (list_is_empty(&p->start_link)) {
        list_append(&data->starting, &p->start_link);
    }
    loop_timer_start(data->start_timer, delay_ms);
}

void process_fail_start(struct process *p, const struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    buf_printf(&text, "space: %s%s\n", err->message, p->tty.on ? "\r" : "");
    spool_append(p->spool, p->tty.on ? 0 : 1, buf_span(&text));
    p->exit_code = err->errnum == ENOENT && strcmp(err->field, "argv") == 0 ? EXIT_NOT_FOUND
                                                                            : EXIT_NOT_EXECUTABLE;
    process_exit(p);
}

static void start_waiting(struct process *p)
{
    enum process_wait waited = p->wait;
    struct error err = {0};

    if (process_is_ended(p) || p->channel != NULL || sandbox_agent(p->table->sandbox) == NULL) {
        return; /* without an agent it is lost, or process_adopt comes back to it */
    }
    if (waited == PROCESS_WAIT_TURN && turn_is_taken(p->table, p->shell_state, p->turn)) {
        return; /* whoever has it passes it on */
    }
    if (begin(p, &err) == 0) {
        return;
    }
    p->wait = waited;
    p->started_at_ms = 0;
    if (err.code != ERROR_INVALID_REQUEST) {
        log_warning("start delayed", "process=%s error=%s", p->id, LOG_STR(err.message));
        process_start_later(p, RETRY_MS);
        return;
    }
    process_fail_start(p, &err);
}

void process_on_start_timer(void *arg)
{
    struct data *data = arg;
    struct list due;

    list_init(&due);
    while (!list_is_empty(&data->starting)) {
        struct list *first = data->starting.next;

        list_remove(first);
        list_append(&due, first);
    }
    while (!list_is_empty(&due)) {
        struct process *p = list_entry(due.next, struct process, start_link);

        list_remove(&p->start_link);
        start_waiting(p);
    }
}

void process_release(struct process *p)
{
    if (p->state != PROCESS_STATE_STARTING || p->wait != PROCESS_WAIT_ATTACH) {
        return;
    }
    if (p->shell_state[0] != '\0') {
        struct error err = {0};

        p->wait = PROCESS_WAIT_TURN;
        p->turn = ++p->table->last_turn;
        /* Else its reader comes again after a restart. */
        if (write_down(p, &err) < 0) {
            log_warning("record not written", "process=%s", p->id);
        }
    }
    process_start_later(p, 0);
}

/* ---- starting ---- */

static int
check_request(struct process_table *table, struct command_request *request, struct error *err)
{
    uint64_t max = table->data->node->settings.node_spool_bytes;
    size_t argv_bytes = 0;
    const json_t *item;
    size_t i;

    if (process_find(table, request->process_id) != NULL ||
        process_find_session(table, request->session_id) != NULL) {
        return error_set_code(err, ERROR_CONFLICT, "process_id", "process %s exists already",
                              request->process_id);
    }
    if (process_is_unread(table, request->session_id)) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "lost",
                              "whether process %s ran is not known: its record cannot be read",
                              request->process_id);
    }
    if (sandbox_agent(table->sandbox) == NULL) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "the sandbox's agent is not connected");
    }
    if (request->spool_bytes == 0) {
        request->spool_bytes = max;
    }
    if (request->spool_bytes > max) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "spool_bytes",
                              "spool_bytes must be at most %llu on this node",
                              (unsigned long long)max);
    }
    if (request->block_when_full) {
        int r = process_table_check_block(table, request->spool_bytes, err);

        if (r < 0) {
            return r;
        }
    }
    json_array_foreach(request->argv, i, item) {
        argv_bytes += json_string_length(item);
    }
    return process_table_make_room(table, argv_bytes, err);
}

/* Why it must wait, if it must. */
static void choose_wait(struct process *p, bool on_attach)
{
    if (on_attach) {
        p->wait = PROCESS_WAIT_ATTACH;
    } else if (p->shell_state[0] != '\0' && turn_is_taken(p->table, p->shell_state, UINT64_MAX)) {
        p->wait = PROCESS_WAIT_TURN;
        p->turn = ++p->table->last_turn;
    }
}

int process_start(struct process_table *table,
                  struct command_request *request,
                  struct process **ret_process,
                  struct error *err)
{
    struct process *p;
    int r = check_request(table, request, err);

    if (r < 0) {
        return r;
    }
    p = make_process(table, request);
    if (p == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    choose_wait(p, request->start_on_attach);
    r = write_input(p, err);
    if (r == 0) {
        r = p->wait == PROCESS_WAIT_NONE ? begin(p, err) : write_down(p, err);
    }
    if (r < 0) {
        process_remove_files(p);
        request->input = p->input; /* a caller may try again */
        p->input = buf_make(0);
        process_discard(p);
        return r;
    }
    process_insert(p);
    *ret_process = p;
    return 0;
}

int process_start_again(struct process *p, struct error *err)
{
    if (p->wait != PROCESS_WAIT_NONE) {
        return 0; /* its reader or its turn comes yet */
    }
    if (p->state != PROCESS_STATE_STARTING || p->channel != NULL) {
        return error_set_code(err, ERROR_CONFLICT, "process_id", "process %s was started already",
                              p->id);
    }
    process_timeout_stop(p);
    return begin(p, err);
}

void process_adopt(struct process *p, struct agent *agent)
{
    const struct agent_channel_state state = {
        .channel = p->channel_number,
        .stdout_offset = spool_end(p->spool)->at[0],
        .stderr_offset = spool_end(p->spool)->at[1],
    };

    if (!p->slept) {
        spool_set_dropping(p->spool, !p->block_when_full);
        p->left = *spool_start(p->spool);
        p->polled = p->left;
        p->asked = (struct order_position){{0, 0}};
    }
    if (p->wait != PROCESS_WAIT_NONE) {
        if (p->wait == PROCESS_WAIT_TURN) {
            process_start_later(p, 0);
        }
        return;
    }
    p->channel = agent_channel_adopt(agent, &state, &process_channel_ops, p);
    if (p->channel == NULL || process_timeout_start(p) < 0) {
        log_error("process not adopted", "process=%s", p->id);
        process_lose(p, "crashed");
    }
}

/* ---- terminals ---- */

void process_send_size(struct process *p)
{
    if ((p->sizes & PROCESS_SIZE_UNSENT) == 0) {
        return;
    }
    p->sizes &= ~PROCESS_SIZE_UNSENT;
    if (p->state == PROCESS_STATE_RUNNING && p->channel != NULL) {
        agent_channel_resize(p->channel, p->tty.cols, p->tty.rows);
    } else {
        p->tty_resized = true;
    }
}

/* Sends the size and writes it down: after a restart the guest is told of it again. */
static int settle_size(struct process *p, struct error *err)
{
    process_send_size(p);
    p->sizes = PROCESS_SIZES_GATHERED;
    loop_timer_start(p->resize_timer, PROCESS_RESIZE_MS);
    return write_down(p, err);
}

static void on_resize_timer(void *arg)
{
    struct process *p = arg;
    struct error err = {0};

    p->sizes &= ~PROCESS_SIZES_GATHERED;
    if ((p->sizes & PROCESS_SIZE_UNSAVED) != 0 && settle_size(p, &err) < 0) {
        log_warning("size of a terminal not written", "process=%s error=%s", p->id,
                    LOG_STR(err.message));
    }
}

int process_resize(struct process *p, const struct command_tty *size, struct error *err)
{
    if (process_is_ended(p)) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, process_state_name(p->state),
                              "the process has ended");
    }
    if (!p->tty.on) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "no_tty",
                              "the process has no terminal");
    }
    if (p->resize_timer == NULL) {
        p->resize_timer = loop_timer_new(p->table->data->node->loop, on_resize_timer, p);
        if (p->resize_timer == NULL) {
            return error_set(err, ENOMEM, "out of memory");
        }
    }
    p->tty.cols = size->cols;
    p->tty.rows = size->rows;
    p->sizes |= PROCESS_SIZE_UNSENT | PROCESS_SIZE_UNSAVED;
    return (p->sizes & PROCESS_SIZES_GATHERED) != 0 ? 0 : settle_size(p, err);
}
