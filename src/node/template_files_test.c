/* Making, publishing and deleting versions on a volume of small files, and what a start finds. */
#include "node/template_files.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"

#define ONE   "tm0000000000000000aa"
#define TWO   "tm0000000000000000bb"
#define THREE "tm0000000000000000cc"
#define PATH  512

static int set_up(void **state)
{
    char *root = strdup("/tmp/template-files-test-XXXXXX");
    char path[PATH];

    if (root == NULL || mkdtemp(root) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/templates", root);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/bases", root);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/disk", root);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("disk"), 0600, false), 0);
    *state = root;
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(dir_remove_tree(AT_FDCWD, *state), 0);
    free(*state);
    return 0;
}

static bool is_there(const char *root, const char *path)
{
    char full[PATH];

    (void)snprintf(full, sizeof(full), "%s/%s", root, path);
    return access(full, F_OK) == 0;
}

static struct template_info info_of(const char *name, const char *version, const char *built_at)
{
    struct template_info info = {.vcpus = 1,
                                 .memory_mib = 512,
                                 .disk_mib = 4096,
                                 .user = "user",
                                 .checkpoint_id = "ck0000000000000000aa"};

    (void)snprintf(info.name, sizeof(info.name), "%s", name);
    (void)snprintf(info.version, sizeof(info.version), "%s", version);
    (void)snprintf(info.built_at, sizeof(info.built_at), "2026-01-01T00:00:%s.000Z", built_at);
    return info;
}

static int
build(const char *root, const struct template_info *info, unsigned int max, struct error *err)
{
    char disk[PATH];
    json_t *env = json_pack("{s:s}", "KEPT", "yes");
    const struct template_build b = {
        .volume = root, .disk = disk, .env = env, .versions_max = max, .maker_max = 2};
    int r;

    (void)snprintf(disk, sizeof(disk), "%s/disk", root);
    r = template_files_build(&b, info, err);
    json_decref(env);
    return r;
}

static void make(const char *root, const char *name, const char *version, const char *built_at)
{
    struct template_info info = info_of(name, version, built_at);
    struct error err;

    assert_int_equal(build(root, &info, 10, &err), 0);
    assert_int_equal(template_files_publish(root, &info, &err), 0);
}

static void assert_current(const char *root, const char *name, const char *version)
{
    struct template_info info;
    struct error err;

    if (version == NULL) {
        assert_true(template_load(root, name, NULL, &info, &err) < 0);
        assert_int_equal(err.code, ERROR_NOT_FOUND);
        return;
    }
    assert_int_equal(template_load(root, name, NULL, &info, &err), 0);
    assert_string_equal(info.version, version);
}

/* What set-up has built has no checkpoint. */
static void ship(const char *root, const char *name, const char *version)
{
    char path[PATH];
    char record[512];
    int n;

    (void)snprintf(path, sizeof(path), "%s/templates/%s/%s", root, name, version);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/templates/%s/%s/template.json", root, name, version);
    n = snprintf(
        record, sizeof(record),
        "{\"name\":\"%s\",\"version\":\"%s\",\"vcpus\":1,\"memory_mib\":512,\"disk_mib\":1,"
        "\"user\":\"user\",\"built_at\":\"2026-01-01T00:00:00.000Z\"}",
        name, version);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_make(record, (size_t)n), 0444, false),
                     0);
    (void)snprintf(path, sizeof(path), "%s/templates/%s/current", root, name);
    assert_int_equal(symlink(version, path), 0);
}

static void test_made_listed_and_deleted(void **state)
{
    const char *root = *state;
    struct template_info info;
    struct error err;
    json_t *list;
    json_t *env;

    make(root, "tools", ONE, "01");
    make(root, "tools", TWO, "03");
    make(root, "tools", THREE, "02"); /* begun earlier, done later */
    assert_current(root, "tools", TWO);
    list = template_list(root);
    assert_int_equal(json_array_size(list), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "version")),
                        THREE);
    json_decref(list);
    assert_int_equal(template_load(root, "tools", ONE, &info, &err), 0);
    env = template_load_env(root, &info);
    assert_string_equal(json_string_value(json_object_get(env, "KEPT")), "yes");
    json_decref(env);
    assert_int_equal(template_files_withdraw(root, "tools", TWO, &err), 0);
    assert_current(root, "tools", THREE);
    assert_true(is_there(root, "templates/tools/" TWO "/disk.img"));
    assert_true(template_files_withdraw(root, "tools", TWO, &err) < 0);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
    assert_int_equal(template_files_withdraw(root, "tools", "", &err), 0);
    assert_current(root, "tools", NULL);
    assert_false(is_there(root, "templates/tools/current"));
    make(root, "tools", "tm0000000000000000dd", "04"); /* beside those that are deleted */
    assert_current(root, "tools", "tm0000000000000000dd");
}

