/* The node protocol's routes, with real agents and no virtual machines. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/routes_rig.h"

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER
#endif
#endif
#ifdef UNDER_ADDRESS_SANITIZER
#define KEPT_KIB 600000 /* it keeps what was freed */
#else
#define KEPT_KIB 60000
#endif

static void run(const struct fixture *f, const char *fields, struct answer *answer)
{
    rig_command(f->rig, f->sandbox, "run", fields, answer);
}

/* ---- run ---- */

/* A silent one whose client goes away: the idle rule counts from there. */
static void test_end_of_a_run_is_activity(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf body = buf_make(0);
    char process[ID_SIZE];
    char session[ID_SIZE];
    char path[80];
    char active[CLOCK_TEXT_SIZE];
    int fd;

    assert_int_equal(id_make_within("pr", f->sandbox, process), 0);
    assert_int_equal(id_make_within("se", f->sandbox, session), 0);
    buf_printf(&body, "{\"process_id\": \"%s\", \"session_id\": \"%s\", \"shell\": \"sleep 60\"}",
               process, session);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/run", f->sandbox);
    rig_read_active(f->rig, f->sandbox, active);
    fd = rig_send(f->rig, "POST", path, buf_span(&body), false);
    rig_wait_active(f->rig, f->sandbox, active);
    rig_read_active(f->rig, f->sandbox, active);
    (void)close(fd);
    rig_wait_active(f->rig, f->sandbox, active);
}

static void test_run_results(void **state)
{
    static const struct {
        const char *fields;
        json_int_t exit_code; /* -1: null */
        const char *signal;
        const char *out;
        const char *err;
    } cases[] = {
        {"\"argv\": [\"true\"]", 0, "", "", ""},
        {"\"argv\": [\"echo\", \"a b\", \"\"]", 0, "", "a b \n", ""},
        {"\"shell\": \"echo out; echo err >&2; exit 3\"", 3, "", "out\n", "err\n"},
        {"\"shell\": \"kill -9 $$\"", -1, "SIGKILL", "", ""},
        {"\"argv\": [\"cat\"], \"input\": \"h\\u00e9\\n\"", 0, "", "h\xc3\xa9\n", ""},
        {"\"argv\": [\"cat\"], \"input_base64\": \"aGk=\"", 0, "", "hi", ""},
        {"\"argv\": [\"cat\"]", 0, "", "", ""},
        {"\"argv\": [\"pwd\"], \"cwd\": \"/usr/bin\"", 0, "", "/usr/bin\n", ""},
        {"\"shell\": \"echo $A$B\", \"env\": {\"A\": \"1\", \"B\": \"=2\"}", 0, "", "1=2\n", ""},
        {"\"shell\": \"printf a\\\\\\\\377b\", \"encoding\": \"utf8\"", 0, "",
         "a\xef\xbf\xbd"
         "b",
         ""},
        {"\"shell\": \"printf a\\\\\\\\377b\"", 0, "", "Yf9i", ""},
        {"\"shell\": \"printf hi\", \"encoding\": \"base64\"", 0, "", "aGk=", ""},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};

        run(f, cases[i].fields, &answer);
        assert_int_equal(answer.status, 200);
        assert_int_equal(answer_number(&answer, "exit_code"), cases[i].exit_code);
        assert_string_equal(answer_text(&answer, "signal"), cases[i].signal);
        assert_string_equal(answer_text(&answer, "stdout"), cases[i].out);
        assert_string_equal(answer_text(&answer, "stderr"), cases[i].err);
        assert_int_equal(answer_number(&answer, "stdout_omitted_bytes"), 0);
    }
}

