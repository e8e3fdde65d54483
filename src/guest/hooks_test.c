#include "guest/hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <linux/fuse.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "guest/host_keys.h"
#include "guest/spawn.h"

struct place {
    char path[64];
    int fd;
    struct spawner spawner;
    struct hooks hooks;
};

static int set_up(void **state)
{
    static struct place p;

    (void)snprintf(p.path, sizeof(p.path), "/tmp/space-hooks-test.XXXXXX");
    assert_non_null(mkdtemp(p.path));
    assert_int_equal(chmod(p.path, 0755), 0);
    p.fd = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(p.fd >= 0);
    assert_int_equal(spawner_init(&p.spawner), 0);
    p.hooks = (struct hooks){&p.spawner, false, 10000, clock_monotonic_ms() + 20000};
    *state = &p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    spawner_done(&p->spawner);
    (void)close(p->fd);
    return dir_remove_tree(AT_FDCWD, p->path);
}

static void put(struct place *p, const char *name, mode_t mode, const char *text)
{
    _cleanup_buf_ struct buf b = buf_make(4096);

    buf_printf(&b, "#!/bin/sh\ncd %s || exit 9\n%s\n", p->path, text);
    assert_int_equal(file_write_atomic(p->fd, name, buf_span(&b), mode, false), 0);
    assert_int_equal(fchmodat(p->fd, name, mode, 0), 0);
}

static void assert_content(struct place *p, const char *name, const char *wanted)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    assert_int_equal(file_read(p->fd, name, 4096, &b), 0);
    buf_put(&b, span_make("", 1));
    assert_string_equal((const char *)buf_span(&b).p, wanted);
}

static bool is_there(struct place *p, const char *name)
{
    return faccessat(p->fd, name, F_OK, 0) == 0;
}

static void test_in_the_order_of_names(void **state)
{
    struct place *p = *state;

    put(p, "20-b", 0755, "echo b >>.log");
    put(p, "10-a.sh", 0700, "echo a >>.log; exit 3");
    put(p, "30-c", 0755, "echo c >>.log");
    assert_int_equal(hooks_run(&p->hooks, p->path), 2); /* one failed, and the rest went on */
    assert_content(p, ".log", "a\nb\nc\n");
}

static void test_what_others_can_write_is_not_run(void **state)
{
    struct place *p = *state;

    put(p, "10-others", 0757, "echo others >>.log");
    put(p, "20-group", 0775, "echo group >>.log");
    put(p, "30-no-program", 0644, "echo no-program >>.log");
    put(p, ".hidden", 0755, "echo hidden >>.log");
    assert_int_equal(symlinkat(".hidden", p->fd, "40-link"), 0);
    assert_int_equal(mkdirat(p->fd, "50-directory", 0755), 0);
    put(p, "60-good", 0755, "echo good >>.log");
    assert_int_equal(hooks_run(&p->hooks, p->path), 1);
    assert_content(p, ".log", "good\n");
    assert_int_equal(chmod(p->path, 0777), 0);
    assert_int_equal(hooks_run(&p->hooks, p->path), 0);
    assert_content(p, ".log", "good\n");
}

static void test_no_directory_is_no_matter(void **state)
{
    struct place *p = *state;

    assert_int_equal(hooks_run(&p->hooks, "/nonexistent/identity.d"), 0);
    assert_int_equal(hooks_run(&p->hooks, p->path), 0);
}

