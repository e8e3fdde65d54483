#include "guest/accounts.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define PASSWD                                                                                     \
    "root:x:0:0:root:/root:/bin/bash\n"                                                            \
    "::7:7::/:/bin/sh\n"                                                                           \
    "bad:x:-1:0::/:/bin/sh\n"                                                                      \
    "huge:x:4294967295:0::/:/bin/sh\n"                                                             \
    "short\n"                                                                                      \
    "\n"                                                                                           \
    "user:x:1000:1000::/home/user:/bin/bash\n"                                                     \
    "again:x:1000:1000::/home/user:/bin/bash\n"                                                    \
    "last:x:1001:1001"

static void test_names_of_numbers(void **state)
{
    struct span text = span_of_str(PASSWD);

    (void)state;
    assert_true(span_equals_str(account_find_name(text, 0), "root"));
    assert_true(span_equals_str(account_find_name(text, 1000), "user"));
    assert_true(span_equals_str(account_find_name(text, 1001), "last"));
    assert_int_equal(account_find_name(text, 7).n, 0);
    assert_int_equal(account_find_name(text, UINT32_MAX).n, 0);
    assert_int_equal(account_find_name(span_make(NULL, 0), 0).n, 0);
}

static void test_numbers_of_names(void **state)
{
    struct span text = span_of_str(PASSWD);
    uint32_t id = 5;

    (void)state;
    assert_int_equal(account_find_id(text, span_of_str("again"), &id), 0);
    assert_int_equal(id, 1000);
    assert_int_equal(account_find_id(text, span_of_str("bad"), &id), -ENOENT);
    assert_int_equal(account_find_id(text, span_of_str("short"), &id), -ENOENT);
    assert_int_equal(account_find_id(text, span_of_str(""), &id), -ENOENT);
}

static void test_of_this_machine(void **state)
{
    struct accounts a;
    uid_t uid = 1;
    gid_t gid = 1;

    (void)state;
    accounts_init(&a);
    assert_true(span_equals_str(accounts_user_name(&a, 0), "root"));
    assert_true(span_equals_str(accounts_group_name(&a, 0), "root"));
    assert_int_equal(accounts_user_id(&a, span_of_str("root"), &uid), 0);
    assert_int_equal(uid, 0);
    assert_int_equal(accounts_group_id(&a, span_of_str("123456789"), &gid), 0);
    assert_int_equal(gid, 123456789);
    assert_int_equal(accounts_group_id(&a, span_of_str("no such group"), &gid), -EINVAL);
    assert_int_equal(accounts_user_id(&a, span_of_str("4294967295"), &uid), -EINVAL);
    accounts_done(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_numbers),
        cmocka_unit_test(test_numbers_of_names),
        cmocka_unit_test(test_of_this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
