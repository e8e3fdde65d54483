#include "guest/channel.h"

#include <errno.h>
#include <signal.h>

#include <sys/wait.h>

#include "base/clock.h"
#include "guest/agent.h"
#include "guest/connection.h"
#include "guest/service_start.h"

#define NEVER INT64_MAX
/* Groups in use that are looked at again after a child was reaped. */
#define SWEEP_TRIES 16

void channels_init(struct channels *t)
{
    list_init(&t->all);
    list_init(&t->dead);
    for (size_t i = 0; i < CHANNEL_HASH; i++) {
        list_init(&t->numbers[i]);
        list_init(&t->pids[i]);
    }
    t->count = 0;
}

struct channel *channels_find(const struct channels *t, uint32_t number)
{
    const struct list *head = &t->numbers[number % CHANNEL_HASH];

    for (struct list *it = head->next; it != head; it = it->next) {
        struct channel *c = list_entry(it, struct channel, in_numbers);

        if (c->number == number) {
            return c;
        }
    }
    return NULL;
}

struct channel *channels_find_pid(const struct channels *t, pid_t pid)
{
    const struct list *head = &t->pids[(unsigned int)pid % CHANNEL_HASH];

    for (struct list *it = head->next; it != head; it = it->next) {
        struct channel *c = list_entry(it, struct channel, in_pids);

        if (c->pid == pid) {
            return c;
        }
    }
    return NULL;
}

struct channel *channels_add(struct agent *a, uint32_t number)
{
    struct channel *c;

    if (a->channels.count >= AGENT_CHANNELS_MAX) {
        return NULL;
    }
    c = calloc(1, sizeof(*c));
    if (c == NULL) {
        return NULL;
    }
    c->agent = a;
    c->number = number;
    c->tty_fd = -1;
    c->cgroup.fd = -1;
    c->flowing = true;
    list_init(&c->in_pids);
    list_init(&c->in_dead);
    input_init(&c->input, a->epoll_fd);
    stream_init(&c->streams[0], c, AGENT_STDOUT);
    stream_init(&c->streams[1], c, AGENT_STDERR);
    list_append(&a->channels.all, &c->in_all);
    list_append(&a->channels.numbers[number % CHANNEL_HASH], &c->in_numbers);
    a->channels.count++;
    return c;
}

void channels_set_pid(struct channel *c, pid_t pid)
{
    c->pid = pid;
    list_append(&c->agent->channels.pids[(unsigned int)pid % CHANNEL_HASH], &c->in_pids);
}

static void channel_free(struct channel *c)
{
    stream_done(&c->streams[0]);
    stream_done(&c->streams[1]);
    input_close(&c->input);
    cgroup_close(&c->cgroup);
    free(c->cwd);
    list_remove(&c->in_all);
    list_remove(&c->in_numbers);
    list_remove(&c->in_pids);
    list_remove(&c->in_dead);
    c->agent->channels.count--;
    if (c->is_service) {
        service_done(c);
    }
    free(c);
}

static void channel_look_later(struct channel *c)
{
    if (list_is_empty(&c->in_dead)) {
        list_append(&c->agent->channels.dead, &c->in_dead);
    }
}

/* A forgotten channel goes when nothing of it is left. Its group may outlive the main process (a
 * background job): then it is looked at again whenever a process was reaped. */
void channels_sweep(struct agent *a)
{
    int tries = a->child_reaped ? SWEEP_TRIES : 0;
    struct list *it;
    struct list *next;

    a->child_reaped = false;
    list_foreach(it, next, &a->channels.dead)
    {
        struct channel *c = list_entry(it, struct channel, in_dead);

        if (!c->reaped || c->streams[0].source.fd >= 0 || c->streams[1].source.fd >= 0 ||
            (c->in_use && tries-- <= 0)) {
            continue;
        }
        if (cgroup_remove(&a->cgroups, &c->cgroup) == 0) {
            channel_free(c);
            continue;
        }
        c->in_use = true;
        list_remove(&c->in_dead); /* others have their turn first the next time */
        list_append(&a->channels.dead, &c->in_dead);
    }
}

void channels_clear(struct agent *a)
{
    struct list *it;
    struct list *next;

    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);

        (void)cgroup_remove(&a->cgroups, &c->cgroup); /* empty unless something escaped SIGKILL */
        channel_free(c);
    }
}

