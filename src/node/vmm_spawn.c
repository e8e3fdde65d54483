#include "node/vmm_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/pidfd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/span.h"
#include "node/runtime.h"
#include "node/strv.h"
#include "node/vmm_plan.h"

/* Sources are moved above this number first, so that no target overwrites a source. */
#define FD_PARKING 64

struct placement {
    posix_spawn_file_actions_t actions;
    int parked[32];
    unsigned int count;
    uint64_t keep;
};

static void placement_done(struct placement *p)
{
    for (unsigned int i = 0; i < p->count; i++) {
        (void)close(p->parked[i]);
    }
    (void)posix_spawn_file_actions_destroy(&p->actions);
}

static int place(struct placement *p, int source, int target)
{
    int fd = fcntl(source, F_DUPFD_CLOEXEC, FD_PARKING);
    int r;

    if (fd < 0) {
        return -errno;
    }
    p->parked[p->count++] = fd;
    r = posix_spawn_file_actions_adddup2(&p->actions, fd, target);
    return -r;
}

static int place_all(struct placement *p, const struct vmm_spawn *s, int *ret_netns)
{
    int target = RUNTIME_FD_STAGE;
    int r = 0;

    for (int i = RUNTIME_FD_CONTROL; r == 0 && i < RUNTIME_FD_STAGE; i++) {
        if (s->fds[i] >= 0) {
            r = place(p, s->fds[i], i);
            p->keep |= 1ULL << i;
        }
    }
    for (unsigned int i = 0; r == 0 && i < s->cgroup_count; i++) {
        r = place(p, s->cgroup_fds[i], target++);
    }
    *ret_netns = -1;
    if (r == 0 && s->netns_fd >= 0) {
        *ret_netns = target;
        r = place(p, s->netns_fd, target);
    }
    if (r == 0) {
        r = place(p, s->log_fd, STDERR_FILENO);
    }
    if (r == 0) {
        r = -posix_spawn_file_actions_addopen(&p->actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    }
    if (r == 0) {
        r = -posix_spawn_file_actions_addopen(&p->actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    return r;
}

static void add_keep(struct strv *argv, const struct vmm_spawn *s)
{
    size_t count = 0;

    while (count < VMM_KEEP_MAX && s->keep[count] != NULL) {
        count++;
    }
    strv_add(argv, "%zu", count);
    for (size_t i = 0; i < count; i++) {
        strv_add(argv, "%s", s->keep[i]);
    }
}

static int
spawn_placed(const struct vmm_spawn *s, const struct placement *p, int netns, pid_t *ret_pid)
{
    _cleanup_strv_ struct strv argv = {0};
    static char *const environment[] = {NULL};
    pid_t pid;
    int r;

    strv_add(&argv, "%s", s->stage_path);
    strv_add(&argv, "%d", (int)getpid());
    strv_add(&argv, "%llu", (unsigned long long)p->keep);
    strv_add(&argv, "%d", netns);
    strv_add(&argv, "%u", s->cgroup_count);
    strv_add(&argv, "%llu", (unsigned long long)s->file_mib);
    strv_add(&argv, "%d", 256);
    add_keep(&argv, s);
    strv_add(&argv, "--");
    for (size_t i = 0; i < s->argv->count; i++) {
        strv_add(&argv, "%s", s->argv->items[i]);
    }
    if (argv.error != 0) {
        return argv.error;
    }
    r = posix_spawn(&pid, s->stage_path, &p->actions, NULL, argv.items, environment);
    if (r == 0) {
        *ret_pid = pid;
    }
    return -r;
}

int vmm_start(const struct vmm_spawn *s, pid_t *ret_pid, int *ret_pidfd, struct error *err)
{
    struct placement p = {.count = 0};
    int netns = -1;
    pid_t pid = 0;
    int pidfd;
    int r;

    r = -posix_spawn_file_actions_init(&p.actions);
    if (r == 0) {
        r = place_all(&p, s, &netns);
        if (r == 0) {
            r = spawn_placed(s, &p, netns, &pid);
        }
        placement_done(&p);
    }
    if (r < 0) {
        return error_set(err, -r, "cannot start %.150s: %s", s->stage_path, strerror(-r));
    }
    /* It is our child and not waited for: the number cannot have been reused. */
    pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) {
        r = -errno;
        (void)kill(pid, SIGKILL);
        return error_set(err, -r, "pidfd_open: %s", strerror(-r));
    }
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    return 0;
}

int vmm_make_log(void)
{
    _cleanup_close_ int fd = memfd_create("vmm-log", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, VMM_LOG_BYTES) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0) {
        return -errno;
    }
    return TAKE_FD(fd);
}

void vmm_read_log(int log_fd, char *out, size_t size)
{
    ssize_t n = log_fd >= 0 ? pread(log_fd, out, size - 1, 0) : 0;

    out[n > 0 ? n : 0] = '\0';
}

uint64_t vmm_start_time(pid_t pid)
{
    _cleanup_buf_ struct buf stat = buf_make(4096);
    char path[64];
    struct span rest;
    uint64_t value = 0;
    size_t close_at = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (file_read(AT_FDCWD, path, 4096, &stat) < 0) {
        return 0;
    }
    /* The name in parentheses may hold anything; fields count from the last one. */
    rest = buf_span(&stat);
    for (size_t i = 0; i < rest.n; i++) {
        if (rest.p[i] == ')') {
            close_at = i;
        }
    }
    rest = span_skip(rest, close_at + 2);
    for (unsigned int field = 3; field < 22; field++) {
        rest = span_skip(rest, span_find(rest, 0, ' ') + 1);
    }
    if (span_parse_u64(span_head(rest, span_find(rest, 0, ' ')), UINT64_MAX, &value) < 0) {
        return 0;
    }
    return value;
}
