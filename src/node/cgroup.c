#include "node/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#define REMOVE_DEADLINE_MS 5000
#define FILE_MAX           65536U
#define CPU_PERIOD_US      100000U
#define VM_WEIGHT          40U  /* v2 */
#define VM_SHARES          400U /* v1 */

static const char *const v1_controllers[CGROUP_TREES_MAX] = {"memory", "cpu", "pids"};

static int write_file(const char *dir, const char *name, const char *format, uint64_t value)
{
    char path[CGROUP_PATH_SIZE + 96];
    char text[64];
    _cleanup_close_ int fd = -1;
    int n;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    if (format == NULL) {
        n = snprintf(text, sizeof(text), "%" PRIu64, value);
    } else {
        n = snprintf(text, sizeof(text), "%s", format);
    }
    return write(fd, text, (size_t)n) == n ? 0 : -errno;
}

static int write_number(const char *dir, const char *name, uint64_t value)
{
    return write_file(dir, name, NULL, value);
}

static int make_dir(const char *path)
{
    return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/* Root's alone: who may open it can lock it, and the lock is the installation's name
 * (name_claim.h). */
static int make_parent(const char *path)
{
    if (mkdir(path, 0700) == 0) {
        return 0;
    }
    return errno != EEXIST || chmod(path, 0700) < 0 ? -errno : 0;
}

static int open_v2(const char *root, const char *installation, struct cgroup *cg, struct error *err)
{
    static const char *const controllers = "+memory +cpu +pids";
    int r;

    cg->v2 = true;
    cg->count = 1;
    (void)snprintf(cg->parents[0], CGROUP_PATH_SIZE, "%s/%s", root, installation);
    r = write_file(root, "cgroup.subtree_control", controllers, 0);
    if (r == 0) {
        r = make_parent(cg->parents[0]);
    }
    if (r == 0) {
        r = write_file(cg->parents[0], "cgroup.subtree_control", controllers, 0);
    }
    if (r < 0) {
        return error_set(err, -r,
                         "cannot use cgroup v2 at %.60s: %s (the memory, cpu and pids controllers "
                         "are needed)",
                         root, strerror(-r));
    }
    return 0;
}

static int open_v1(const char *root, const char *installation, struct cgroup *cg, struct error *err)
{
    cg->count = CGROUP_TREES_MAX;
    for (unsigned int i = 0; i < CGROUP_TREES_MAX; i++) {
        char tree[CGROUP_PATH_SIZE];
        int r;

        (void)snprintf(tree, sizeof(tree), "%.80s/%s/cgroup.procs", root, v1_controllers[i]);
        if (access(tree, F_OK) < 0) {
            return error_set(err, ENOENT, "the cgroup controller %s is not mounted at %.60s/%s",
                             v1_controllers[i], root, v1_controllers[i]);
        }
        (void)snprintf(cg->parents[i], CGROUP_PATH_SIZE, "%.80s/%s/%s", root, v1_controllers[i],
                       installation);
        r = make_parent(cg->parents[i]);
        if (r < 0) {
            return error_set(err, -r, "cannot make cgroup %.100s: %s", cg->parents[i],
                             strerror(-r));
        }
    }
    return 0;
}

int cgroup_open(const char *root, const char *installation, struct cgroup *ret, struct error *err)
{
    struct cgroup cg = {0};
    char path[CGROUP_PATH_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "%.80s/cgroup.controllers", root);
    r = access(path, F_OK) == 0 ? open_v2(root, installation, &cg, err)
                                : open_v1(root, installation, &cg, err);
    if (r == 0) {
        *ret = cg;
    }
    return r;
}

/* Memory and swap together have the limit of memory, or a VM that reaches it would go on in the
 * host's swap. The kernel wants the larger limit to be the larger one at every moment, and has the
 * second only where it accounts for swap. */
static int limit_memory_v1(const char *dir, uint64_t bytes)
{
    int r;

    (void)write_file(dir, "memory.memsw.limit_in_bytes", "-1", 0);
    r = write_number(dir, "memory.limit_in_bytes", bytes);
    (void)write_number(dir, "memory.memsw.limit_in_bytes", bytes);
    return r;
}

int cgroup_limit_parent(const struct cgroup *cg, uint64_t memory_bytes, struct error *err)
{
    int r = cg->v2 ? write_number(cg->parents[0], "memory.max", memory_bytes)
                   : limit_memory_v1(cg->parents[0], memory_bytes);

    /* All VMs together weigh as much as eight processes of the host, not as one. */
    (void)write_number(cg->parents[cg->v2 ? 0 : 1], cg->v2 ? "cpu.weight" : "cpu.shares",
                       cg->v2 ? 800 : 8192);
    if (r < 0) {
        return error_set(err, -r, "cannot limit cgroup %.100s: %s", cg->parents[0], strerror(-r));
    }
    return 0;
}

static void slot_path(const struct cgroup *cg, unsigned int tree, unsigned int slot, char *out)
{
    (void)snprintf(out, CGROUP_PATH_SIZE + 16, "%s/vm-%u", cg->parents[tree], slot);
}

static int limit_v2(const char *dir, const struct cgroup_limits *l)
{
    char quota[64];
    int r;

    (void)snprintf(quota, sizeof(quota), "%u %u", (l->vcpus + 1) * CPU_PERIOD_US, CPU_PERIOD_US);
    r = write_number(dir, "memory.max", l->memory_bytes);
    if (r == 0) {
        r = write_number(dir, "pids.max", l->pids);
    }
    if (r == 0) {
        r = write_file(dir, "cpu.max", quota, 0);
    }
    if (r == 0) {
        r = write_number(dir, "cpu.weight", VM_WEIGHT);
    }
    (void)write_number(dir, "memory.swap.max", 0);
    (void)write_number(dir, "memory.oom.group", 1);
    return r;
}

static int limit_v1(unsigned int tree, const char *dir, const struct cgroup_limits *l)
{
    int r;

    if (tree == 0) {
        (void)write_number(dir, "memory.swappiness", 0);
        return limit_memory_v1(dir, l->memory_bytes);
    }
    if (tree == 2) {
        return write_number(dir, "pids.max", l->pids);
    }
    r = write_number(dir, "cpu.shares", VM_SHARES);
    /* One CPU more than the guest has, for the VMM's own threads. The kernel may lack quotas. */
    (void)write_number(dir, "cpu.cfs_quota_us", (uint64_t)(l->vcpus + 1) * CPU_PERIOD_US);
    return r;
}

static int make_one(const struct cgroup *cg,
                    unsigned int tree,
                    unsigned int slot,
                    const struct cgroup_limits *limits)
{
    char dir[CGROUP_PATH_SIZE + 16];
    char procs[CGROUP_PATH_SIZE + 32];
    int r;
    int fd;

    slot_path(cg, tree, slot, dir);
    r = make_dir(dir);
    if (r == 0) {
        r = cg->v2 ? limit_v2(dir, limits) : limit_v1(tree, dir, limits);
    }
    if (r < 0) {
        return r;
    }
    (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", dir);
    fd = open(procs, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cgroup_make(const struct cgroup *cg,
                unsigned int slot,
                const struct cgroup_limits *limits,
                int *ret_fds,
                struct error *err)
{
    for (unsigned int i = 0; i < cg->count; i++) {
        int fd = make_one(cg, i, slot, limits);

        if (fd < 0) {
            while (i > 0) {
                (void)close(ret_fds[--i]);
            }
            return error_set(err, -fd, "cannot make the cgroup of VM %u: %s", slot, strerror(-fd));
        }
        ret_fds[i] = fd;
    }
    return 0;
}

void cgroup_set_background(const struct cgroup *cg, unsigned int slot, bool background)
{
    char dir[CGROUP_PATH_SIZE + 16];

    slot_path(cg, cg->v2 ? 0 : 1, slot, dir);
    (void)write_number(dir, cg->v2 ? "cpu.weight" : "cpu.shares",
                       (cg->v2 ? VM_WEIGHT : VM_SHARES) / (background ? 10 : 1));
}

static void kill_members(const char *dir)
{
    _cleanup_buf_ struct buf text = buf_make(FILE_MAX);
    char path[CGROUP_PATH_SIZE + 32];
    struct span rest;

    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    if (file_read(AT_FDCWD, path, FILE_MAX, &text) < 0) {
        return;
    }
    rest = buf_span(&text);
    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');
        uint64_t pid;

        if (span_parse_u64(span_head(rest, end), INT32_MAX, &pid) == 0 && pid > 1) {
            (void)kill((pid_t)pid, SIGKILL);
        }
        rest = span_skip(rest, end + 1);
    }
}

int cgroup_remove(const struct cgroup *cg, unsigned int slot)
{
    int64_t deadline = clock_monotonic_ms() + REMOVE_DEADLINE_MS;
    struct timespec pause = {0, 1000000};
    int r = 0;

    for (unsigned int i = 0; i < cg->count; i++) {
        char dir[CGROUP_PATH_SIZE + 16];

        slot_path(cg, i, slot, dir);
        while (rmdir(dir) < 0 && errno != ENOENT) {
            if (errno != EBUSY || clock_monotonic_ms() > deadline) {
                r = -errno;
                break;
            }
            kill_members(dir);
            (void)nanosleep(&pause, NULL);
            if (pause.tv_nsec < 32000000) {
                pause.tv_nsec *= 2;
            }
        }
    }
    return r;
}

bool cgroup_was_out_of_memory(const struct cgroup *cg, unsigned int slot)
{
    _cleanup_buf_ struct buf text = buf_make(FILE_MAX);
    char path[CGROUP_PATH_SIZE + 64];
    const char *line;

    (void)snprintf(path, sizeof(path), "%s/vm-%u/%s", cg->parents[0], slot,
                   cg->v2 ? "memory.events" : "memory.oom_control");
    if (file_read(AT_FDCWD, path, FILE_MAX, &text) < 0) {
        return false;
    }
    line = strstr(buf_str(&text), "oom_kill ");
    return line != NULL && line[strlen("oom_kill ")] != '0';
}

static void memory_path(const struct cgroup *cg, unsigned int slot, const char *name, char *out)
{
    char dir[CGROUP_PATH_SIZE + 16];

    if (slot == CGROUP_PARENT) {
        (void)snprintf(dir, sizeof(dir), "%s", cg->parents[0]);
    } else {
        slot_path(cg, 0, slot, dir);
    }
    (void)snprintf(out, CGROUP_PATH_SIZE + 64, "%s/%s", dir, name);
}

/* A number alone in a file; "max" is the largest. */
static int read_number(const struct cgroup *cg, unsigned int slot, const char *name, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = buf_make(FILE_MAX);
    char path[CGROUP_PATH_SIZE + 64];
    struct span line;
    int r;

    memory_path(cg, slot, name, path);
    r = file_read(AT_FDCWD, path, FILE_MAX, &text);
    if (r < 0) {
        return r;
    }
    line = span_head(buf_span(&text), span_find(buf_span(&text), 0, '\n'));
    if (span_equals(line, span_of_str("max"))) {
        *ret = UINT64_MAX;
        return 0;
    }
    return span_parse_u64(line, UINT64_MAX, ret);
}

/* The number behind a name at the begin of a line; 0 when there is none. */
static uint64_t stat_number(struct span text, const char *name)
{
    struct span want = span_of_str(name);
    uint64_t value = 0;

    while (text.n > 0) {
        size_t end = span_find(text, 0, '\n');
        struct span line = span_head(text, end);

        if (span_equals(span_head(line, want.n), want) &&
            span_parse_u64(span_skip(line, want.n), UINT64_MAX, &value) == 0) {
            return value;
        }
        text = span_skip(text, end + 1);
    }
    return 0;
}

int cgroup_read_memory(const struct cgroup *cg, unsigned int slot, struct cgroup_memory *ret)
{
    _cleanup_buf_ struct buf text = buf_make(FILE_MAX);
    char path[CGROUP_PATH_SIZE + 64];
    uint64_t limit;
    int r = read_number(cg, slot, cg->v2 ? "memory.max" : "memory.limit_in_bytes", &limit);

    memory_path(cg, slot, "memory.stat", path);
    if (r == 0) {
        r = file_read(AT_FDCWD, path, FILE_MAX, &text);
    }
    if (r < 0) {
        return r;
    }
    ret->limit_bytes = limit;
    ret->fixed_bytes = stat_number(buf_span(&text), cg->v2 ? "anon " : "total_rss ") +
                       stat_number(buf_span(&text), cg->v2 ? "shmem " : "total_shmem ");
    return 0;
}

bool cgroup_is_memory_near(const struct cgroup *cg, uint64_t (*keep)(uint64_t limit_bytes))
{
    uint64_t limit;
    uint64_t usage;

    return read_number(cg, CGROUP_PARENT, cg->v2 ? "memory.max" : "memory.limit_in_bytes",
                       &limit) == 0 &&
           read_number(cg, CGROUP_PARENT, cg->v2 ? "memory.current" : "memory.usage_in_bytes",
                       &usage) == 0 &&
           limit != UINT64_MAX && (usage >= limit || limit - usage < keep(limit));
}

void cgroup_each(const struct cgroup *cg, void (*fn)(void *arg, unsigned int slot), void *arg)
{
    for (unsigned int i = 0; i < cg->count; i++) {
        _cleanup_closedir_ DIR *dir = opendir(cg->parents[i]);
        struct dirent *entry;

        while (dir != NULL && (entry = readdir(dir)) != NULL) {
            uint64_t slot;

            if (strncmp(entry->d_name, "vm-", 3) == 0 &&
                span_parse_u64(span_of_str(entry->d_name + 3), UINT32_MAX, &slot) == 0) {
                fn(arg, (unsigned int)slot);
            }
        }
    }
}

void cgroup_remove_parents(const struct cgroup *cg)
{
    for (unsigned int i = 0; i < cg->count; i++) {
        (void)rmdir(cg->parents[i]);
    }
}
