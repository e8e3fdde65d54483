/* Commands that begin later or keep something for the next: terminals, shell states, start on
 * attach. With real agents and no virtual machines. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/routes_rig.h"

static void post_stdin(const struct fixture *f,
                       const struct started *p,
                       const char *query,
                       const char *text,
                       struct answer *answer)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s/stdin%s", p->base, query);
    rig_receive(rig_send(f->rig, "POST", path, span_of_str(text), true), answer);
}

static void expect_stdin(const struct fixture *f,
                         const struct started *p,
                         const char *query,
                         const char *text,
                         json_int_t offset)
{
    _cleanup_answer_ struct answer answer = {0};

    post_stdin(f, p, query, text, &answer);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer_number(&answer, "offset"), offset);
}

/* A request about a process that must have this status. */
static void expect(const struct fixture *f,
                   const struct started *p,
                   const char *method,
                   const char *rest,
                   const char *body,
                   int status)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s%s", p->base, rest);
    rig_expect(f->rig, method, path, body, status);
}

static void expect_state(const struct fixture *f, const struct started *p, const char *state)
{
    _cleanup_answer_ struct answer answer = {0};

    fixture_ask(f, p, "GET", "", NULL, &answer);
    assert_string_equal(answer_text(&answer, "state"), state);
}

/* Waits until a stream has so many bytes. */
static void wait_output(const struct fixture *f, const struct started *p, size_t n)
{
    uint64_t have = 0;

    while (have < n) {
        _cleanup_answer_ struct answer answer = {0};
        char query[64];

        (void)snprintf(query, sizeof(query), "offset=%llu&wait=10", (unsigned long long)have);
        rig_read_output(f->rig, f->sandbox, p->session, query, &answer);
        assert_int_equal(answer.status, 200);
        assert_true(answer.body.n > 0);
        have += answer.body.n;
    }
}

static void read_events(const struct fixture *f, const struct started *p, struct answer *answer)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events", f->sandbox,
                   p->session);
    rig_ask(f->rig, "GET", path, NULL, answer);
    assert_int_equal(answer->status, 200);
}

/* ---- terminals ---- */

static void test_terminal(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer object = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"stty -echo; stty size; echo $TERM; tty | cut -c1-9; read x; stty "
                  "size; cat; echo over >&2\", \"tty\": {\"cols\": 100, \"rows\": 30, \"term\": "
                  "\"vt100\"}",
                  &p);
    fixture_ask(f, &p, "GET", "", NULL, &object);
    assert_int_equal(answer_number(&object, "tty.cols"), 100);
    assert_int_equal(answer_number(&object, "tty.rows"), 30);
    assert_string_equal(answer_text(&object, "tty.term"), "vt100");
    wait_output(f, &p, strlen("30 100\r\nvt100\r\n/dev/pts/\r\n"));
    expect(f, &p, "POST", "/resize", "{\"cols\": 120, \"rows\": 40}", 200);
    expect_stdin(f, &p, "", "line\n", 5);
    expect_stdin(f, &p, "?eof=true", "more\n", 11);
    expect_stdin(f, &p, "?eof=true&offset=5", "more\n", 11); /* a retry sends no second end */
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"),
                        "30 100\r\nvt100\r\n/dev/pts/\r\n40 120\r\nmore\r\nover\r\n");
    assert_string_equal(answer_text(&result, "stderr"), "");
    expect(f, &p, "POST", "/resize", "{\"cols\": 120, \"rows\": 40}", 409);
    expect(f, &p, "POST", "/stdin", "x", 409);
}

static void test_terminal_defaults_and_refusals(void **state)
{
    static const char *const cases[][2] = {
        {"\"tty\": {\"cols\": 0, \"rows\": 1}", "tty.cols"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1001}", "tty.rows"},
        {"\"tty\": {\"cols\": 1}", "tty.rows"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1, \"term\": \"a b\"}", "tty.term"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1, \"term\": \"\"}", "tty.term"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1, \"width\": 1}", "tty.width"},
        {"\"tty\": true", "tty"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1}, \"stdin\": \"closed\"", "stdin"},
        {"\"tty\": {\"cols\": 1, \"rows\": 1}, \"shell_state\": \"s\"", "shell_state"},
        {"\"shell_state\": \"a b\"", "shell_state"},
        {"\"shell_state\": \"\"", "shell_state"},
        {"\"start\": \"later\"", "start"},
    };
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer result = {0};
    _cleanup_answer_ struct answer refused = {0};
    struct started p;
    struct started q;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};
        char fields[200];

        (void)snprintf(fields, sizeof(fields), "\"shell\": \"true\", %s", cases[i][0]);
        rig_command(f->rig, f->sandbox, "commands", fields, &answer);
        assert_int_equal(answer.status, 400);
        assert_string_equal(answer_text(&answer, "error.details.field"), cases[i][1]);
    }
    fixture_start(f, "\"shell\": \"stty size; echo $TERM\", \"tty\": {\"cols\": 80, \"rows\": 24}",
                  &p);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "24 80\r\nxterm-256color\r\n");
    fixture_start(f, "\"argv\": [\"sleep\", \"100\"]", &q);
    fixture_ask(f, &q, "POST", "/resize", "{\"cols\": 80, \"rows\": 24}", &refused);
    assert_int_equal(refused.status, 409);
    assert_string_equal(answer_text(&refused, "error.details.state"), "no_tty");
    expect(f, &q, "POST", "/resize", "{\"cols\": 80}", 400);
    expect(f, &q, "POST", "/resize", "{\"cols\": 80, \"rows\": 0}", 400);
}

