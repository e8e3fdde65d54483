/* Every byte exactly once, and in order: commands with known output on both streams, readers that
 * break off anywhere and resume, and kill -9 of the host end at any moment. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/base64.h"
#include "node/routes_rig.h"
#include "wire/sse.h"

#define PROCESSES    6
#define STEPS_MAX    4000
#define EXIT_STATUS  7
#define TEST_LIMIT_S 90

static uint32_t next_random(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (*seed >> 8U) % below;
}

static uint8_t byte_at(unsigned int stream, uint64_t offset)
{
    return (uint8_t)(offset * 7 + (offset >> 8U) * 13 + stream * 101);
}

/* ---- the program that writes: this one, with --write SEED BYTES ---- */

static int write_output(uint32_t seed, uint64_t bytes)
{
    uint64_t offset[2] = {0, 0};

    while (offset[0] + offset[1] < bytes) {
        static const uint32_t sizes[] = {1, 10, 100, 1000, 5000, 20000};
        unsigned int stream = next_random(&seed, 2);
        uint32_t n = 1 + next_random(&seed, sizes[next_random(&seed, 6)]);
        uint8_t piece[20000];

        for (uint32_t i = 0; i < n; i++) {
            piece[i] = byte_at(stream, offset[stream] + i);
        }
        for (uint32_t done = 0; done < n;) {
            ssize_t r = write((int)stream + 1, &piece[done], n - done);

            if (r < 0) {
                return 1;
            }
            done += (uint32_t)r;
        }
        offset[stream] += n;
        if (next_random(&seed, 20) == 0) {
            (void)usleep(next_random(&seed, 20000));
        }
    }
    return EXIT_STATUS;
}

/* ---- readers ---- */

struct reader_state {
    char session[ID_SIZE];
    uint64_t offset[2];
    uint64_t gap_bytes;
    char last_id[SSE_ID_SIZE];
    bool started;
    bool done;
};

static void take_output(struct reader_state *state, const json_t *data)
{
    const char *text = json_string_value(json_object_get(data, "data"));
    unsigned int stream =
        strcmp(json_string_value(json_object_get(data, "stream")), "stderr") == 0 ? 1 : 0;
    _cleanup_buf_ struct buf bytes = buf_make(0);

    assert_int_equal(json_integer_value(json_object_get(data, "offset")), state->offset[stream]);
    assert_int_equal(base64_parse(span_of_str(text), &bytes), 0);
    for (size_t i = 0; i < bytes.n; i++) {
        assert_int_equal(bytes.p[i], byte_at(stream, state->offset[stream] + i));
    }
    state->offset[stream] += bytes.n;
}

static void take_gap(struct reader_state *state, const json_t *data)
{
    unsigned int stream =
        strcmp(json_string_value(json_object_get(data, "stream")), "stderr") == 0 ? 1 : 0;
    json_int_t n = json_integer_value(json_object_get(data, "bytes"));

    assert_int_equal(json_integer_value(json_object_get(data, "offset")), state->offset[stream]);
    assert_true(n > 0);
    state->offset[stream] += (uint64_t)n;
    state->gap_bytes += (uint64_t)n;
}

static void take_end(struct reader_state *state, const json_t *data)
{
    assert_int_equal(json_integer_value(json_object_get(data, "exit_code")), EXIT_STATUS);
    assert_int_equal(json_integer_value(json_object_get(data, "stdout_bytes")), state->offset[0]);
    assert_int_equal(json_integer_value(json_object_get(data, "stderr_bytes")), state->offset[1]);
    state->done = true;
}

static int on_event(void *arg, const struct sse_event *event)
{
    struct reader_state *state = arg;
    json_t *data = json_loadb((const char *)event->data.p, event->data.n, 0, NULL);

    assert_non_null(data);
    assert_false(state->done);
    if (strcmp(event->name, "output") == 0) {
        take_output(state, data);
    } else if (strcmp(event->name, "gap") == 0) {
        take_gap(state, data);
    } else if (strcmp(event->name, "process_started") == 0) {
        assert_false(state->started);
        state->started = true;
    } else {
        assert_string_equal(event->name, "process_exited");
        take_end(state, data);
    }
    (void)snprintf(state->last_id, sizeof(state->last_id), "%s", event->id);
    json_decref(data);
    return 0;
}

