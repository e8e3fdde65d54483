#include "cli/config.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"

struct fixture {
    char dir[64];
    char user_file[96];
    char key_file[96];
    struct settings settings;
};

static void write_file(const char *path, const char *text, mode_t mode)
{
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(text), mode, false), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/config-test-XXXXXX");
    if (mkdtemp(f->dir) == NULL) {
        return -1;
    }
    (void)snprintf(f->user_file, sizeof(f->user_file), "%s/config", f->dir);
    (void)snprintf(f->key_file, sizeof(f->key_file), "%s/admin.key", f->dir);
    settings_init(&f->settings);
    (void)snprintf(f->settings.admin_key_file, sizeof(f->settings.admin_key_file), "%s",
                   f->key_file);
    write_file(f->key_file, "space_admin\n", 0600);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    int r = dir_remove_tree(AT_FDCWD, f->dir);

    free(f);
    return r;
}

static void test_installation(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file, .settings = &f->settings};
    struct config c;
    struct error err = {0};

    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.url, "http://127.0.0.1:8700");
    assert_string_equal(c.key, "space_admin");
}

static void test_each_source_beats_the_next(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file, .settings = &f->settings};
    struct config c;
    struct error err = {0};

    write_file(f->user_file, "# mine\nurl = http://user:1/\nkey = space_user\n", 0600);
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.url, "http://user:1");
    assert_string_equal(c.key, "space_user");
    in.env_url = "http://env:2/";
    in.env_key = "space_env";
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.url, "http://env:2");
    assert_string_equal(c.key, "space_env");
    in.url = "https://option:3";
    in.key_file = f->key_file;
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.url, "https://option:3");
    assert_string_equal(c.key, "space_admin");
}

static void test_a_key_goes_only_to_its_own_address(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file, .settings = &f->settings};
    struct config c;
    struct error err = {0};

    in.url = "http://elsewhere:1";
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "");
    write_file(f->user_file, "url = http://elsewhere:1.example/\nkey = space_user\n", 0600);
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "");
    in.url = "http://elsewhere:1.example";
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "space_user");
}

static void test_a_key_that_is_not_sent_is_said(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file, .url = "https://elsewhere:1"};
    struct config c;
    struct error err = {0};

    write_file(f->user_file, "key_file = admin.key\n", 0600);
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "");
    assert_non_null(strstr(c.key_problem, f->user_file));
    assert_non_null(strstr(c.key_problem, "url = https://elsewhere:1"));
    in.url = NULL;
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "space_admin");
    assert_string_equal(c.key_problem, "");
}

static void test_paths_of_the_users_file(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file, .home = f->dir};
    struct config c;
    struct error err = {0};

    write_file(f->user_file, "key_file = admin.key\nca_file = ~/ca.pem\n", 0600);
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "space_admin");
    assert_string_equal(&c.ca_file[strlen(f->dir)], "/ca.pem");
    write_file(f->user_file, "key_file = ~/admin.key\n", 0600);
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    assert_string_equal(c.key, "space_admin");
    in.key_file = "~/admin.key";
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    in.key_file = NULL;
    in.home = NULL;
    assert_true(config_resolve(&in, &c, &err) < 0);
    assert_non_null(strstr(err.message, "HOME"));
}

static void test_open_files_are_refused(void **state)
{
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file};
    struct config c;
    struct error err = {0};

    write_file(f->user_file, "key = space_user\n", 0644);
    assert_true(config_resolve(&in, &c, &err) < 0);
    assert_non_null(strstr(err.message, "chmod 600"));
    write_file(f->user_file, "url = http://a\n", 0644); /* no secret in it */
    assert_int_equal(config_resolve(&in, &c, &err), 0);
    write_file(f->key_file, "space_x\n", 0640);
    in.key_file = f->key_file;
    assert_true(config_resolve(&in, &c, &err) < 0);
    assert_non_null(strstr(err.message, "chmod 600"));
}

static void test_malformed_files(void **state)
{
    static const char *const texts[] = {"nonsense\n", "port = 1\n", "key = two words\n",
                                        "url = ftp://a\n"};
    struct fixture *f = *state;
    struct config_input in = {.user_file = f->user_file};
    struct config c;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct error err = {0};

        write_file(f->user_file, texts[i], 0600);
        assert_true(config_resolve(&in, &c, &err) < 0);
        assert_true(err.message[0] != '\0');
    }
    write_file(f->user_file, "", 0600);
    write_file(f->key_file, "\n# only a comment\n", 0600);
    in.key_file = f->key_file;
    assert_true(config_resolve(&in, &c, NULL) < 0);
}

static void test_installation_addresses(void **state)
{
    static const struct {
        const char *listen;
        const char *certificate;
        const char *url;
        bool is_unprotected;
    } cases[] = {
        {"0.0.0.0:80", "", "http://127.0.0.1:80", true},
        {":80", "", "http://127.0.0.1:80", true},
        {"[::]:8700", "", "http://[::1]:8700", true},
        {"10.0.0.1:443", "/c.pem", "https://10.0.0.1:443", false},
        {"0.0.0.0:443", "/c.pem", "https://127.0.0.1:443", false},
        {"[::1]:1", "", "http://[::1]:1", false},
        {"127.0.0.2:1", "", "http://127.0.0.2:1", false},
        {"localhost:1", "", "http://localhost:1", false},
    };
    struct fixture *f = *state;
    char url[CONFIG_URL_SIZE];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(f->settings.api_listen, sizeof(f->settings.api_listen), "%s",
                       cases[i].listen);
        (void)snprintf(f->settings.api_tls_certificate, sizeof(f->settings.api_tls_certificate),
                       "%s", cases[i].certificate);
        assert_int_equal(config_installation_url(&f->settings, url, NULL), 0);
        assert_string_equal(url, cases[i].url);
        assert_int_equal(config_is_unprotected(&f->settings), cases[i].is_unprotected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_installation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_each_source_beats_the_next, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_key_goes_only_to_its_own_address, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_key_that_is_not_sent_is_said, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_paths_of_the_users_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_files_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_malformed_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_installation_addresses, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
