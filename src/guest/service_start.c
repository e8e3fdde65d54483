#include "guest/service_start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "base/clock.h"
#include "guest/connection.h"
#include "guest/metrics.h"
#include "guest/service.h"

/* So large that the whole window fits: then nothing waits in the agent. */
#define SERVICE_PIPE_BYTES 262144

struct service_fds {
    int input;  /* our ends */
    int output; /* … */
    int child[2];
    bool shared_null; /* child[0] is the spawner's */
};

static void service_fds_done(struct service_fds *f)
{
    cleanup_close(&f->input);
    cleanup_close(&f->output);
    if (!f->shared_null) {
        cleanup_close(&f->child[0]);
    }
    cleanup_close(&f->child[1]);
}

/* A pipe of which only our end does not block. */
static int open_pipe(int *ret_ours, int *ret_theirs, bool we_read)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0) {
        return -errno;
    }
    *ret_ours = ends[we_read ? 0 : 1];
    *ret_theirs = ends[we_read ? 1 : 0];
    (void)fcntl(ends[0], F_SETPIPE_SZ, SERVICE_PIPE_BYTES);
    return fcntl(*ret_ours, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int open_fds(struct service_fds *f, bool with_input, int null_fd)
{
    int r;

    if (!with_input) {
        f->child[0] = null_fd;
        f->shared_null = true;
    } else {
        r = open_pipe(&f->input, &f->child[0], false);
        if (r < 0) {
            return r;
        }
    }
    return open_pipe(&f->output, &f->child[1], true);
}

static int start_child(struct channel *c,
                       const struct agent_start *m,
                       service_run run,
                       struct spawn_plan *plan)
{
    _cleanup_(service_fds_done) struct service_fds fds = {
        .input = -1, .output = -1, .child = {-1, -1}};
    struct service_call call = {run, m, plan->user};
    struct agent *a = c->agent;
    pid_t pid;
    int r = open_fds(&fds, (m->flags & AGENT_START_STDIN) != 0, a->spawner.null_fd);

    if (r < 0) {
        return r;
    }
    plan->stdio[0] = fds.child[0];
    plan->stdio[1] = fds.child[1];
    plan->stdio[2] = a->is_guest ? a->spawner.null_fd : STDERR_FILENO;
    plan->cgroup_fd = a->cgroups.services_fd;
    r = spawn_copy(plan, service_main, &call, &pid);
    if (r < 0) {
        return r;
    }
    channels_set_pid(c, pid);
    if (fds.input >= 0) {
        input_open(&c->input, TAKE_FD(fds.input), INPUT_PIPE);
    }
    return stream_open(&c->streams[0], TAKE_FD(fds.output), false);
}

/* The only argument; "" when it is missing, or not the only one. */
static struct span argument_of(struct span rest)
{
    struct span argument;

    return agent_strings_next(&rest, &argument) && rest.n == 0 ? argument : span_make(NULL, 0);
}

static int put_metrics(struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_sample sample;
    int r;

    metrics_take(&sample);
    service_sample_format(&b, &sample);
    service_done_format(&b, &(struct service_done){1, false});
    r = buf_error(&b) != 0 ? buf_error(&b) : stream_put(&c->streams[0], buf_span(&b));
    if (r == 0) {
        channel_on_exit(c, 0);
    }
    return r;
}

int service_start(struct channel *c,
                  const struct agent_start *m,
                  struct spawn_plan *plan,
                  int *ret_what)
{
    struct agent *a = c->agent;
    struct span rest = m->argv.raw;
    struct span name = span_make(NULL, 0);
    service_run run;

    *ret_what = AGENT_WHAT_RESOURCES;
    c->is_service = true;
    c->started_ns = clock_monotonic_ns();
    if (a->n_services++ >= AGENT_SERVICES_MAX) {
        return -EAGAIN;
    }
    (void)agent_strings_next(&rest, &name);
    if (span_equals_str(name, "connect")) {
        return connection_start(c, argument_of(rest), (m->flags & AGENT_START_STDIN) != 0);
    }
    if (span_equals_str(name, "metrics")) {
        return put_metrics(c);
    }
    run = service_find(name);
    if (run == NULL) {
        *ret_what = AGENT_WHAT_EXEC;
        return -ENOSYS;
    }
    return start_child(c, m, run, plan);
}

void service_stop(struct channel *c)
{
    /* The host may use the number again, while the killed one still ends. */
    list_remove(&c->in_numbers);
    if (c->pid > 0 && !c->reaped) {
        (void)kill(c->pid, SIGKILL);
    } else {
        c->reaped = true;
    }
    if (c->connection != NULL) {
        connection_cut(c);
    }
}

void service_done(struct channel *c)
{
    c->agent->n_services--;
    connection_free(c);
}

void services_stop(struct agent *a)
{
    struct list *it;
    struct list *next;

    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);

        if (c->is_service && !c->forgotten) {
            channel_forget(c);
        }
    }
}