static void test_what_is_refused(void **state)
{
    const char *root = *state;
    struct template_info info = info_of("base", TWO, "02");
    struct error err;

    ship(root, "base", ONE);
    assert_true(build(root, &info, 10, &err) < 0);
    assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
    assert_false(template_files_exist(root, TWO));
    assert_true(template_files_withdraw(root, "base", "", &err) < 0);
    assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
    assert_current(root, "base", ONE);
    make(root, "tools", TWO, "01");
    info = info_of("other", THREE, "02");
    assert_true(build(root, &info, 1, &err) < 0);
    assert_int_equal(err.code, ERROR_LIMIT_EXCEEDED);
    assert_int_equal(build(root, &info, 2, &err), 0);
}

/* Published or in the making; those of others, and of nobody, count only for all. */
static void test_a_key_has_a_part_of_them(void **state)
{
    static const char *const keys[] = {"ky0000000000000000aa", "ky0000000000000000bb", ""};
    const char *root = *state;
    struct template_info info;
    struct error err;
    char version[ID_SIZE];

    for (unsigned int i = 0; i < 3; i++) {
        for (unsigned int n = 0; n < 3; n++) {
            (void)snprintf(version, sizeof(version), "tm0000000000000000%c%c", (char)('a' + i),
                           (char)('a' + n));
            info = info_of(n == 0 ? "one" : "two", version, "01");
            (void)snprintf(info.made_by, sizeof(info.made_by), "%s", keys[i]);
            if (n == 2 && i < 2) { /* two are there: maker_max */
                assert_true(build(root, &info, 10, &err) < 0);
                assert_int_equal(err.code, ERROR_LIMIT_EXCEEDED);
                assert_string_equal(err.field, "templates");
                continue;
            }
            assert_int_equal(build(root, &info, 10, &err), 0);
            assert_int_equal(build(root, &info, 10, &err), 0); /* once more */
            if (n == 0) {
                assert_int_equal(template_files_publish(root, &info, &err), 0);
                assert_int_equal(template_load(root, "one", version, &info, &err), 0);
                assert_string_equal(info.made_by, keys[i]);
            }
        }
    }
    assert_int_equal(template_files_withdraw(root, "one", "tm0000000000000000aa", &err), 0);
    info = info_of("two", "tm0000000000000000ac", "01");
    (void)snprintf(info.made_by, sizeof(info.made_by), "%s", keys[0]);
    assert_int_equal(build(root, &info, 10, &err), 0);
}

/* Whatever a kill leaves is nothing, or whole. */
static void test_a_start_finds_what_was_interrupted(void **state)
{
    const char *root = *state;
    struct template_info info = info_of("half", ONE, "01");
    struct error err;
    char path[PATH];
    char other[PATH];

    assert_int_equal(build(root, &info, 10, &err), 0);
    (void)snprintf(path, sizeof(path), "%s/bases/" ONE "-1-512", root);
    assert_int_equal(mkdir(path, 0755), 0);
    make(root, "tools", TWO, "02");
    make(root, "tools", THREE, "03");
    (void)snprintf(path, sizeof(path), "%s/templates/tools/" THREE "/" TEMPLATE_RECORD, root);
    (void)snprintf(other, sizeof(other), "%s/templates/tools/" THREE "/" TEMPLATE_REMOVED, root);
    assert_int_equal(rename(path, other), 0); /* killed before `current` was set right */
    assert_current(root, "tools", NULL);
    template_files_sweep(root);
    assert_false(is_there(root, "templates/half"));
    assert_false(is_there(root, "bases/" ONE "-1-512"));
    assert_current(root, "tools", TWO);
    assert_true(template_files_exist(root, THREE));
    /* Published, and killed before `current` pointed at it: the order is repeated. */
    info = info_of("tools", "tm0000000000000000dd", "04");
    assert_int_equal(build(root, &info, 10, &err), 0);
    (void)snprintf(path, sizeof(path), "%s/templates/tools/%s/" TEMPLATE_NEXT, root, info.version);
    (void)snprintf(other, sizeof(other), "%s/templates/tools/%s/" TEMPLATE_RECORD, root,
                   info.version);
    assert_int_equal(rename(path, other), 0);
    template_files_sweep(root);
    assert_int_equal(template_files_publish(root, &info, &err), 0);
    assert_current(root, "tools", info.version);
}

