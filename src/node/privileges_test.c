/* What a node that has given up privileges can still do, and what ends it, each in a child. */
#include "node/privileges.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/capability.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "io/loop.h"

static int run_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct error err;

        if (privileges_limit_capabilities(&err) < 0 || privileges_limit_syscalls(&err) < 0) {
            _exit(1);
        }
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void expect_works(int (*fn)(void))
{
    int status = run_child(fn);

    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void expect_killed(int (*fn)(void))
{
    int status = run_child(fn);

    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
}

/* ---- what goes on working ---- */

static void nothing(void *arg)
{
    (void)arg;
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* Threads, whose C library would take clone3. */
static int workers(void)
{
    struct loop *loop = loop_new(2);

    return loop != NULL && loop_submit(loop, nothing, stop, loop, false) == 0 && loop_run(loop) == 0
               ? 0
               : 2;
}

static int spawned(char *const argv[])
{
    char *const environment[] = {NULL};
    int status = -1;
    pid_t pid;

    if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environment) != 0 ||
        waitpid(pid, &status, 0) != pid) {
        return -1;
    }
    return status;
}

static int programs(void)
{
    char *const argv[] = {(char[]){"/bin/true"}, NULL};

    return spawned(argv) == 0 ? 0 : 2;
}

static int namespaces(void)
{
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 && setns(home, CLONE_NEWNET) == 0 ? 0 : 2;
}

static void test_what_is_needed_works(void **state)
{
    (void)state;
    expect_works(workers);
    expect_works(programs);
    if (geteuid() == 0) {
        expect_works(namespaces);
    }
}

/* ---- what ends it ---- */

static int load_module(void)
{
    (void)syscall(SYS_finit_module, -1, "", 0);
    return 0;
}

static int load_bpf(void)
{
    (void)syscall(SYS_bpf, 0, NULL, 0);
    return 0;
}

static int trace(void)
{
    (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    return 0;
}

static int set_clock(void)
{
    (void)syscall(SYS_clock_settime, 0, NULL);
    return 0;
}

static int make_device(void)
{
    (void)syscall(SYS_mknodat, AT_FDCWD, "", 0, 0);
    return 0;
}

static int user_namespace(void)
{
    (void)unshare(CLONE_NEWUSER);
    return 0;
}

static int user_namespace_of_a_child(void)
{
    if (syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0) == 0) {
        _exit(0);
    }
    return 0;
}

static void test_what_is_forbidden_kills(void **state)
{
    int (*const fns[])(void) = {load_module,
                                load_bpf,
                                trace,
                                set_clock,
                                make_device,
                                user_namespace,
                                user_namespace_of_a_child};

    (void)state;
    for (size_t i = 0; i < sizeof(fns) / sizeof(fns[0]); i++) {
        expect_killed(fns[i]);
    }
}

static int started_program(void)
{
    char *const argv[] = {(char[]){"/usr/bin/unshare"}, (char[]){"--user"}, (char[]){"/bin/true"},
                          NULL};
    int status = spawned(argv);

    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? 0 : 2;
}

static void test_what_it_starts_has_no_more(void **state)
{
    (void)state;
    expect_works(started_program);
}

/* ---- capabilities ---- */

/* The mask behind "Name:\t" in /proc/self/status; all bits when there is none. */
static uint64_t status_mask(const struct buf *status, const char *name)
{
    const char *line = strstr(buf_str(status), name);

    return line == NULL ? UINT64_MAX : strtoull(line + strlen(name), NULL, 16);
}

static int few_capabilities(void)
{
    _cleanup_buf_ struct buf status = buf_make(65536);
    uint64_t kept = privileges_kept_capabilities();
    static const char *const names[] = {"CapPrm:\t", "CapEff:\t", "CapBnd:\t"};

    if (file_read(AT_FDCWD, "/proc/self/status", 65536, &status) < 0 ||
        status_mask(&status, "CapInh:\t") != 0 || status_mask(&status, "CapAmb:\t") != 0) {
        return 2;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if ((status_mask(&status, names[i]) & ~kept) != 0) {
            return 3;
        }
    }
    if (geteuid() == 0 && (status_mask(&status, "CapEff:\t") >> CAP_NET_ADMIN & 1U) == 0) {
        return 4;
    }
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 5;
}

static void test_capabilities(void **state)
{
    const int never[] = {CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_SYS_TIME, CAP_NET_RAW,
                         CAP_MKNOD,      CAP_SETPCAP,   CAP_BPF,      CAP_SETFCAP};

    (void)state;
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        assert_int_equal(privileges_kept_capabilities() >> never[i] & 1U, 0);
    }
    if (geteuid() != 0) {
        skip();
    }
    expect_works(few_capabilities);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_needed_works),
        cmocka_unit_test(test_what_is_forbidden_kills),
        cmocka_unit_test(test_what_it_starts_has_no_more),
        cmocka_unit_test(test_capabilities),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