static void test_terminal_survives_a_restart(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer object = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"stty -echo; echo ready; read x; stty size; read x; stty size\", "
                  "\"tty\": {\"cols\": 100, \"rows\": 30}",
                  &p);
    wait_output(f, &p, strlen("ready\r\n"));
    expect(f, &p, "POST", "/resize", "{\"cols\": 101, \"rows\": 31}", 200);
    rig_kill(f->rig);
    rig_start(f->rig);
    fixture_ask(f, &p, "GET", "", NULL, &object);
    assert_int_equal(answer_number(&object, "tty.cols"), 101);
    expect_stdin(f, &p, "", "\n", 1);
    wait_output(f, &p, strlen("ready\r\n31 101\r\n"));
    expect(f, &p, "POST", "/resize", "{\"cols\": 102, \"rows\": 32}", 200);
    expect_stdin(f, &p, "", "\n", 2);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "ready\r\n31 101\r\n32 102\r\n");
}

static void test_directory_is_reported(void **state)
{
    const struct fixture *f = *state;
    struct started p;
    struct started q;

    fixture_start(f, "\"shell\": \"pwd; sleep 100\"", &p);
    fixture_start(f, "\"shell\": \"sleep 100\", \"cwd\": \"/usr\"", &q);
    wait_output(f, &p, 2);
    for (int round = 0; round < 2; round++) {
        _cleanup_answer_ struct answer home = {0};
        _cleanup_answer_ struct answer given = {0};
        _cleanup_answer_ struct answer output = {0};
        char line[300];

        fixture_ask(f, &p, "GET", "", NULL, &home);
        fixture_ask(f, &q, "GET", "", NULL, &given);
        rig_read_output(f->rig, f->sandbox, p.session, "", &output);
        (void)snprintf(line, sizeof(line), "%s\n", answer_text(&home, "cwd"));
        assert_string_equal(buf_str(&output.body), line);
        assert_string_equal(answer_text(&given, "cwd"), "/usr");
        rig_kill(f->rig);
        rig_start(f->rig);
    }
}

/* ---- shell states ---- */

/* The agents of a test are this user's processes, so the states are files of this machine. */
static void state_name(const struct fixture *f, char out[64])
{
    (void)snprintf(out, 64, "test-%s", f->sandbox);
}

static void remove_state(const struct fixture *f)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "/var/tmp/.space-shell-%u/s-test-%s", (unsigned)getuid(),
                   f->sandbox);
    (void)unlink(path);
    *strrchr(path, '/') = '\0';
    (void)rmdir(path);
}

static void
run_in_state(const struct fixture *f, const char *shell, const char *more, struct answer *answer)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_buf_ struct buf fields = buf_make(0);
    json_t *string = json_string(shell);
    char name[64];

    text = json_dumps(string, JSON_ENCODE_ANY);
    json_decref(string);
    assert_non_null(text);
    state_name(f, name);
    buf_printf(&fields, "\"shell\": %s, \"shell_state\": \"%s\"%s", text, name, more);
    rig_command(f->rig, f->sandbox, "run", buf_str(&fields), answer);
    assert_int_equal(answer->status, 200);
}

static void
expect_in_state(const struct fixture *f, const char *shell, const char *more, const char *out)
{
    _cleanup_answer_ struct answer answer = {0};

    run_in_state(f, shell, more, &answer);
    assert_string_equal(answer_text(&answer, "stdout"), out);
    assert_string_equal(answer_text(&answer, "stderr"), "");
}

