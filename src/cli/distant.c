#include "cli/distant.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <sys/wait.h>

struct look {
    int result;
    struct stat st;
};

_Noreturn static void look_at(const char *path, int fd)
{
    struct look look = {0};

    look.result = stat(path, &look.st) < 0 ? -errno : 0;
    _exit(write(fd, &look, sizeof(look)) == (ssize_t)sizeof(look) ? 0 : 1);
}

int distant_stat(const char *path, struct stat *ret)
{
    int fds[2];
    struct look look;
    pid_t pid;
    int r = -ETIMEDOUT;

    if (pipe2(fds, O_CLOEXEC) < 0) {
        return -errno;
    }
    pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        look_at(path, fds[1]);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        r = -EAGAIN;
    } else if (poll(&(struct pollfd){.fd = fds[0], .events = POLLIN}, 1, DISTANT_TIMEOUT_MS) == 1) {
        r = read(fds[0], &look, sizeof(look)) == (ssize_t)sizeof(look) ? look.result : -EIO;
        (void)waitpid(pid, NULL, 0);
    } else {
        (void)kill(pid, SIGKILL); /* at the latest when the server is back */
    }
    (void)close(fds[0]);
    if (r == 0) {
        *ret = look.st;
    }
    return r;
}