static void test_run_refusals(void **state)
{
    static const char *const cases[][2] = {
        {"\"x\": 1, \"argv\": [\"a\"]", "x"},
        {"\"argv\": []", "argv"},
        {"\"argv\": [\"a\", 1]", "argv"},
        {"\"argv\": [\"\"]", "argv"},
        {"\"argv\": \"a\"", "argv"},
        {"\"env\": {}", "argv"},
        {"\"argv\": [\"a\"], \"shell\": \"b\"", "shell"},
        {"\"argv\": [\"a\"], \"env\": {\"A=\": \"\"}", "env"},
        {"\"argv\": [\"a\"], \"env\": {\"A\": null}", "env"},
        {"\"argv\": [\"a\"], \"timeout_seconds\": 0", "timeout_seconds"},
        {"\"argv\": [\"a\"], \"timeout_seconds\": 3601", "timeout_seconds"},
        {"\"argv\": [\"a\"], \"timeout_seconds\": null", "timeout_seconds"},
        {"\"argv\": [\"a\"], \"on_timeout\": \"stop\"", "on_timeout"},
        {"\"argv\": [\"a\"], \"max_output_bytes\": -1", "max_output_bytes"},
        {"\"argv\": [\"a\"], \"encoding\": \"latin1\"", "encoding"},
        {"\"argv\": [\"a\"], \"input\": \"a\", \"input_base64\": \"\"", "input"},
        {"\"argv\": [\"a\"], \"input_base64\": \"a\"", "input_base64"},
        {"\"argv\": [\"a\"], \"cwd\": \"relative\"", "cwd"},
        {"\"argv\": [\"a\"], \"tty\": {\"cols\": 80}", "tty"},
        {"\"argv\": [\"a\"], \"shell_state\": \"s\"", "shell_state"},
        {"\"argv\": [\"a\"], \"stdin\": \"open\"", "stdin"},
        {"\"argv\": [\"/no/such/program\"]", "argv"},
        {"\"argv\": [\"true\"], \"cwd\": \"/no/such/dir\"", "cwd"},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};

        run(f, cases[i][0], &answer);
        assert_int_equal(answer.status, 400);
        assert_string_equal(answer_text(&answer, "error.code"), "invalid_request");
        assert_string_equal(answer_text(&answer, "error.details.field"), cases[i][1]);
    }
}

static void test_exec_failure_names_the_errno(void **state)
{
    _cleanup_answer_ struct answer answer = {0};

    run(*state, "\"argv\": [\"/etc/passwd\"]", &answer);
    assert_int_equal(answer.status, 400);
    assert_string_equal(answer_text(&answer, "error.details.errno"), "EACCES");
}

static void test_run_cuts_in_the_middle(void **state)
{
    _cleanup_answer_ struct answer answer = {0};
    const char *text;

    /* 3-byte characters: neither half may end within one. */
    run(*state,
        "\"shell\": \"for i in $(seq 1000); do printf \\\\\\\\342\\\\\\\\202\\\\\\\\254; done\", "
        "\"max_output_bytes\": 100",
        &answer);
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer_text(&answer, "stdout_encoding"), "utf8");
    text = answer_text(&answer, "stdout");
    assert_int_equal(strlen(text), 48 + 48);
    assert_int_equal(answer_number(&answer, "stdout_omitted_at"), 48);
    assert_int_equal(answer_number(&answer, "stdout_omitted_bytes"), 3000 - 96);
}

static void test_run_large_output(void **state)
{
    _cleanup_answer_ struct answer answer = {0};
    const char *text;

    run(*state, "\"shell\": \"seq 1 300000; echo end >&2\", \"max_output_bytes\": 20", &answer);
    assert_int_equal(answer.status, 200);
    text = answer_text(&answer, "stdout");
    assert_string_equal(text, "1\n2\n3\n4\n5\n99\n300000\n");
    assert_string_equal(answer_text(&answer, "stderr"), "end\n");
}

#define BYTE_OUTPUT 3000000 /* of one that takes six characters in JSON */

static void expect_bytes(const struct answer *answer)
{
    char text[8];

    assert_int_equal(answer->status, 200);
    assert_int_equal(answer_number(answer, "stdout_omitted_bytes"), 0);
    assert_int_equal(strlen(answer_text(answer, "stdout")), BYTE_OUTPUT);
    (void)snprintf(text, sizeof(text), "%.4s", answer_text(answer, "stdout"));
    assert_string_equal(text, "\1\1\1\1");
}