static void test_shell_state_keeps(void **state)
{
    static const char *const steps[][3] = {
        {"cd /usr; export A='x\ny \"q\" $z \\'; B=1; f() { :; }", "", ""},
        {"pwd; printf '%s.' \"$A\"; echo ${B-none}; type -t f", "",
         "/usr\nx\ny \"q\" $z \\.none\n"},
        {"unset A; export C=3; exit 4", "", ""},
        {"echo ${A-none} $C", "", "none 3\n"},
        {"set -e; export D=4; false; echo not here", "", ""},
        {"set -u; export E=5; echo $nope", ", \"env\": {}", NULL},
        {"export F=6; no-such-command", "", NULL},
        {"export G=7; trap 'echo bye' EXIT", "", "bye\n"},
        {"echo $D$E$F$G", "", "4567\n"},
        /* A trap of the command's own, and an end by `exit`, anywhere; once, by the shell itself.
         */
        {"trap 'echo bye $?; export A=late' EXIT; export A=1; exit 7", "", "bye 7\n"},
        {"echo $A; trap 'echo bye $?' 0; f() { export A=2; (exit 3) || exit; }; f", "",
         "1\nbye 3\n"},
        {"echo $A; trap 'echo bye; exit 9' EXIT; export A=3; (export A=no; exit 1); exit 2", "",
         "2\nbye\n"},
        {"echo $A; trap 'exit 5' TERM; trap 'echo bye' EXIT; export A=4; kill -TERM $$", "",
         "3\nbye\n"},
        {"echo $A; export POSIXLY_CORRECT=1", "", "4\n"},
        {"trap 'echo bye' EXIT; export A=5; exit", "", "bye\n"},
        {"unset POSIXLY_CORRECT; echo $A; unset A", "", "4\n"},
        {"export A=no; kill -9 $$", "", ""},
        {"export A=no; kill -TERM $$; sleep 5", "", ""},
        {"echo ${A-none}", "", "none\n"},
        {"echo $C; pwd", ", \"env\": {\"C\": \"own\"}, \"cwd\": \"/tmp\"", "own\n/tmp\n"},
        {"echo $C; pwd", "", "own\n/tmp\n"},
        {"(export H=1); export I=1 | cat; cd / & wait; echo ${H-none}", "", "none\n"},
        {"echo ${I-none}; pwd", "", "none\n/tmp\n"},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (steps[i][2] != NULL) {
            expect_in_state(f, steps[i][0], steps[i][1], steps[i][2]);
        } else {
            _cleanup_answer_ struct answer answer = {0};

            run_in_state(f, steps[i][0], steps[i][1], &answer);
            assert_int_equal(answer_number(&answer, "exit_code"), 127);
        }
    }
    remove_state(f);
}

/* What a command does is the same with and without a state. */
static void test_shell_state_changes_nothing_else(void **state)
{
    static const char *const commands[] = {
        "exit 3",
        "false",
        "(exit 4)",
        "kill -TERM $$; sleep 5",
        "kill -HUP $$; sleep 5",
        "set -e; f() { false; }; f; echo no",
        "set -u; echo $nope",
        "set -o pipefail; false | true",
        "no-such-command",
        "\n\nno-such-command; echo $LINENO",
        "exec false",
        "exec /no/such",
        "trap 'echo bye $?' EXIT; exit 5",
        "trap 'echo bye $?' EXIT; false",
        "trap 'echo t' TERM; kill -TERM $$; echo after",
        "trap - EXIT; exit 6",
        "trap 'echo bye $? $* $LINENO; umask; set -o | grep -c on' EXIT; set -eC; umask 027; exit",
        "trap 'echo bye; exit 4' EXIT; f() { exit 8; }; f",
        "trap 'echo bye $?' EXIT; (exit 4); exit",
        "trap 'echo in; printf x' EXIT; false || exit",
        "trap 'exit 3' TERM; kill -TERM $$; sleep 5",
        "trap 'echo bye' EXIT; (trap 'echo sub' EXIT; exit 2); echo $?",
        "trap 'echo bye' EXIT; exec sh -c 'exit 5'",
        "f() { exit 8; }; f",
        "echo $0 $# \"$@\" $- $BASH_SUBSHELL $LINENO",
        "echo \"$BASH_EXECUTION_STRING\"",
        "declare -F; compgen -v | grep __space",
        "set -C; umask 027; umask; exit 1",
        "sh -c 'exit 9' & wait $!",
        "readonly PATH; unset HOME; exit 2",
        "{ echo a; exit 9; } | cat",
        "return 3; echo $?",
        "# nothing",
        "exit 300",
        "exit abc",
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        _cleanup_answer_ struct answer plain = {0};
        _cleanup_answer_ struct answer kept = {0};
        _cleanup_buf_ struct buf fields = buf_make(0);
        _cleanup_free_ char *text = NULL;
        json_t *string = json_string(commands[i]);

        text = json_dumps(string, JSON_ENCODE_ANY);
        json_decref(string);
        buf_printf(&fields, "\"shell\": %s", text);
        rig_command(f->rig, f->sandbox, "run", buf_str(&fields), &plain);
        run_in_state(f, commands[i], "", &kept);
        remove_state(f);
        assert_int_equal(answer_number(&kept, "exit_code"), answer_number(&plain, "exit_code"));
        assert_string_equal(answer_text(&kept, "signal"), answer_text(&plain, "signal"));
        assert_string_equal(answer_text(&kept, "stdout"), answer_text(&plain, "stdout"));
        assert_string_equal(answer_text(&kept, "stderr"), answer_text(&plain, "stderr"));
    }
}