static void channel_end(struct channel *c)
{
    c->ended = true;
    c->agent->process_ended = true;
    c->quiet_at_ms = 0;
    c->drained_at_ms = 0;
    c->exit.stdout_end = c->streams[0].kept.end;
    c->exit.stderr_end = c->streams[1].kept.end;
    if (c->streams[0].source.fd >= 0 || c->streams[1].source.fd >= 0) {
        c->exit.flags |= AGENT_EXITED_PIPE_HELD;
    }
    if (c->out_of_memory) {
        c->exit.flags |= AGENT_EXITED_OUT_OF_MEMORY;
    }
    input_close(&c->input);
    for (int i = 0; i < 2; i++) {
        if (c->streams[i].source.fd >= 0) {
            stream_activate(&c->streams[i]); /* from now on into the dustbin */
        }
    }
    channel_send_end(c);
}

/* Ends the draining when both pipes are at their end, or the time is up, all is read that the
 * process itself can have written, and somebody else holds a pipe. */
static void channel_check_end(struct channel *c)
{
    struct stream *out = &c->streams[0];
    struct stream *err = &c->streams[1];

    if (!c->reaped || c->ended) {
        return;
    }
    if (out->source.fd >= 0 || err->source.fd >= 0) {
        if (c->quiet_at_ms != 0 || out->owed > 0 || err->owed > 0) {
            return;
        }
        /* After a long wait for the host the time is up before the end of file was seen. */
        if (stream_is_ending(out) || stream_is_ending(err)) {
            return;
        }
    }
    channel_end(c);
}

void channel_send_end(struct channel *c)
{
    struct agent *a = c->agent;

    if (!c->ended || c->end_sent || c->forgotten || !c->flowing || !agent_may_speak(a) ||
        kept_has_unsent(&c->streams[0].kept) || kept_has_unsent(&c->streams[1].kept)) {
        return;
    }
    agent_exited_format(&a->tx, c->number, &c->exit);
    c->end_sent = true;
}

void channel_on_exit(struct channel *c, int status)
{
    int64_t now_ms = clock_monotonic_ms();

    c->reaped = true;
    list_remove(&c->in_pids);
    c->exit.duration_ns = (uint64_t)(clock_monotonic_ns() - c->started_ns);
    if (WIFSIGNALED(status)) {
        c->exit.kind = AGENT_EXIT_SIGNAL;
        c->exit.status = (uint8_t)WTERMSIG(status);
    } else {
        c->exit.kind = AGENT_EXIT_CODE;
        c->exit.status = (uint8_t)WEXITSTATUS(status);
    }
    if (c->timeout_killed && c->exit.kind == AGENT_EXIT_SIGNAL && c->exit.status == SIGKILL) {
        c->exit.flags |= AGENT_EXITED_TIMED_OUT;
    }
    c->timeout_at_ms = 0;
    if (c->tty_fd >= 0) {
        c->streams[0].readable = true; /* its end may have been seen already (stream.c) */
        stream_activate(&c->streams[0]);
    }
    if (c->forgotten) {
        channel_look_later(c);
        return;
    }
    stream_note_owed(&c->streams[0]);
    stream_note_owed(&c->streams[1]);
    c->quiet_at_ms = now_ms + AGENT_DRAIN_QUIET_MS;
    c->drained_at_ms = now_ms + AGENT_DRAIN_TOTAL_MS;
    c->agent->deadlines_changed = true;
    if (c->input.source.fd >= 0) {
        input_close(&c->input);
        agent_tell_input(c);
    }
    channel_check_end(c);
}

void channel_forget(struct channel *c)
{
    c->forgotten = true;
    if (c->is_service) {
        service_stop(c); /* before its input ends: a cut upload is never complete */
    }
    input_close(&c->input);
    c->timeout_at_ms = 0;
    c->quiet_at_ms = 0;
    c->drained_at_ms = 0;
    for (int i = 0; i < 2; i++) {
        kept_clear(&c->streams[i].kept, &c->agent->pool);
        if (c->streams[i].source.fd >= 0) {
            stream_activate(&c->streams[i]);
        }
    }
    channel_look_later(c);
}

