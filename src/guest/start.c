/* START: a channel, its group, its pipes or terminal, and the program. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <sys/ioctl.h>

#include "base/clock.h"
#include "guest/agent.h"
#include "guest/environment.h"
#include "guest/service_start.h"

#define TTY_GROUP 5 /* Debian's "tty" */
#define TTY_MODE  0620
/* A timeout beyond this (a hundred years) is none. */
#define TIMEOUT_MAX_MS 3155760000000U

/* The ends of the pipes that the agent keeps, and those that the process gets. */
struct start_fds {
    int input;
    int outputs[2];
    int child[3];
    bool tty;
    bool shared_null; /* child[0] is the spawner's */
};

static void start_fds_done(struct start_fds *f)
{
    cleanup_close(&f->input);
    cleanup_close(&f->outputs[0]);
    cleanup_close(&f->outputs[1]);
    if (!f->shared_null) {
        cleanup_close(&f->child[0]);
    }
    if (!f->tty) {
        cleanup_close(&f->child[1]);
        cleanup_close(&f->child[2]);
    }
}

static int open_output(struct start_fds *f, int index)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0) {
        return -errno;
    }
    f->outputs[index] = ends[0];
    f->child[1 + index] = ends[1];
    /* Only our end: the process expects a blocking one. */
    return fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int open_pipes(struct start_fds *f, bool with_stdin, int null_fd)
{
    int ends[2];
    int r;

    if (with_stdin) {
        if (pipe2(ends, O_CLOEXEC) < 0) {
            return -errno;
        }
        f->child[0] = ends[0];
        f->input = ends[1];
        if (fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0) {
            return -errno;
        }
    } else {
        f->child[0] = null_fd;
        f->shared_null = true;
    }
    r = open_output(f, 0);
    return r < 0 ? r : open_output(f, 1);
}