/* One at a time, in order, over a restart; those that wait can be ended. */
static void test_shell_state_takes_turns(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer killed = {0};
    _cleanup_answer_ struct answer result = {0};
    _cleanup_answer_ struct answer object = {0};
    char fields[200];
    char name[64];
    struct started p[6];

    state_name(f, name);
    for (size_t i = 0; i < 6; i++) {
        (void)snprintf(fields, sizeof(fields),
                       "\"shell\": \"%s export N=${N}%zu; echo $N\", \"shell_state\": \"%s\", "
                       "\"timeout_seconds\": 5",
                       i == 0 ? "echo begun; read x;" : "sleep 0.1;", i, name);
        (void)strncat(fields, i == 0 ? ", \"stdin\": \"open\"" : "",
                      sizeof(fields) - strlen(fields) - 1);
        fixture_start(f, fields, &p[i]);
    }
    expect_state(f, &p[0], "running");
    expect_state(f, &p[1], "starting");
    fixture_ask(f, &p[5], "GET", "", NULL, &object);
    assert_true(json_is_null(json_object_get(object.json, "started_at")));
    assert_true(json_is_null(json_object_get(object.json, "pid")));
    fixture_ask(f, &p[1], "POST", "/kill", NULL, &killed);
    assert_true(json_is_true(json_object_get(killed.json, "killed")));
    expect(f, &p[2], "POST", "/signal", "{\"signal\": \"SIGCONT\"}", 200);
    expect(f, &p[2], "POST", "/signal", "{\"signal\": \"SIGSTOP\"}", 409);
    expect(f, &p[2], "POST", "/signal", "{\"signal\": \"SIGTERM\"}", 200);
    rig_kill(f->rig);
    rig_start(f->rig);
    expect_state(f, &p[2], "exited");
    expect_state(f, &p[3], "starting");
    expect_stdin(f, &p[0], "", "go\n", 3);
    for (size_t i = 0; i < 6; i++) {
        static const char *const expected[] = {"begun\n0\n", "", "", "03\n", "034\n", "0345\n"};
        static const char *const signals[] = {"", "SIGKILL", "SIGTERM", "", "", ""};

        answer_done(&result);
        fixture_ask(f, &p[i], "GET", "/result?wait=10", NULL, &result);
        assert_int_equal(result.status, 200);
        assert_string_equal(answer_text(&result, "stdout"), expected[i]);
        assert_string_equal(answer_text(&result, "signal"), signals[i]);
        assert_true(json_is_false(json_object_get(result.json, "timed_out")));
    }
    remove_state(f);
}

static void test_shell_state_shows_what_was_asked(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer object = {0};
    char fields[200];
    char name[64];
    struct started p;

    state_name(f, name);
    (void)snprintf(fields, sizeof(fields), "\"shell\": \"true\", \"shell_state\": \"%s\"", name);
    fixture_start(f, fields, &p);
    fixture_ask(f, &p, "GET", "", NULL, &object);
    assert_string_equal(json_string_value(json_array_get(json_object_get(object.json, "argv"), 2)),
                        "true");
    assert_int_equal(json_array_size(json_object_get(object.json, "argv")), 3);
    expect(f, &p, "GET", "/result?wait=10", NULL, 200);
    remove_state(f);
}

/* ---- start on attach ---- */