/* With what it started; the next one has its turn. */
static void test_one_that_hangs_is_killed(void **state)
{
    struct place *p = *state;
    _cleanup_buf_ struct buf text = buf_make(0);
    int64_t before_ms = clock_monotonic_ms();
    int64_t until_ms;
    uint64_t pid;

    put(p, "10-hangs", 0755, "sleep 600 & echo $! >.pid; wait");
    put(p, "20-goes-on", 0755, "echo on >.log");
    p->hooks.limit_ms = 1500;
    assert_int_equal(hooks_run(&p->hooks, p->path), 1);
    assert_true(clock_monotonic_ms() - before_ms >= 1500);
    assert_content(p, ".log", "on\n");
    assert_int_equal(file_read(p->fd, ".pid", 32, &text), 0);
    assert_int_equal(span_parse_u64(span_head(buf_span(&text), text.n - 1), INT32_MAX, &pid), 0);
    /* An orphan by now: whoever adopted it reaps it, sooner or later. */
    until_ms = clock_monotonic_ms() + 10000;
    for (;;) {
        _cleanup_buf_ struct buf stat = buf_make(0);
        char path[32];

        (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        if (file_read(AT_FDCWD, path, 4096, &stat) < 0 ||
            span_find(buf_span(&stat), 0, 'Z') < stat.n) {
            break;
        }
        assert_true(clock_monotonic_ms() < until_ms);
        (void)usleep(1000);
    }
}

static void test_all_together_have_a_limit(void **state)
{
    struct place *p = *state;
    int64_t before_ms = clock_monotonic_ms();

    put(p, "10-hangs", 0755, "exec sleep 600");
    put(p, "20-too-late", 0755, "echo late >.log");
    p->hooks.end_ms = before_ms + 300;
    assert_int_equal(hooks_run(&p->hooks, p->path), 0);
    assert_true(clock_monotonic_ms() - before_ms < 10000);
    assert_false(is_there(p, ".log"));
}

static void test_host_keys_are_removed_and_nothing_else(void **state)
{
    struct place *p = *state;

    put(p, "ssh_config", 0644, "");
    assert_false(host_keys_exist(p->path));
    assert_int_equal(host_keys_remove(p->path, 10000), 0);
    put(p, "ssh_host_rsa_key", 0600, "");
    put(p, "ssh_host_rsa_key.pub", 0644, "");
    assert_int_equal(mkdirat(p->fd, "ssh_host_old", 0755), 0);
    assert_true(host_keys_exist(p->path));
    assert_int_equal(host_keys_remove(p->path, 10000), 1);
    assert_false(host_keys_exist(p->path));
    assert_true(is_there(p, "ssh_config"));
    assert_int_equal(host_keys_remove("/nonexistent/ssh", 10000), 0);
}

static int work_main(void *arg, const struct spawn_failure *failure)
{
    int wanted = *(const int *)arg;

    assert_int_equal(failure->errnum, 0);
    if (wanted < 0) {
        (void)raise(-wanted);
    }
    return wanted;
}

static void test_apart_ends_or_is_ended(void **state)
{
    int64_t now_ms = clock_monotonic_ms();
    int works[] = {7, -SIGTERM, -SIGSTOP};

    (void)state;
    assert_int_equal(hooks_apart(work_main, &works[0], -1, now_ms + 20000), 7);
    assert_int_equal(hooks_apart(work_main, &works[1], -1, now_ms + 20000), -EIO);
    assert_int_equal(hooks_apart(work_main, &works[2], -1, now_ms), -ETIMEDOUT);
    assert_true(clock_monotonic_ms() - now_ms < 20000);
}

static void test_what_may_be_there(void **state)
{
    struct place *p = *state;

    put(p, ".hidden", 0755, "");
    assert_false(hooks_may_exist("/nonexistent"));
    assert_false(hooks_may_hold("/nonexistent", hooks_is_name));
    assert_true(hooks_may_exist("/proc/self")); /* another mount: not asked */
    assert_true(hooks_may_hold("/proc/self", hooks_is_name));
    assert_true(hooks_may_exist(p->path));
    put(p, "10-a", 0755, "");
    assert_true(hooks_may_hold(p->path, hooks_is_name));
}

/* Never that of before, unless nothing can be frozen in it. */
static void test_a_group_is_made_anew(void **state)
{
    struct place *p = *state;
    int fd;

    assert_int_equal(mkdirat(p->fd, "space-hooks", 0700), 0);
    fd = hooks_make_group(p->fd);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0700), 0);
    (void)close(fd);
    assert_int_equal(mkdirat(p->fd, "space-hooks/guests", 0700), 0);
    assert_int_equal(hooks_make_group(p->fd), -EEXIST);
}

/* A filesystem that takes requests and answers none but the first: who asked cannot be killed. */
static _Noreturn void serve_nothing(int fd)
{
    static _Alignas(struct fuse_in_header) uint8_t in[1U << 20];
    const struct fuse_in_header *head = (const void *)in;
    struct {
        struct fuse_out_header head;
        struct fuse_init_out init;
    } out = {.head = {.len = sizeof(out)},
             .init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096}};

    while (read(fd, in, sizeof(in)) > 0) {
        if (head->opcode == FUSE_INIT) {
            out.head.unique = head->unique;
            assert_int_equal(write(fd, &out, sizeof(out)), sizeof(out));
        }
    }
    _exit(0);
}

static pid_t mount_silent(const char *path)
{
    _cleanup_close_ int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[64];
    pid_t pid;

    (void)snprintf(options, sizeof(options), "fd=%d,rootmode=40755,user_id=0,group_id=0", fd);
    if (fd < 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("space", path, "fuse", MS_NOSUID | MS_NODEV, options) < 0) {
        return -1;
    }
    pid = fork();
    if (pid == 0) {
        serve_nothing(fd);
    }
    return pid;
}

static int look_main(void *arg, const struct spawn_failure *failure)
{
    struct place *p = arg;

    (void)failure;
    return hooks_run(&p->hooks, p->path);
}

static void test_a_filesystem_that_never_answers(void **state)
{
    struct place *p = *state;
    int64_t now_ms = clock_monotonic_ms();
    pid_t server = mount_silent(p->path);

    if (server < 0) {
        skip(); /* nobody who may mount, or nothing to mount with */
    }
    assert_true(hooks_may_hold(p->path, hooks_is_name));
    assert_int_equal(hooks_apart(look_main, p, -1, now_ms), -ETIMEDOUT);
    assert_int_equal(host_keys_remove(p->path, 0), -ETIMEDOUT);
    assert_true(clock_monotonic_ms() - now_ms < 20000);
    assert_int_equal(kill(server, SIGKILL), 0);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    assert_int_equal(umount2(p->path, MNT_DETACH), 0);
}

int main(void)
{
#define HOOKS_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        HOOKS_TEST(test_in_the_order_of_names),
        HOOKS_TEST(test_what_others_can_write_is_not_run),
        HOOKS_TEST(test_no_directory_is_no_matter),
        HOOKS_TEST(test_one_that_hangs_is_killed),
        HOOKS_TEST(test_all_together_have_a_limit),
        HOOKS_TEST(test_host_keys_are_removed_and_nothing_else),
        HOOKS_TEST(test_apart_ends_or_is_ended),
        HOOKS_TEST(test_what_may_be_there),
        HOOKS_TEST(test_a_group_is_made_anew),
        HOOKS_TEST(test_a_filesystem_that_never_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
