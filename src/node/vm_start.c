/* The blocking half of a VM's life: everything that is made before the VMM runs, and everything
 * that is removed after it ended. Runs on workers; the struct is not touched by the loop meanwhile
 * (job_running). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/cgroup.h"
#include "node/disk.h"
#include "node/netns.h"
#include "node/node_private.h"
#include "node/strv.h"
#include "node/vm_private.h"
#include "node/vmm_spawn.h"

#define VMM_OVERHEAD_MIB                                                                           \
    192U /* the emulator itself, beside guest memory and translation buffer                        \
          */
#define VMM_PIDS     256U
#define VMM_FILE_MIB (2U * 1024U * 1024U)

struct start_fds {
    int control;
    int agent;
    int disk_rw;
    int disk_ro;
    int cgroup[CGROUP_TREES_MAX];
};

static void start_fds_close(struct start_fds *f)
{
    int *all = &f->control;

    for (size_t i = 0; i < sizeof(*f) / sizeof(int); i++) {
        if (all[i] >= 0) {
            (void)close(TAKE_FD(all[i]));
        }
    }
}

int vm_set_paths(struct vm *vm, struct error *err)
{
    struct node_parts *parts = vm->node->parts;
    int n;

    n = snprintf(vm->socket_dir, sizeof(vm->socket_dir), "%s/%u", parts->vm_run, vm->slot);
    /* The socket's name must fit into sun_path with "/control". */
    if (n < 0 || n > 98) {
        return error_set(err, ENAMETOOLONG, "run_dir is too long for socket names");
    }
    (void)snprintf(vm->disk_dir, sizeof(vm->disk_dir), "%s/%u", parts->vm_disks, vm->slot);
    (void)snprintf(vm->disk_path, sizeof(vm->disk_path), "%.490s/disk.img", vm->disk_dir);
    return 0;
}

static int listen_at(const char *dir, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.98s/%s", dir, name);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 1) < 0) {
        return -errno;
    }
    return TAKE_FD(fd);
}

static int make_dirs(struct vm *vm)
{
    int r = dir_remove_tree(AT_FDCWD, vm->socket_dir);

    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, vm->disk_dir);
    }
    if (r == 0 && (mkdir(vm->socket_dir, 0700) < 0 || mkdir(vm->disk_dir, 0700) < 0)) {
        r = -errno;
    }
    return r;
}

static int make_sockets(struct vm *vm, struct start_fds *f, struct error *err)
{
    f->control = listen_at(vm->socket_dir, "control");
    f->agent = listen_at(vm->socket_dir, "agent");
    if (f->control < 0 || f->agent < 0) {
        int r = f->control < 0 ? f->control : f->agent;

        return error_set(err, -r, "cannot listen in %.100s: %s", vm->socket_dir, strerror(-r));
    }
    return 0;
}

static int make_disk(struct vm *vm, struct start_fds *f, struct error *err)
{
    int r;

    if (vm->spec.mode == RUNTIME_MODE_PROBE) {
        return 0;
    }
    r = disk_clone(vm->spec.disk_source, vm->disk_path, vm->spec.disk_bytes, err);
    if (r < 0) {
        return r;
    }
    f->disk_rw = open(vm->disk_path, O_RDWR | O_CLOEXEC);
    f->disk_ro = open(vm->disk_path, O_RDONLY | O_CLOEXEC);
    if (f->disk_rw < 0 || f->disk_ro < 0) {
        return error_set(err, errno, "cannot open %.200s: %s", vm->disk_path, strerror(errno));
    }
    return 0;
}

static int make_cgroup(struct vm *vm, struct start_fds *f, struct error *err)
{
    const struct node_parts *parts = vm->node->parts;
    struct cgroup_limits limits = {
        .memory_bytes =
            ((uint64_t)vm->spec.memory_mib + parts->runtime.translation_mib + VMM_OVERHEAD_MIB) *
            1048576U,
        .vcpus = vm->spec.vcpus,
        .pids = VMM_PIDS,
    };
    int r = cgroup_remove(&parts->cgroup, vm->slot); /* a leftover with stale counters */

    if (r < 0) {
        return error_set(err, -r, "cannot clear the cgroup of VM %u: %s", vm->slot, strerror(-r));
    }
    r = cgroup_make(&parts->cgroup, vm->slot, &limits, f->cgroup, err);
    if (r == 0 && vm->spec.background) {
        cgroup_set_background(&parts->cgroup, vm->slot, true);
    }
    return r;
}

