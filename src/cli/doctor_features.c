/* Checks of what the kernel offers to the node: cgroups, namespaces, loop devices, tun. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <linux/magic.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/doctor.h"

#define CONTROLLERS_LIMIT 4096U
#define TOOL_TIMEOUT_MS   10000

static const char *const wanted_controllers[] = {"cpu", "memory", "pids"};
#define WANTED_COUNT (sizeof(wanted_controllers) / sizeof(wanted_controllers[0]))

/* Whether a blank-separated list has this word. */
static bool has_word(struct span list, const char *word)
{
    while (list.n > 0) {
        size_t end = 0;

        while (end < list.n && list.p[end] != ' ' && list.p[end] != '\n') {
            end++;
        }
        if (span_equals_str(span_head(list, end), word)) {
            return true;
        }
        list = span_skip(list, end + 1);
    }
    return false;
}

static bool has_controller(bool unified, struct span list, const char *name)
{
    char path[64];

    if (unified) {
        return has_word(list, name);
    }
    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup/%s", name);
    return access(path, F_OK) == 0;
}

static void check_cgroups(struct doctor *d)
{
    _cleanup_buf_ struct buf list = buf_make(CONTROLLERS_LIMIT);
    _cleanup_buf_ struct buf absent = buf_make(CONTROLLERS_LIMIT);
    struct statfs fs;
    bool unified;

    if (statfs("/sys/fs/cgroup", &fs) < 0) {
        doctor_put(d, "cgroup", DOCTOR_MISSING, "mount -t cgroup2 none /sys/fs/cgroup",
                   "/sys/fs/cgroup is not there");
        return;
    }
    unified = fs.f_type == CGROUP2_SUPER_MAGIC;
    if (unified &&
        file_read(AT_FDCWD, "/sys/fs/cgroup/cgroup.controllers", CONTROLLERS_LIMIT, &list) < 0) {
        buf_clear(&list);
    }
    for (size_t i = 0; i < WANTED_COUNT; i++) {
        if (!has_controller(unified, buf_span(&list), wanted_controllers[i])) {
            buf_printf(&absent, " %s", wanted_controllers[i]);
        }
    }
    if (absent.n > 0) {
        doctor_put(d, "cgroup", DOCTOR_MISSING,
                   "boot with the controllers on (cgroup_enable=memory), or give them to this "
                   "container",
                   "version %s, without:%s; space-node does not start without them",
                   unified ? "2" : "1", buf_str(&absent));
    } else {
        doctor_put(d, "cgroup", DOCTOR_OK, NULL, "version %s with cpu, memory, pids",
                   unified ? "2" : "1");
    }
}

static void check_namespaces(struct doctor *d)
{
    static const char *const argv[] = {"unshare", "--net", "--", "true", NULL};
    struct child_options o = {.quiet = true, .timeout_ms = TOOL_TIMEOUT_MS};

    if (geteuid() != 0) {
        return;
    }
    if (child_run(argv, &o, NULL) == 0) {
        doctor_put(d, "netns", DOCTOR_OK, NULL, "network namespaces can be made");
    } else {
        doctor_put(d, "netns", DOCTOR_MISSING,
                   "a kernel with CONFIG_NET_NS; in a container: CAP_SYS_ADMIN and CAP_NET_ADMIN",
                   "network namespaces cannot be made");
    }
}

static void check_device(
    struct doctor *d, const char *name, const char *path, const char *what, const char *remedy)
{
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        doctor_put(d, name, DOCTOR_OK, NULL, "%s opens", path);
    } else if (errno == EACCES && geteuid() != 0) {
        doctor_put(d, name, DOCTOR_OK, NULL, "%s is there", path);
    } else {
        doctor_put(d, name, strcmp(name, "tun") == 0 ? DOCTOR_MISSING : DOCTOR_DEGRADED, remedy,
                   "%s: %s; %s", path, strerror(errno), what);
    }
}

void doctor_check_host_features(struct doctor *d)
{
    check_cgroups(d);
    check_namespaces(d);
    check_device(d, "loop", "/dev/loop-control",
                 "needed where the data directory's filesystem has no reflink", "modprobe loop");
    check_device(d, "tun", "/dev/net/tun", "every sandbox has a tap device",
                 "modprobe tun; in a container: pass /dev/net/tun in");
}
