/* `on_full: block`: the writer waits for the furthest attached reader, and nothing is lost. With
 * real agents and no virtual machines. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/rig_websocket.h"

#define PIECES      100U
#define PIECES_MAX  450U /* for more than is kept behind a reader */
#define PIECE_BYTES 100000U
#define TOTAL       (PIECES * PIECE_BYTES)
#define SPOOL_BYTES 65536U
/* What the writer may be ahead of what was read: the spool, what the agent has sent and what it
 * keeps beyond that, the pipe, and the piece under way. */
#define AHEAD_MAX (SPOOL_BYTES + 2U * 262144U + 65536U + PIECE_BYTES)
/* And what a reader that does not read has taken: its connection's buffers. */
#define BUFFERS_MAX 2000000U
/* Where the disk is full. */
#define FULL_AT 3000000U
/* As long without progress means that it waits. */
#define QUIET_MS 300

/* A writer that says in a file how many pieces it has written. */
static void start_pieces(const struct fixture *f, unsigned int pieces, struct started *ret)
{
    char fields[400];

    (void)snprintf(fields, sizeof(fields),
                   "\"shell\": \"for i in $(seq %u); do head -c %u /dev/zero; echo $i > "
                   "%s/data/progress; done\", \"spool_bytes\": %u, \"on_full\": \"block\"",
                   pieces, PIECE_BYTES, f->rig->dir, SPOOL_BYTES);
    fixture_start(f, fields, ret);
}

static void start_writer(const struct fixture *f, struct started *ret)
{
    start_pieces(f, PIECES, ret);
}

static uint64_t written(const struct fixture *f)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char path[96];
    uint64_t pieces = 0;

    (void)snprintf(path, sizeof(path), "%s/data/progress", f->rig->dir);
    if (file_read(AT_FDCWD, path, 100, &text) == 0 && text.n > 1) {
        (void)!span_parse_u64(span_head(buf_span(&text), text.n - 1), PIECES_MAX, &pieces);
    }
    return pieces * PIECE_BYTES;
}

/* Waits until the writer waits; what it has written by then. */
static uint64_t wait_quiet(const struct fixture *f)
{
    uint64_t last = 0;

    for (int quiet = 0; quiet < QUIET_MS;) {
        uint64_t now = written(f);

        (void)usleep(10000);
        quiet = now == last && now > 0 ? quiet + 10 : 0;
        last = now;
    }
    return last;
}

static void
attach(const struct fixture *f, const struct started *p, uint64_t offset, struct rig_websocket *ret)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/attach?stdout=%llu",
                   f->sandbox, p->session, (unsigned long long)offset);
    assert_int_equal(rig_websocket_open(f->rig, path, ret), 101);
    rig_websocket_until(ret, "attached");
}

/* Reads to the end; how many bytes came. There must be no gap. */
static uint64_t read_to_end(struct rig_websocket *w)
{
    while (rig_websocket_receive(w)) {
        assert_string_not_equal(rig_websocket_text(w, "type"), "gap");
    }
    assert_int_equal(w->closed, WEBSOCKET_NORMAL);
    return w->output[0].n;
}

static void test_waits_without_a_reader(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    uint64_t ahead;
    struct started p;

    start_writer(f, &p);
    ahead = wait_quiet(f);
    assert_in_range(ahead, SPOOL_BYTES, AHEAD_MAX);
    attach(f, &p, 0, &w);
    assert_int_equal(read_to_end(&w), TOTAL);
}

static void test_waits_when_the_reader_goes(void **state)
{
    const struct fixture *f = *state;
    struct started p;
    uint64_t have = 0;

    start_writer(f, &p);
    for (int round = 0; round < 3; round++) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};
        uint64_t before = written(f);
        uint64_t after;

        attach(f, &p, have, &w);
        rig_websocket_until_bytes(&w, 0, 2000000);
        have += w.output[0].n;
        rig_websocket_close(&w);
        after = wait_quiet(f);
        assert_true(after > before && after < TOTAL);
        assert_true(after <= have + BUFFERS_MAX + AHEAD_MAX);
    }
    {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};

        attach(f, &p, have, &w);
        assert_int_equal(have + read_to_end(&w), TOTAL);
    }
}

/* The slow one does not hold the writer up, and is told what it missed. */
static void test_the_furthest_reader_counts(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket slow = {0};
    _cleanup_rig_websocket_ struct rig_websocket fast = {0};
    const uint64_t total = (uint64_t)PIECES_MAX * PIECE_BYTES;
    uint64_t gaps = 0;
    struct started p;

    start_pieces(f, PIECES_MAX, &p);
    attach(f, &p, 0, &slow);
    attach(f, &p, 0, &fast);
    assert_int_equal(read_to_end(&fast), total);
    while (rig_websocket_receive(&slow)) {
        if (slow.event != NULL && strcmp(rig_websocket_text(&slow, "type"), "gap") == 0) {
            gaps += (uint64_t)rig_websocket_number(&slow, "bytes");
            json_decref(TAKE(slow.event));
        }
    }
    assert_int_equal(slow.output[0].n + gaps, total);
    assert_true(gaps > 0);
}

