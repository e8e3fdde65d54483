#include "cli/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/verbs.h"

static const struct option_spec exec_options[] = {
    {"env", 'e', "NAME=VALUE", "variable"},
    {"detach", 'd', NULL, "detach"},
    {"json", 'j', NULL, "json"},
    {NULL, 0, NULL, NULL},
};
static const struct option_spec none[] = {{NULL, 0, NULL, NULL}};
static const struct option_spec globals[] = {
    {"config", 0, "FILE", "settings"},
    {"help", 'h', NULL, "help"},
    {NULL, 0, NULL, NULL},
};
static const struct verb verbs[] = {
    {"exec", VERB_GROUP_PROCESS, "SANDBOX -- COMMAND…", "", "", "", exec_options, 1, 1,
     VERB_COMMAND_REST, VERB_WORDS_OTHER, NULL},
    {"run", VERB_GROUP_SANDBOX, "[TEMPLATE] -- COMMAND…", "", "", "", exec_options, 0, 1,
     VERB_COMMAND_DASHES, VERB_WORDS_OTHER, NULL},
    {"show", VERB_GROUP_SANDBOX, "SANDBOX", "", "", "", none, 1, 1, VERB_COMMAND_NONE,
     VERB_WORDS_OTHER, NULL},
    {NULL, VERB_GROUP_COUNT, NULL, NULL, NULL, NULL, NULL, 0, 0, VERB_COMMAND_NONE,
     VERB_WORDS_OTHER, NULL},
};

#define MAX_WORDS 16

/* Splits a line at blanks and parses it; `line` must outlive `args`. */
static int parse(char *line, struct args *args, char **argv, struct error *err)
{
    int argc = 0;

    argv[argc++] = line;
    for (char *c = line; *c != '\0' && argc < MAX_WORDS; c++) {
        if (*c == ' ') {
            *c = '\0';
            argv[argc++] = c + 1;
        }
    }
    return args_parse(args, argc, argv, verbs, globals, err);
}

static void test_options_anywhere(void **state)
{
    char line[] = "space --config f exec -dj --env=A=1 -eB=2 box -e C=3 -- ls -e x";
    char *argv[MAX_WORDS + 1] = {NULL};
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(parse(line, &args, argv, &err), 0);
    assert_string_equal(args.verb->name, "exec");
    assert_string_equal(args_get(&args, "config"), "f");
    assert_true(args_has(&args, "detach") && args_has(&args, "json") && !args_has(&args, "help"));
    assert_string_equal(args_get_nth(&args, "env", 0), "A=1");
    assert_string_equal(args_get_nth(&args, "env", 1), "B=2");
    assert_string_equal(args_get(&args, "env"), "C=3");
    assert_null(args_get_nth(&args, "env", 3));
    assert_string_equal(args_word(&args, 0), "box");
    assert_null(args_word(&args, 1));
    assert_int_equal(args.command_count, 3);
    assert_string_equal(args.command[1], "-e");
}

static void test_a_command_without_dashes(void **state)
{
    char line[] = "space exec box ls -la";
    char *argv[MAX_WORDS + 1] = {NULL};
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(parse(line, &args, argv, &err), 0);
    assert_int_equal(args.command_count, 2);
    assert_string_equal(args.command[0], "ls");
    assert_string_equal(args.command[1], "-la");
}

static void expect_wrong(const char *text, const char *part)
{
    char line[200];
    char *argv[MAX_WORDS + 1] = {NULL};
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    (void)snprintf(line, sizeof(line), "%s", text);
    assert_true(parse(line, &args, argv, &err) < 0);
    if (strstr(err.message, part) == NULL) {
        fail_msg("%s: %s", text, err.message);
    }
}

static void expect_no_guess(const char *text)
{
    char line[200];
    char *argv[MAX_WORDS + 1] = {NULL};
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    (void)snprintf(line, sizeof(line), "%s", text);
    assert_true(parse(line, &args, argv, &err) < 0);
    assert_null(strstr(err.message, "did you mean"));
}

static void test_wrong_usage_says_what_was_meant(void **state)
{
    (void)state;
    expect_wrong("space exce box ls", "did you mean exec?");
    expect_wrong("space frobnicate", "unknown verb frobnicate");
    expect_wrong("space exec --detahc box ls", "did you mean --detach?");
    expect_wrong("space delete box", "did you mean rm?");
    expect_wrong("space stop box", "did you mean pause or suspend?");
    expect_no_guess("space zap");
    expect_no_guess("space exec --all box ls");
    expect_no_guess("space exec --ttl 3 box ls");
    expect_wrong("space exec --zzz box ls", "unknown option --zzz");
    expect_wrong("space exec -x box ls", "unknown option -x");
    expect_wrong("space exec box", "which command?");
    expect_wrong("space exec", "something is missing");
    expect_wrong("space exec box -e", "-e needs a value");
    expect_wrong("space exec box --env", "--env needs a value");
    expect_wrong("space exec --detach=1 box ls", "takes no value");
    expect_wrong("space run base ls", "put -- before the command");
    expect_wrong("space show a b", "unexpected argument b");
    expect_wrong("space show a -- b", "takes no command");
    expect_wrong("space show", "something is missing");
}

static void test_help_needs_nothing_else(void **state)
{
    char line[] = "space exec --help";
    char *argv[MAX_WORDS + 1] = {NULL};
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(parse(line, &args, argv, &err), 0);
    assert_true(args_has(&args, "help"));
}

/* No name or letter means two things in one verb, the options of every verb included. */
static void test_the_real_tables_are_unambiguous(void **state)
{
    (void)state;
    for (const struct verb *v = cli_verbs; v->name != NULL; v++) {
        for (const struct option_spec *o = v->options; o->name != NULL || o->letter != 0; o++) {
            for (const struct option_spec *g = cli_globals; g->name != NULL; g++) {
                assert_string_not_equal(o->name, g->name);
                assert_true(o->letter == 0 || o->letter != g->letter);
            }
            for (const struct option_spec *p = v->options; p != o; p++) {
                assert_string_not_equal(o->name, p->name);
                assert_true(o->letter == 0 || o->letter != p->letter);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_anywhere),
        cmocka_unit_test(test_a_command_without_dashes),
        cmocka_unit_test(test_wrong_usage_says_what_was_meant),
        cmocka_unit_test(test_help_needs_nothing_else),
        cmocka_unit_test(test_the_real_tables_are_unambiguous),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
