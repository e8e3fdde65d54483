#include "cli/follow.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static int record_output(void *arg, enum follow_stream stream, struct span bytes)
{
    struct buf *seen = arg;

    buf_put_str(seen, stream == FOLLOW_STDOUT ? "o:" : "e:");
    buf_put(seen, bytes);
    buf_put_str(seen, ";");
    return span_equals_str(bytes, "stop") ? -EPIPE : 0;
}

static void record_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    struct buf *seen = arg;

    buf_printf(seen, "%s%d;", stream == FOLLOW_STDOUT ? "ogap" : "egap", (int)bytes);
}

static const struct follow_sink sink = {record_output, record_gap};

static int send_event(struct follow *f, const char *name, const char *data)
{
    struct sse_event event = {.name = name, .id = "1", .data = span_of_str(data)};

    return follow_event(f, &event);
}

static void test_output_comes_once_whatever_is_replayed(void **state)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    (void)state;
    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    assert_int_equal(send_event(&f, "process_started", "{\"pid\":1}"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"aGVsbG8=\"}"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"aGVsbG8=\"}"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":3,\"data\":\"bG9vcHM=\"}"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stderr\",\"offset\":0,\"data\":\"IQ==\"}"), 0);
    assert_string_equal(buf_str(&seen), "o:hello;o:ops;e:!;");
}

static void test_what_is_missing_is_told(void **state)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    (void)state;
    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    assert_int_equal(send_event(&f, "gap", "{\"stream\":\"stdout\",\"offset\":0,\"bytes\":100}"),
                     0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":100,\"data\":\"YQ==\"}"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":111,\"data\":\"Yg==\"}"), 0);
    assert_string_equal(buf_str(&seen), "ogap100;o:a;ogap10;o:b;");
}

static void test_a_tail_begins_anywhere(void **state)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    (void)state;
    follow_init(&f, NULL, "se1", 10, &sink, &seen);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":500,\"data\":\"YQ==\"}"), 0);
    assert_string_equal(buf_str(&seen), "o:a;");
}

static void expect_note(const char *data, double limit_s, const char *note)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;
    char text[FOLLOW_NOTE_SIZE];

    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    assert_int_equal(send_event(&f, "process_exited", data), 0);
    follow_exit_note(&f, limit_s, text);
    assert_string_equal(text, note);
}

static void expect_exit(const char *data, int status)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    assert_int_equal(send_event(&f, "process_exited", data), 0);
    assert_int_equal(f.end, FOLLOW_END_EXITED);
    assert_int_equal(follow_step(&f, 0, NULL), 1);
    assert_int_equal(follow_exit_status(&f), status);
}

static void test_exit_statuses(void **state)
{
    (void)state;
    expect_exit("{\"exit_code\":0,\"signal\":null,\"timed_out\":false}", 0);
    expect_exit("{\"exit_code\":42,\"signal\":null,\"timed_out\":false}", 42);
    expect_exit("{\"exit_code\":null,\"signal\":\"SIGKILL\",\"timed_out\":false}", 137);
    expect_exit("{\"exit_code\":null,\"signal\":\"SIGKILL\",\"timed_out\":true}", 124);
    expect_exit("{\"exit_code\":null,\"signal\":\"SIGTERM\",\"timed_out\":false}", 143);
}

#define KILLED(timed_out, out_of_memory)                                                           \
    "{\"exit_code\":null,\"signal\":\"SIGKILL\",\"timed_out\":" timed_out                          \
    ",\"out_of_memory\":" out_of_memory "}"

static void test_what_ended_a_command_is_said(void **state)
{
    char longest[FOLLOW_NOTE_SIZE];

    (void)state;
    expect_exit(KILLED("false", "true"), 137);
    expect_note(KILLED("false", "false"), 2, "");
    expect_note("{\"exit_code\":0,\"signal\":null,\"timed_out\":false}", 0, "");
    expect_note(KILLED("false", "true"), 2, FOLLOW_OUT_OF_MEMORY);
    expect_note(KILLED("true", "false"), 0.25,
                "timed out: the command was killed after 0.25 s (--timeout)");
    expect_note(KILLED("true", "false"), 31536000,
                "timed out: the command was killed after 31536000 s (--timeout)");
    (void)snprintf(longest, sizeof(longest), "%s; %s",
                   "timed out: the command was killed at the end of the time it was given",
                   FOLLOW_OUT_OF_MEMORY);
    expect_note(KILLED("true", "true"), 0, longest);
}

static void test_a_lost_process_is_no_exit(void **state)
{
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    (void)state;
    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    assert_int_equal(send_event(&f, "process_lost", "{\"reason\":\"crashed\"}"), 0);
    assert_int_equal(f.end, FOLLOW_END_LOST);
    assert_string_equal(f.lost_reason, "crashed");
}

static void test_malformed_and_unknown_events(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"stream\":\"stdin\",\"offset\":0,\"data\":\"\"}",
        "{\"stream\":\"stdout\",\"offset\":-1,\"data\":\"\"}",
        "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"a\"}",
        "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"====\"}",
        "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"aG=sbG8=\"}",
    };
    _cleanup_buf_ struct buf seen = buf_make(0);
    _cleanup_(follow_done) struct follow f;

    (void)state;
    follow_init(&f, NULL, "se1", 0, &sink, &seen);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(send_event(&f, "output", bad[i]), -EBADMSG);
    }
    assert_int_equal(send_event(&f, "of_a_later_version", "whatever"), 0);
    assert_int_equal(
        send_event(&f, "output", "{\"stream\":\"stdout\",\"offset\":0,\"data\":\"c3RvcA==\"}"),
        -EPIPE);
    assert_string_equal(buf_str(&seen), "o:stop;");
}

static void test_signal_names(void **state)
{
    (void)state;
    assert_int_equal(signal_number("SIGTERM"), 15);
    assert_int_equal(signal_number("HUP"), 1);
    assert_int_equal(signal_number("NOSUCH"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_comes_once_whatever_is_replayed),
        cmocka_unit_test(test_what_is_missing_is_told),
        cmocka_unit_test(test_a_tail_begins_anywhere),
        cmocka_unit_test(test_exit_statuses),
        cmocka_unit_test(test_what_ended_a_command_is_said),
        cmocka_unit_test(test_a_lost_process_is_no_exit),
        cmocka_unit_test(test_malformed_and_unknown_events),
        cmocka_unit_test(test_signal_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