/* Clients that ask for much and do not read it cost no memory, and nobody else any output. */
static void test_unread_results_cut_nobody(void **state)
{
    const struct fixture *f = *state;
    struct started p = {0};
    char large[200];
    int clients[16];
    _cleanup_answer_ struct answer ended = {0};
    _cleanup_answer_ struct answer one = {0};
    _cleanup_answer_ struct answer ran = {0};
    _cleanup_answer_ struct answer late = {0};

    fixture_start(f, "\"shell\": \"head -c 3000000 /dev/zero | tr '\\\\0' '\\\\1'\"", &p);
    fixture_ask(f, &p, "GET", "/result?wait=60&max_output_bytes=1", NULL, &ended);
    assert_int_equal(ended.status, 200);
    assert_int_equal(answer_number(&ended, "stdout_omitted_bytes"), BYTE_OUTPUT - 1);
    (void)snprintf(large, sizeof(large), "%s/result?max_output_bytes=16777216", p.base);
    for (size_t i = 0; i < 16; i++) {
        clients[i] = rig_send(f->rig, "GET", large, span_make(NULL, 0), true);
        assert_true(clients[i] >= 0);
    }
    fixture_ask(f, &p, "GET", "/result?max_output_bytes=16777216", NULL, &one);
    expect_bytes(&one);
    run(f, "\"shell\": \"seq 1 100000\"", &ran);
    assert_int_equal(ran.status, 200);
    assert_int_equal(answer_number(&ran, "stdout_omitted_bytes"), 0);
    assert_int_equal(strlen(answer_text(&ran, "stdout")), 588895);
    assert_true(rig_anonymous_kib(f->rig) < KEPT_KIB);
    rig_receive(clients[0], &late);
    expect_bytes(&late);
    for (size_t i = 1; i < 16; i++) {
        (void)close(clients[i]);
    }
}

/* What has been begun goes to its end, though process and sandbox are gone. */
static void test_a_result_outlives_its_sandbox(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer ended = {0};
    _cleanup_answer_ struct answer late = {0};
    struct started p = {0};
    char path[200];
    char first;
    int client;

    fixture_start(f, "\"shell\": \"head -c 3000000 /dev/zero | tr '\\\\0' '\\\\1'\"", &p);
    fixture_ask(f, &p, "GET", "/result?wait=60&max_output_bytes=1", NULL, &ended);
    (void)snprintf(path, sizeof(path), "%s/result?max_output_bytes=16777216", p.base);
    client = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
    assert_true(client >= 0);
    assert_int_equal(recv(client, &first, 1, MSG_PEEK), 1); /* it has been begun */
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    rig_wait_state(f->rig, f->sandbox, "deleted");
    rig_receive(client, &late);
    expect_bytes(&late);
}

/* Pieces are put together where characters, groups of base64 and what is left out meet. */
static void test_long_results(void **state)
{
    static const struct {
        const char *fields;
        const char *encoding;
        size_t length;
        json_int_t omitted;
    } cases[] = {
        /* 300,000 bytes of three-byte characters, whole */
        {"\"max_output_bytes\": 1000000", "utf8", 300000, 0},
        {"\"max_output_bytes\": 200000", "utf8", 199998, 100002},
        {"\"max_output_bytes\": 200000, \"encoding\": \"base64\"", "base64", 266664, 100002},
        {"\"max_output_bytes\": 1000000, \"encoding\": \"base64\"", "base64", 400000, 0},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};
        char fields[400];
        const char *text;
        size_t pattern = strcmp(cases[i].encoding, "utf8") == 0 ? 3 : 4;

        (void)snprintf(
            fields, sizeof(fields),
            "\"shell\": \"head -c 100000 /dev/zero | sed 's/\\\\x00/\\\\xe2\\\\x82\\\\xac/g'; "
            "head -c 90000 /dev/zero | tr '\\\\0' '\\\\377' >&2\", %s",
            cases[i].fields);
        run(f, fields, &answer);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer_text(&answer, "stdout_encoding"), cases[i].encoding);
        assert_int_equal(answer_number(&answer, "stdout_omitted_bytes"), cases[i].omitted);
        text = answer_text(&answer, "stdout");
        assert_int_equal(strlen(text), cases[i].length);
        for (size_t at = 0; at < cases[i].length; at += pattern) {
            assert_memory_equal(&text[at], pattern == 3 ? "\xe2\x82\xac" : "4oKs", pattern);
        }
        assert_string_equal(answer_text(&answer, "stderr_encoding"), "base64");
        assert_int_equal(strlen(answer_text(&answer, "stderr")), 120000);
    }
}

