#include "api/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#include <sys/prctl.h>
#include <sys/syscall.h>

#include <linux/capability.h>
#include <linux/landlock.h>

#include <seccomp.h>

/* ---- the user ---- */

static int become(uid_t uid, gid_t gid)
{
    uid_t real;
    uid_t effective;
    uid_t saved;

    if (setgroups(1, &gid) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0) {
        return -errno;
    }
    if (getresuid(&real, &effective, &saved) < 0 || real != uid || effective != uid ||
        saved != uid || setresuid(0, 0, 0) == 0) {
        return -EPERM;
    }
    return 0;
}

int privileges_drop_capabilities(struct error *err)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};

    if (geteuid() == 0) {
        return 0; /* it has something to prepare yet; they go with the user */
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
        syscall(SYS_capset, &header, none) < 0) {
        return error_set(err, errno, "cannot drop capabilities: %s", strerror(errno));
    }
    return 0;
}

int privileges_drop(const char *user, struct error *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        return error_set(err, errno, "no_new_privs: %s", strerror(errno));
    }
    if (geteuid() == 0) {
        struct passwd entry;
        struct passwd *found = NULL;
        char text[4096];
        int r = getpwnam_r(user, &entry, text, sizeof(text), &found);

        if (found == NULL) {
            return error_set(err, r == 0 ? ENOENT : r,
                             "there is no user %.60s: make it, or set service_user", user);
        }
        if (entry.pw_uid == 0) {
            return error_set(err, EINVAL, "service_user must not be root");
        }
        for (int cap = 0; cap <= CAP_LAST_CAP; cap++) {
            (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
        }
        /* Capabilities go with the last uid 0. */
        r = become(entry.pw_uid, entry.pw_gid);
        if (r < 0) {
            return error_set(err, -r, "cannot become user %.60s: %s", user, strerror(-r));
        }
    }
    return 0;
}

/* ---- files ---- */

#define FILES_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FILES_WRITE                                                                                \
    (FILES_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE |                 \
     LANDLOCK_ACCESS_FS_MAKE_REG)
#define FILES_ALL                                                                                  \
    (FILES_WRITE | LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_REMOVE_DIR |                    \
     LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_SOCK |   \
     LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM)

static int allow_path(int ruleset, const char *path, uint64_t access)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC | O_DIRECTORY);
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};

    if (fd < 0) {
        return -errno;
    }
    return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0
               ? -errno
               : 0;
}

int privileges_limit_files(const char *writable, const char *readable, struct error *err)
{
    struct landlock_ruleset_attr attr = {.handled_access_fs = FILES_ALL};
    _cleanup_close_ int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
    int r;

    if (ruleset < 0) {
        return 0;
    }
    r = allow_path(ruleset, writable, FILES_WRITE);
    if (r == 0) {
        r = allow_path(ruleset, readable, FILES_READ);
        r = r == -ENOENT ? 0 : r;
    }
    if (r == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) < 0) {
        r = -errno;
    }
    return r < 0 ? error_set(err, -r, "landlock: %s", strerror(-r)) : 1;
}

/* ---- system calls ---- */

static const int allowed[] = {
    /* sockets */
    SCMP_SYS(accept4),
    SCMP_SYS(accept),
    SCMP_SYS(socket),
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(listen),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    SCMP_SYS(shutdown),
    SCMP_SYS(sendto),
    SCMP_SYS(recvfrom),
    SCMP_SYS(sendmsg),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendfile),
    /* descriptors */
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(pread64),
    SCMP_SYS(pwrite64),
    SCMP_SYS(close),
    SCMP_SYS(fcntl),
    SCMP_SYS(lseek),
    SCMP_SYS(dup),
    SCMP_SYS(dup3),
    SCMP_SYS(pipe2),
    SCMP_SYS(ioctl),
    SCMP_SYS(eventfd2),
    /* the loop */
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_pwait2),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(timerfd_create),
    SCMP_SYS(timerfd_settime),
    SCMP_SYS(futex),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(time),
    SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(sched_yield),
    /* the store's files */
    SCMP_SYS(open),
    SCMP_SYS(openat),
    SCMP_SYS(fstat),
    SCMP_SYS(stat),
    SCMP_SYS(lstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(statx),
    SCMP_SYS(access),
    SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),
    SCMP_SYS(fsync),
    SCMP_SYS(fdatasync),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fallocate),
    SCMP_SYS(unlink),
    SCMP_SYS(unlinkat),
    SCMP_SYS(readlink),
    SCMP_SYS(readlinkat),
    SCMP_SYS(getcwd),
    SCMP_SYS(fchmod),
    SCMP_SYS(fchown),
    SCMP_SYS(umask),
    SCMP_SYS(fadvise64),
    SCMP_SYS(fstatfs),
    SCMP_SYS(statfs),
    /* memory */
    SCMP_SYS(brk),
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    /* the process */
    SCMP_SYS(getrandom),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getgid),
    SCMP_SYS(getegid),
    SCMP_SYS(getppid),
    SCMP_SYS(uname),
    SCMP_SYS(sysinfo),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(prlimit64),
    SCMP_SYS(getrusage),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(tgkill),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
};

int privileges_limit_syscalls(struct error *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    int r = filter == NULL ? -ENOMEM : seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);

    for (size_t i = 0; r == 0 && i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
        if (r == -EDOM) {
            r = 0; /* a call that this architecture does not have */
        }
    }
    if (r == 0) {
        r = seccomp_load(filter);
    }
    seccomp_release(filter);
    return r < 0 ? error_set(err, -r, "seccomp: %s", strerror(-r)) : 0;
}