static void test_start_on_attach(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer again = {0};
    char fields[300];
    char path[300];
    char file[96];
    struct started p;
    int looking;

    (void)snprintf(file, sizeof(file), "%s/data/count", f->rig->dir);
    (void)snprintf(fields, sizeof(fields),
                   "\"shell\": \"echo $A >> %s; cat\", \"input\": \"in\", \"start\": "
                   "\"on_attach\", \"env\": {\"A\": \"b\"}, \"timeout_seconds\": 20",
                   file);
    fixture_start(f, fields, &p);
    expect_state(f, &p, "starting");
    expect(f, &p, "GET", "/result?wait=0.1", NULL, 202);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events?read_only=true",
                   f->sandbox, p.session);
    looking = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
    assert_true(looking >= 0);
    (void)usleep(50000);
    expect_state(f, &p, "starting");
    (void)close(looking);
    rig_kill(f->rig);
    rig_start(f->rig);
    expect_state(f, &p, "starting");
    assert_int_equal(access(file, F_OK), -1);
    read_events(f, &p, &first);
    assert_non_null(strstr(buf_str(&first.body), "event: process_started\n"));
    assert_non_null(strstr(buf_str(&first.body), "\"data\": \"aW4=\""));
    assert_non_null(strstr(buf_str(&first.body), "\"exit_code\":0"));
    rig_kill(f->rig);
    rig_start(f->rig);
    read_events(f, &p, &again);
    assert_string_equal(buf_str(&again.body), buf_str(&first.body));
    {
        _cleanup_buf_ struct buf count = buf_make(0);

        assert_int_equal(file_read(AT_FDCWD, file, 100, &count), 0);
        assert_string_equal(buf_str(&count), "b\n");
    }
}

/* It was created: that it cannot be executed is its end, as a shell would say it. */
static void test_late_start_that_fails(void **state)
{
    static const struct {
        const char *fields;
        const char *says;
        const char *exit;
    } cases[] = {
        {"\"argv\": [\"/no/such\"]", "c3BhY2U6IC9uby9zdWNo", "\"exit_code\":127"},
        {"\"argv\": [\"/etc/passwd\"]", "c3BhY2U6IC9ldGMvcGFzc3dk", "\"exit_code\":126"},
        {"\"argv\": [\"true\"], \"cwd\": \"/no/such\"", "c3BhY2U6IGN3ZCAvbm8vc3Vja",
         "\"exit_code\":126"},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer events = {0};
        char fields[200];
        struct started p;

        (void)snprintf(fields, sizeof(fields), "%s, \"start\": \"on_attach\"", cases[i].fields);
        fixture_start(f, fields, &p);
        read_events(f, &p, &events);
        assert_null(strstr(buf_str(&events.body), "process_started"));
        assert_non_null(strstr(buf_str(&events.body), "\"stream\": \"stderr\""));
        assert_non_null(strstr(buf_str(&events.body), cases[i].says));
        assert_non_null(strstr(buf_str(&events.body), cases[i].exit));
        expect_state(f, &p, "exited");
    }
}

static void test_waiting_ends_with_the_sandbox(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer killed = {0};
    _cleanup_answer_ struct answer events = {0};
    struct started p;
    struct started q;

    fixture_start(f, "\"argv\": [\"true\"], \"start\": \"on_attach\"", &p);
    fixture_start(f, "\"argv\": [\"true\"], \"start\": \"on_attach\"", &q);
    fixture_ask(f, &p, "POST", "/kill", NULL, &killed);
    assert_true(json_is_true(json_object_get(killed.json, "killed")));
    read_events(f, &p, &events);
    assert_non_null(strstr(buf_str(&events.body), "\"signal\":\"SIGKILL\""));
    expect_state(f, &q, "starting"); /* the fixture deletes the sandbox */
}

/* The host end dies between the record and the guest: the command runs once, not never. */
static void test_start_survives_kills(void **state)
{
    const struct fixture *f = *state;

    for (unsigned int i = 0; i < 8; i++) {
        _cleanup_answer_ struct answer result = {0};
        struct started p;
        char path[300];
        int fd;

        fixture_start(f, "\"shell\": \"echo once\", \"start\": \"on_attach\"", &p);
        (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events", f->sandbox,
                       p.session);
        fd = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
        (void)usleep(i * 300);
        rig_kill(f->rig);
        rig_start(f->rig);
        (void)close(fd);
        (void)close(rig_send(f->rig, "GET", path, span_make(NULL, 0), true));
        fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
        assert_int_equal(result.status, 200);
        assert_string_equal(answer_text(&result, "stdout"), "once\n");
    }
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_terminal),
        CASE(test_terminal_defaults_and_refusals),
        CASE(test_terminal_survives_a_restart),
        CASE(test_directory_is_reported),
        CASE(test_shell_state_keeps),
        CASE(test_shell_state_changes_nothing_else),
        CASE(test_shell_state_takes_turns),
        CASE(test_shell_state_shows_what_was_asked),
        CASE(test_start_on_attach),
        CASE(test_late_start_that_fails),
        CASE(test_waiting_ends_with_the_sandbox),
        CASE(test_start_survives_kills),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
