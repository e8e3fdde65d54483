#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "wire/agent_process.h"
#include "wire/agent_roundtrip.h"

static const uint8_t nonce_a[AGENT_NONCE_BYTES] = {1, 2, 3};
static const uint8_t nonce_b[AGENT_NONCE_BYTES] = {9, 9, 9};

static void put_welcome(struct buf *b, const uint8_t *nonce)
{
    struct agent_welcome m = {.version = 1, .epoch = 7};

    memcpy(m.nonce, nonce, sizeof(m.nonce));
    agent_welcome_format(b, &m);
}

static void put_hello(struct buf *b, const uint8_t *nonce)
{
    struct agent_hello m = {.version = 1};

    memcpy(m.nonce, nonce, sizeof(m.nonce));
    agent_hello_format(b, &m);
}

static void feed(struct agent_reader *r, struct span s)
{
    size_t room;
    uint8_t *to = agent_reader_space(r, &room);

    assert_true(s.n <= room);
    memcpy(to, s.p, s.n);
    agent_reader_commit(r, s.n);
}

static void test_frame_has_the_documented_bytes(void **state)
{
    static const uint8_t expected[] = {4, 0, 0, 0,    22,   0,    0x54, 0x45, 0,
                                       0, 0, 0, 0x78, 0x56, 0x34, 0x12, 0xa5};
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)state;
    agent_id_format(&b, AGENT_PING, 0, 0x12345678);
    assert_int_equal(b.n, sizeof(expected));
    assert_memory_equal(b.p, expected, sizeof(expected));
}

static void test_every_changed_head_byte_is_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_frame f;

    (void)state;
    agent_started_format(&b, 0x01020304, &(struct agent_started){.pid = 77});
    assert_int_equal(agent_frame_parse(buf_span(&b), &f), b.n);
    for (size_t i = 0; i < AGENT_HEAD_BYTES; i++) {
        b.p[i] ^= 0x40;
        assert_true(agent_frame_parse(buf_span(&b), &f) <= 0);
        b.p[i] ^= 0x40;
    }
    b.p[b.n - 1] = 0;
    assert_int_equal(agent_frame_parse(buf_span(&b), &f), -EBADMSG);
}

static void test_half_frame_completed_by_zeros_is_not_executed(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_free_ uint8_t *zeros = calloc(1, AGENT_FLUSH_BYTES);
    uint8_t bytes[5000] = {'x'};
    struct agent_stdin m = {.offset = 10, .bytes = span_make(bytes, sizeof(bytes))};
    struct agent_reader r;
    struct agent_frame f;

    (void)state;
    assert_int_equal(agent_reader_init(&r, AGENT_HELLO, true), 0);
    put_hello(&b, nonce_a);
    feed(&r, buf_span(&b));
    assert_int_equal(agent_reader_next(&r, &f), 1);
    buf_clear(&b);
    agent_stdin_format(&b, 3, &m);
    feed(&r, span_head(buf_span(&b), 4000));
    assert_int_equal(agent_reader_next(&r, &f), 0);
    feed(&r, span_make(zeros, AGENT_FLUSH_BYTES));
    assert_int_equal(agent_reader_next(&r, &f), 0);
    buf_clear(&b);
    put_hello(&b, nonce_b);
    feed(&r, buf_span(&b));
    assert_int_equal(agent_reader_next(&r, &f), 1);
    assert_int_equal(f.type, AGENT_HELLO);
    assert_int_equal(agent_reader_next(&r, &f), 0);
    agent_reader_done(&r);
}

static void test_host_skips_to_its_own_welcome(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_reader r;
    struct agent_frame f;
    struct agent_welcome w;

    (void)state;
    assert_int_equal(agent_reader_init(&r, AGENT_WELCOME, false), 0);
    agent_reader_set_nonce(&r, nonce_a);
    buf_put_str(&b, "half a frame");
    put_welcome(&b, nonce_b);
    agent_id_format(&b, AGENT_PONG, 0, 1);
    put_welcome(&b, nonce_a);
    agent_id_format(&b, AGENT_PONG, 0, 2);
    buf_put_str(&b, "not a frame at all");
    feed(&r, buf_span(&b));
    assert_int_equal(agent_reader_next(&r, &f), 1);
    assert_int_equal(agent_welcome_parse(&f, &w), 0);
    assert_memory_equal(w.nonce, nonce_a, sizeof(nonce_a));
    assert_int_equal(w.epoch, 7);
    assert_int_equal(agent_reader_next(&r, &f), 1);
    assert_int_equal(f.type, AGENT_PONG);
    assert_int_equal(agent_reader_next(&r, &f), -EBADMSG);
    assert_int_equal(agent_reader_next(&r, &f), -EBADMSG);
    agent_reader_done(&r);
}

