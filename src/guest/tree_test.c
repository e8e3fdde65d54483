#include "guest/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static char directory[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof(directory), "/tmp/space-tree-test.XXXXXX");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int open_top(void)
{
    return open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int tear_down(void **state)
{
    struct tree t;
    int r;

    (void)state;
    assert_int_equal(tree_init(&t, open_top()), 0);
    t.restart = true;
    while ((r = tree_next(&t)) > 0) {
        if (r != TREE_ENTER) {
            assert_int_equal(
                unlinkat(tree_dir_fd(&t), tree_name(&t), r == TREE_LEAVE ? AT_REMOVEDIR : 0), 0);
        }
    }
    tree_done(&t);
    return r == 0 ? rmdir(directory) : r;
}

static void put_file(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
}

/* A directory below, which is then the one that dir_fd was. */
static int go_down(int dir_fd, const char *name)
{
    int fd;

    assert_int_equal(mkdirat(dir_fd, name, 0755), 0);
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(dir_fd), 0);
    return fd;
}

/* Far deeper than directories may be open, with something before and behind each way down. */
static void test_deep_tree_is_walked_once(void **state)
{
    const int depth = 300;
    unsigned int counts[4] = {0};
    int fd = open_top();
    struct tree t;
    int r;

    (void)state;
    for (int i = 0; i < depth; i++) {
        put_file(fd, "a");
        assert_int_equal(mkdirat(fd, "b", 0755), 0);
        assert_int_equal(symlinkat(".", fd, "c"), 0);
        put_file(fd, "z");
        fd = go_down(fd, "down");
    }
    assert_int_equal(close(fd), 0);
    assert_int_equal(tree_init(&t, open_top()), 0);
    while ((r = tree_next(&t)) > 0) {
        counts[r]++;
        assert_true(strlen(tree_path(&t)) <= (size_t)depth * 5);
        assert_string_equal(strrchr(tree_path(&t), '/') == NULL ? tree_path(&t)
                                                                : strrchr(tree_path(&t), '/') + 1,
                            tree_name(&t));
    }
    assert_int_equal(r, TREE_END);
    tree_done(&t);
    assert_int_equal(counts[TREE_OTHER], 3 * depth);
    assert_int_equal(counts[TREE_ENTER], 2 * depth);
    assert_int_equal(counts[TREE_LEAVE], 2 * depth);
}

static void test_skipped_directories_are_not_entered(void **state)
{
    unsigned int events = 0;
    int fd = open_top();
    struct tree t;

    (void)state;
    fd = go_down(fd, "skipped");
    put_file(fd, "never");
    assert_int_equal(close(fd), 0);
    assert_int_equal(tree_init(&t, open_top()), 0);
    for (int r; (r = tree_next(&t)) > 0; events++) {
        assert_int_equal(r, TREE_ENTER);
        tree_skip(&t);
    }
    tree_done(&t);
    assert_int_equal(events, 1);
}

/* A directory that was moved away while the walk was below it is noticed where it matters. */
static void test_moved_directory_is_noticed(void **state)
{
    int fd = open_top();
    struct tree t;
    int r;

    (void)state;
    for (int i = 0; i < 100; i++) {
        fd = go_down(fd, "d");
    }
    assert_int_equal(close(fd), 0);
    assert_int_equal(tree_init(&t, open_top()), 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tree_next(&t), TREE_ENTER);
    }
    fd = open_top();
    assert_int_equal(mkdirat(fd, "other", 0755), 0);
    assert_int_equal(renameat(fd, "d/d/d", fd, "other/d"), 0);
    assert_int_equal(close(fd), 0);
    while ((r = tree_next(&t)) > 0) {
        assert_int_not_equal(r, TREE_OTHER);
    }
    assert_int_equal(r, -ESTALE);
    tree_done(&t);
}

static void test_large_directory_is_read_once(void **state)
{
    unsigned int count = 0;
    int fd = open_top();
    struct tree t;

    (void)state;
    for (unsigned int i = 0; i < 3000; i++) {
        char name[300];

        (void)snprintf(name, sizeof(name), "%0200u", i);
        put_file(fd, name);
    }
    assert_int_equal(close(fd), 0);
    assert_int_equal(tree_init(&t, open_top()), 0);
    while (tree_next(&t) > 0) {
        count++;
    }
    tree_done(&t);
    assert_int_equal(count, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_deep_tree_is_walked_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_skipped_directories_are_not_entered, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_moved_directory_is_noticed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_large_directory_is_read_once, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
