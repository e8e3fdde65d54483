#include "guest/hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/openat2.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/cgroup.h"
#include "guest/console.h"
#include "guest/spawn.h"

#define GROUP_NAME    "space-hooks"
#define HOOKS_GROUP   CGROUP_ROOT "/" GROUP_NAME
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

/* Refuses to enter another mount, whose filesystem may be a process that never answers. */
static int open_on_mount(int dirfd, const char *path, uint64_t flags)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS,
    };

    return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
}

/* The guest's root may have mounted something over the file. */
static int kill_group(const struct cgroup *group)
{
    _cleanup_close_ int fd = open_on_mount(group->fd, "cgroup.kill", O_WRONLY);

    return fd < 0 ? -errno : fd_write_all(fd, span_of_str("1"));
}

/* The program, and what it started: by the group, or without one by its session's first group. */
static void kill_all(const struct cgroup *group, pid_t pid)
{
    (void)kill_group(group);
    (void)kill(-pid, SIGKILL);
    (void)kill(pid, SIGKILL); /* it may have no session yet */
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

int hooks_is_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int hooks_run(const struct hooks *h, const char *directory)
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
    n = scandir(directory, &names, hooks_is_name, alphasort);
    for (int i = 0; i < n; i++) {
        if (run_entry(h, directory, names[i]->d_name)) {
            good++;
        }
        free(names[i]);
    }
    free(names);
    return good;
}

static bool is_absent(void)
{
    return errno == ENOENT || errno == ENOTDIR;
}

bool hooks_may_exist(const char *path)
{
    _cleanup_close_ int fd = open_on_mount(AT_FDCWD, path, O_PATH);

    return fd >= 0 || !is_absent();
}

bool hooks_may_hold(const char *directory, int (*is_wanted)(const struct dirent *))
{
    int fd = open_on_mount(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
    _cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (fd < 0) {
        return !is_absent();
    }
    if (dir == NULL) {
        (void)close(fd);
        return true;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (is_wanted(entry)) {
            return true;
        }
    }
    return false;
}

/* A group that is there may be frozen, or hold what a guest's root put in it. */
int hooks_make_group(int root_fd)
{
    struct cgroup old = {0, open_on_mount(root_fd, GROUP_NAME, O_RDONLY | O_DIRECTORY)};
    int fd;

    (void)kill_group(&old);
    cgroup_close(&old);
    (void)unlinkat(root_fd, GROUP_NAME, AT_REMOVEDIR);
    if (mkdirat(root_fd, GROUP_NAME, 0755) < 0) {
        return -errno;
    }
    fd = open_on_mount(root_fd, GROUP_NAME, O_RDONLY | O_DIRECTORY);
    return fd < 0 ? -errno : fd;
}

int hooks_apart(spawn_work work, void *arg, int group_fd, int64_t until_ms)
{
    const struct spawn_plan plan = {
        .cwd = "/",
        .stdio = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO},
        .cgroup_fd = -1,
    };
    const struct cgroup group = {0, group_fd};
    pid_t pid;
    int r = spawn_copy(&plan, work, arg, &pid);

    if (r == 0) {
        r = finish(&group, pid, until_ms);
        if (r < 0) {
            return -ETIMEDOUT;
        }
        return WIFEXITED(r) ? WEXITSTATUS(r) : -EIO;
    }
    return r;
}