/* Whoever reads by GET output alone, one stream and then the other, holds nothing up. The writer
 * pauses, so that its lines are runs of their own, and waits before anything is read. */
static void test_two_streams_read_by_output(void **state)
{
    const struct fixture *f = *state;
    static const char *const names[] = {"stdout", "stderr"};
    uint64_t offsets[2] = {0, 0};
    bool ended[2] = {false, false};
    unsigned int empty = 0;
    char fields[400];
    struct started p;

    (void)snprintf(
        fields, sizeof(fields),
        "\"shell\": \"l=$(printf %%0999d 0); for i in $(seq %u); do echo $l; echo $l >&2; "
        "echo $i > %s/data/progress; sleep 0.001; done\", \"on_full\": \"block\", "
        "\"spool_bytes\": %u",
        PIECES_MAX, f->rig->dir, SPOOL_BYTES);
    fixture_start(f, fields, &p);
    assert_true(wait_quiet(f) < (uint64_t)PIECES_MAX * PIECE_BYTES);
    for (unsigned int i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer refused = {0};
        char query[100];

        /* Beyond the end: that has been read by nobody. */
        (void)snprintf(query, sizeof(query), "stream=%s&wait=0&offset=%llu", names[i],
                       (unsigned long long)INT64_MAX);
        rig_read_output(f->rig, f->sandbox, p.session, query, &refused);
        assert_int_equal(refused.status, 400);
    }
    for (unsigned int i = 0; !ended[0] || !ended[1]; i = 1 - i) {
        _cleanup_answer_ struct answer piece = {0};
        char query[100];

        (void)snprintf(query, sizeof(query), "stream=%s&wait=0.2&offset=%llu", names[i],
                       (unsigned long long)offsets[i]);
        rig_read_output(f->rig, f->sandbox, p.session, query, &piece);
        assert_int_equal(piece.status, 200);
        offsets[i] += piece.body.n;
        ended[i] = answer_has(&piece, "X-Space-End: true");
        empty += piece.body.n == 0 && !ended[i] ? 1 : 0;
        assert_true(empty < 60); /* 12 s in which nothing came */
    }
    assert_int_equal(offsets[0], PIECES_MAX * 1000);
    assert_int_equal(offsets[1], PIECES_MAX * 1000);
}

/* When the furthest goes, the writer waits for the next one. */
static void test_the_next_reader_counts_then(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket slow = {0};
    _cleanup_rig_websocket_ struct rig_websocket fast = {0};
    uint64_t have;
    struct started p;

    start_writer(f, &p);
    attach(f, &p, 0, &slow);
    attach(f, &p, 0, &fast);
    rig_websocket_until_bytes(&fast, 0, 4000000);
    have = fast.output[0].n;
    rig_websocket_close(&fast);
    assert_true(wait_quiet(f) <= have + BUFFERS_MAX + AHEAD_MAX);
    while (rig_websocket_receive(&slow)) {
    }
    assert_int_equal(slow.closed, WEBSOCKET_NORMAL);
    assert_int_equal(written(f), TOTAL);
}

static void test_over_restarts(void **state)
{
    const struct fixture *f = *state;
    uint64_t have = 0;
    struct started p;

    start_writer(f, &p);
    for (int round = 0; round < 3; round++) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};

        attach(f, &p, have, &w);
        rig_websocket_until_bytes(&w, 0, 1500000);
        have += w.output[0].n;
        rig_kill(f->rig);
        rig_start(f->rig);
        assert_true(wait_quiet(f) < TOTAL);
    }
    {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};

        attach(f, &p, have, &w);
        assert_int_equal(have + read_to_end(&w), TOTAL);
    }
}

