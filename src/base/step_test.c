/* Steps: nothing happens without the files, and with them the right one is waited at. */
#include "base/step.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"

enum {
    ARMED,
    COUNT,
    REACHED,
    GO,
    NAME
};

static void path_of(const char *dir, const char *suffix, char out[128])
{
    (void)snprintf(out, 128, "%s/steps/one%s", dir, suffix);
}

/* In a process of its own: what step_init has found stays. */
static pid_t start(const char *dir)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        step_init(dir, "one");
        for (int i = 0; i < 3; i++) {
            step("write %s", "journal");
            step("wrote %s", "journal");
        }
        _exit(step_is_watched() ? 7 : 0);
    }
    return pid;
}

static int end_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_nobody_watches(void **state)
{
    (void)state;
    assert_int_equal(end_of(start("/nonexistent")), 0);
}

static void test_a_program_waits_where_it_is_told_to(void **state)
{
    _cleanup_buf_ struct buf log = buf_make(4096);
    char dir[64] = "/tmp/step-test-XXXXXX";
    char path[128];
    char log_path[128];
    uint32_t *file;
    pid_t pid;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/steps", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    path_of(dir, ".log", log_path);
    assert_int_equal(file_write_atomic(AT_FDCWD, log_path, span_of_str(""), 0600, false), 0);
    path_of(dir, "", path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, STEP_FILE_BYTES), 0);
    file = mmap(NULL, STEP_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(file, MAP_FAILED);
    (void)close(fd);
    (void)snprintf((char *)&file[NAME], STEP_NAME_SIZE, "wrote journal");
    file[COUNT] = 2;
    file[ARMED] = 1;
    pid = start(dir);
    while (__atomic_load_n(&file[REACHED], __ATOMIC_ACQUIRE) == 0) {
        (void)usleep(1000);
    }
    assert_int_equal(file_read(AT_FDCWD, log_path, 4096, &log), 0);
    assert_string_equal(buf_str(&log),
                        "write journal\nwrote journal\nwrite journal\nwrote journal\n");
    assert_int_equal(file[ARMED], 0);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    __atomic_store_n(&file[GO], 1, __ATOMIC_RELEASE);
    assert_int_equal(end_of(pid), 7);
    assert_int_equal(munmap(file, STEP_FILE_BYTES), 0);
    assert_int_equal(dir_remove_tree(AT_FDCWD, dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_watches),
        cmocka_unit_test(test_a_program_waits_where_it_is_told_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
