/* space-init: PID 1 of a guest and its agent. With --agent it only serves the agent protocol, on a
 * Unix socket (a path) or on an inherited descriptor (a number): tests drive it so, with real
 * processes of the host and nothing else of the host touched. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "guest/agent.h"
#include "guest/boot.h"
#include "guest/console.h"

#define PORT_TRIES   1000
#define PORT_WAIT_US 2000

/* All signals are blocked: SIGCHLD is read from a descriptor, a broken pipe is an errno, and the
 * children get an empty mask. */
static void block_signals(void)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
}

static void open_guest_port(struct agent *a)
{
    int r = -ENODEV;

    for (int i = 0; i < PORT_TRIES; i++) {
        r = port_open_device(&a->port, a->epoll_fd);
        if (r == 0) {
            return;
        }
        (void)usleep(PORT_WAIT_US);
    }
    console_die("no agent port: error %d", -r);
}

static int run_guest(void)
{
    struct agent agent;
    int r;

    boot_guest();
    r = agent_init(&agent, true);
    if (r < 0) {
        console_die("cannot start the agent: error %d", -r);
    }
    open_guest_port(&agent);
    console_say("ready");
    agent_run(&agent);
    console_die("the agent's port is gone");
}

static int run_test_agent(const char *where)
{
    struct agent agent;
    uint64_t fd;
    int r = agent_init(&agent, false);

    if (r == 0) {
        r = span_parse_u64(span_of_str(where), 1023, &fd) == 0
                ? port_open_fd(&agent.port, agent.epoll_fd, (int)fd)
                : port_open_path(&agent.port, agent.epoll_fd, where);
    }
    if (r < 0) {
        console_say("%s: error %d", where, -r);
        agent_done(&agent);
        return 1;
    }
    agent_run(&agent);
    agent_done(&agent);
    return 0;
}

int main(int argc, char **argv)
{
    block_signals();
    if (argc == 3 && strcmp(argv[1], "--agent") == 0) {
        return run_test_agent(argv[2]);
    }
    if (getpid() == 1) {
        return run_guest(); /* the kernel may pass words of its command line */
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("space-init %s\n", SPACE_VERSION);
        return 0;
    }
    (void)fprintf(stderr, "usage: space-init --agent FD|PATH, or as PID 1 of a guest\n");
    return 2;
}
