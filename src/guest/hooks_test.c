#include "guest/hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

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
    assert_string_equal(buf_span(&b).p, wanted);
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
    assert_int_equal(hooks_run(&p->hooks, p->path, false), 0);
    assert_false(is_there(p, ".log"));
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 2); /* one failed, and the rest went on */
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
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 1);
    assert_content(p, ".log", "good\n");
    assert_int_equal(chmod(p->path, 0777), 0);
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 0);
    assert_content(p, ".log", "good\n");
}

static void test_no_directory_is_no_matter(void **state)
{
    struct place *p = *state;

    assert_int_equal(hooks_run(&p->hooks, "/nonexistent/identity.d", true), 0);
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 0);
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
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 1);
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
    assert_int_equal(hooks_run(&p->hooks, p->path, true), 0);
    assert_true(clock_monotonic_ms() - before_ms < 10000);
    assert_false(is_there(p, ".log"));
}

static void test_host_keys_are_removed_and_nothing_else(void **state)
{
    struct place *p = *state;

    put(p, "ssh_config", 0644, "");
    assert_false(host_keys_exist(p->path));
    assert_int_equal(host_keys_remove(p->path), 0);
    put(p, "ssh_host_rsa_key", 0600, "");
    put(p, "ssh_host_rsa_key.pub", 0644, "");
    assert_int_equal(mkdirat(p->fd, "ssh_host_old", 0755), 0);
    assert_true(host_keys_exist(p->path));
    assert_int_equal(host_keys_remove(p->path), 3);
    assert_false(host_keys_exist(p->path));
    assert_true(is_there(p, "ssh_config"));
    assert_int_equal(host_keys_remove("/nonexistent/ssh"), 0);
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