static void put_strings(struct buf *raw, struct agent_strings *list, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++) {
        buf_put_block(raw, span_of_str(text));
    }
    *list = (struct agent_strings){(uint32_t)times, buf_span(raw)};
}

static void test_long_start_is_split_and_joined(void **state)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf joined = buf_make(0);
    struct agent_start m = {.timeout_ms = 5, .user = span_of_str("user"), .cwd = span_of_str("/x")};
    struct agent_start back;
    struct agent_frame f;
    struct span rest;
    int frames = 0;

    (void)state;
    put_strings(&raw, &m.argv, "an argument of forty bytes, more or less", 4096);
    agent_start_format(&b, 5, &m);
    assert_int_equal(buf_error(&b), 0);
    for (rest = buf_span(&b); rest.n > 0; frames++) {
        int used = agent_frame_parse(rest, &f);

        assert_true(used > 0);
        buf_put(&joined, f.payload);
        rest = span_skip(rest, (size_t)used);
        assert_int_equal((f.flags & AGENT_START_MORE) != 0, rest.n > 0);
    }
    assert_true(frames > 2);
    assert_int_equal(agent_start_parse(buf_span(&joined), &back), 0);
    assert_int_equal(back.argv.count, 4096);
    assert_true(span_equals(back.argv.raw, m.argv.raw));
    assert_true(span_equals_str(back.user, "user"));
    assert_int_equal(back.timeout_ms, 5);
}

static void test_start_limits(void **state)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_start m = {.flags = 0};

    (void)state;
    put_strings(&raw, &m.argv, "a", 4097);
    agent_start_format(&b, 5, &m);
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    buf_clear(&b);
    put_strings(&raw, &m.argv, "a", 1);
    m.cwd = span_make("/a\0b", 4);
    agent_start_format(&b, 5, &m);
    assert_int_equal(buf_error(&b), -EMSGSIZE);
}

static int start_flags(uint32_t flags)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_start m = {.flags = flags};
    struct agent_frame f;

    put_strings(&raw, &m.argv, "file-stat", 1);
    agent_start_format(&b, 5, &m);
    assert_int_equal(agent_frame_parse(buf_span(&b), &f), b.n);
    return agent_start_parse(f.payload, &m);
}

static void test_a_service_has_no_terminal_and_no_rehearsal(void **state)
{
    (void)state;
    assert_int_equal(start_flags(AGENT_START_SERVICE), 0);
    assert_int_equal(start_flags(AGENT_START_SERVICE | AGENT_START_STDIN), 0);
    assert_int_equal(start_flags(AGENT_START_SERVICE | AGENT_START_TTY), -EBADMSG);
    assert_int_equal(start_flags(AGENT_START_SERVICE | AGENT_START_REHEARSAL), -EBADMSG);
    assert_int_equal(start_flags(AGENT_START_TTY | AGENT_START_REHEARSAL), 0);
    assert_int_equal(start_flags(16), -EBADMSG);
}

/* Every message, cut at every length and with a byte too many, is refused. */
static void test_short_and_long_payloads_are_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    _cleanup_buf_ struct buf raw = buf_make(0);
    uint8_t entropy[AGENT_ENTROPY_BYTES] = {3};
    struct agent_identity id = {.id = 1, .epoch = 2, .hostname = span_of_str("box")};
    struct agent_process p = {.pid = 1, .exited = true};
    struct agent_write_file w = {.path = span_of_str("/f"), .bytes = span_of_str("abc")};
    struct span rest;

    (void)state;
    id.entropy = span_make(entropy, sizeof(entropy));
    put_strings(&raw, &id.env, "A=b", 2);
    put_hello(&b, nonce_a);
    put_welcome(&b, nonce_a);
    agent_identity_format(&b, &id);
    agent_identity_ok_format(&b, &(struct agent_identity_ok){.id = 1, .done = AGENT_IDENTITY_ALL});
    agent_started_format(&b, 1, &(struct agent_started){.pid = 2});
    agent_start_failed_format(&b, 1, &(struct agent_start_failed){2, AGENT_WHAT_EXEC});
    agent_stdin_ack_format(&b, 1, &(struct agent_stdin_ack){3, true});
    agent_output_ack_format(&b, 1, &(struct agent_output_ack){AGENT_STDERR, 3});
    agent_signal_format(&b, 1, &(struct agent_signal){1, 9, AGENT_SCOPE_TREE});
    agent_result_format(&b, 1, &(struct agent_result){1, 3});
    agent_exited_format(&b, 1, &(struct agent_exited){.status = 3});
    agent_forget_format(&b, 1);
    agent_resume_from_format(&b, 1, &(struct agent_resume_from){1, 2});
    agent_process_format(&b, 1, &p);
    agent_process_end_format(&b, 1);
    agent_id_format(&b, AGENT_SILENCE, 3, 1);
    agent_wake_format(&b, &(struct agent_wake){1, 2});
    agent_resize_format(&b, 1, &(struct agent_resize){80, 24});
    agent_write_file_format(&b, &w);
    assert_int_equal(buf_error(&b), 0);
    for (rest = buf_span(&b); rest.n > 0;) {
        struct agent_frame f;
        struct agent_frame cut;
        int used = agent_frame_parse(rest, &f);

        assert_true(used > 0);
        assert_int_equal(agent_roundtrip(&f, &again), 0);
        cut = f;
        for (size_t n = 0; n < f.payload.n; n++) {
            cut.payload = span_head(f.payload, n);
            assert_int_equal(agent_roundtrip(&cut, &again), -EBADMSG);
        }
        cut.payload = span_make(f.payload.p, f.payload.n + 1);
        assert_int_equal(agent_roundtrip(&cut, &again), -EBADMSG);
        cut = f;
        cut.flags |= 0x80;
        assert_int_equal(agent_roundtrip(&cut, &again), -EBADMSG);
        rest = span_skip(rest, (size_t)used);
    }
}

