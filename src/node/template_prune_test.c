/* Which versions go, on a volume of empty files. */
#include "node/template_prune.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/template_files.h"

#define OLD     "tm0000000000000000aa"
#define USED    "tm0000000000000000bb"
#define CURRENT "tm0000000000000000cc"
#define NEWER   "tm0000000000000000dd"
#define NOW_MS  2000000000000
#define CUT     "tm0000000000000000ee"

static int set_up(void **state)
{
    char *root = strdup("/tmp/template-prune-test-XXXXXX");

    if (root == NULL || mkdtemp(root) == NULL) {
        return -1;
    }
    *state = root;
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(dir_remove_tree(AT_FDCWD, *state), 0);
    free(*state);
    return 0;
}

/* A file of that age in seconds; directories are made. */
static void put(const char *root, const char *path, time_t age)
{
    struct timespec times[2] = {{.tv_sec = 2000000000 - age}, {.tv_sec = 2000000000 - age}};
    const char *slash = strrchr(path, '/');
    char full[256];

    (void)snprintf(full, sizeof(full), "%s/%.*s", root, (int)(slash - path), path);
    assert_int_equal(dir_make_all(AT_FDCWD, full, 0755), 0);
    (void)snprintf(full, sizeof(full), "%s/%s", root, path);
    assert_int_equal(file_write_atomic(AT_FDCWD, full, span_of_str("{}"), 0444, false), 0);
    assert_int_equal(utimensat(AT_FDCWD, full, times, 0), 0);
}

static bool is_there(const char *root, const char *path)
{
    char full[256];

    (void)snprintf(full, sizeof(full), "%s/%s", root, path);
    return access(full, F_OK) == 0;
}

static void make_versions(const char *root)
{
    char link[256];

    put(root, "templates/base/" OLD "/template.json", 300);
    put(root, "templates/base/" OLD "/disk.img", 300);
    put(root, "templates/base/" USED "/template.json", 200);
    put(root, "templates/base/" CURRENT "/template.json", 100);
    put(root, "templates/base/" NEWER "/template.json", 50);
    put(root, "templates/base/" CUT "/disk.img", 50); /* killed in a removal */
    put(root, "templates/base/.new-" OLD "/template.json", 300);
    put(root, "bases/" OLD "-1-512/ram", 300);
    put(root, "bases/" USED "-1-512/ram", 300);
    put(root, "bases/" CURRENT "-1-512/ram", 300);
    (void)snprintf(link, sizeof(link), "%s/templates/base/current", root);
    assert_int_equal(symlink(CURRENT, link), 0);
}

static void test_old_and_unused_go(void **state)
{
    static const char keep[][ID_SIZE] = {USED};
    const char *root = *state;
    unsigned int waiting;

    make_versions(root);
    template_files_sweep(root);
    assert_int_equal(template_prune(root, keep, 1, NOW_MS, &waiting), 1);
    assert_false(is_there(root, "templates/base/" OLD));
    assert_false(is_there(root, "templates/base/" CUT));
    assert_false(is_there(root, "bases/" OLD "-1-512"));
    assert_true(is_there(root, "templates/base/" USED "/template.json"));
    assert_true(is_there(root, "bases/" USED "-1-512/ram"));
    assert_true(is_there(root, "templates/base/" CURRENT "/template.json"));
    assert_true(is_there(root, "bases/" CURRENT "-1-512/ram"));
    assert_true(is_there(root, "templates/base/" NEWER "/template.json"));
    assert_true(is_there(root, "templates/base/.new-" OLD "/template.json"));
    assert_int_equal(template_prune(root, keep, 1, NOW_MS, &waiting), 0);
    assert_int_equal(template_prune(root, NULL, 0, NOW_MS, &waiting), 1);
    assert_false(is_there(root, "templates/base/" USED));
}

static void test_nothing_goes_where_current_is_unclear(void **state)
{
    const char *root = *state;
    char link[256];
    unsigned int waiting;

    assert_int_equal(template_prune(root, NULL, 0, NOW_MS, &waiting), 0);
    put(root, "templates/none/" OLD "/template.json", 300);
    put(root, "templates/gone/" OLD "/template.json", 300);
    put(root, "templates/odd/" OLD "/template.json", 300);
    (void)snprintf(link, sizeof(link), "%s/templates/gone/current", root);
    assert_int_equal(symlink(CURRENT, link), 0);
    (void)snprintf(link, sizeof(link), "%s/templates/odd/current", root);
    assert_int_equal(symlink("../base", link), 0);
    assert_int_equal(template_prune(root, NULL, 0, NOW_MS, &waiting), 0);
    assert_true(is_there(root, "templates/none/" OLD));
    assert_true(is_there(root, "templates/gone/" OLD));
    assert_true(is_there(root, "templates/odd/" OLD));
}

/* A deleted one goes when it is not in use, and was not deleted while the round ran. */
static void test_deleted_ones(void **state)
{
    static const char keep[][ID_SIZE] = {USED};
    const char *root = *state;
    unsigned int waiting;

    put(root, "templates/tools/" OLD "/removed.json", 100);
    put(root, "templates/tools/" USED "/removed.json", 100);
    put(root, "templates/tools/" NEWER "/removed.json", -10);
    assert_int_equal(template_prune(root, keep, 1, NOW_MS, &waiting), 1);
    assert_int_equal(waiting, 2);
    assert_false(is_there(root, "templates/tools/" OLD));
    assert_true(is_there(root, "templates/tools/" USED));
    assert_true(is_there(root, "templates/tools/" NEWER));
    assert_int_equal(template_prune(root, NULL, 0, NOW_MS + 20000, &waiting), 2);
    assert_int_equal(waiting, 0);
    assert_false(is_there(root, "templates/tools"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_old_and_unused_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_deleted_ones, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_goes_where_current_is_unclear, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
