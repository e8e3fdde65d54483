#include "guest/link_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_first_name_stays(void **state)
{
    struct link_table t;

    (void)state;
    link_table_init(&t);
    assert_null(link_table_find(&t, 1, 2, "first"));
    assert_string_equal(link_table_find(&t, 1, 2, "second"), "first");
    assert_null(link_table_find(&t, 2, 2, "other device"));
    assert_null(link_table_find(&t, 1, 3, "other number"));
    assert_string_equal(link_table_find(&t, 1, 2, "third"), "first");
    link_table_done(&t);
}

static void test_many_and_too_many(void **state)
{
    struct link_table t;
    char name[16];

    (void)state;
    link_table_init(&t);
    for (ino_t i = 0; i < LINK_TABLE_MAX + 10; i++) {
        (void)snprintf(name, sizeof(name), "%u", (unsigned int)i);
        assert_null(link_table_find(&t, 7, i, name));
    }
    for (ino_t i = 0; i < LINK_TABLE_MAX; i++) {
        (void)snprintf(name, sizeof(name), "%u", (unsigned int)i);
        assert_string_equal(link_table_find(&t, 7, i, "again"), name);
    }
    assert_null(link_table_find(&t, 7, LINK_TABLE_MAX + 5, "new for ever"));
    link_table_done(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_name_stays),
        cmocka_unit_test(test_many_and_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
