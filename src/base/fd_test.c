#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"

struct fixture {
    char path[64];
    int dir;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    (void)snprintf(f->path, sizeof(f->path), "/tmp/fd-test-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    f->dir = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(f->dir >= 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(dir_remove_tree(AT_FDCWD, f->path), 0);
    assert_int_equal(access(f->path, F_OK), -1);
    (void)close(f->dir);
    free(f);
    return 0;
}

static void check_content(const struct fixture *f, const char *name, const char *want)
{
    _cleanup_buf_ struct buf content = buf_make(0);

    assert_int_equal(file_read(f->dir, name, 1000, &content), 0);
    assert_string_equal(buf_str(&content), want);
}

static void make_file(const struct fixture *f, const char *name)
{
    assert_int_equal(file_write_atomic(f->dir, name, span_of_str("x"), 0600, false), 0);
}

static void test_atomic_write_replaces(void **state)
{
    const struct fixture *f = *state;
    struct stat st;

    assert_int_equal(file_write_atomic(f->dir, "a", span_of_str("one"), 0640, true), 0);
    check_content(f, "a", "one");
    assert_int_equal(file_write_atomic(f->dir, "a", span_of_str("second"), 0600, false), 0);
    check_content(f, "a", "second");
    assert_int_equal(fstatat(f->dir, "a", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fstatat(f->dir, "a.new", &st, 0), -1);
    assert_int_equal(file_write_atomic(f->dir, "empty", span_make(NULL, 0), 0600, true), 0);
    check_content(f, "empty", "");
}

static void test_atomic_write_fails_cleanly(void **state)
{
    const struct fixture *f = *state;
    char name[5000];
    struct stat st;

    assert_int_equal(file_write_atomic(f->dir, "no/a", span_of_str("x"), 0600, true), -ENOENT);
    make_file(f, "kept");
    assert_int_equal(mkdirat(f->dir, "kept.new", 0700), 0);
    assert_true(file_write_atomic(f->dir, "kept", span_of_str("new"), 0600, false) < 0);
    check_content(f, "kept", "x");
    /* The target is a directory: the temporary file goes away again. */
    assert_int_equal(mkdirat(f->dir, "d", 0700), 0);
    assert_true(file_write_atomic(f->dir, "d", span_of_str("x"), 0600, false) < 0);
    assert_int_equal(fstatat(f->dir, "d.new", &st, 0), -1);
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(file_write_atomic(f->dir, name, span_of_str("x"), 0600, false), -ENAMETOOLONG);
    /* A symbolic link in place of the temporary file is not followed. */
    make_file(f, "victim");
    assert_int_equal(symlinkat("victim", f->dir, "b.new"), 0);
    assert_int_equal(file_write_atomic(f->dir, "b", span_of_str("evil"), 0600, false), -ELOOP);
    check_content(f, "victim", "x");
}

static void test_read_limits(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf content = buf_make(0);

    assert_int_equal(file_write_atomic(f->dir, "a", span_of_str("12345"), 0600, false), 0);
    assert_int_equal(file_read(f->dir, "a", 5, &content), 0);
    assert_string_equal(buf_str(&content), "12345");
    buf_done(&content);
    assert_int_equal(file_read(f->dir, "a", 4, &content), -EMSGSIZE);
    assert_int_equal(file_read(f->dir, "missing", 4, &content), -ENOENT);
    buf_done(&content);
    assert_int_equal(file_read(f->dir, ".", 100, &content), -EISDIR);
}

static void test_write_all(void **state)
{
    const struct fixture *f = *state;
    _cleanup_close_ int fd = openat(f->dir, "w", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    assert_int_equal(fd_write_all(fd, span_of_str("hello world")), 0);
    assert_int_equal(fd_pwrite_all(fd, span_of_str("W"), 6), 0);
    assert_int_equal(fd_write_all(fd, span_make(NULL, 0)), 0);
    check_content(f, "w", "hello World");
    assert_int_equal(fd_write_all(-1, span_of_str("x")), -EBADF);
    assert_int_equal(fd_pwrite_all(-1, span_of_str("x"), 0), -EBADF);
    assert_int_equal(fd_set_nonblock(fd), 0);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_int_equal(fd_set_nonblock(-1), -EBADF);
}

static void test_make_all(void **state)
{
    const struct fixture *f = *state;
    char name[5000];

    assert_int_equal(dir_make_all(f->dir, "a/b/c", 0700), 0);
    assert_int_equal(dir_make_all(f->dir, "a/b/c", 0700), 0);
    assert_int_equal(dir_make_all(f->dir, "a/b/d/", 0700), 0);
    assert_int_equal(faccessat(f->dir, "a/b/d", F_OK, 0), 0);
    make_file(f, "file");
    assert_int_equal(dir_make_all(f->dir, "file/x", 0700), -ENOTDIR);
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(dir_make_all(f->dir, name, 0700), -ENAMETOOLONG);
}

static void test_remove_tree(void **state)
{
    const struct fixture *f = *state;
    char name[32];

    assert_int_equal(dir_remove_tree(f->dir, "missing"), 0);
    make_file(f, "file");
    assert_int_equal(dir_remove_tree(f->dir, "file"), 0);
    assert_int_equal(faccessat(f->dir, "file", F_OK, 0), -1);

    assert_int_equal(dir_make_all(f->dir, "t/a/b", 0700), 0);
    assert_int_equal(dir_make_all(f->dir, "t/empty", 0700), 0);
    for (int i = 0; i < 300; i++) {
        (void)snprintf(name, sizeof(name), "t/a/file%d", i);
        make_file(f, name);
    }
    assert_int_equal(mkfifoat(f->dir, "t/a/b/fifo", 0600), 0);
    assert_int_equal(dir_remove_tree(f->dir, "t"), 0);
    assert_int_equal(faccessat(f->dir, "t", F_OK, 0), -1);
}

static void test_remove_tree_spares_what_links_point_at(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(dir_make_all(f->dir, "outside/sub", 0700), 0);
    make_file(f, "outside/kept");
    assert_int_equal(dir_make_all(f->dir, "t/d", 0700), 0);
    assert_int_equal(symlinkat("../../outside", f->dir, "t/d/link"), 0);
    assert_int_equal(symlinkat("nowhere", f->dir, "t/dangling"), 0);
    assert_int_equal(dir_remove_tree(f->dir, "t"), 0);
    assert_int_equal(faccessat(f->dir, "t", F_OK, 0), -1);
    check_content(f, "outside/kept", "x");
    /* A link given as the tree itself is removed, not followed. */
    assert_int_equal(symlinkat("outside", f->dir, "link"), 0);
    assert_int_equal(dir_remove_tree(f->dir, "link"), 0);
    check_content(f, "outside/kept", "x");
}

static void test_remove_tree_depth(void **state)
{
    const struct fixture *f = *state;
    char path[512] = "deep";

    for (int i = 1; i < 64; i++) {
        (void)strcat(path, "/d");
    }
    assert_int_equal(dir_make_all(f->dir, path, 0700), 0);
    assert_int_equal(dir_remove_tree(f->dir, "deep"), 0);
    (void)strcat(path, "/d");
    assert_int_equal(dir_make_all(f->dir, path, 0700), 0);
    assert_int_equal(dir_remove_tree(f->dir, "deep"), -ELOOP);
    /* In two steps it goes. */
    assert_int_equal(dir_remove_tree(f->dir, "deep/d/d/d"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_atomic_write_replaces, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_atomic_write_fails_cleanly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_read_limits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_write_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_make_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_remove_tree, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_remove_tree_spares_what_links_point_at, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_remove_tree_depth, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
