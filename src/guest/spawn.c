#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <linux/sched.h>

#include "guest/users.h"
#include "wire/agent_process.h"

#define STACK_BYTES  65536U
#define PATH_BYTES   4096U
#define SIGSET_BYTES 8U

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define SPAWN_SHARES_MEMORY 1
#else
#define SPAWN_SHARES_MEMORY 0
#endif

struct child {
    const struct spawn_plan *plan;
    struct spawn_failure *failure;
};

int spawner_init(struct spawner *s)
{
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED || stack == MAP_FAILED) {
        return -ENOMEM;
    }
    /* Present from now on, so that a start does not depend on free memory for it. */
    memset(stack, 0, STACK_BYTES);
    memset(shared, 0, 4096);
    *s = (struct spawner){open("/dev/null", O_RDONLY | O_CLOEXEC), shared, stack};
    return s->null_fd < 0 ? -errno : 0;
}

void spawner_done(struct spawner *s)
{
    if (s->shared != NULL) {
        (void)munmap(s->shared, 4096);
        (void)munmap(s->stack, STACK_BYTES);
    }
    cleanup_close(&s->null_fd);
    *s = (struct spawner){-1, NULL, NULL};
}

/* Notes the first failure. Returns -1. */
static int child_note(const struct child *c, int errnum, int what)
{
    c->failure->errnum = errnum != 0 ? errnum : EIO;
    c->failure->what = what;
    return -1;
}

static int child_take_stdio(const struct child *c)
{
    const struct spawn_plan *plan = c->plan;

    (void)setsid();
    if (plan->tty && ioctl(plan->stdio[0], TIOCSCTTY, 0) < 0) {
        return child_note(c, errno, AGENT_WHAT_TTY);
    }
    for (int i = 0; i < 3; i++) {
        /* The agent's own descriptors are all above 2 and close by themselves at execve. */
        if (dup2(plan->stdio[i], i) < 0) {
            return child_note(c, errno, AGENT_WHAT_RESOURCES);
        }
    }
    return 0;
}

/* Files read-only, and empty memory filesystems where programs expect to write. */
static int child_enter_rehearsal(const struct child *c)
{
    static const char *const scratch[] = {"/tmp", "/var/tmp", "/run", "/dev/shm", "/root"};

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0) {
        return child_note(c, errno, AGENT_WHAT_RESOURCES);
    }
    for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        (void)mount("space", scratch[i], "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    }
    (void)mount("space", c->plan->user->home, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    return 0;
}

/* Raw system calls: libc's wrappers would look for threads, in memory that is not the child's. */
static int child_become_user(const struct child *c)
{
    const struct user *user = c->plan->user;

    if (syscall(SYS_setgroups, user->n_groups, user->groups) < 0 ||
        syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0 ||
        syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0) {
        return child_note(c, errno, AGENT_WHAT_USER);
    }
    return 0;
}

static int child_enter_cwd(const struct child *c)
{
    const char *cwd = c->plan->cwd;

    if (cwd[0] != '/' && chdir(c->plan->user->home) < 0) {
        c->failure->homeless = true;
        if (chdir("/") < 0) {
            return child_note(c, errno, AGENT_WHAT_CWD);
        }
    }
    if (cwd[0] != '\0' && chdir(cwd) < 0) {
        return child_note(c, errno, AGENT_WHAT_CWD);
    }
    return 0;
}

static void child_unblock_signals(void)
{
    const uint64_t no_signals = 0;

    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, SIGSET_BYTES);
}

/* Puts "directory/name" in out; an empty directory is the current one. */
static bool join_path(char out[PATH_BYTES], const char *directory, size_t n, const char *name)
{
    size_t name_bytes = strlen(name) + 1;

    if (n + 1 + name_bytes > PATH_BYTES) {
        return false;
    }
    memcpy(out, directory, n);
    if (n > 0) {
        out[n++] = '/';
    }
    memcpy(&out[n], name, name_bytes);
    return true;
}

