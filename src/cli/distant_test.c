#include "cli/distant.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/wait.h>

#include <cmocka.h>

static void test_what_is_there_and_what_is_not(void **state)
{
    struct stat want;
    struct stat got = {0};

    (void)state;
    assert_int_equal(stat("/etc/passwd", &want), 0);
    assert_int_equal(distant_stat("/etc/passwd", &got), 0);
    assert_int_equal(got.st_ino, want.st_ino);
    assert_int_equal(got.st_mode, want.st_mode);
    assert_int_equal(distant_stat("/etc/passwd/x", &got), -ENOTDIR);
    assert_int_equal(distant_stat("/nowhere", &got), -ENOENT);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_int_equal(errno, ECHILD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_there_and_what_is_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
