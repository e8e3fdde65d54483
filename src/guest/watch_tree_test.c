#include "guest/watch_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct watch_tree tree;

static void expect_path(const struct watch_node *node, const char *path)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    watch_tree_put_path(&b, node);
    assert_string_equal(buf_str(&b), path);
}

static void count_gone(void *arg, int wd)
{
    int *sum = arg;

    *sum += wd;
}

static void test_nodes_are_found_and_move(void **state)
{
    struct watch_node *top;
    struct watch_node *a;
    struct watch_node *b;
    struct watch_node *c;
    int sum = 0;

    (void)state;
    watch_tree_init(&tree);
    top = watch_tree_add(&tree, NULL, "", 1);
    a = watch_tree_add(&tree, top, "a", 2);
    b = watch_tree_add(&tree, a, "b", 4);
    c = watch_tree_add(&tree, b, "c", 8);
    assert_non_null(c);
    expect_path(top, "");
    expect_path(a, "a");
    expect_path(c, "a/b/c");
    assert_ptr_equal(watch_tree_find(&tree, 4), b);
    assert_ptr_equal(watch_tree_find_child(&tree, a, "b"), b);
    assert_null(watch_tree_find_child(&tree, top, "b"));
    assert_null(watch_tree_find(&tree, 4 + (int)WATCH_HASH));
    assert_null(watch_tree_move(&tree, a, c, "below itself"));
    b = watch_tree_move(&tree, b, top, "moved");
    assert_non_null(b);
    expect_path(c, "moved/c");
    assert_null(watch_tree_find_child(&tree, a, "b"));
    assert_ptr_equal(watch_tree_find_child(&tree, b, "c"), c);
    assert_ptr_equal(watch_tree_find_child(&tree, top, "moved"), b);
    watch_tree_remove(&tree, b, count_gone, &sum);
    assert_int_equal(sum, 12);
    assert_null(watch_tree_find(&tree, 8));
    assert_int_equal(tree.count, 2);
    watch_tree_remove(&tree, top, count_gone, &sum);
    assert_int_equal(sum, 15);
    assert_int_equal(tree.count, 0);
}

static void test_deep_trees_are_removed(void **state)
{
    struct watch_node *node = NULL;
    int sum = 0;

    (void)state;
    watch_tree_init(&tree);
    for (int i = 0; i < 100000; i++) {
        node = watch_tree_add(&tree, node, i == 0 ? "" : "d", 1);
        assert_non_null(node);
    }
    watch_tree_remove(&tree, watch_tree_find_child(&tree, NULL, ""), count_gone, &sum);
    assert_int_equal(sum, 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_are_found_and_move),
        cmocka_unit_test(test_deep_trees_are_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