/* Whether the main process has ended, and is only not reaped yet. */
static bool channel_is_over(const struct channel *c)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == c->pid;
}

/* One that ended by itself just before is not called timed out, and what it left behind lives on:
 * it was in time. */
static void channel_time_out(struct channel *c)
{
    c->timeout_at_ms = 0;
    if (channel_is_over(c)) {
        return;
    }
    c->timeout_killed = true;
    if (channel_signal(c, SIGKILL, AGENT_SCOPE_TREE) < 0) {
        (void)kill(c->pid, SIGKILL);
    }
}

void channel_on_time(struct channel *c, int64_t now_ms)
{
    if (c->timeout_at_ms != 0 && now_ms >= c->timeout_at_ms) {
        channel_time_out(c);
    }
    if (c->quiet_at_ms != 0 && (now_ms >= c->quiet_at_ms || now_ms >= c->drained_at_ms)) {
        /* What is owed keeps it open without a clock: a slow host loses nothing. */
        c->quiet_at_ms = 0;
        channel_check_end(c);
    }
}

int64_t channel_next_deadline(const struct channel *c)
{
    int64_t next = c->timeout_at_ms != 0 ? c->timeout_at_ms : NEVER;

    if (c->quiet_at_ms != 0) {
        int64_t drain = c->quiet_at_ms < c->drained_at_ms ? c->quiet_at_ms : c->drained_at_ms;

        next = drain < next ? drain : next;
    }
    return next;
}

void channel_describe(const struct channel *c, struct agent_process *ret)
{
    const struct kept *out = &c->streams[0].kept;
    const struct kept *err = &c->streams[1].kept;

    *ret = (struct agent_process){
        .pid = (uint32_t)c->pid,
        .exited = c->ended,
        .stdout_start = out->start,
        .stdout_end = out->end,
        .stderr_start = err->start,
        .stderr_end = err->end,
        .stdin_offset = c->input.consumed,
        .exit = c->exit,
        .cwd = span_of_str(c->cwd != NULL ? c->cwd : ""),
    };
}

static int signal_group(const struct channel *c, int signal)
{
    int sent;

    if (!c->reaped) {
        return kill(-c->pid, signal) == 0 ? 0 : -errno;
    }
    /* The leader's number may belong to someone else by now: only look inside its control group. */
    sent = cgroup_signal(&c->cgroup, signal, c->pid);
    if (sent == -ENOENT) {
        return kill(-c->pid, signal) == 0 ? 0 : -errno;
    }
    return sent > 0 ? 0 : -ESRCH;
}

static int signal_tree(const struct channel *c, int signal)
{
    int sent;

    if (c->cgroup.fd < 0) {
        return signal_group(c, signal);
    }
    sent = cgroup_signal(&c->cgroup, signal == SIGKILL ? 0 : signal, 0);
    if (sent < 0) {
        return sent;
    }
    if (signal == SIGKILL) {
        int r = cgroup_kill(&c->cgroup);

        if (r < 0) {
            return r;
        }
    }
    return sent > 0 ? 0 : -ESRCH;
}

int channel_signal(struct channel *c, int signal, enum agent_scope scope)
{
    switch (scope) {
    case AGENT_SCOPE_PROCESS:
        return c->reaped ? -ESRCH : (kill(c->pid, signal) == 0 ? 0 : -errno);
    case AGENT_SCOPE_TREE:
        return signal_tree(c, signal);
    case AGENT_SCOPE_GROUP:
    default:
        return signal_group(c, signal);
    }
}

void channel_on_stream_bytes(struct channel *c)
{
    if (!c->reaped || c->ended) {
        return;
    }
    if (c->quiet_at_ms != 0) {
        c->quiet_at_ms = clock_monotonic_ms() + AGENT_DRAIN_QUIET_MS;
        c->agent->deadlines_changed = true;
    } else {
        channel_check_end(c);
    }
}

void channel_on_stream_end(struct channel *c, const struct stream *s)
{
    if (s->number == AGENT_STDOUT && c->tty_fd >= 0) {
        c->tty_fd = -1;
        input_close(&c->input);
    }
    if (c->forgotten) {
        channel_look_later(c);
    } else if (c->connection != NULL) {
        connection_on_output_end(c);
    } else {
        channel_check_end(c);
    }
}
