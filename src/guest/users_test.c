#include "guest/users.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "guest/environment.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
                             "broken line\n"
                             "half:x:12\n"
                             "minus:x:-1:5::/:/bin/sh\n"
                             "huge:x:99999999999:5::/:/bin/sh\n"
                             "user:x:1000:1001:,,,:/home/user:\n"
                             "last:x:7:7::/:/bin/false";
static const char group[] = "root:x:0:\n"
                            "user:x:1001:user\n"
                            "sudo:x:27:other,user\n"
                            "near:x:28:users,us\n"
                            "bad:x:nine:user\n"
                            "end:x:29:user";

static int find(const char *name, struct user *user)
{
    return user_parse(span_of_str(passwd), span_of_str(group), span_of_str(name), user);
}

static void test_names_and_numbers(void **state)
{
    struct user user;

    (void)state;
    assert_int_equal(find("user", &user), 0);
    assert_int_equal(user.uid, 1000);
    assert_int_equal(user.gid, 1001);
    assert_string_equal(user.home, "/home/user");
    assert_string_equal(user.shell, "/bin/sh");
    assert_int_equal(user.n_groups, 3);
    assert_int_equal(user.groups[0], 1001);
    assert_int_equal(user.groups[1], 27);
    assert_int_equal(user.groups[2], 29);
    assert_int_equal(find("1000", &user), 0);
    assert_string_equal(user.name, "user");
    assert_int_equal(find("last", &user), 0);
    assert_int_equal(user.n_groups, 1);
}

static void test_what_is_no_account(void **state)
{
    static const char *const names[] = {"nobody",      "12", "half",   "minus", "huge",
                                        "broken line", ":",  "user:x", "999"};
    struct user user;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(find(names[i], &user), -ENOENT);
    }
}

static void test_too_long_fields_are_refused(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct user user;

    (void)state;
    buf_put_str(&text, "long:x:1:1::/");
    for (int i = 0; i < 300; i++) {
        buf_put_str(&text, "a");
    }
    buf_put_str(&text, ":/bin/sh\n");
    assert_int_equal(user_parse(buf_span(&text), span_make(NULL, 0), span_of_str("long"), &user),
                     -EBADMSG);
}

static void test_later_settings_win(void **state)
{
    _cleanup_buf_ struct buf argv = buf_make(0);
    _cleanup_buf_ struct buf identity = buf_make(0);
    _cleanup_buf_ struct buf own = buf_make(0);
    struct agent_start start = {.flags = 0};
    struct agent_strings identity_env;
    struct environment e;
    struct user user;

    (void)state;
    assert_int_equal(find("user", &user), 0);
    buf_put_block(&argv, span_of_str("program"));
    buf_put_block(&argv, span_of_str(""));
    start.argv = (struct agent_strings){2, buf_span(&argv)};
    buf_put_block(&identity, span_of_str("A=identity"));
    buf_put_block(&identity, span_of_str("B=identity"));
    identity_env = (struct agent_strings){2, buf_span(&identity)};
    buf_put_block(&own, span_of_str("B=own"));
    buf_put_block(&own, span_of_str("PATH=/own"));
    buf_put_block(&own, span_of_str("HOMELY=x"));
    start.env = (struct agent_strings){3, buf_span(&own)};
    assert_int_equal(environment_build(&e, &start, &user, &identity_env), 0);
    assert_string_equal(e.argv[0], "program");
    assert_string_equal(e.argv[1], "");
    assert_null(e.argv[2]);
    assert_string_equal(e.path_list, "/own");
    assert_string_equal(e.envp[0], "PATH=/own");
    assert_string_equal(e.envp[1], "LANG=C.UTF-8");
    assert_string_equal(e.envp[2], "HOME=/home/user");
    assert_string_equal(e.envp[6], "A=identity");
    assert_string_equal(e.envp[7], "B=own");
    assert_string_equal(e.envp[8], "HOMELY=x");
    assert_null(e.envp[9]);
    environment_done(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_numbers),
        cmocka_unit_test(test_what_is_no_account),
        cmocka_unit_test(test_too_long_fields_are_refused),
        cmocka_unit_test(test_later_settings_win),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
