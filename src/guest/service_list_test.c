/* file-list by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "guest/service_rig.h"

static struct answer answer;

/* The names of one page, each with a slash behind it. */
static void
expect_page(struct service_rig *s, const char *const *argv, const char *names, bool more)
{
    _cleanup_buf_ struct buf got = buf_make(0);
    size_t prefix = strlen(s->directory) + 1;

    service_rig_call(s, argv, NO_INPUT, &answer);
    assert_true(answer.is_done);
    for (size_t i = 0; i < answer.n_entries; i++) {
        buf_put(&got, span_skip(answer.entries[i].path, prefix));
        buf_put_str(&got, " ");
    }
    assert_string_equal(buf_str(&got), names);
    assert_int_equal(answer.done.more, more);
    assert_int_equal(answer.done.count, answer.n_entries);
}

static void make_tree(const struct service_rig *s)
{
    static const char *const directories[] = {"a", "a/sub", "a/sub/deep", "c"};
    static const char *const files[] = {"a.b", "a/1", "a/sub/2", "a/sub/deep/3", "a/z", "b", "d"};

    for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++) {
        assert_int_equal(mkdir(service_rig_path(s, directories[i]), 0755), 0);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        service_rig_file(s, files[i], "x");
    }
    assert_int_equal(symlink("a", service_rig_path(s, "link")), 0);
}

static void test_walk_is_sorted(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    expect_page(s, ARGS("file-list", ".", "1", "100", ""), "a a.b b c d link ", false);
    expect_page(s, ARGS("file-list", ".", "2", "100", ""), "a a/1 a/sub a/z a.b b c d link ",
                false);
    expect_page(s, ARGS("file-list", s->directory, "64", "1000", ""),
                "a a/1 a/sub a/sub/2 a/sub/deep a/sub/deep/3 a/z a.b b c d link ", false);
    expect_page(s, ARGS("file-list", "c", "64", "1", ""), "", false);
    expect_page(s, ARGS("file-list", "link/sub/", "1", "10", ""), "link/sub/2 link/sub/deep ",
                false);
}

static void test_pages_join(void **state)
{
    static const char *const limits[] = {"1", "2", "3", "5"};
    struct service_rig *s = *state;

    make_tree(s);
    for (size_t i = 0; i < 4; i++) {
        _cleanup_buf_ struct buf all = buf_make(0);
        char after[4096] = "";

        do {
            service_rig_call(s, ARGS("file-list", ".", "64", limits[i], after), NO_INPUT, &answer);
            assert_true(answer.is_done && answer.n_entries > 0);
            for (size_t k = 0; k < answer.n_entries; k++) {
                buf_put(&all, span_skip(answer.entries[k].path, strlen(s->directory) + 1));
                buf_put_str(&all, " ");
            }
            assert_int_equal(
                span_copy_str(answer.entries[answer.n_entries - 1].path, after, sizeof(after)), 0);
        } while (answer.done.more);
        assert_string_equal(buf_str(&all),
                            "a a/1 a/sub a/sub/2 a/sub/deep a/sub/deep/3 a/z a.b b c d link ");
    }
}

static void test_pages_go_on_behind_what_is_gone(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    expect_page(s, ARGS("file-list", ".", "64", "3", "a/sub/9/x"), "a/sub/deep a/sub/deep/3 a/z ",
                true);
    expect_page(s, ARGS("file-list", ".", "64", "3", "a/none/x"), "a/sub a/sub/2 a/sub/deep ",
                true);
    expect_page(s, ARGS("file-list", ".", "64", "3", "b/was/a/directory"), "c d link ", false);
    expect_page(s, ARGS("file-list", ".", "1", "3", "a/sub"), "a.b b c ", true);
    expect_page(s, ARGS("file-list", ".", "64", "3", "zzz"), "", false);
    expect_page(s, ARGS("file-list", "/", "1", "1", "/zzz"), "", false);
    service_rig_fails(s, ARGS("file-list", ".", "64", "3", "/elsewhere"), EINVAL);
    service_rig_fails(s, ARGS("file-list", ".", "64", "3", s->directory), EINVAL);
}

static void test_list_errors(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    service_rig_fails(s, ARGS("file-list", "none", "1", "10", ""), ENOENT);
    service_rig_fails(s, ARGS("file-list", "b", "1", "10", ""), ENOTDIR);
    service_rig_fails(s, ARGS("file-list", ".", "0", "10", ""), EINVAL);
    service_rig_fails(s, ARGS("file-list", ".", "65", "10", ""), EINVAL);
    service_rig_fails(s, ARGS("file-list", ".", "1", "0", ""), EINVAL);
    service_rig_fails(s, ARGS("file-list", ".", "1", "1001", ""), EINVAL);
    service_rig_fails(s, ARGS("file-list", ".", "1", "10"), EINVAL);
}

static void test_odd_names(void **state)
{
    struct service_rig *s = *state;

    service_rig_file(s, "\x01\xff\n", "x");
    service_rig_file(s, "-", "x");
    service_rig_file(s, "\xc3\xa4", "x");
    service_rig_file(s, "\xff", "x");
    expect_page(s, ARGS("file-list", ".", "1", "10", ""), "\x01\xff\n - \xc3\xa4 \xff ", false);
}

/* Every name of a large directory once, in order. */
static void test_large_directory(void **state)
{
    struct service_rig *s = *state;
    char after[4096] = "";
    unsigned int next = 0;

    for (unsigned int i = 0; i < 5000; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "%05u", (i * 7919U) % 5000U);
        service_rig_file(s, name, "");
    }
    do {
        service_rig_call(s, ARGS("file-list", ".", "3", "1000", after), NO_INPUT, &answer);
        for (size_t k = 0; k < answer.n_entries; k++) {
            char name[16];

            (void)snprintf(name, sizeof(name), "/%05u", next++);
            assert_true(
                span_equals_str(span_skip(answer.entries[k].path, strlen(s->directory)), name));
        }
        assert_int_equal(
            span_copy_str(answer.entries[answer.n_entries - 1].path, after, sizeof(after)), 0);
    } while (answer.done.more);
    assert_int_equal(next, 5000);
}

/* Below PATH_MAX a walk goes on by descriptors. */
static void test_deep_tree(void **state)
{
    struct service_rig *s = *state;
    char name[201];
    int fd = open(s->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    memset(name, 'd', 200);
    name[200] = '\0';
    for (int i = 0; i < 70; i++) {
        int next;

        assert_int_equal(mkdirat(fd, name, 0755), 0);
        next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(fd);
        fd = next;
    }
    (void)close(fd);
    service_rig_call(s, ARGS("file-list", ".", "64", "1000", ""), NO_INPUT, &answer);
    assert_int_equal(answer.n_entries, 64);
    assert_int_equal(answer.entries[63].path.n, strlen(s->directory) + 64U * 201U);
    service_rig_call(s, ARGS("file-list", ".", "64", "7", ""), NO_INPUT, &answer);
    assert_true(answer.done.more);
    service_rig_call(s, ARGS("file-delete", name, "recursive"), NO_INPUT, &answer);
    assert_int_equal(answer.done.count, 70);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_walk_is_sorted),
        SERVICE_TEST(test_pages_join),
        SERVICE_TEST(test_pages_go_on_behind_what_is_gone),
        SERVICE_TEST(test_list_errors),
        SERVICE_TEST(test_odd_names),
        SERVICE_TEST(test_large_directory),
        SERVICE_TEST(test_deep_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
