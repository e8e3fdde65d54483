#include "guest/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/fd.h"
#include "guest/console.h"
#include "guest/disk.h"

#define NEW_ROOT     "/root"
#define DISK_TRIES   2500
#define DISK_WAIT_US 2000

/* Limits of every process. The soft one is far above what programs use and low enough for those
 * that close all descriptors one by one. */
#define FILES_SOFT 16384
#define FILES_HARD 1048576

struct mount_row {
    const char *source;
    const char *target;
    const char *type;
    unsigned long flags;
    const char *data;
    bool needed;
};

static void mount_row(const struct mount_row *m)
{
    if (mkdir(m->target, 0755) < 0 && errno != EEXIST && m->needed) {
        console_die("cannot make %s: error %d", m->target, errno);
    }
    if (mount(m->source, m->target, m->type, m->flags, m->data) < 0 && errno != EBUSY) {
        if (m->needed) {
            console_die("cannot mount %s: error %d", m->target, errno);
        }
        console_say("cannot mount %s: error %d", m->target, errno);
    }
}

static const struct mount_row early_mounts[] = {
    {"dev", "/dev", "devtmpfs", MS_NOSUID, "mode=0755", true},
    {"proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
    {"sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, true},
};

static const struct mount_row late_mounts[] = {
    {"run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=20%", true},
    {"devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666", true},
    {"shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", true},
    {"mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, false},
    {"cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, "nsdelegate", true},
};

static void wait_for_disk(void)
{
    struct stat st;

    for (int i = 0; i < DISK_TRIES; i++) {
        if (stat(DISK_DEVICE, &st) == 0 && S_ISBLK(st.st_mode)) {
            return;
        }
        (void)usleep(DISK_WAIT_US);
    }
    console_die("no disk " DISK_DEVICE " after %d ms", DISK_TRIES * (DISK_WAIT_US / 1000));
}

/* The initramfs becomes unreachable, so the modules in it would only cost memory. */
static void enter_disk(void)
{
    static const char *const moved[] = {"/dev", "/proc", "/sys"};

    if (mount(DISK_DEVICE, NEW_ROOT, "ext4", MS_NOATIME, NULL) < 0) {
        console_die("cannot mount " DISK_DEVICE ": error %d", errno);
    }
    if (dir_remove_tree(AT_FDCWD, "/modules") < 0) {
        console_say("modules stay in memory");
    }
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        char target[32];

        (void)snprintf(target, sizeof(target), NEW_ROOT "%s", moved[i]);
        (void)mkdir(target, 0755);
        if (mount(moved[i], target, NULL, MS_MOVE, NULL) < 0) {
            console_die("cannot move %s: error %d", moved[i], errno);
        }
    }
    if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
        chdir("/") < 0) {
        console_die("cannot enter the disk: error %d", errno);
    }
}

static void make_links(void)
{
    (void)symlink("/proc/self/fd", "/dev/fd");
    (void)symlink("/proc/self/fd/0", "/dev/stdin");
    (void)symlink("/proc/self/fd/1", "/dev/stdout");
    (void)symlink("/proc/self/fd/2", "/dev/stderr");
    (void)mkdir("/run/lock", 01777);
    (void)chmod("/run/lock", 01777);
    (void)mkdir("/run/user", 0755);
    (void)mkdir("/tmp", 01777);
    (void)chmod("/tmp", 01777);
}

static void put_sysctl(const char *path, const char *value)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0 && fd_write_all(fd, span_of_str(value)) < 0) {
        console_say("%s: not set", path);
    }
}

static void set_sysctls(void)
{
    put_sysctl("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    put_sysctl("/proc/sys/fs/protected_symlinks", "1");
    put_sysctl("/proc/sys/fs/protected_hardlinks", "1");
    put_sysctl("/proc/sys/fs/protected_fifos", "1");
    put_sysctl("/proc/sys/fs/protected_regular", "2");
    put_sysctl("/proc/sys/kernel/core_pattern", "core");
    /* For each user: watches of the host's clients come on top of those of programs. */
    put_sysctl("/proc/sys/fs/inotify/max_user_instances", "1024");
    put_sysctl("/proc/sys/fs/inotify/max_user_watches", "131072");
    /* Keeps what programs use longest when files stream through the memory. */
    put_sysctl("/sys/kernel/mm/lru_gen/enabled", "y");
}

/* The agent comes before what runs in the guest, or it would not answer under a fork bomb. Its
 * children get the usual priority from the kernel. */
static void set_priority(void)
{
    struct sched_param param = {.sched_priority = 0};

    /* musl's own function only says ENOSYS. */
    if (syscall(SYS_sched_setscheduler, 0, SCHED_OTHER | SCHED_RESET_ON_FORK, &param) < 0 ||
        setpriority(PRIO_PROCESS, 0, -20) < 0) {
        console_say("priority: error %d", errno);
    }
}

static void set_limits(void)
{
    const struct rlimit files = {FILES_SOFT, FILES_HARD};

    if (setrlimit(RLIMIT_NOFILE, &files) < 0) {
        console_say("limit of open files: error %d", errno);
    }
    (void)umask(022);
    (void)sethostname("space", 5);
}

void boot_guest(void)
{
    int r;

    for (size_t i = 0; i < sizeof(early_mounts) / sizeof(early_mounts[0]); i++) {
        mount_row(&early_mounts[i]);
        if (i == 0) {
            console_open();
        }
    }
    r = modules_load();
    if (r < 0) {
        console_say("not all modules loaded: error %d", -r);
    }
    wait_for_disk();
    enter_disk();
    for (size_t i = 0; i < sizeof(late_mounts) / sizeof(late_mounts[0]); i++) {
        mount_row(&late_mounts[i]);
    }
    make_links();
    set_sysctls();
    set_limits();
    set_priority();
    network_configure();
}