/* The directory is absent when the host knows it, as in frames of earlier releases. */
static void test_directory_of_a_process(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_started started = {.pid = 7, .cwd = span_of_str("/home/user")};
    struct agent_process report = {.pid = 7, .cwd = span_of_str("/home/user")};
    struct agent_started got;
    struct agent_process got_report;
    struct agent_frame f;
    int used;

    (void)state;
    agent_started_format(&b, 1, &started);
    agent_process_format(&b, 1, &report);
    used = agent_frame_parse(buf_span(&b), &f);
    assert_true(used > 0);
    assert_int_equal(agent_started_parse(&f, &got), 0);
    assert_true(span_equals_str(got.cwd, "/home/user"));
    f.payload.n--;
    assert_int_equal(agent_started_parse(&f, &got), -EBADMSG);
    f.payload.n = 8; /* a length of no bytes */
    assert_int_equal(agent_started_parse(&f, &got), -EBADMSG);
    f.payload.n = 4;
    assert_int_equal(agent_started_parse(&f, &got), 0);
    assert_int_equal(got.cwd.n, 0);
    assert_true(agent_frame_parse(span_skip(buf_span(&b), (size_t)used), &f) > 0);
    assert_int_equal(agent_process_parse(&f, &got_report), 0);
    assert_true(span_equals_str(got_report.cwd, "/home/user"));
}

static void test_bad_values_are_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    struct span rest;

    (void)state;
    agent_signal_format(&b, 1, &(struct agent_signal){1, 0, 0});
    agent_signal_format(&b, 1, &(struct agent_signal){1, 65, 0});
    agent_signal_format(&b, 1, &(struct agent_signal){1, 9, 3});
    agent_signal_format(&b, 0, &(struct agent_signal){1, 9, 0});
    agent_output_format(&b, 1, &(struct agent_output){.stream = 3, .bytes = span_of_str("x")});
    agent_output_format(&b, 1, &(struct agent_output){.stream = 1});
    agent_stdin_format(&b, 1, &(struct agent_stdin){.offset = 1});
    agent_exited_format(&b, 1, &(struct agent_exited){.kind = 2});
    agent_exited_format(&b, 1, &(struct agent_exited){.flags = 8});
    agent_process_format(&b, 1, &(struct agent_process){.stdout_start = 2, .stdout_end = 1});
    agent_start_failed_format(&b, 1, &(struct agent_start_failed){2, 6});
    agent_write_file_format(&b, &(struct agent_write_file){.path = span_of_str("relative")});
    for (rest = buf_span(&b); rest.n > 0;) {
        struct agent_frame f;
        int used = agent_frame_parse(rest, &f);

        assert_true(used > 0);
        assert_int_equal(agent_roundtrip(&f, &again), -EBADMSG);
        rest = span_skip(rest, (size_t)used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_has_the_documented_bytes),
        cmocka_unit_test(test_every_changed_head_byte_is_refused),
        cmocka_unit_test(test_half_frame_completed_by_zeros_is_not_executed),
        cmocka_unit_test(test_host_skips_to_its_own_welcome),
        cmocka_unit_test(test_long_start_is_split_and_joined),
        cmocka_unit_test(test_start_limits),
        cmocka_unit_test(test_a_service_has_no_terminal_and_no_rehearsal),
        cmocka_unit_test(test_short_and_long_payloads_are_refused),
        cmocka_unit_test(test_directory_of_a_process),
        cmocka_unit_test(test_bad_values_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