/* One with memory is of use as long as that is there. */
static void test_what_lost_its_memory_is_deleted(void **state)
{
    const char *root = *state;
    struct template_info info = info_of("tools", TWO, "02");
    const struct template_build b = {.volume = root, .env = json_object(), .versions_max = 10};
    struct error err;
    char path[PATH];

    make(root, "tools", ONE, "01");
    info.memory = true;
    assert_int_equal(template_files_build(&b, &info, &err), 0);
    json_decref(b.env);
    (void)snprintf(path, sizeof(path), "%s/checkpoints/" TWO, root);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    assert_int_equal(template_files_publish(root, &info, &err), 0);
    template_files_sweep(root);
    assert_current(root, "tools", TWO);
    assert_int_equal(rmdir(path), 0);
    template_files_sweep(root);
    assert_current(root, "tools", ONE);
    assert_true(is_there(root, "templates/tools/" TWO "/" TEMPLATE_REMOVED));
}

static void test_what_somebody_may_use_is_not_discarded(void **state)
{
    const char *root = *state;
    struct error err;
    char path[PATH];

    make(root, "tools", ONE, "01");
    make(root, "tools", TWO, "02");
    assert_int_equal(template_files_discard(root, "tools", TWO), -EEXIST);
    assert_current(root, "tools", TWO);
    assert_int_equal(template_files_withdraw(root, "tools", TWO, &err), 0);
    assert_int_equal(template_files_discard(root, "tools", TWO), -EEXIST);
    assert_true(is_there(root, "templates/tools/" TWO "/disk.img"));
    /* Nothing can be read: nobody may take that for "it is gone". */
    (void)snprintf(path, sizeof(path), "%s/no", root);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_false(template_files_exist(path, ONE));
    (void)snprintf(path, sizeof(path), "%s/no/templates", root);
    assert_int_equal(symlink("templates", path), 0); /* ELOOP, as root too */
    (void)snprintf(path, sizeof(path), "%s/no", root);
    assert_true(template_files_exist(path, ONE));
}

/* Set-up begins, and ends, while one of that name is in the making. */
static void test_set_up_comes_first(void **state)
{
    const char *root = *state;
    struct template_info info = info_of("base", TWO, "02");
    struct error err;
    char path[PATH];
    int lock;

    assert_int_equal(build(root, &info, 10, &err), 0);
    (void)snprintf(path, sizeof(path), "%s/templates/base/.lock", root);
    lock = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(lock >= 0);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_true(template_files_publish(root, &info, &err) < 0);
    assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
    assert_current(root, "base", NULL);
    assert_int_equal(close(lock), 0);
    assert_int_equal(template_files_publish(root, &info, &err), 0); /* that came to nothing */
    assert_current(root, "base", TWO);
    info = info_of("base", THREE, "03");
    assert_int_equal(build(root, &info, 10, &err), 0);
    (void)snprintf(path, sizeof(path), "%s/templates/base/current", root);
    assert_int_equal(unlink(path), 0);
    ship(root, "base", ONE);
    assert_true(template_files_publish(root, &info, &err) < 0);
    assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
    assert_current(root, "base", ONE);
    assert_false(is_there(root, "templates/base/" THREE "/" TEMPLATE_RECORD));
    info = info_of("base", TWO, "02");
    assert_int_equal(template_files_publish(root, &info, &err), 0); /* once more */
    assert_current(root, "base", ONE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(TWO, path), 0);
    template_files_sweep(root);
    assert_current(root, "base", ONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_made_listed_and_deleted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_key_has_a_part_of_them, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_start_finds_what_was_interrupted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_set_up_comes_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_lost_its_memory_is_deleted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_somebody_may_use_is_not_discarded, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
