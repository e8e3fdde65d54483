/* What a forbidden system call, a forbidden file and the lost root really do, each in a child. */
#include "api/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "api/transcoder.h"
#include "io/loop.h"

static int run_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int allowed_calls(void)
{
    struct error err;

    if (privileges_drop("nobody", &err) < 0 || privileges_limit_syscalls(&err) < 0) {
        return 1;
    }
    return getppid() > 0 && write(STDOUT_FILENO, "", 0) == 0 ? 0 : 2;
}

/* ---- packing, on the workers of a loop that were started before ---- */

struct packing {
    struct loop *loop;
    struct transcoder *t;
    uint64_t bytes;
    bool is_done;
};

static int on_packed(void *arg, struct span bytes)
{
    struct packing *p = arg;

    p->bytes += bytes.n;
    return 1;
}

static void on_drain(void *arg)
{
    (void)arg;
}

static void on_end(void *arg, const struct error *err)
{
    struct packing *p = arg;

    p->is_done = err == NULL;
    loop_stop(p->loop);
}

static bool pack(struct packing *p, enum codec_format format)
{
    static const struct transcoder_callbacks callbacks = {on_packed, on_drain, on_end};
    struct transcoder_pool pool = {.loop = p->loop};
    _cleanup_free_ uint8_t *content = calloc(1, 1U << 22);
    struct error err;

    p->is_done = false;
    p->t = transcoder_new(&pool, format, true, &callbacks, p, &err);
    if (p->t == NULL || content == NULL) {
        return false;
    }
    (void)transcoder_write(p->t, span_make(content, 1U << 22));
    transcoder_end(p->t);
    (void)loop_run(p->loop);
    transcoder_free(p->t);
    return p->is_done && p->bytes > 0;
}

static int allowed_packing(void)
{
    struct packing p = {.loop = loop_new(2)};
    struct error err;

    if (p.loop == NULL || privileges_drop("nobody", &err) < 0 ||
        privileges_limit_syscalls(&err) < 0) {
        return 1;
    }
    return pack(&p, CODEC_GZIP) && pack(&p, CODEC_ZSTD) ? 0 : 2;
}

static int forbidden_exec(void)
{
    struct error err;
    char *const argv[] = {(char[]){"true"}, NULL};

    if (privileges_drop("nobody", &err) < 0 || privileges_limit_syscalls(&err) < 0) {
        return 1;
    }
    (void)execv("/bin/true", argv);
    return 2;
}

static int forbidden_ptrace(void)
{
    struct error err;

    if (privileges_drop("nobody", &err) < 0 || privileges_limit_syscalls(&err) < 0) {
        return 1;
    }
    (void)syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0);
    return 2;
}

static void test_system_calls(void **state)
{
    int status;

    (void)state;
    status = run_child(allowed_calls);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    status = run_child(allowed_packing);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    status = run_child(forbidden_exec);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
    status = run_child(forbidden_ptrace);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
}

static int lost_root(void)
{
    struct error err;

    if (privileges_drop("nobody", &err) < 0) {
        return 1;
    }
    return geteuid() != 0 && setuid(0) < 0 && open("/etc/shadow", O_RDONLY | O_CLOEXEC) < 0 ? 0 : 2;
}

static int no_such_user(void)
{
    struct error err;

    return privileges_drop("no-such-user-here", &err) == -ENOENT ? 0 : 2;
}

static int root_is_refused(void)
{
    struct error err;

    return privileges_drop("root", &err) == -EINVAL ? 0 : 2;
}

static void test_user(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(run_child(lost_root), 0);
    assert_int_equal(run_child(no_such_user), 0);
    assert_int_equal(run_child(root_is_refused), 0);
}

static int limited_files(void)
{
    struct error err;
    int r;

    if (privileges_drop("nobody", &err) < 0) {
        return 1;
    }
    r = privileges_limit_files("/var/tmp", "/usr/share", &err);
    if (r == 0) {
        return 77;
    }
    return r == 1 && open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES &&
                   open("/usr/share", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0
               ? 0
               : 2;
}

static void test_files(void **state)
{
    int status = run_child(limited_files);

    (void)state;
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("no Landlock here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_system_calls),
        cmocka_unit_test(test_user),
        cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