static int open_terminal(struct start_fds *f, const struct agent_start *m, const struct user *user)
{
    const struct winsize size = {.ws_row = m->rows, .ws_col = m->cols};
    int unlock = 0;
    int fd;

    f->tty = true;
    f->outputs[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (f->outputs[0] < 0 || ioctl(f->outputs[0], TIOCSPTLCK, &unlock) < 0) {
        return -errno;
    }
    fd = ioctl(f->outputs[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    f->child[0] = fd;
    f->child[1] = fd;
    f->child[2] = fd;
    f->input = fcntl(f->outputs[0], F_DUPFD_CLOEXEC, 3);
    if (f->input < 0 || ioctl(f->outputs[0], TIOCSWINSZ, &size) < 0) {
        return -errno;
    }
    /* Best effort: without the rights (a host's test) the terminal still works. */
    if (fchown(fd, user->uid, TTY_GROUP) == 0 && fchmod(fd, TTY_MODE) < 0) {
        return -errno;
    }
    return 0;
}

/* Gives the agent's ends to the channel. 0 or -errno. */
static int hand_over(struct channel *c, struct start_fds *f)
{
    int r;

    if (f->input >= 0) {
        input_open(&c->input, TAKE_FD(f->input), f->tty ? INPUT_TTY : INPUT_PIPE);
    }
    if (f->tty) {
        c->tty_fd = f->outputs[0];
    }
    r = stream_open(&c->streams[0], TAKE_FD(f->outputs[0]), f->tty);
    if (r == 0 && !f->tty) {
        r = stream_open(&c->streams[1], TAKE_FD(f->outputs[1]), false);
    }
    return r;
}

/* Unmakes a channel whose process never came to be, or is of no use. */
static void drop_channel(struct channel *c)
{
    if (c->pid > 0) {
        (void)kill(c->pid, SIGKILL);
    }
    c->reaped = true;
    source_close(&c->streams[0].source);
    source_close(&c->streams[1].source);
    channel_forget(c);
}

static void plan_start(struct agent *a,
                       struct spawn_plan *plan,
                       const struct agent_start *m,
                       const struct environment *e)
{
    plan->argv = e->argv;
    plan->envp = e->envp;
    plan->path_list = e->path_list;
    plan->tty = (m->flags & AGENT_START_TTY) != 0;
    plan->rehearsal = (m->flags & AGENT_START_REHEARSAL) != 0 && a->is_guest;
}

/* Where a program began that was not given an absolute directory; NULL when it was, or without
 * memory. */
static char *begun_in(const struct spawn_plan *plan, bool homeless)
{
    const char *home = homeless ? "/" : plan->user->home;
    char *path = NULL;

    if (plan->cwd[0] == '/') {
        return NULL;
    }
    if (plan->cwd[0] == '\0') {
        return strdup(home);
    }
    return asprintf(&path, "%s/%s", home, plan->cwd) < 0 ? NULL : path;
}

/* Starts the program on c. 0 or -errno with the part that failed. */
static int start_on_channel(struct channel *c,
                            const struct agent_start *m,
                            struct spawn_plan *plan,
                            int *ret_what)
{
    struct start_fds fds = {.input = -1, .outputs = {-1, -1}, .child = {-1, -1, -1}};
    struct spawn_failure failure = {0};
    struct agent *a = c->agent;
    pid_t pid = -1;
    int r;

    *ret_what = AGENT_WHAT_RESOURCES;
    r = cgroup_open(&a->cgroups, &c->cgroup);
    if (r < 0) {
        return r;
    }
    if (plan->tty) {
        *ret_what = AGENT_WHAT_TTY;
        r = open_terminal(&fds, m, plan->user);
    } else {
        r = open_pipes(&fds, (m->flags & AGENT_START_STDIN) != 0, a->spawner.null_fd);
    }
    if (r == 0) {
        *ret_what = AGENT_WHAT_RESOURCES;
        memcpy(plan->stdio, fds.child, sizeof(plan->stdio));
        plan->cgroup_fd = c->cgroup.fd;
        c->started_ns = clock_monotonic_ns();
        r = spawn_program(&a->spawner, plan, &pid, &failure);
        if (r < 0) {
            *ret_what = failure.what;
        } else {
            channels_set_pid(c, pid);
            c->cwd = begun_in(plan, failure.homeless);
            r = hand_over(c, &fds);
        }
    }
    start_fds_done(&fds);
    return r;
}

static int check_start(struct agent *a, const struct agent_start *m, int *ret_what)
{
    bool rehearsal = (m->flags & AGENT_START_REHEARSAL) != 0;

    *ret_what = AGENT_WHAT_RESOURCES;
    if (a->voice != AGENT_SPEAKING) {
        return -EBUSY; /* the groups are being frozen, and with them the child that we wait for */
    }
    if (rehearsal && a->identity.ever_confirmed) {
        return -EPERM;
    }
    if (!rehearsal && !a->identity.confirmed) {
        return -EAGAIN;
    }
    agent_thaw(a); /* before a rehearsal: nobody's process can be frozen yet */
    return 0;
}

static int start_program(struct channel *c,
                         const struct agent_start *m,
                         struct spawn_plan *plan,
                         int *ret_what)
{
    struct agent *a = c->agent;
    const struct agent_strings identity_env = {a->identity.env_count, buf_span(&a->identity.env)};
    struct environment e = {.memory = NULL};
    int r;

    *ret_what = AGENT_WHAT_RESOURCES;
    if (environment_build(&e, m, plan->user, &identity_env) < 0) {
        return -ENOMEM;
    }
    plan_start(a, plan, m, &e);
    r = start_on_channel(c, m, plan, ret_what);
    environment_done(&e);
    return r;
}

static int
start_process(struct agent *a, uint32_t number, const struct agent_start *m, int *ret_what)
{
    /* In a host's test everything runs as the tester. */
    struct spawn_plan plan = {.cgroup_fd = -1, .switch_user = a->is_guest};
    char cwd[AGENT_CWD_BYTES + 1];
    struct agent_started started;
    struct channel *c;
    int r = check_start(a, m, ret_what);

    if (r < 0) {
        return r;
    }
    *ret_what = AGENT_WHAT_USER;
    r = users_find(&a->users, m->user, &plan.user);
    if (r < 0) {
        return r;
    }
    *ret_what = AGENT_WHAT_RESOURCES;
    if (span_copy_str(m->cwd, cwd, sizeof(cwd)) < 0) {
        return -ENOMEM;
    }
    plan.cwd = cwd;
    c = channels_add(a, number);
    if (c == NULL) {
        return -EAGAIN;
    }
    r = (m->flags & AGENT_START_SERVICE) != 0 ? service_start(c, m, &plan, ret_what)
                                              : start_program(c, m, &plan, ret_what);
    if (r < 0) {
        drop_channel(c);
        return r;
    }
    if ((m->flags & AGENT_START_SERVICE) == 0 && m->timeout_ms != 0 &&
        m->timeout_ms < TIMEOUT_MAX_MS) {
        c->timeout_at_ms = clock_monotonic_ms() + (int64_t)m->timeout_ms;
        a->deadlines_changed = true;
    }
    started = (struct agent_started){(uint32_t)c->pid, span_of_str(c->cwd != NULL ? c->cwd : "")};
    agent_started_format(&a->tx, number, &started);
    return 0;
}

void agent_start_process(struct agent *a, uint32_t channel, struct span joined)
{
    struct agent_start_failed failed = {0, AGENT_WHAT_RESOURCES};
    struct agent_start m;
    int what = AGENT_WHAT_RESOURCES;
    int r;

    if (channels_find(&a->channels, channel) != NULL) {
        r = -EEXIST;
    } else if (agent_start_parse(joined, &m) < 0) {
        r = -EINVAL;
    } else {
        r = start_process(a, channel, &m, &what);
    }
    if (r < 0) {
        failed.errnum = (uint32_t)-r;
        failed.what = (uint8_t)(what != 0 ? what : AGENT_WHAT_RESOURCES);
        agent_start_failed_format(&a->tx, channel, &failed);
    }
}
