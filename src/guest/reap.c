/* Ended processes: the channels' own, and as PID 1 every orphan's. */
#include <errno.h>
#include <signal.h>

#include <sys/signalfd.h>
#include <sys/wait.h>

#include "guest/agent.h"

/* A dying fork bomb must not keep the agent from its other work. */
#define REAPED_PER_TURN 256

void agent_reap(struct agent *a)
{
    a->reap_again = false;
    for (int i = 0; i < REAPED_PER_TURN; i++) {
        struct channel *c;
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid <= 0) {
            return;
        }
        a->child_reaped = true;
        c = channels_find_pid(&a->channels, pid);
        if (c != NULL && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            killed_read(a); /* before the number can be another's */
        }
        if (c != NULL) {
            channel_on_exit(c, status);
        }
    }
    a->reap_again = true;
}

static void on_children(struct source *s, uint32_t events)
{
    struct signalfd_siginfo info;
    ssize_t n = read(s->fd, &info, sizeof(info));

    (void)events;
    (void)n; /* it only says: look */
    agent_reap(source_owner(s, struct agent, children));
}

int agent_watch_children(struct agent *a)
{
    sigset_t set;
    int fd;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    a->children.on_ready = on_children;
    return source_open(&a->children, a->epoll_fd, fd, EPOLLIN);
}
