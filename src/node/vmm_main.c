/* space-vmm: the stage between space-node and a VMM.
 *
 * Started by posix_spawn, it builds the jail around itself, step by step, and becomes the VMM. It
 * is a program of its own so that the daemon need not fork. What it cannot do, because the VMM must
 * first load libraries and firmware, the VMM does itself after set-up: empty root, own uid,
 * seccomp. No step may fail: a VMM with half a jail is never started. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/span.h"
#include "node/runtime.h"
#include "node/vmm_plan.h"

#define VMM_FAILED    126
#define MOUNTINFO_MAX (4U * 1024U * 1024U)

static void die(const char *what)
{
    (void)dprintf(STDERR_FILENO, "space-vmm: %s: %s\n", what, strerror(errno));
    _exit(VMM_FAILED);
}

static uint64_t number(const char *text)
{
    uint64_t value = 0;

    if (span_parse_u64(span_of_str(text), UINT32_MAX * 65536ULL, &value) < 0) {
        errno = EINVAL;
        die(text);
    }
    return value;
}

static void join_cgroups(unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        int fd = (int)(RUNTIME_FD_STAGE + i);

        if (write(fd, "0", 1) != 1) {
            die("cannot join a cgroup");
        }
        (void)close(fd);
    }
}

/* Whether path is dir or below it. */
static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* A mount stays when it is the root, is one of the system's, or holds a path of the plan. */
static bool is_kept_mount(const char *mount_point, char *const *keep, size_t count)
{
    static const char *const system_dirs[] = {"/proc", "/dev", "/sys",  "/usr",  "/lib",
                                              "/bin",  "/etc", "/sbin", "/lib64"};

    if (strcmp(mount_point, "/") == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof(system_dirs) / sizeof(system_dirs[0]); i++) {
        if (is_below(mount_point, system_dirs[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (is_below(keep[i], mount_point)) {
            return true;
        }
    }
    return false;
}

/* The fifth field of a line of mountinfo, with its octal escapes undone. */
static int get_mount_point(struct span line, char *out, size_t size)
{
    size_t n = 0;

    for (int field = 1; field < 5; field++) {
        line = span_skip(line, span_find(line, 0, ' ') + 1);
    }
    line = span_head(line, span_find(line, 0, ' '));
    for (size_t i = 0; i < line.n && n + 1 < size; i++) {
        unsigned int c = line.p[i];

        if (c == '\\' && i + 3 < line.n) {
            c = (line.p[i + 1] - '0') * 64U + (line.p[i + 2] - '0') * 8U + (line.p[i + 3] - '0');
            i += 3;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return n > 0 ? 0 : -EBADMSG;
}

/* A copy of every mount of the host in each VMM's namespace would keep volumes and named network
 * namespaces of others alive for as long as it runs. */
static void drop_mounts(char *const *keep, size_t count)
{
    _cleanup_buf_ struct buf text = buf_make(MOUNTINFO_MAX);
    struct span rest;

    if (file_read(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &text) < 0) {
        errno = EIO;
        die("cannot read mounts");
    }
    rest = buf_span(&text);
    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');
        char path[PATH_MAX];

        if (get_mount_point(span_head(rest, end), path, sizeof(path)) == 0 &&
            !is_kept_mount(path, keep, count)) {
            (void)umount2(path, MNT_DETACH); /* gone already with the one above it, maybe */
        }
        rest = span_skip(rest, end + 1);
    }
}

static void enter_namespaces(int netns_fd)
{
    if (netns_fd >= 0) {
        if (setns(netns_fd, CLONE_NEWNET) < 0) {
            die("cannot enter the network namespace");
        }
        (void)close(netns_fd);
    }
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || sethostname("vm", 2) < 0) {
        die("cannot make namespaces");
    }
}

static void set_limit(int resource, rlim_t value)
{
    struct rlimit limit = {value, value};

    if (setrlimit((__rlimit_resource_t)resource, &limit) < 0) {
        die("cannot set a limit");
    }
}

static void set_limits(rlim_t file_bytes, rlim_t files)
{
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_FSIZE, file_bytes);
    set_limit(RLIMIT_NOFILE, files);
    set_limit(RLIMIT_MEMLOCK, 0);
    set_limit(RLIMIT_MSGQUEUE, 0);
    set_limit(RLIMIT_RTPRIO, 0);
    set_limit(RLIMIT_SIGPENDING, 1024);
}

/* Closes all but 0 to 2 and the set; what stays loses its close-on-exec flag. */
static void keep_descriptors(uint64_t mask)
{
    int fd;

    for (fd = 3; fd < 64; fd++) {
        if ((mask >> fd & 1U) == 0) {
            (void)close(fd);
        } else if (fcntl(fd, F_SETFD, 0) < 0) {
            die("a descriptor is missing");
        }
    }
    if (syscall(SYS_close_range, 64U, ~0U, 0U) < 0) {
        die("cannot close descriptors");
    }
}

static void write_own_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0 || write(fd, text, strlen(text)) < 0) {
        die(path);
    }
    (void)close(fd);
}

static void reset_signals(void)
{
    sigset_t none;

    for (int s = 1; s < NSIG; s++) {
        (void)signal(s, SIG_DFL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int argc, char **argv)
{
    uint64_t mask = 0;
    size_t keep = 0;
    char **vmm;
    int netns_fd;

    if (argc > VMM_STAGE_ARGS) {
        keep = (size_t)number(argv[VMM_STAGE_ARGS - 1]);
    }
    if (keep > VMM_KEEP_MAX || argc <= VMM_STAGE_ARGS + (int)keep + 1 ||
        strcmp(argv[VMM_STAGE_ARGS + keep], "--") != 0) {
        (void)dprintf(STDERR_FILENO, "space-vmm is started by space-node only\n");
        return VMM_FAILED;
    }
    vmm = &argv[VMM_STAGE_ARGS + keep + 1];
    mask = number(argv[2]);
    netns_fd = strcmp(argv[3], "-1") == 0 ? -1 : (int)number(argv[3]);
    join_cgroups((unsigned int)number(argv[4]));
    if ((uint64_t)getppid() != number(argv[1])) {
        return VMM_FAILED; /* space-node died before it could note this process */
    }
    reset_signals();
    if (setsid() < 0) {
        die("setsid");
    }
    enter_namespaces(netns_fd);
    drop_mounts(&argv[VMM_STAGE_ARGS], keep);
    write_own_file("/proc/self/oom_score_adj", "300");
    set_limits((rlim_t)number(argv[5]) * 1048576U, (rlim_t)number(argv[6]));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || chdir("/") < 0) {
        die("no_new_privs");
    }
    (void)umask(077);
    keep_descriptors(mask);
    (void)execv(vmm[0], vmm);
    die("cannot start the VMM");
    return VMM_FAILED;
}
