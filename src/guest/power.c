/* RESET and POWEROFF: everything that ends all processes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/membarrier.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/agent.h"

#define TERM_WAIT_MS   1000
#define KILL_WAIT_MS   3000
#define POLL_MS        2
#define SETTLE_ROUNDS  3
#define SETTLE_MS      20
#define KLOG_CLEAR     5
#define FIRST_USER_PID "300\n"

static void kill_everything(struct agent *a, int signal)
{
    struct list *it;
    struct list *next;

    if (a->is_guest) {
        (void)kill(-1, signal); /* PID 1 itself is spared */
        return;
    }
    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);

        if (c->pid > 0) {
            (void)kill(-c->pid, signal);
        }
    }
}

/* Waits until no child is left. False when some did not go in time. */
static bool wait_for_all(int limit_ms)
{
    int64_t until_ms = clock_monotonic_ms() + limit_ms;

    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid < 0 && errno == ECHILD) {
            return true;
        }
        if (pid > 0) {
            continue;
        }
        if (clock_monotonic_ms() >= until_ms) {
            return false;
        }
        (void)usleep(POLL_MS * 1000);
    }
}

/* Removes what is in a directory, not the directory. */
static void empty_directory(const char *path)
{
    _cleanup_closedir_ DIR *dir = opendir(path);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            dir_remove_tree(dirfd(dir), entry->d_name) < 0) {
            continue; /* the rest goes all the same */
        }
    }
}

static void remove_traces(void)
{
    _cleanup_close_ int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);

    empty_directory("/tmp");
    empty_directory("/var/tmp");
    empty_directory("/dev/shm");
    (void)klogctl(KLOG_CLEAR, NULL, 0);
    if (fd >= 0 && fd_write_all(fd, span_of_str(FIRST_USER_PID)) < 0) {
        return; /* process numbers then tell that something ran before */
    }
}

/* What ended processes leave to the kernel's deferred work (stacks, groups, mounts), a grace period
 * after another: it is done here, and not in the first moments of whoever comes. */
static void settle(void)
{
    for (int i = 0; i < SETTLE_ROUNDS; i++) {
        (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
        (void)usleep(SETTLE_MS * 1000);
    }
}

int agent_reset(struct agent *a)
{
    if (a->identity.ever_confirmed) {
        return -EPERM; /* a sandbox in use is never emptied */
    }
    kill_everything(a, SIGKILL);
    if (!wait_for_all(KILL_WAIT_MS)) {
        return -ETIMEDOUT;
    }
    channels_clear(a);
    a->users.valid = false;
    identity_rehearse(&a->identity);
    if (a->is_guest) {
        remove_traces();
        settle();
    }
    a->process_ended = true;
    return 0;
}

void agent_power_off(struct agent *a)
{
    if (a->is_guest) {
        (void)cgroups_freeze(&a->cgroups, false);
    }
    kill_everything(a, SIGTERM);
    kill_everything(a, SIGCONT);
    if (!wait_for_all(TERM_WAIT_MS)) {
        kill_everything(a, SIGKILL);
        (void)wait_for_all(KILL_WAIT_MS);
    }
    a->stop = true;
    if (!a->is_guest) {
        return;
    }
    sync();
    (void)mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    (void)reboot(RB_POWER_OFF);
    (void)reboot(RB_AUTOBOOT);
}
