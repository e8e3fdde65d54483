#include "guest/hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "guest/cgroup.h"
#include "guest/console.h"
#include "guest/spawn.h"

#define HOOKS_GROUP   CGROUP_ROOT "/space-hooks"
#define KILL_LIMIT_MS 500
#define PATH_BYTES    320U

static const char *const environment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "HOME=/root",
    NULL,
};

static bool wait_for(int pid_fd, int64_t until_ms)
{
    struct pollfd p = {.fd = pid_fd, .events = POLLIN};

    for (;;) {
        int64_t left_ms = until_ms - clock_monotonic_ms();
        int r = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);

        if (r >= 0 || errno != EINTR) {
            return r > 0;
        }
    }
}

/* The program, and what it started: by the group, or without one by its session's first group. */
static void kill_all(const struct cgroup *group, pid_t pid)
{
    if (group->fd < 0 || cgroup_kill(group) < 0) {
        (void)kill(-pid, SIGKILL);
    }
}

/* Waits for a program that was started; its wait status, or -1 when it had to be killed. What does
 * not even die in time is reaped with the orphans. */
static int finish(const struct cgroup *group, pid_t pid, int64_t until_ms)
{
    _cleanup_close_ int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool ended = pid_fd >= 0 && wait_for(pid_fd, until_ms);
    int status = -1;

    kill_all(group, pid); /* not reaped yet, so the number is still its own */
    if (!ended && (pid_fd < 0 || !wait_for(pid_fd, clock_monotonic_ms() + KILL_LIMIT_MS))) {
        return -1;
    }
    return waitpid(pid, &status, WNOHANG) == pid && ended ? status : -1;
}

bool hooks_run_program(const struct hooks *h, const char *const *argv)
{
    struct spawn_plan plan = {
        .argv = (char *const *)(uintptr_t)argv, /* execve's own type; nothing is written */
        .envp = (char *const *)(uintptr_t)environment,
        .path_list = "",
        .cwd = "/",
        .stdio = {h->spawner->null_fd, STDERR_FILENO, STDERR_FILENO},
        .cgroup_fd = -1,
    };
    int64_t now_ms = clock_monotonic_ms();
    int64_t until_ms = now_ms + h->limit_ms < h->end_ms ? now_ms + h->limit_ms : h->end_ms;
    struct spawn_failure failure = {0};
    struct cgroup group = {0, -1};
    pid_t pid;
    int r;

    if (now_ms >= h->end_ms) {
        console_say("%s: no time is left for it", argv[0]);
        return false;
    }
    if (h->use_group) {
        (void)mkdir(HOOKS_GROUP, 0755);
        group.fd = open(HOOKS_GROUP, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        plan.cgroup_fd = group.fd;
    }
    r = spawn_program(h->spawner, &plan, &pid, &failure);
    if (r < 0) {
        console_say("%s: not started: error %d", argv[0], -r);
    } else {
        r = finish(&group, pid, until_ms);
        if (r < 0) {
            console_say("%s: killed after %d ms", argv[0], (int)(clock_monotonic_ms() - now_ms));
        } else if (r != 0) {
            console_say("%s: failed: %s %d", argv[0], WIFEXITED(r) ? "status" : "signal",
                        WIFEXITED(r) ? WEXITSTATUS(r) : WTERMSIG(r));
        }
    }
    cgroup_close(&group);
    return r == 0;
}

static bool is_safe(const struct stat *st)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static bool run_entry(const struct hooks *h, const char *directory, const char *name)
{
    char path[PATH_BYTES];
    const char *const argv[] = {path, NULL};
    struct stat st;
    int n = snprintf(path, sizeof(path), "%s/%s", directory, name);

    if (n < 0 || (size_t)n >= sizeof(path) || lstat(path, &st) < 0 || !S_ISREG(st.st_mode) ||
        !is_safe(&st) || (st.st_mode & S_IXUSR) == 0) {
        console_say("%s: not run: no executable file that is root's alone", path);
        return false;
    }
    return hooks_run_program(h, argv);
}

static int has_no_dot(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int hooks_run(const struct hooks *h, const char *directory, bool run)
{
    struct dirent **names = NULL;
    struct stat st;
    int good = 0;
    int n;

    if (lstat(directory, &st) < 0) {
        return 0;
    }
    if (!S_ISDIR(st.st_mode) || !is_safe(&st)) {
        console_say("%s: not used: no directory that is root's alone", directory);
        return 0;
    }
    n = scandir(directory, &names, has_no_dot, alphasort);
    for (int i = 0; i < n; i++) {
        if (run && run_entry(h, directory, names[i]->d_name)) {
            good++;
        }
        free(names[i]);
    }
    free(names);
    return good;
}
