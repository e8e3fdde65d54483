#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>

#include <sys/pidfd.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/clock.h"

#define PASSWD_SIZE 16384U
#define OUTPUT_STEP 16384U

int child_become(const char *user)
{
    _cleanup_free_ char *text = malloc(PASSWD_SIZE);
    struct passwd entry;
    struct passwd *found = NULL;

    if (text == NULL || getpwnam_r(user, &entry, text, PASSWD_SIZE, &found) != 0 || found == NULL) {
        return -ENOENT;
    }
    if (geteuid() == found->pw_uid && geteuid() != 0) {
        return 0;
    }
    if (initgroups(user, found->pw_gid) < 0 ||
        setresgid(found->pw_gid, found->pw_gid, found->pw_gid) < 0 ||
        setresuid(found->pw_uid, found->pw_uid, found->pw_uid) < 0) {
        return -errno;
    }
    return 0;
}

/* In the child, between fork and exec. */
static void become_program(const char *const argv[], const struct child_options *o, int out_fd)
{
    sigset_t none;
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        (out_fd >= 0 && dup2(out_fd, STDOUT_FILENO) < 0) ||
        (o->quiet && dup2(null_fd, STDERR_FILENO) < 0) ||
        (o->merged && dup2(out_fd, STDERR_FILENO) < 0) ||
        (o->user != NULL && child_become(o->user) < 0)) {
        _exit(CHILD_CANNOT_RUN);
    }
    if (o->env != NULL) {
        (void)execvpe(argv[0], (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)o->env);
    } else {
        (void)execvp(argv[0], (char *const *)(uintptr_t)argv);
    }
    _exit(CHILD_CANNOT_RUN);
}

/* Collects output until it is closed; -ETIMEDOUT when the time is over. */
static int collect(int fd, struct buf *out, int64_t end_ms)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = end_ms - clock_monotonic_ms();
        uint8_t *to = buf_reserve(out, OUTPUT_STEP);
        ssize_t n;

        if (to == NULL) {
            return buf_error(out);
        }
        if (end_ms != 0 && left <= 0) {
            return -ETIMEDOUT;
        }
        if (poll(&p, 1, end_ms == 0 ? -1 : (int)left) <= 0) {
            continue;
        }
        n = read(fd, to, OUTPUT_STEP);
        if (n == 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        buf_commit(out, n > 0 ? (size_t)n : 0);
    }
}

static int wait_until(int pidfd, int64_t end_ms)
{
    for (;;) {
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int64_t left = end_ms - clock_monotonic_ms();

        if (end_ms != 0 && left <= 0) {
            return -ETIMEDOUT;
        }
        if (poll(&p, 1, end_ms == 0 ? -1 : (int)left) > 0) {
            return 0;
        }
    }
}

int child_run(const char *const argv[], const struct child_options *options, struct error *err)
{
    _cleanup_close_ int read_fd = -1;
    _cleanup_close_ int write_fd = -1;
    _cleanup_close_ int pidfd = -1;
    int64_t end_ms = options->timeout_ms > 0 ? clock_monotonic_ms() + options->timeout_ms : 0;
    siginfo_t info = {0};
    int pipe_fds[2];
    pid_t pid;
    int r = 0;

    if (options->output != NULL) {
        if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
            return error_set(err, errno, "cannot make a pipe: %s", strerror(errno));
        }
        read_fd = pipe_fds[0];
        write_fd = pipe_fds[1];
    }
    pid = fork();
    if (pid < 0) {
        return error_set(err, errno, "cannot start %.100s: %s", argv[0], strerror(errno));
    }
    if (pid == 0) {
        become_program(argv, options, write_fd);
    }
    (void)close(TAKE_FD(write_fd));
    pidfd = pidfd_open(pid, 0);
    if (options->output != NULL) {
        r = collect(read_fd, options->output, end_ms);
    }
    if (r == 0 && pidfd >= 0) {
        r = wait_until(pidfd, end_ms);
    }
    if (r < 0) {
        (void)kill(pid, SIGKILL);
    }
    while (waitid(P_PID, (id_t)pid, &info, WEXITED) < 0 && errno == EINTR) {
    }
    if (r < 0) {
        return error_set(err, -r, "%.100s: %s", argv[0], strerror(-r));
    }
    return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}
