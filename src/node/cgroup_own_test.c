/* Against directories that look like the kernel's. */
#include "node/cgroup_own.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fd.h"

#define V1_NONE "9223372036854771712\n"
#define V1_SELF "9:name=systemd:/x\n4:hugetlb,memory:/box/node\n1:cpu:/other\n0::/\n"
#define V2_SELF "0::/system.slice/space-node.service\n"

static int set_up(void **state)
{
    char *root = strdup("/tmp/cgroup-own-XXXXXX");

    *state = root;
    return root == NULL || mkdtemp(root) == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    assert_int_equal(dir_remove_tree(AT_FDCWD, *state), 0);
    free(*state);
    return 0;
}

static void put(const char *root, const char *dir, const char *name, const char *text)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", root, dir);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/%s/%s", root, dir, name);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(text), 0644, false), 0);
}

static void put_v2(const char *root, const char *dir, const char *limit, const char *usage)
{
    put(root, dir, "memory.max", limit);
    put(root, dir, "memory.current", usage);
}

static void put_v1(const char *root, const char *dir, const char *limit, const char *usage)
{
    put(root, dir, "memory.limit_in_bytes", limit);
    put(root, dir, "memory.usage_in_bytes", usage);
}

static uint64_t room(const char *root, const char *self)
{
    return cgroup_own_room(root, span_of_str(self));
}

static void test_v2(void **state)
{
    const char *root = *state;

    assert_true(room(root, V2_SELF) == UINT64_MAX); /* nothing can be read */
    put_v2(root, "system.slice/space-node.service", "max\n", "300\n");
    assert_true(room(root, V2_SELF) == UINT64_MAX);
    put_v2(root, "system.slice/space-node.service", "1000\n", "300\n");
    assert_int_equal(room(root, V2_SELF), 700);
    put(root, "system.slice/space-node.service", "memory.stat",
        "anon 50\nfile 210\ninactive_file 100\nactive_file 100\nactive_file_other 9\n");
    assert_int_equal(room(root, V2_SELF), 900);
    put_v2(root, "system.slice/space-node.service", "1000\n", "1300\n");
    assert_int_equal(room(root, V2_SELF), 0);
}

static void test_v2_parents_and_top(void **state)
{
    const char *root = *state;

    put_v2(root, "system.slice/space-node.service", "1000\n", "300\n");
    put_v2(root, "system.slice", "5000\n", "4600\n");
    assert_int_equal(room(root, V2_SELF), 400);
    put_v2(root, ".", "9000\n", "8800\n"); /* of a container, seen from inside */
    assert_int_equal(room(root, V2_SELF), 200);
    assert_int_equal(room(root, "0::/\n"), 200);
    put_v2(root, "system.slice", "max\n", "4600\n");
    put_v2(root, ".", "max\n", "8800\n");
    assert_int_equal(room(root, V2_SELF), 700);
}

static void test_v1(void **state)
{
    const char *root = *state;

    put_v1(root, "memory/box/node", V1_NONE, "300\n");
    assert_true(room(root, V1_SELF) == UINT64_MAX);
    put_v1(root, "memory/box", "2000\n", "1900\n");
    assert_int_equal(room(root, V1_SELF), 100);
    put(root, "memory/box", "memory.stat",
        "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 300\n");
    assert_int_equal(room(root, V1_SELF), 600);
    put_v1(root, "memory", "350\n", "300\n");
    assert_int_equal(room(root, V1_SELF), 50);
    put_v1(root, "cpu/other", "10\n", "9\n"); /* no hierarchy of memory's */
    assert_int_equal(room(root, V1_SELF), 50);
}

/* The path is the host's, and only the top is there. */
static void test_foreign_path(void **state)
{
    const char *root = *state;

    put_v1(root, "memory", "1000\n", "100\n");
    assert_int_equal(room(root, "4:memory:/docker/0123/deep\n"), 900);
}

static void test_odd_text(void **state)
{
    const char *root = *state;

    put_v2(root, ".", "1000\n", "1\n");
    assert_true(room(root, "") == UINT64_MAX);
    assert_true(room(root, "nothing\n0:\n0::\n::relative\n") == UINT64_MAX);
    put_v2(root, "odd", "12x\n", "1\n");
    assert_int_equal(room(root, "0::/odd"), 999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_v2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_v2_parents_and_top, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_v1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_foreign_path, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_odd_text, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
