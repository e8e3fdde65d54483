#include "cli/logfile.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/proc.h"

static void put_lines(int fd, int from, int to)
{
    for (int i = from; i < to; i++) {
        assert_int_equal(dprintf(fd, "line %06d\n", i), 12);
    }
}

/* Both files together, older first, as one text. */
static void read_both(const char *path, struct buf *out)
{
    _cleanup_buf_ struct buf part = buf_make(0);
    char first[128];

    (void)snprintf(first, sizeof(first), "%s.1", path);
    assert_int_equal(file_read(AT_FDCWD, first, 1 << 20, &part), 0);
    buf_put(out, buf_span(&part));
    buf_done(&part);
    assert_int_equal(file_read(AT_FDCWD, path, 1 << 20, &part), 0);
    buf_put(out, buf_span(&part));
}

static void test_rotation_keeps_every_line_and_the_writer(void **state)
{
    char dir[] = "/var/tmp/logfile-test-XXXXXX";
    char path[64];
    _cleanup_buf_ struct buf all = buf_make(0);
    _cleanup_close_ int fd = -1;
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/x.log", dir);
    fd = logfile_open(path, NULL);
    assert_true(fd >= 0);
    put_lines(fd, 0, 2000);
    assert_int_equal(logfile_rotate(path, 100000), 0);
    assert_int_equal(logfile_rotate(path, 10000), 1);
    put_lines(fd, 2000, 2010); /* the same descriptor goes on */
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_size < 10000);
    read_both(path, &all);
    assert_int_equal(all.n, 2010 * 12);
    assert_int_equal(logfile_rotate("/nonexistent/x.log", 1), 0);
    for (int i = 0; i < LOGFILE_KEEP + 2; i++) {
        put_lines(fd, 0, 2000);
        assert_int_equal(logfile_rotate(path, 10000), 1);
    }
    (void)snprintf(path, sizeof(path), "%s/x.log.%d", dir, LOGFILE_KEEP + 1);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(dir_remove_tree(AT_FDCWD, dir), 0);
}

static void test_what_is_no_file_of_its_own_is_refused(void **state)
{
    char dir[] = "/var/tmp/logfile-test-XXXXXX";
    char path[64];
    char other[64];
    struct stat st;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/x.log", dir);
    (void)snprintf(other, sizeof(other), "%s/x.log.1", dir);
    assert_int_equal(mkfifo(path, 0600), 0); /* neither opened nor waited for */
    assert_true(logfile_open(path, NULL) < 0);
    assert_true(logfile_rotate(path, 1) < 0);
    assert_int_equal(unlink(path), 0);
    fd = logfile_open(path, NULL);
    assert_true(fd >= 0);
    put_lines(fd, 0, 2000);
    assert_int_equal(link(path, other), 0); /* a name elsewhere */
    assert_true(logfile_open(path, NULL) < 0);
    assert_true(logfile_rotate(path, 10000) < 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0);
    for (int i = 2; i <= LOGFILE_KEEP; i++) { /* so that the pipe stays in the way */
        char name[64];

        (void)snprintf(name, sizeof(name), "%s/x.log.%d", dir, i);
        assert_int_equal(mkdir(name, 0700), 0);
        (void)snprintf(name, sizeof(name), "%s/x.log.%d/a", dir, i);
        assert_int_equal(mkdir(name, 0700), 0);
    }
    assert_int_equal(logfile_rotate(path, 10000), 1);
    assert_int_equal(lstat(other, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    (void)close(fd);
    assert_int_equal(dir_remove_tree(AT_FDCWD, dir), 0);
}

static void test_process_records(void **state)
{
    char dir[] = "/tmp/proc-test-XXXXXX";
    char path[64];
    char owner[64];
    struct proc_ref self;
    struct proc_ref read_back;
    int64_t started_ms;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/p.pid", dir);
    assert_int_equal(proc_find(getpid(), &self), 0);
    assert_true(proc_is_alive(&self));
    assert_int_equal(proc_started_at(&self, &started_ms), 0);
    assert_int_equal(proc_record_write(path, &self, "/a path"), 0);
    assert_int_equal(proc_record_owner(path, owner, sizeof(owner)), 0);
    assert_string_equal(owner, "/a path");
    assert_int_equal(proc_record_read(path, &read_back), 0);
    assert_int_equal(read_back.pid, self.pid);
    assert_int_equal(read_back.start_time, self.start_time);
    (void)snprintf(owner, sizeof(owner), "%d 7\n", (int)self.pid); /* of an earlier version */
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(owner), 0600, false), 0);
    assert_int_equal(proc_record_read(path, &read_back), 0);
    assert_int_equal(read_back.start_time, 7);
    assert_true(proc_record_owner(path, owner, sizeof(owner)) < 0);
    read_back = self;
    read_back.start_time++; /* another process that got the same pid */
    assert_false(proc_is_alive(&read_back));
    assert_true(proc_signal(&read_back, 0) < 0);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("12\n"), 0600, false), 0);
    assert_true(proc_record_read(path, &read_back) < 0);
    assert_true(proc_find(0, &read_back) < 0);
    assert_int_equal(dir_remove_tree(AT_FDCWD, dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation_keeps_every_line_and_the_writer),
        cmocka_unit_test(test_what_is_no_file_of_its_own_is_refused),
        cmocka_unit_test(test_process_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