static void test_run_timeouts(void **state)
{
    _cleanup_answer_ struct answer killed = {0};
    _cleanup_answer_ struct answer left = {0};

    run(*state, "\"shell\": \"echo a; sleep 30\", \"timeout_seconds\": 0.2", &killed);
    assert_int_equal(killed.status, 200);
    assert_true(json_is_true(json_object_get(killed.json, "timed_out")));
    assert_string_equal(answer_text(&killed, "signal"), "SIGKILL");
    assert_string_equal(answer_text(&killed, "stdout"), "a\n");
    run(*state, "\"shell\": \"sleep 1\", \"timeout_seconds\": 0.2, \"on_timeout\": \"leave\"",
        &left);
    assert_int_equal(left.status, 200);
    assert_true(json_is_true(json_object_get(left.json, "timed_out")));
    assert_int_equal(answer_number(&left, "exit_code"), -1);
    assert_string_equal(answer_text(&left, "signal"), "");
}

static void test_same_request_runs_once(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer again = {0};
    char process[ID_SIZE];
    char session[ID_SIZE];
    char path[80];
    char body[300];

    assert_int_equal(id_make_within("pr", f->sandbox, process), 0);
    assert_int_equal(id_make_within("se", f->sandbox, session), 0);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/run", f->sandbox);
    (void)snprintf(body, sizeof(body),
                   "{\"process_id\": \"%s\", \"session_id\": \"%s\", \"shell\": \"echo $$\"}",
                   process, session);
    rig_ask(f->rig, "POST", path, body, &first);
    rig_ask(f->rig, "POST", path, body, &again);
    assert_int_equal(first.status, 200);
    assert_int_equal(again.status, 200);
    assert_string_equal(answer_text(&first, "stdout"), answer_text(&again, "stdout"));
}

/* ---- processes ---- */

static void test_signal_and_kill(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    _cleanup_answer_ struct answer d = {0};
    _cleanup_answer_ struct answer e = {0};
    _cleanup_answer_ struct answer g = {0};
    struct started p;
    struct started q;

    fixture_start(f, "\"shell\": \"trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done\"",
                  &p);
    fixture_ask(f, &p, "POST", "/signal", "{\"signal\": \"SIGWHAT\"}", &a);
    assert_int_equal(a.status, 400);
    assert_string_equal(answer_text(&a, "error.details.field"), "signal");
    {
        _cleanup_answer_ struct answer output = {0};

        rig_read_output(f->rig, f->sandbox, p.session, "wait=10", &output);
        assert_string_equal(buf_str(&output.body), "ready\n");
    }
    fixture_ask(f, &p, "POST", "/signal", "{\"signal\": \"SIGTERM\", \"scope\": \"process\"}", &b);
    assert_int_equal(b.status, 200);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &c);
    assert_int_equal(c.status, 200);
    assert_int_equal(answer_number(&c, "exit_code"), 9);
    fixture_ask(f, &p, "POST", "/signal", "{\"signal\": \"SIGTERM\"}", &d);
    assert_int_equal(d.status, 409);
    assert_string_equal(answer_text(&d, "error.details.state"), "exited");
    fixture_ask(f, &p, "POST", "/kill", NULL, &e);
    assert_true(json_is_false(json_object_get(e.json, "killed")));
    fixture_start(f, "\"shell\": \"sleep 100 & sleep 100\"", &q);
    fixture_ask(f, &q, "POST", "/kill", "{}", &g);
    assert_true(json_is_true(json_object_get(g.json, "killed")));
}

static void test_result_waits(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer now = {0};
    _cleanup_answer_ struct answer soon = {0};
    _cleanup_answer_ struct answer done = {0};
    _cleanup_answer_ struct answer bad = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"sleep 0.5; echo late\"", &p);
    fixture_ask(f, &p, "GET", "/result", NULL, &now);
    assert_int_equal(now.status, 202);
    assert_string_equal(answer_text(&now, "state"), "running");
    fixture_ask(f, &p, "GET", "/result?wait=0.1", NULL, &soon);
    assert_int_equal(soon.status, 202);
    fixture_ask(f, &p, "GET", "/result?wait=10&max_output_bytes=2", NULL, &done);
    assert_int_equal(done.status, 200);
    assert_string_equal(answer_text(&done, "stdout"), "l\n");
    fixture_ask(f, &p, "GET", "/result?wait=301", NULL, &bad);
    assert_int_equal(bad.status, 400);
    assert_string_equal(answer_text(&bad, "error.details.field"), "wait");
}