static void set_file_limit(const struct fixture *f, rlim_t bytes)
{
    const struct rlimit limit = {bytes, RLIM_INFINITY};

    assert_int_equal(prlimit(f->rig->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* A disk without room for more is as good as readers that do not read. */
static void test_waits_for_room_on_the_disk(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    set_file_limit(f, FULL_AT);
    start_writer(f, &p);
    attach(f, &p, 0, &w);
    rig_websocket_until_bytes(&w, 0, FULL_AT - 200000);
    assert_true(wait_quiet(f) <= FULL_AT + AHEAD_MAX);
    set_file_limit(f, RLIM_INFINITY);
    assert_int_equal(read_to_end(&w), TOTAL);
}

/* So is the end: it is told when all that came before can be read. */
static void test_an_exit_waits_for_room_on_the_disk(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer before = {0};
    _cleanup_answer_ struct answer result = {0};
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    set_file_limit(f, 10000);
    fixture_start(f, "\"shell\": \"head -c 100000 /dev/zero; exit 3\", \"on_full\": \"block\"", &p);
    fixture_ask(f, &p, "GET", "/result?wait=0.5", NULL, &before);
    assert_int_equal(before.status, 202);
    set_file_limit(f, RLIM_INFINITY);
    fixture_ask(f, &p, "GET", "/result?wait=30&max_output_bytes=1", NULL, &result);
    assert_int_equal(result.status, 200);
    attach(f, &p, 0, &w);
    assert_int_equal(read_to_end(&w), 100000);
    assert_int_equal(rig_websocket_number(&w, "exit_code"), 3);
}

/* What is left when a timeout kills it waits as well, for longer than a guest may otherwise take to
 * report the end. */
#define TIMED_OUT_FIELDS                                                                           \
    "\"shell\": \"yes\", \"on_full\": \"block\", \"spool_bytes\": 65536, \"timeout_seconds\": 0.5"

static void start_with_guard(const struct fixture *f, const char *setting)
{
    rig_kill(f->rig);
    f->rig->settings = setting;
    rig_start(f->rig);
}

/* Many guards pass: it has not ended, and neither has its sandbox. */
static void expect_no_end(const struct fixture *f, const struct started *p)
{
    _cleanup_answer_ struct answer result = {0};

    fixture_ask(f, p, "GET", "/result?wait=2", NULL, &result);
    assert_int_equal(result.status, 202);
    rig_wait_state(f->rig, f->sandbox, "running");
}

static void expect_timed_out_whole(struct rig_websocket *w)
{
    size_t n = (size_t)read_to_end(w);

    assert_true(n > SPOOL_BYTES);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(w->output[0].p[i], i % 2 == 0 ? 'y' : '\n');
    }
    assert_true(json_is_true(json_object_get(w->event, "timed_out")));
    assert_int_equal(rig_websocket_number(w, "stdout_bytes"), n);
}

static void test_a_timeout_waits_for_a_reader(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    start_with_guard(f, "timeout_guard_ms=200");
    fixture_start(f, TIMED_OUT_FIELDS, &p);
    expect_no_end(f, &p);
    attach(f, &p, 0, &w);
    expect_timed_out_whole(&w);
}

/* The guest has yet to be asked when the time was over long ago. */
static void test_a_timeout_that_passed_before_a_restart(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    start_with_guard(f, "timeout_guard_ms=200");
    fixture_start(f, TIMED_OUT_FIELDS, &p);
    expect_no_end(f, &p);
    rig_kill(f->rig);
    rig_start(f->rig);
    rig_wait_state(f->rig, f->sandbox, "running");
    attach(f, &p, 0, &w);
    expect_timed_out_whole(&w);
}

static void test_a_timeout_waits_for_room_on_the_disk(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    start_with_guard(f, "timeout_guard_ms=200");
    set_file_limit(f, 100000);
    fixture_start(f, TIMED_OUT_FIELDS, &p);
    attach(f, &p, 0, &w);
    rig_websocket_until_bytes(&w, 0, SPOOL_BYTES);
    expect_no_end(f, &p);
    set_file_limit(f, RLIM_INFINITY);
    expect_timed_out_whole(&w);
}

/* Nobody who is attached slows a process that drops. */
static void test_dropping_waits_for_nobody(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket slow = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"head -c 10000000 /dev/zero\", \"spool_bytes\": 65536", &p);
    attach(f, &p, 0, &slow);
    fixture_ask(f, &p, "GET", "/result?wait=30&max_output_bytes=1", NULL, &result);
    assert_int_equal(result.status, 200);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_waits_without_a_reader),
        CASE(test_waits_when_the_reader_goes),
        CASE(test_the_furthest_reader_counts),
        CASE(test_two_streams_read_by_output),
        CASE(test_the_next_reader_counts_then),
        CASE(test_over_restarts),
        CASE(test_waits_for_room_on_the_disk),
        CASE(test_an_exit_waits_for_room_on_the_disk),
        CASE(test_a_timeout_waits_for_a_reader),
        CASE(test_a_timeout_that_passed_before_a_restart),
        CASE(test_a_timeout_waits_for_room_on_the_disk),
        CASE(test_dropping_waits_for_nobody),
    };

    (void)signal(SIGXFSZ, SIG_IGN); /* the rig is given a limit for its files */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
