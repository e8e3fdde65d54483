#include "node/privileges.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/syscall.h>

#include <linux/capability.h>

#include <seccomp.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- capabilities ---- */

static const uint8_t kept[] = {
    CAP_SYS_ADMIN,       /* namespaces, their mounts */
    CAP_NET_ADMIN,       /* taps */
    CAP_SYS_PTRACE,      /* the memory of a VMM: captures; its executable: adoption */
    CAP_KILL,            /* VMMs, which have uids of their own */
    CAP_CHOWN,           /* what is theirs: sockets, disks */
    CAP_FOWNER,          /* and what they left */
    CAP_DAC_OVERRIDE,    /* directories that only their uid may enter */
    CAP_DAC_READ_SEARCH, /* as above */
    CAP_SYS_RESOURCE,    /* the part of a filesystem that is kept for root; limits */
    CAP_SETUID,          /* a VMM becomes its own uid, */
    CAP_SETGID,          /* its gid, */
    CAP_SYS_CHROOT,      /* in an empty root */
};

uint64_t privileges_kept_capabilities(void)
{
    uint64_t mask = 0;

    for (size_t i = 0; i < COUNT(kept); i++) {
        mask |= UINT64_C(1) << kept[i];
    }
    return mask;
}

static int limit_bounding_set(uint64_t mask)
{
    for (int cap = 0; cap < 64; cap++) {
        /* Those that the kernel does not know are no capability either. */
        if ((mask >> cap & 1U) == 0 && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) > 0 &&
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
            return -errno;
        }
    }
    return 0;
}

static int limit_own_sets(uint64_t mask)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data) < 0) {
        return -errno;
    }
    for (size_t i = 0; i < COUNT(data); i++) {
        data[i].permitted &= (uint32_t)(mask >> 32 * i);
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

int privileges_limit_capabilities(struct error *err)
{
    uint64_t mask = privileges_kept_capabilities();
    int r = limit_bounding_set(mask);

    if (r == 0) {
        r = limit_own_sets(mask);
    }
    return r < 0 ? error_set(err, -r, "cannot drop capabilities: %s", strerror(-r)) : 0;
}

/* ---- system calls ---- */

static const int forbidden[] = {
    /* the kernel itself */
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(reboot),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(syslog),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(acct),
    SCMP_SYS(quotactl),
    SCMP_SYS(quotactl_fd),
    /* the clock of the host */
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex),
    /* other processes, beyond reading their memory and taking descriptors back from a VMM */
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(process_madvise),
    SCMP_SYS(kcmp),
    SCMP_SYS(userfaultfd),
    /* ways to files that no path leads to, and to mounts other than mount and umount2 */
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(mknod),
    SCMP_SYS(mknodat),
    SCMP_SYS(pivot_root),
    SCMP_SYS(fsopen),
    SCMP_SYS(fspick),
    SCMP_SYS(open_tree),
    SCMP_SYS(move_mount),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(fanotify_init),
    /* keys, and what is left of old times */
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(keyctl),
    SCMP_SYS(modify_ldt),
    SCMP_SYS(uselib),
    SCMP_SYS(ustat),
    SCMP_SYS(sysfs),
    SCMP_SYS(vhangup),
    SCMP_SYS(setdomainname),
};

/* What libraries try, and do without. A filter sees neither the calls that a ring makes nor the
 * flags of clone3, which are in memory. */
static const int unknown[] = {
    SCMP_SYS(clone3),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
};

static int add_list(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t count)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < count; i++) {
        r = seccomp_rule_add(filter, action, calls[i], 0);
        if (r == -EDOM) {
            r = 0; /* a call that this architecture does not have */
        }
    }
    return r;
}

/* A new user namespace gives its maker all capabilities in it. */
static int forbid_user_namespaces(scmp_filter_ctx filter)
{
    const struct scmp_arg_cmp has_flag =
        SCMP_CMP(0, SCMP_CMP_MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER);
    int r = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(unshare), 1, has_flag);

    if (r == 0) {
        r = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), 1, has_flag);
    }
    return r;
}

static int add_rules(scmp_filter_ctx filter)
{
    int r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);

    if (r == 0) {
        r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    }
    if (r == 0) {
        r = add_list(filter, SCMP_ACT_KILL_PROCESS, forbidden, COUNT(forbidden));
    }
    if (r == 0) {
        r = add_list(filter, SCMP_ACT_ERRNO(ENOSYS), unknown, COUNT(unknown));
    }
    return r == 0 ? forbid_user_namespaces(filter) : r;
}

int privileges_limit_syscalls(struct error *err)
{
    scmp_filter_ctx filter;
    int r;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        return error_set(err, errno, "no_new_privs: %s", strerror(errno));
    }
    filter = seccomp_init(SCMP_ACT_ALLOW);
    r = filter == NULL ? -ENOMEM : add_rules(filter);
    if (r == 0) {
        r = seccomp_load(filter);
    }
    seccomp_release(filter);
    return r < 0 ? error_set(err, -r, "seccomp: %s", strerror(-r)) : 0;
}
