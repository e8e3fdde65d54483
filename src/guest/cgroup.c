#include "guest/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "base/buf.h"
#include "base/fd.h"

#define NUMBER_TEXT_BYTES  16U
#define PROCS_TEXT_MAX     1048576U
#define MEMORY_PER_PROCESS 524288U
#define PROCESSES_MIN      512U
#define PROCESSES_MAX      30000U /* below the kernel's pid_max of 32768 */
/* Groups that someone else made below a channel's are not followed. */
#define OPEN_GROUP_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

static int write_text(int dirfd, const char *name, const char *text)
{
    _cleanup_close_ int fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 ? -errno : fd_write_all(fd, span_of_str(text));
}

/* So many that a fork bomb neither takes the last number nor, with half a MiB for each,
 * pushes everything else out of memory. */
static void limit_processes(int space_fd)
{
    struct sysinfo info;
    uint64_t limit;
    char text[NUMBER_TEXT_BYTES];

    if (sysinfo(&info) < 0) {
        return;
    }
    limit = (uint64_t)info.totalram * info.mem_unit / MEMORY_PER_PROCESS;
    limit = limit < PROCESSES_MIN ? PROCESSES_MIN : limit;
    limit = limit > PROCESSES_MAX ? PROCESSES_MAX : limit;
    (void)snprintf(text, sizeof(text), "%u", (unsigned int)limit);
    (void)write_text(space_fd, "pids.max", text);
}

void cgroups_init(struct cgroups *g, bool use)
{
    *g = (struct cgroups){.fd = -1, .services_fd = -1};
    if (!use) {
        return;
    }
    (void)mkdir(CGROUP_SPACE, 0755);
    (void)write_text(AT_FDCWD, CGROUP_ROOT "/cgroup.subtree_control", "+pids");
    g->fd = open(CGROUP_SPACE, OPEN_GROUP_FLAGS);
    if (g->fd >= 0) {
        limit_processes(g->fd);
    }
    (void)mkdir(CGROUP_SERVICES, 0755);
    g->services_fd = open(CGROUP_SERVICES, OPEN_GROUP_FLAGS);
}

void cgroups_done(struct cgroups *g)
{
    cleanup_close(&g->fd);
    cleanup_close(&g->services_fd);
    for (size_t i = 0; i < g->n_spares; i++) {
        cgroup_close(&g->spares[i]);
    }
    *g = (struct cgroups){.fd = -1, .services_fd = -1};
}

static void number_format(char out[NUMBER_TEXT_BYTES], uint32_t number)
{
    (void)snprintf(out, NUMBER_TEXT_BYTES, "%u", number);
}

static int group_make(struct cgroups *g, struct cgroup *ret_group)
{
    char name[NUMBER_TEXT_BYTES];
    uint32_t number = ++g->last_number;
    int fd;

    number_format(name, number);
    if (mkdirat(g->fd, name, 0755) < 0 && errno != EEXIST) {
        return -errno;
    }
    fd = openat(g->fd, name, OPEN_GROUP_FLAGS);
    if (fd < 0) {
        return -errno;
    }
    *ret_group = (struct cgroup){number, fd};
    return 0;
}

void cgroups_prepare(struct cgroups *g)
{
    if (g->fd >= 0 && g->n_spares == 0 && group_make(g, &g->spares[0]) == 0) {
        g->n_spares = 1;
    }
}

int cgroup_open(struct cgroups *g, struct cgroup *ret_group)
{
    if (g->fd < 0) {
        *ret_group = (struct cgroup){0, -1};
        return 0;
    }
    if (g->n_spares > 0) {
        *ret_group = g->spares[--g->n_spares];
        return 0;
    }
    return group_make(g, ret_group);
}

static struct span take_line(struct span *rest)
{
    size_t at = span_find(*rest, 0, '\n');
    struct span line = span_head(*rest, at);

    *rest = at == rest->n ? span_make(NULL, 0) : span_skip(*rest, at + 1);
    return line;
}

/* Whether cgroup.events of a group has this line. -errno when it cannot be read. */
static int has_event(int group_fd, const char *line)
{
    _cleanup_close_ int fd = openat(group_fd, "cgroup.events", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char text[128];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));
    struct span rest;

    if (n < 0) {
        return -errno;
    }
    for (rest = span_make(text, (size_t)n); rest.n > 0;) {
        if (span_equals_str(take_line(&rest), line)) {
            return 1;
        }
    }
    return 0;
}

/* Only without groups below it (a directory has two links and one for each). */
static bool is_as_new(const struct cgroup *group)
{
    struct stat st;

    return has_event(group->fd, "populated 0") > 0 && fstat(group->fd, &st) == 0 &&
           st.st_nlink <= 2;
}

int cgroup_remove(struct cgroups *g, struct cgroup *group)
{
    char name[NUMBER_TEXT_BYTES];

    if (group->number == 0 || g->fd < 0) {
        return 0;
    }
    if (g->n_spares < CGROUP_SPARES && is_as_new(group)) {
        g->spares[g->n_spares++] = (struct cgroup){group->number, TAKE_FD(group->fd)};
        group->number = 0;
        return 0;
    }
    number_format(name, group->number);
    if (unlinkat(g->fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        return -errno;
    }
    cgroup_close(group);
    group->number = 0;
    return 0;
}

void cgroup_close(struct cgroup *group)
{
    cleanup_close(&group->fd);
    group->fd = -1;
}

int cgroup_kill(const struct cgroup *group)
{
    return group->fd < 0 ? -ENOENT : write_text(group->fd, "cgroup.kill", "1");
}

int cgroup_signal(const struct cgroup *group, int signal, pid_t pgid)
{
    _cleanup_buf_ struct buf text = buf_make(PROCS_TEXT_MAX);
    struct span rest;
    int sent = 0;
    int r;

    if (group->fd < 0) {
        return -ENOENT;
    }
    r = file_read(group->fd, "cgroup.procs", PROCS_TEXT_MAX, &text);
    if (r < 0) {
        return r;
    }
    for (rest = buf_span(&text); rest.n > 0;) {
        uint64_t pid;

        if (span_parse_u64(take_line(&rest), INT32_MAX, &pid) < 0 || pid <= 1) {
            continue;
        }
        if ((pgid == 0 || getpgid((pid_t)pid) == pgid) && kill((pid_t)pid, signal) == 0) {
            sent++;
        }
    }
    return sent;
}

int cgroups_freeze(struct cgroups *g, bool frozen)
{
    const char *state = frozen ? "1" : "0";
    int r = g->fd < 0 ? 0 : write_text(g->fd, "cgroup.freeze", state);
    int s = g->services_fd < 0 ? 0 : write_text(g->services_fd, "cgroup.freeze", state);

    return r < 0 ? r : s;
}

int cgroups_is_frozen(struct cgroups *g)
{
    int r = g->fd < 0 ? 1 : has_event(g->fd, "frozen 1");

    return r <= 0 || g->services_fd < 0 ? r : has_event(g->services_fd, "frozen 1");
}
