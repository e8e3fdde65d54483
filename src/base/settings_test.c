#include "base/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"

static void test_defaults_stand_in_the_shipped_file(void **state)
{
    _cleanup_buf_ struct buf shipped = buf_make(0);
    _cleanup_buf_ struct buf made = buf_make(0);
    struct settings s;

    (void)state;
    settings_init(&s);
    settings_format(&s, &made);
    assert_int_equal(file_read(AT_FDCWD, SOURCE_ROOT "/deploy/space.conf", 1U << 20U, &shipped), 0);
    assert_string_equal(buf_str(&shipped), buf_str(&made));
}

static void test_format_round_trips(void **state)
{
    _cleanup_buf_ struct buf first = buf_make(0);
    _cleanup_buf_ struct buf second = buf_make(0);
    struct settings s;
    struct settings again;
    struct error err;

    (void)state;
    settings_init(&s);
    assert_int_equal(settings_set(&s, "installation", "abc12345", &err), 0);
    assert_int_equal(settings_set(&s, "api.listen", "[::1]:1", &err), 0);
    assert_int_equal(settings_set(&s, "node.max_processes", "7", &err), 0);
    settings_format(&s, &first);
    settings_init(&again);
    assert_int_equal(settings_parse(&again, buf_str(&first), "text", &err), 0);
    settings_format(&again, &second);
    assert_string_equal(buf_str(&first), buf_str(&second));
    assert_string_equal(again.installation, "abc12345");
    assert_int_equal(again.node_max_processes, 7);
}

struct bad_case {
    const char *text;
    const char *says;
};

static void test_bad_files_name_line_and_key(void **state)
{
    static const struct bad_case cases[] = {
        {"nonsense", "line 1"},
        {"# ok\n\nunknown = 1", "line 3: unknown key unknown"},
        {"log_level = info\nlog_level = debug", "line 2: log_level is set twice"},
        {"format = 2", "line 1: format must be 1 in this release, got 2"},
        {"log_level = loud", "log_level must be error|warning|info|debug"},
        {"log_level = inf", "log_level must be"},
        {"log_level =", "log_level must be"},
        {"installation = Space", "installation must be"},
        {"installation = abcdefghi", "installation must be"},
        {"installation =", "installation must be"},
        {"data_dir = var", "data_dir must be an absolute path"},
        {"node.max_processes = 0", "node.max_processes must be a number from 1 to 100000, got 0"},
        {"node.max_processes = 100001", "node.max_processes"},
        {"node.max_processes = 5k", "node.max_processes"},
        {"node.max_processes = -1", "node.max_processes"},
        {"api.tls_key = /k", "api.tls_certificate and api.tls_key go together"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s;
        struct error err;

        settings_init(&s);
        if (settings_parse(&s, cases[i].text, "file", &err) != -EINVAL ||
            strstr(err.message, cases[i].says) == NULL || strncmp(err.message, "file", 4) != 0) {
            fail_msg("%s: %s", cases[i].text, err.message);
        }
    }
}

static void test_blanks_and_comments(void **state)
{
    struct settings s;
    struct error err;

    (void)state;
    settings_init(&s);
    assert_int_equal(settings_parse(&s,
                                    "\r\n  # comment\n\tlog_level\t=  debug  \r\n"
                                    "api.tls_key=/k = y\napi.tls_certificate=/c",
                                    "file", &err),
                     0);
    assert_string_equal(s.log_level, "debug");
    assert_string_equal(s.api_tls_key, "/k = y");
}

static void test_long_values(void **state)
{
    struct settings s;
    struct error err;
    char value[SETTINGS_PATH_SIZE + 1];

    (void)state;
    settings_init(&s);
    memset(value, 'a', sizeof(value));
    value[0] = '/';
    value[SETTINGS_PATH_SIZE] = '\0';
    assert_int_equal(settings_set(&s, "data_dir", value, &err), -EINVAL);
    value[SETTINGS_PATH_SIZE - 1] = '\0';
    assert_int_equal(settings_set(&s, "data_dir", value, &err), 0);
    assert_string_equal(s.data_dir, value);
    assert_int_equal(settings_set(&s, "nothing", "1", &err), -ENOENT);
}

static void test_load(void **state)
{
    char path[] = "/tmp/settings-test-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    struct settings s;
    struct error err;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, span_of_str("installation = x\n")), 0);
    assert_int_equal(settings_load(&s, path, &err), 0);
    assert_string_equal(s.installation, "x");
    assert_string_equal(s.api_listen, "127.0.0.1:8700");
    assert_int_equal(fd_write_all(fd, span_make("log_level = info\0", 17)), 0);
    assert_int_equal(settings_load(&s, path, &err), -EINVAL);
    assert_non_null(strstr(err.message, "NUL"));
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(settings_load(&s, path, &err), -ENOENT);
    assert_non_null(strstr(err.message, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_stand_in_the_shipped_file),
        cmocka_unit_test(test_format_round_trips),
        cmocka_unit_test(test_bad_files_name_line_and_key),
        cmocka_unit_test(test_blanks_and_comments),
        cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
