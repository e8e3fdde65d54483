/* file-set-mode, file-set-owner and file-delete by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "guest/service_rig.h"

static struct answer answer;

static void call(struct service_rig *s, const char *const *argv, uint64_t count)
{
    service_rig_call(s, argv, NO_INPUT, &answer);
    assert_false(answer.has_error);
    assert_true(answer.is_done);
    assert_int_equal(answer.done.count, count);
}

static struct stat stat_of(const struct service_rig *s, const char *name)
{
    struct stat st;

    assert_int_equal(lstat(service_rig_path(s, name), &st), 0);
    return st;
}

static bool is_there(const struct service_rig *s, const char *name)
{
    struct stat st;

    return lstat(service_rig_path(s, name), &st) == 0;
}

/* d/f, d/sub/g, d/sub/out -> ../../victim, victim/f */
static void make_tree(const struct service_rig *s)
{
    static const char *const directories[] = {"d", "d/sub", "victim"};
    static const char *const files[] = {"d/f", "d/sub/g", "victim/f"};

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mkdir(service_rig_path(s, directories[i]), 0755), 0);
        service_rig_file(s, files[i], "x");
    }
    assert_int_equal(symlink("../../victim", service_rig_path(s, "d/sub/out")), 0);
}

static void test_set_mode(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    call(s, ARGS("file-set-mode", "d/f", "4711", ""), 1);
    assert_int_equal(answer.entries[0].mode, 04711);
    assert_int_equal(stat_of(s, "d/f").st_mode & 07777, 04711);
    call(s, ARGS("file-set-mode", "d", "0750", ""), 1);
    assert_int_equal(stat_of(s, "d/sub").st_mode & 07777, 0755);
    call(s, ARGS("file-set-mode", "d", "0770", "recursive"), 4);
    assert_int_equal(stat_of(s, "d/sub/g").st_mode & 07777, 0770);
    assert_int_equal(stat_of(s, "victim").st_mode & 07777, 0755);
    /* A mode that shuts the owner out reaches everything all the same. */
    call(s, ARGS("file-set-mode", "d", "0", "recursive"), 4);
    assert_int_equal(stat_of(s, "d").st_mode & 07777, 0);
    assert_int_equal(chmod(service_rig_path(s, "d"), 0755), 0);
    if (getuid() == 0) {
        assert_int_equal(stat_of(s, "d/sub").st_mode & 07777, 0);
    }
    call(s, ARGS("file-set-mode", "d", "0755", "recursive"), 4);
    call(s, ARGS("file-set-mode", "d/sub/out", "0700", ""), 1); /* what the path leads to */
    assert_int_equal(stat_of(s, "victim").st_mode & 07777, 0700);
    service_rig_fails(s, ARGS("file-set-mode", "none", "0700", ""), ENOENT);
    service_rig_fails(s, ARGS("file-set-mode", "d", "", ""), EINVAL);
    service_rig_fails(s, ARGS("file-set-mode", "d", "0700", "all"), EINVAL);
}

static void test_set_owner(void **state)
{
    struct service_rig *s = *state;

    if (getuid() != 0) {
        skip();
    }
    make_tree(s);
    call(s, ARGS("file-set-owner", "d/f", "12345", ""), 1);
    assert_int_equal(stat_of(s, "d/f").st_uid, 12345);
    assert_int_equal(stat_of(s, "d/f").st_gid, getgid());
    call(s, ARGS("file-set-owner", "d", "root:54321", "recursive"), 5);
    assert_int_equal(stat_of(s, "d/f").st_uid, 0);
    assert_int_equal(stat_of(s, "d/sub/out").st_gid, 54321);
    assert_int_equal(stat_of(s, "victim").st_gid, getgid());
    call(s, ARGS("file-set-owner", "d/f", ":0", ""), 1);
    assert_int_equal(stat_of(s, "d/f").st_gid, 0);
    service_rig_fails(s, ARGS("file-set-owner", "d", "no-such-user", ""), EINVAL);
    service_rig_fails(s, ARGS("file-set-owner", "d", "root:", ""), EINVAL);
    service_rig_fails(s, ARGS("file-set-owner", "d", "", ""), EINVAL);
    service_rig_fails(s, ARGS("file-set-owner", "d", "4294967295", ""), EINVAL);
}

static void test_delete(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    assert_int_equal(mkdir(service_rig_path(s, "empty"), 0755), 0);
    call(s, ARGS("file-delete", "d/f", ""), 1);
    call(s, ARGS("file-delete", "empty/", ""), 1);
    call(s, ARGS("file-delete", "d/sub/out", "recursive"), 1);
    assert_true(is_there(s, "victim/f"));
    assert_int_equal(symlink("../../victim", service_rig_path(s, "d/sub/out")), 0);
    service_rig_fails(s, ARGS("file-delete", "d", ""), ENOTEMPTY);
    call(s, ARGS("file-delete", "d", "recursive"), 4);
    assert_false(is_there(s, "d"));
    assert_true(is_there(s, "victim/f"));
    service_rig_fails(s, ARGS("file-delete", "d", "recursive"), ENOENT);
    service_rig_fails(s, ARGS("file-delete", "", "recursive"), ENOENT);
    service_rig_fails(s, ARGS("file-delete", "/", "recursive"), EBUSY);
    service_rig_fails(s, ARGS("file-delete", "victim/..", "recursive"), EBUSY);
    service_rig_fails(s, ARGS("file-delete", "victim/f/", "all"), EINVAL);
}

static void test_delete_names_what_it_could_not(void **state)
{
    struct service_rig *s = *state;

    make_tree(s);
    service_rig_call(s, ARGS("file-delete", "/proc/self/task", "recursive"), NO_INPUT, &answer);
    assert_true(answer.has_error);
    assert_int_equal(memcmp(answer.error.path.p, "/proc/self/task", 15), 0);
}

static void test_delete_much(void **state)
{
    struct service_rig *s = *state;

    for (unsigned int i = 0; i < 40; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "d%u", i % 2);
        (void)mkdir(service_rig_path(s, name), 0755);
        (void)snprintf(name, sizeof(name), "d%u/%u", i % 2, i);
        assert_int_equal(mkdir(service_rig_path(s, name), 0755), 0);
        for (unsigned int k = 0; k < 50; k++) {
            (void)snprintf(name, sizeof(name), "d%u/%u/%u", i % 2, i, k);
            service_rig_file(s, name, "");
        }
    }
    call(s, ARGS("file-delete", "d0", "recursive"), 1021);
    call(s, ARGS("file-delete", "d1", "recursive"), 1021);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_set_mode),    SERVICE_TEST(test_set_owner),
        SERVICE_TEST(test_delete),      SERVICE_TEST(test_delete_names_what_it_could_not),
        SERVICE_TEST(test_delete_much),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