static int child_execute(const struct spawn_plan *plan)
{
    const char *name = plan->argv[0];
    const char *directory = plan->path_list;
    int errnum = ENOENT;

    if (name[0] == '\0') {
        return ENOENT;
    }
    if (strchr(name, '/') != NULL) {
        (void)execve(name, plan->argv, plan->envp);
        return errno;
    }
    for (;;) {
        const char *colon = strchrnul(directory, ':');
        char path[PATH_BYTES];

        if (join_path(path, directory, (size_t)(colon - directory), name)) {
            (void)execve(path, plan->argv, plan->envp);
            if (errno == EACCES) {
                errnum = EACCES;
            } else if (errno != ENOENT && errno != ENOTDIR) {
                return errno;
            }
        }
        if (*colon == '\0') {
            return errnum;
        }
        directory = colon + 1;
    }
}

static int child_prepare(const struct child *c)
{
    if (child_take_stdio(c) < 0 || (c->plan->rehearsal && child_enter_rehearsal(c) < 0) ||
        (c->plan->switch_user && child_become_user(c) < 0) || child_enter_cwd(c) < 0) {
        return -1;
    }
    (void)umask(022);
    child_unblock_signals();
    return 0;
}

static int child_main(void *argument)
{
    const struct child *c = argument;

    if (child_prepare(c) == 0) {
        (void)child_note(c, child_execute(c->plan), AGENT_WHAT_EXEC);
    }
    (void)syscall(SYS_exit_group, 127);
    return 127; /* never: exit_group does not return */
}

#if SPAWN_SHARES_MEMORY
/* clone3 with a new stack cannot return in the child, so the child's call is made here. What it
 * calls, and with what, is in registers by name: "r" may be the stack's own or rbp, and those are
 * others in the child. */
static long clone_child(struct clone_args *args, int (*run)(void *), void *argument)
{
    long result;

    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%rbx, %%rdi\n\t"
                     "call *%%rdx\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone3), "D"(args), "S"(sizeof(*args)), "b"(argument), "d"(run)
                     : "rcx", "r11", "cc", "memory");
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
#else
static long clone_child(struct clone_args *args, int (*run)(void *), void *argument)
{
    long pid;

    args->stack = 0;
    args->stack_size = 0;
    args->flags &= ~(unsigned long long)CLONE_VM;
    pid = syscall(SYS_clone3, args, sizeof(*args));
    if (pid == 0) {
        (void)run(argument);
    }
    return pid;
}
#endif

int spawn_program(struct spawner *s,
                  const struct spawn_plan *plan,
                  pid_t *ret_pid,
                  struct spawn_failure *ret_failure)
{
    struct child child = {plan, s->shared};
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)s->stack,
        .stack_size = STACK_BYTES,
    };
    long pid;

    if (plan->cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned int)plan->cgroup_fd;
    }
    *s->shared = (struct spawn_failure){0};
    pid = clone_child(&args, child_main, &child);
    if (pid < 0) {
        *ret_failure = (struct spawn_failure){.errnum = errno, .what = AGENT_WHAT_RESOURCES};
        return -errno;
    }
    /* The child has executed its program or ended: CLONE_VFORK waited for that. */
    *ret_failure = *(volatile struct spawn_failure *)s->shared;
    *ret_pid = (pid_t)pid;
    return ret_failure->errnum == 0 ? 0 : -ret_failure->errnum;
}

/* The copy's memory holds what the agent knew, so nobody may look into it. */
static __attribute__((noreturn)) void
copy_main(const struct spawn_plan *plan, spawn_work work, void *arg)
{
    struct spawn_failure failure = {0};
    const struct child child = {plan, &failure};

    (void)prctl(PR_SET_DUMPABLE, 0);
    if (child_take_stdio(&child) == 0) {
        (void)syscall(SYS_close_range, 3U, ~0U, 0U);
        if (!plan->switch_user || child_become_user(&child) == 0) {
            (void)prctl(PR_SET_DUMPABLE, 0); /* a change of user may set it anew */
            (void)umask(022);
            (void)child_enter_cwd(&child);
        }
    }
    child_unblock_signals();
    _exit(work(arg, &failure));
}

int spawn_copy(const struct spawn_plan *plan, spawn_work work, void *arg, pid_t *ret_pid)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    long pid;

    if (plan->cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned int)plan->cgroup_fd;
    }
    pid = syscall(SYS_clone3, &args, sizeof(args));
    if (pid < 0) {
        return -errno;
    }
    if (pid == 0) {
        copy_main(plan, work, arg);
    }
    *ret_pid = (pid_t)pid;
    return 0;
}
