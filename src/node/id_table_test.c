#include "node/id_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT (2 * ID_TABLE_HEADS) /* so that some share a head */

struct record {
    struct id_entry entry;
    char id[24];
};

struct fixture {
    struct id_table table;
    struct record records[COUNT];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        return -1;
    }
    for (unsigned int i = 0; i < COUNT; i++) {
        (void)snprintf(f->records[i].id, sizeof(f->records[i].id), "ck%018u", i);
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    free(*state);
    return 0;
}

static void add_all(struct fixture *f)
{
    for (unsigned int i = 0; i < COUNT; i++) {
        id_table_add(&f->table, &f->records[i].entry, f->records[i].id);
    }
}

static void test_all_are_found(void **state)
{
    struct fixture *f = *state;

    assert_null(id_table_find(&f->table, f->records[0].id));
    add_all(f);
    for (unsigned int i = 0; i < COUNT; i++) {
        assert_ptr_equal(id_table_find(&f->table, f->records[i].id), &f->records[i].entry);
    }
    assert_null(id_table_find(&f->table, "ck"));
    assert_null(id_table_find(&f->table, ""));
}

static void test_what_is_removed_is_gone(void **state)
{
    struct fixture *f = *state;

    id_table_remove(&f->table, &f->records[0].entry); /* is not in it */
    add_all(f);
    for (unsigned int i = 0; i < COUNT; i += 2) {
        id_table_remove(&f->table, &f->records[i].entry);
        id_table_remove(&f->table, &f->records[i].entry);
    }
    for (unsigned int i = 0; i < COUNT; i++) {
        assert_ptr_equal(id_table_find(&f->table, f->records[i].id),
                         i % 2 == 0 ? NULL : &f->records[i].entry);
    }
    id_table_add(&f->table, &f->records[0].entry, f->records[0].id);
    assert_ptr_equal(id_table_find(&f->table, f->records[0].id), &f->records[0].entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_removed_is_gone, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