static void test_list_and_limit(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer over = {0};
    _cleanup_answer_ struct answer page = {0};
    _cleanup_answer_ struct answer rest = {0};
    struct started p[16];
    char path[160];

    for (size_t i = 0; i < 5; i++) { /* ended ones make room */
        _cleanup_answer_ struct answer answer = {0};

        run(f, "\"argv\": [\"true\"]", &answer);
    }
    for (size_t i = 0; i < 16; i++) {
        fixture_start(f, "\"argv\": [\"sleep\", \"100\"]", &p[i]);
    }
    run(f, "\"argv\": [\"true\"]", &over);
    assert_int_equal(over.status, 409);
    assert_string_equal(answer_text(&over, "error.code"), "limit_exceeded");
    assert_string_equal(answer_text(&over, "error.details.limit"), "node.max_processes");
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/processes?limit=10", f->sandbox);
    rig_ask(f->rig, "GET", path, NULL, &page);
    assert_int_equal(json_array_size(json_object_get(page.json, "items")), 10);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/processes?limit=10&cursor=%s", f->sandbox,
                   answer_text(&page, "next_cursor"));
    rig_ask(f->rig, "GET", path, NULL, &rest);
    assert_int_equal(json_array_size(json_object_get(rest.json, "items")), 6);
    assert_true(json_is_null(json_object_get(rest.json, "next_cursor")));
}

/* ---- stdin ---- */

static void post_stdin(const struct fixture *f,
                       const struct started *p,
                       const char *query,
                       struct span bytes,
                       struct answer *answer)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s/stdin%s", p->base, query);
    rig_receive(rig_send(f->rig, "POST", path, bytes, true), answer);
}

static void test_stdin_is_exact(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    _cleanup_answer_ struct answer d = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    fixture_start(f, "\"argv\": [\"cat\"], \"stdin\": \"open\", \"input\": \"one \"", &p);
    post_stdin(f, &p, "", span_of_str("two "), &a);
    assert_int_equal(answer_number(&a, "offset"), 8);
    post_stdin(f, &p, "?offset=4", span_of_str("two three "), &b); /* a retry, and more */
    assert_int_equal(answer_number(&b, "offset"), 14);
    post_stdin(f, &p, "?offset=99", span_of_str("x"), &c);
    assert_int_equal(c.status, 400);
    assert_string_equal(answer_text(&c, "error.details.field"), "offset");
    post_stdin(f, &p, "?eof=true", span_of_str("end"), &d);
    assert_int_equal(answer_number(&d, "offset"), 17);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "one two three end");
    {
        _cleanup_answer_ struct answer late = {0};

        post_stdin(f, &p, "", span_of_str("x"), &late);
        assert_int_equal(late.status, 409);
    }
}

/* Bytes beyond the end are refused, however the request says that it is the last. */
static void test_stdin_beyond_the_end(void **state)
{
    static const char *const queries[] = {"", "?eof=true", "?offset=3&eof=true"};
    const struct fixture *f = *state;
    struct started p;

    fixture_start(f, "\"shell\": \"cat; sleep 60\", \"stdin\": \"open\"", &p);
    for (unsigned int i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer end = {0};

        post_stdin(f, &p, i == 0 ? "?eof=true" : "?offset=0&eof=true", span_of_str("last"), &end);
        assert_int_equal(end.status, 200);
        assert_int_equal(answer_number(&end, "offset"), 4);
    }
    for (unsigned int i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer late = {0};

        post_stdin(f, &p, queries[i], span_of_str("tt"), &late);
        assert_int_equal(late.status, 409);
        assert_string_equal(answer_text(&late, "error.code"), "failed_precondition");
    }
    {
        _cleanup_answer_ struct answer killed = {0};

        fixture_ask(f, &p, "POST", "/kill", NULL, &killed);
        assert_int_equal(killed.status, 200);
    }
}

/* The retry comes while the first request is still held back before a process that does not read.
 */
