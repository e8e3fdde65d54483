/* Services as such, and those that look at or change names, by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "guest/service_rig.h"

static struct answer answer;

static void call(struct service_rig *s, const char *const *argv)
{
    service_rig_call(s, argv, NO_INPUT, &answer);
    assert_false(answer.has_error);
}

static void test_stat(void **state)
{
    struct service_rig *s = *state;
    const struct service_entry *e = &answer.entries[0];

    service_rig_file(s, "a\nb\xff", "hello");
    assert_int_equal(chmod(service_rig_path(s, "a\nb\xff"), 04751), 0);
    call(s, ARGS("file-stat", "a\nb\xff"));
    assert_int_equal(answer.n_entries, 1);
    assert_true(answer.is_done);
    assert_true(span_equals_str(e->path, service_rig_path(s, "a\nb\xff")));
    assert_int_equal(e->type, SERVICE_ENTRY_FILE);
    assert_int_equal(e->size_bytes, 5);
    assert_int_equal(e->mode, 04751);
    assert_int_equal(e->uid, getuid());
    assert_true(getuid() != 0 || span_equals_str(e->user, "root"));
    assert_true(e->modified_ns > 1700000000000000000U);
    assert_int_equal(symlink("nowhere", service_rig_path(s, "link")), 0);
    call(s, ARGS("file-stat", service_rig_path(s, "link")));
    assert_int_equal(e->type, SERVICE_ENTRY_SYMLINK);
    assert_true(span_equals_str(e->symlink_target, "nowhere"));
    assert_int_equal(mkfifo(service_rig_path(s, "fifo"), 0600), 0);
    call(s, ARGS("file-stat", "fifo"));
    assert_int_equal(e->type, SERVICE_ENTRY_OTHER);
    call(s, ARGS("file-stat", "/"));
    assert_int_equal(e->type, SERVICE_ENTRY_DIRECTORY);
    assert_true(span_equals_str(e->path, "/"));
}

static void test_stat_names_are_absolute_and_clean(void **state)
{
    struct service_rig *s = *state;
    const struct service_entry *e = &answer.entries[0];

    assert_int_equal(mkdir(service_rig_path(s, "d"), 0755), 0);
    assert_int_equal(symlink("d", service_rig_path(s, "l")), 0);
    service_rig_file(s, "d/f", "x");
    call(s, ARGS("file-stat", ".//d/./f"));
    assert_true(span_equals_str(e->path, service_rig_path(s, "d/f")));
    call(s, ARGS("file-stat", "l/f"));
    assert_true(span_equals_str(e->path, service_rig_path(s, "l/f")));
    call(s, ARGS("file-stat", "d/../d/f"));
    assert_true(span_equals_str(e->path, service_rig_path(s, "d/f")));
    call(s, ARGS("file-stat", "d/.."));
    assert_true(span_equals_str(e->path, s->directory));
    call(s, ARGS("file-stat", "."));
    assert_true(span_equals_str(e->path, s->directory));
    call(s, ARGS("file-stat", "/../.."));
    assert_true(span_equals_str(e->path, "/"));
}

static void test_stat_errors(void **state)
{
    struct service_rig *s = *state;
    char name[NAME_MAX + 2];
    char path[PATH_MAX + 1];

    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    memset(path, '/', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    service_rig_file(s, "f", "x");
    assert_int_equal(symlink("loop", service_rig_path(s, "loop")), 0);
    service_rig_fails(s, ARGS("file-stat", "none"), ENOENT);
    service_rig_fails(s, ARGS("file-stat", ""), ENOENT);
    service_rig_fails(s, ARGS("file-stat", "f/x"), ENOTDIR);
    service_rig_fails(s, ARGS("file-stat", "loop/x"), ELOOP);
    service_rig_fails(s, ARGS("file-stat", name), ENAMETOOLONG);
    service_rig_fails(s, ARGS("file-stat", path), ENAMETOOLONG);
    service_rig_fails(s, ARGS("file-stat"), EINVAL);
    service_rig_fails(s, ARGS("file-stat", "a", "b"), EINVAL);
    path[PATH_MAX - 1] = '\0';
    call(s, ARGS("file-stat", path));
}

static mode_t mode_of(const struct service_rig *s, const char *name)
{
    struct stat st;

    assert_int_equal(lstat(service_rig_path(s, name), &st), 0);
    return st.st_mode & 07777;
}

static void test_make_directory(void **state)
{
    struct service_rig *s = *state;

    call(s, ARGS("file-make-directory", "a/b//c/", ""));
    assert_int_equal(answer.done.count, 1);
    assert_true(span_equals_str(answer.entries[0].path, service_rig_path(s, "a/b/c")));
    assert_int_equal(mode_of(s, "a/b"), 0755);
    call(s, ARGS("file-make-directory", "a/b/c", "0700"));
    assert_int_equal(answer.done.count, 0);
    assert_int_equal(mode_of(s, "a/b/c"), 0755);
    call(s, ARGS("file-make-directory", "w", "1777"));
    assert_int_equal(mode_of(s, "w"), 01777);
    service_rig_file(s, "f", "x");
    service_rig_fails(s, ARGS("file-make-directory", "f", ""), ENOTDIR);
    service_rig_fails(s, ARGS("file-make-directory", "f/x", ""), ENOTDIR);
    service_rig_fails(s, ARGS("file-make-directory", "x", "0888"), EINVAL);
    service_rig_fails(s, ARGS("file-make-directory", "x", "17777"), EINVAL);
    service_rig_fails(s, ARGS("file-make-directory", "", ""), ENOENT);
    call(s, ARGS("file-make-directory", "/", ""));
    assert_int_equal(answer.done.count, 0);
}

static void test_move(void **state)
{
    struct service_rig *s = *state;

    service_rig_file(s, "a", "A");
    service_rig_file(s, "b", "B");
    service_rig_fails(s, ARGS("file-move", "a", "b", ""), EEXIST);
    assert_true(service_rig_file_is(s, "b", span_of_str("B")));
    call(s, ARGS("file-move", "a", "b", "replace"));
    assert_true(span_equals_str(answer.entries[0].path, service_rig_path(s, "b")));
    assert_true(service_rig_file_is(s, "b", span_of_str("A")));
    service_rig_fails(s, ARGS("file-move", "a", "c", ""), ENOENT);
    service_rig_fails(s, ARGS("file-move", "b", "no/c", ""), ENOENT);
    service_rig_fails(s, ARGS("file-move", "b", "c", "perhaps"), EINVAL);
    assert_int_equal(mkdir(service_rig_path(s, "d"), 0755), 0);
    service_rig_fails(s, ARGS("file-move", "d", "d/e", ""), EINVAL);
    service_rig_fails(s, ARGS("file-move", "b", "d", "replace"), EISDIR);
}

static void test_the_error_names_its_path(void **state)
{
    struct service_rig *s = *state;

    service_rig_call(s, ARGS("file-stat", "no/such\n\xff"), NO_INPUT, &answer);
    assert_true(answer.has_error);
    assert_true(span_equals_str(answer.error.path, "no/such\n\xff"));
}

static void test_a_service_needs_an_identity_and_a_name(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    channel = service_rig_begin(s, ARGS("file-no-such", "/"), false);
    rig_until(&s->rig, &s->rig.channels[channel].failed);
    assert_int_equal(s->rig.channels[channel].failure.errnum, ENOSYS);
    assert_int_equal(rig_request(&s->rig, AGENT_SILENCE, 0), 0);
    rig_hello(&s->rig, false);
    channel = service_rig_begin(s, ARGS("file-stat", "/"), false);
    rig_until(&s->rig, &s->rig.channels[channel].failed);
    assert_int_equal(s->rig.channels[channel].failure.errnum, EAGAIN);
    rig_identity(&s->rig, 2);
    call(s, ARGS("file-stat", "/"));
}

static void test_directory_that_is_missing_is_an_error(void **state)
{
    struct service_rig *s = *state;

    assert_int_equal(rmdir(s->directory), 0);
    service_rig_fails(s, ARGS("file-stat", "x"), ENOENT);
    assert_int_equal(mkdir(s->directory, 0755), 0);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_stat),
        SERVICE_TEST(test_stat_names_are_absolute_and_clean),
        SERVICE_TEST(test_stat_errors),
        SERVICE_TEST(test_make_directory),
        SERVICE_TEST(test_move),
        SERVICE_TEST(test_the_error_names_its_path),
        SERVICE_TEST(test_a_service_needs_an_identity_and_a_name),
        SERVICE_TEST(test_directory_that_is_missing_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