static int start_process(struct vm *vm, const struct start_fds *f, struct error *err)
{
    const struct node_parts *parts = vm->node->parts;
    _cleanup_strv_ struct strv argv = {0};
    struct runtime_launch launch = {
        .mode = vm->spec.mode,
        .slot = vm->slot,
        .vcpus = vm->spec.vcpus,
        .memory_mib = vm->spec.memory_mib,
        .uid = (uid_t)(vm->node->settings.node_vmm_uid_first + vm->slot),
        .ram_path = vm->spec.ram_path,
        .ram_is_memfd = vm->spec.ram_memfd >= 0,
        .empty_dir = parts->empty_dir,
        .accelerator = vm->spec.accelerator,
    };
    struct vmm_spawn spawn = {
        .stage_path = parts->stage_path,
        .argv = &argv,
        .fds = {-1, -1, -1, f->control, f->agent, f->disk_rw, f->disk_ro, -1, -1},
        .cgroup_count = parts->cgroup.count,
        .keep = {vm->binary, parts->empty_dir, parts->runtime.kernel_path,
                 parts->runtime.initrd_path,
                 vm->spec.ram_path[0] != '\0' ? vm->spec.ram_path : NULL},
        .netns_fd = vm->netns.netns_fd,
        .file_mib = VMM_FILE_MIB,
    };
    int r = parts->runtime.ops->plan(&parts->runtime, &launch, &argv, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(vm->binary, sizeof(vm->binary), "%s", argv.items[0]);
    spawn.fds[RUNTIME_FD_TAP] = vm->spec.mode == RUNTIME_MODE_PROBE ? -1 : vm->netns.tap_fd;
    spawn.fds[RUNTIME_FD_RAM] = vm->spec.ram_memfd;
    for (unsigned int i = 0; i < CGROUP_TREES_MAX; i++) {
        spawn.cgroup_fds[i] = f->cgroup[i];
    }
    vm->log_fd = vmm_make_log();
    if (vm->log_fd < 0) {
        return error_set(err, -vm->log_fd, "memfd_create: %s", strerror(-vm->log_fd));
    }
    spawn.log_fd = vm->log_fd;
    r = vmm_start(&spawn, &vm->pid, &vm->pidfd, err);
    if (r == 0) {
        vm->start_time = vmm_start_time(vm->pid);
    }
    return r;
}

int vm_start_job(struct vm *vm, struct error *err)
{
    struct start_fds f = {-1, -1, -1, -1, {-1, -1, -1}};
    int r = make_dirs(vm);

    if (r < 0) {
        return error_set(err, -r, "cannot make the directories of VM %u: %s", vm->slot,
                         strerror(-r));
    }
    r = make_sockets(vm, &f, err);
    if (r == 0) {
        r = make_disk(vm, &f, err);
    }
    if (r == 0) {
        r = make_cgroup(vm, &f, err);
    }
    if (r == 0) {
        r = start_process(vm, &f, err);
    }
    start_fds_close(&f);
    return r;
}

/* The order matters: nothing may still run in what is removed. */
void vm_cleanup_job(struct vm *vm)
{
    const struct node_parts *parts = vm->node->parts;
    char name[NETNS_NAME_SIZE];
    int r = cgroup_remove(&parts->cgroup, vm->slot);

    if (r < 0) {
        log_warning("vm_cleanup", "slot=%u step=cgroup error=%s", vm->slot, strerror(-r));
    }
    if (vm->netns.n != 0) {
        netns_lease_name(vm->node, vm->netns.n, name, sizeof(name));
        r = netns_remove(name);
        if (r < 0) {
            log_warning("vm_cleanup", "slot=%u step=netns error=%s", vm->slot, strerror(-r));
        }
    }
    r = dir_remove_tree(AT_FDCWD, vm->disk_dir);
    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, vm->socket_dir);
    }
    if (r < 0) {
        log_warning("vm_cleanup", "slot=%u step=files error=%s", vm->slot, strerror(-r));
    }
}