static void test_stdin_retry_takes_over(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf bytes = buf_make(0);
    _cleanup_answer_ struct answer other = {0};
    _cleanup_answer_ struct answer retry = {0};
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;
    char path[300];
    int fd;

    for (uint32_t i = 0; i < 75000; i++) {
        buf_put_u32(&bytes, i);
    }
    fixture_start(f, "\"shell\": \"sleep 1; md5sum\", \"stdin\": \"open\"", &p);
    (void)snprintf(path, sizeof(path), "%s/stdin?offset=0&eof=true", p.base);
    fd = rig_send(f->rig, "POST", path, buf_span(&bytes), true);
    post_stdin(f, &p, "", span_of_str("x"), &other);
    assert_int_equal(other.status, 409);
    assert_string_equal(answer_text(&other, "error.code"), "conflict");
    post_stdin(f, &p, "?offset=0&eof=true", buf_span(&bytes), &retry);
    assert_int_equal(retry.status, 200);
    assert_int_equal(answer_number(&retry, "offset"), 300000);
    rig_receive(fd, &first);
    assert_int_equal(first.status, 409);
    fixture_ask(f, &p, "GET", "/result?wait=20", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "9406f9235af40c54336ec7257f1ed03e  -\n");
}

static void test_stdin_end_alone(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer end = {0};
    _cleanup_answer_ struct answer result = {0};
    _cleanup_answer_ struct answer closed = {0};
    struct started p;
    struct started q;

    fixture_start(f, "\"argv\": [\"wc\", \"-c\"], \"stdin\": \"open\"", &p);
    post_stdin(f, &p, "?eof=true", span_make("", 0), &end);
    assert_int_equal(end.status, 200);
    assert_int_equal(answer_number(&end, "offset"), 0);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "0\n");
    fixture_start(f, "\"argv\": [\"sleep\", \"100\"]", &q);
    post_stdin(f, &q, "", span_of_str("x"), &closed);
    assert_int_equal(closed.status, 409);
    assert_string_equal(answer_text(&closed, "error.code"), "failed_precondition");
}

static void test_large_stdin(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf bytes = buf_make(0);
    _cleanup_answer_ struct answer answer = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    for (uint32_t i = 0; i < 1000000; i++) {
        buf_put_u32(&bytes, i);
    }
    fixture_start(f, "\"shell\": \"md5sum; sleep 0.1\", \"stdin\": \"open\"", &p);
    post_stdin(f, &p, "?eof=true", buf_span(&bytes), &answer);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer_number(&answer, "offset"), 4000000);
    fixture_ask(f, &p, "GET", "/result?wait=20", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "a2ea9a7af4c73214840b2988d334a353  -\n");
}

/* Input that came with the command survives kill -9 of the host end. */
static void test_input_survives_a_restart(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf fields = buf_make(0);
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    buf_put_str(&fields, "\"shell\": \"sleep 0.5; wc -c\", \"input\": \"");
    for (int i = 0; i < 500000; i++) {
        buf_put_str(&fields, "x");
    }
    buf_put_str(&fields, "\"");
    fixture_start(f, buf_str(&fields), &p);
    rig_kill(f->rig);
    rig_start(f->rig);
    fixture_ask(f, &p, "GET", "/result?wait=20", NULL, &result);
    assert_int_equal(result.status, 200);
    assert_string_equal(answer_text(&result, "stdout"), "500000\n");
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_run_results),
        CASE(test_end_of_a_run_is_activity),
        CASE(test_run_refusals),
        CASE(test_exec_failure_names_the_errno),
        CASE(test_run_cuts_in_the_middle),
        CASE(test_run_large_output),
        CASE(test_unread_results_cut_nobody),
        CASE(test_a_result_outlives_its_sandbox),
        CASE(test_long_results),
        CASE(test_run_timeouts),
        CASE(test_same_request_runs_once),
        CASE(test_signal_and_kill),
        CASE(test_result_waits),
        CASE(test_list_and_limit),
        CASE(test_stdin_is_exact),
        CASE(test_stdin_beyond_the_end),
        CASE(test_stdin_retry_takes_over),
        CASE(test_stdin_end_alone),
        CASE(test_large_stdin),
        CASE(test_input_survives_a_restart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