/* Reads at most `limit` bytes or 300 ms of the stream, from where the reader is. */
static void
read_some(const struct rig *rig, const char *sandbox, struct reader_state *state, size_t limit)
{
    _cleanup_buf_ struct buf head = buf_make(0);
    struct sse_parser parser;
    char path[300];
    size_t got = 0;
    int fd;

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events%s%s", sandbox,
                   state->session, state->last_id[0] != '\0' ? "?after=" : "", state->last_id);
    fd = rig_send(rig, "GET", path, span_make(NULL, 0), true);
    sse_init(&parser);
    while (fd >= 0 && got < limit) {
        uint8_t bytes[8192];
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        size_t n = limit - got < sizeof(bytes) ? limit - got : sizeof(bytes);
        ssize_t r = poll(&wait, 1, 300) == 1 ? read(fd, bytes, n) : -1;

        if (r <= 0) {
            break;
        }
        got += (size_t)r;
        if (head.n < 4 || memmem(head.p, head.n, "\r\n\r\n", 4) == NULL) {
            const uint8_t *end;

            buf_put(&head, span_make(bytes, (size_t)r));
            end = memmem(head.p, head.n, "\r\n\r\n", 4);
            if (end != NULL) {
                size_t at = (size_t)(end - head.p) + 4;

                assert_memory_equal(&head.p[9], "200", 3);
                assert_int_equal(sse_feed(&parser, span_skip(buf_span(&head), at), on_event, state),
                                 0);
                head.n = at;
            }
        } else {
            assert_int_equal(sse_feed(&parser, span_make(bytes, (size_t)r), on_event, state), 0);
        }
    }
    sse_done(&parser);
    if (fd >= 0) {
        (void)close(fd);
    }
}

static void start_writers(const struct rig *rig,
                          const char *sandbox,
                          uint32_t *seed,
                          struct reader_state *states)
{
    static const unsigned int sizes[PROCESSES] = {0, 30, 20000, 200000, 2000000, 10000000};
    char self[512];

    rig_program("routes_replay_test", self);
    for (size_t i = 0; i < PROCESSES; i++) {
        _cleanup_answer_ struct answer answer = {0};
        char fields[700];

        (void)snprintf(fields, sizeof(fields), "\"argv\": [\"%s\", \"--write\", \"%u\", \"%u\"]",
                       self, next_random(seed, 1U << 20U), sizes[i]);
        rig_command(rig, sandbox, "commands", fields, &answer);
        assert_int_equal(answer.status, 201);
        (void)snprintf(states[i].session, ID_SIZE, "%s",
                       answer_text(&answer, "process.session_id"));
    }
}

static void run_property(unsigned int spool_bytes, uint32_t seed, bool expect_gaps)
{
    struct rig *rig = rig_new(spool_bytes, 0);
    struct reader_state states[PROCESSES] = {0};
    int64_t limit = clock_monotonic_ms() + TEST_LIMIT_S * 1000;
    uint64_t gaps = 0;
    char sandbox[ID_SIZE];
    unsigned int done = 0;

    rig_make_sandbox(rig, sandbox);
    start_writers(rig, sandbox, &seed, states);
    for (int step = 0; step < STEPS_MAX && done < PROCESSES; step++) {
        static const uint32_t limits[] = {300, 3000, 50000, 500000, 20000000};
        struct reader_state *state = &states[next_random(&seed, PROCESSES)];

        assert_true(clock_monotonic_ms() < limit);
        if (state->done) {
            continue;
        }
        if (next_random(&seed, 12) == 0) {
            rig_kill(rig);
            rig_start(rig);
        }
        read_some(rig, sandbox, state, next_random(&seed, limits[next_random(&seed, 5)]));
        done += state->done ? 1 : 0;
        gaps += state->done ? state->gap_bytes : 0;
    }
    assert_int_equal(done, PROCESSES);
    assert_true(expect_gaps || gaps == 0);
    rig_free(rig);
}

static void test_exactly_once(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 2; seed++) {
        run_property(0, seed, false);
    }
}

static void test_gaps_are_exact(void **state)
{
    (void)state;
    run_property(70000, 3, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exactly_once),
        cmocka_unit_test(test_gaps_are_exact),
    };
    uint64_t seed = 0;
    uint64_t bytes = 0;

    if (argc == 4 && strcmp(argv[1], "--write") == 0) {
        if (span_parse_u64(span_of_str(argv[2]), UINT32_MAX, &seed) < 0 ||
            span_parse_u64(span_of_str(argv[3]), UINT32_MAX, &bytes) < 0) {
            return 2;
        }
        return write_output((uint32_t)seed, bytes);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
