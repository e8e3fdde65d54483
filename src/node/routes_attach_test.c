/* Attached sessions, with real agents and no virtual machines. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "node/rig_websocket.h"

#define IDLE_READERS 500
#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER
#endif
#endif
#ifdef UNDER_ADDRESS_SANITIZER
#define IDLE_READER_KIB 1000 /* the sanitizer's own memory included */
#define FLOOD_KIB       500000
#else
#define IDLE_READER_KIB 20
#define FLOOD_KIB       20000
#endif

static int try_attach(const struct fixture *f,
                      const struct started *p,
                      const char *query,
                      struct rig_websocket *ret)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/attach%s", f->sandbox,
                   p->session, query);
    return rig_websocket_open(f->rig, path, ret);
}

static void attach(const struct fixture *f,
                   const struct started *p,
                   const char *query,
                   struct rig_websocket *ret)
{
    assert_int_equal(try_attach(f, p, query, ret), 101);
    rig_websocket_until(ret, "attached");
}

/* Reads to the end, which must be proper. */
static void read_to_end(struct rig_websocket *w)
{
    while (rig_websocket_receive(w)) {
    }
    assert_int_equal(w->closed, WEBSOCKET_NORMAL);
}

static void test_attach(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"echo out; echo err >&2; exit 3\"", &p);
    attach(f, &p, "", &w);
    assert_string_equal(rig_websocket_text(&w, "process_id"), p.process);
    assert_int_equal(rig_websocket_number(&w, "stdin_offset"), 0);
    assert_int_equal(rig_websocket_number(&w, "stdout"), 0);
    assert_int_equal(rig_websocket_number(&w, "stderr"), 0);
    rig_websocket_until(&w, "process_started");
    assert_true(rig_websocket_number(&w, "pid") > 0);
    rig_websocket_until(&w, "process_exited");
    assert_int_equal(rig_websocket_number(&w, "exit_code"), 3);
    assert_int_equal(rig_websocket_number(&w, "stdout_bytes"), 4);
    assert_string_equal(buf_str(&w.output[0]), "out\n");
    assert_string_equal(buf_str(&w.output[1]), "err\n");
    assert_false(rig_websocket_receive(&w));
    assert_int_equal(w.closed, WEBSOCKET_NORMAL);
}

/* Whatever ends it, and nobody has sent anything: the idle rule counts from there. */
static void test_end_of_an_attachment_is_activity(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;
    char active[CLOCK_TEXT_SIZE];

    fixture_start(f, "\"shell\": \"cat\", \"stdin\": \"open\"", &p);
    attach(f, &p, "", &w);
    rig_read_active(f->rig, f->sandbox, active);
    rig_websocket_close(&w);
    rig_wait_active(f->rig, f->sandbox, active);
}

static void test_attach_anywhere(void **state)
{
    static const unsigned int offsets[][2] = {
        {0, 0}, {17, 4}, {108894, 0}, {54321, 23893}, {0, 23893}, {108894, 23893}, {108893, 1}};
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer out = {0};
    _cleanup_answer_ struct answer err = {0};
    _cleanup_rig_websocket_ struct rig_websocket beyond = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"for i in 1 2 3 4 5; do seq $((i*4000-3999)) $((i*4000)); seq "
                  "$((i*1000-999)) $((i*1000)) >&2; done\"",
                  &p);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &out);
    answer_done(&out);
    rig_read_output(f->rig, f->sandbox, p.session, "", &out);
    rig_read_output(f->rig, f->sandbox, p.session, "stream=stderr", &err);
    assert_int_equal(out.body.n, 108894);
    assert_int_equal(err.body.n, 23893);
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};
        char query[64];

        (void)snprintf(query, sizeof(query), "?stdout=%u&stderr=%u", offsets[i][0], offsets[i][1]);
        attach(f, &p, query, &w);
        assert_int_equal(rig_websocket_number(&w, "stdout"), offsets[i][0]);
        read_to_end(&w);
        assert_int_equal(w.output[0].n, out.body.n - offsets[i][0]);
        assert_int_equal(w.output[1].n, err.body.n - offsets[i][1]);
        assert_string_equal(buf_str(&w.output[0]), &buf_str(&out.body)[offsets[i][0]]);
        assert_string_equal(buf_str(&w.output[1]), &buf_str(&err.body)[offsets[i][1]]);
    }
    assert_int_equal(try_attach(f, &p, "?stdout=108895", &beyond), 400);
}

/* What was dropped is a gap in the stream whose bytes are gone, whatever was asked for. */
static void test_attach_behind_a_gap(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer result = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"head -c 1000000 /dev/zero\", \"spool_bytes\": 65536", &p);
    fixture_ask(f, &p, "GET", "/result?wait=10&max_output_bytes=1", NULL, &result);
    for (json_int_t from = 0; from <= 5000; from += 5000) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};
        json_int_t missing;
        char query[64];

        (void)snprintf(query, sizeof(query), "?stdout=%lld", (long long)from);
        attach(f, &p, query, &w);
        rig_websocket_until(&w, "gap");
        assert_string_equal(rig_websocket_text(&w, "stream"), "stdout");
        assert_int_equal(rig_websocket_number(&w, "offset"), from);
        missing = rig_websocket_number(&w, "bytes");
        read_to_end(&w);
        assert_int_equal((json_int_t)w.output[0].n + missing + from, 1000000);
        assert_true(w.output[0].n > 50000);
    }
}

/* ---- input ---- */

static void test_input_of_several(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket one = {0};
    _cleanup_rig_websocket_ struct rig_websocket two = {0};
    _cleanup_rig_websocket_ struct rig_websocket looker = {0};
    _cleanup_answer_ struct answer posted = {0};
    struct started p;
    char path[300];

    fixture_start(f, "\"argv\": [\"cat\"], \"stdin\": \"open\", \"input\": \"zero\\n\"", &p);
    attach(f, &p, "", &one);
    assert_int_equal(rig_websocket_number(&one, "stdin_offset"), 5);
    attach(f, &p, "", &two);
    attach(f, &p, "?read_only=true", &looker);
    rig_websocket_write(&one, span_of_str("one\n"));
    rig_websocket_until_bytes(&two, 0, 9);
    rig_websocket_write(&two, span_of_str("two\n"));
    rig_websocket_write(&two, span_make(NULL, 0));
    rig_websocket_until_bytes(&one, 0, 13);
    rig_websocket_write(&looker, span_of_str("no\n"));
    rig_websocket_until(&looker, "error");
    assert_string_equal(rig_websocket_text(&looker, "code"), "forbidden");
    rig_websocket_tell(&looker, "{\"type\":\"signal\",\"signal\":\"SIGKILL\"}");
    rig_websocket_until(&looker, "error");
    (void)snprintf(path, sizeof(path), "%s/stdin", p.base);
    rig_receive(rig_send(f->rig, "POST", path, span_of_str("three\n"), true), &posted);
    assert_int_equal(answer_number(&posted, "offset"), 19);
    rig_websocket_tell(&one, "{\"type\":\"eof\"}");
    read_to_end(&one);
    read_to_end(&two);
    read_to_end(&looker);
    assert_string_equal(buf_str(&one.output[0]), "zero\none\ntwo\nthree\n");
    assert_string_equal(buf_str(&two.output[0]), "zero\none\ntwo\nthree\n");
    assert_string_equal(buf_str(&looker.output[0]), "zero\none\ntwo\nthree\n");
}

/* Connections that break while the process does not read, kills of the host end between them: each
 * byte arrives once. */
static void test_input_is_exact(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf all = buf_make(0);
    _cleanup_answer_ struct answer result = {0};
    char replaces[64] = "";
    struct started p;

    for (uint32_t i = 0; i < 300000; i++) {
        buf_put_u32(&all, i);
    }
    fixture_start(f, "\"shell\": \"sleep 0.4; md5sum\", \"stdin\": \"open\"", &p);
    for (unsigned int round = 0; round < 8; round++) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};
        size_t offset;

        attach(f, &p, replaces, &w);
        (void)snprintf(replaces, sizeof(replaces), "?replaces=%s",
                       rig_websocket_text(&w, "attachment_id"));
        offset = (size_t)rig_websocket_number(&w, "stdin_offset");
        /* More than the process, the queue and the sockets take. */
        for (unsigned int i = 0; i < (round + 1) * 2 && offset < all.n; i++) {
            struct span piece = span_head(span_skip(buf_span(&all), offset), 20000);

            rig_websocket_write(&w, piece);
            offset += piece.n;
        }
        if (round == 3) {
            rig_kill(f->rig);
            rig_start(f->rig);
        }
    }
    {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};
        size_t offset;
        bool told = false;

        attach(f, &p, replaces, &w);
        offset = (size_t)rig_websocket_number(&w, "stdin_offset");
        while (offset < all.n) {
            struct span piece = span_head(span_skip(buf_span(&all), offset), 65536);

            rig_websocket_write(&w, piece);
            offset += piece.n;
        }
        rig_websocket_tell(&w, "{\"type\":\"eof\"}");
        while (rig_websocket_receive(&w)) {
            told = told || strcmp(rig_websocket_text(&w, "type"), "stdin") == 0;
        }
        assert_int_equal(w.closed, WEBSOCKET_NORMAL);
        assert_true(told);
    }
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "560445fdab026382512bc935c856d447  -\n");
}

static void test_input_waits_for_the_process(void **state)
{
    static const uint8_t zeros[65536];
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;
    static const uint8_t mask[WEBSOCKET_MASK_BYTES];
    _cleanup_buf_ struct buf frame = buf_make(0);
    size_t sent = 0;

    websocket_put_frame(&frame, WEBSOCKET_BINARY, span_make(zeros, sizeof(zeros)), mask);
    fixture_start(f, "\"argv\": [\"sleep\", \"100\"], \"stdin\": \"open\"", &p);
    attach(f, &p, "", &w);
    assert_int_equal(fd_set_nonblock(w.fd), 0);
    /* The pipe, the window, the queue and the sockets: then nothing more is taken. */
    for (int quiet = 0; quiet < 50;) {
        size_t at = sent % frame.n;
        ssize_t n = write(w.fd, &frame.p[at], frame.n - at);

        sent += n > 0 ? (size_t)n : 0;
        quiet = n > 0 ? 0 : quiet + 1;
        if (n < 0) {
            (void)usleep(2000);
        }
        assert_true(sent < 4U << 20U);
    }
    assert_true(sent > 300000);
}

/* ---- text frames ---- */

static void test_requests(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"trap 'exit 9' USR1; stty -echo; echo ready; read x; stty size; "
                  "while :; do sleep 0.05; done\", \"tty\": {\"cols\": 80, \"rows\": 24}",
                  &p);
    attach(f, &p, "", &w);
    rig_websocket_until_bytes(&w, 0, strlen("ready\r\n"));
    rig_websocket_tell(&w, "{\"type\":\"resize\",\"cols\":120,\"rows\":50}");
    rig_websocket_write(&w, span_of_str("\n"));
    rig_websocket_until_bytes(&w, 0, strlen("ready\r\n50 120\r\n"));
    assert_string_equal(buf_str(&w.output[0]), "ready\r\n50 120\r\n");
    rig_websocket_tell(&w, "{\"type\":\"later\",\"x\":1}");
    rig_websocket_until(&w, "error");
    assert_string_equal(rig_websocket_text(&w, "code"), "invalid_request");
    rig_websocket_tell(&w, "{\"type\":\"resize\",\"cols\":0,\"rows\":50}");
    rig_websocket_until(&w, "error");
    rig_websocket_tell(&w, "{\"type\":\"signal\",\"signal\":\"SIGUSR1\",\"scope\":\"process\"}");
    rig_websocket_until(&w, "process_exited");
    assert_int_equal(rig_websocket_number(&w, "exit_code"), 9);
}

static void test_requests_that_cannot_be(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    fixture_start(f, "\"argv\": [\"sleep\", \"100\"]", &p);
    attach(f, &p, "", &w);
    rig_websocket_write(&w, span_of_str("x"));
    rig_websocket_until(&w, "error");
    assert_string_equal(rig_websocket_text(&w, "code"), "failed_precondition");
    rig_websocket_tell(&w, "{\"type\":\"eof\"}");
    rig_websocket_until(&w, "error");
    assert_string_equal(rig_websocket_text(&w, "code"), "failed_precondition");
    rig_websocket_tell(&w, "{\"type\":\"resize\",\"cols\":1,\"rows\":1}");
    rig_websocket_until(&w, "error");
    assert_string_equal(rig_websocket_text(&w, "code"), "failed_precondition");
    rig_websocket_tell(&w, "{\"type\":\"signal\",\"signal\":\"SIGKILL\"}");
    rig_websocket_until(&w, "process_exited");
    assert_string_equal(rig_websocket_text(&w, "signal"), "SIGKILL");
}

static void test_broken_frames(void **state)
{
    static const struct {
        enum websocket_opcode opcode;
        const char *payload;
        unsigned int code;
    } cases[] = {
        {WEBSOCKET_TEXT, "{", WEBSOCKET_BAD_TEXT},
        {WEBSOCKET_TEXT, "[]", WEBSOCKET_BAD_TEXT},
        {WEBSOCKET_TEXT, "{\"type\":7}", WEBSOCKET_BAD_TEXT},
        {WEBSOCKET_TEXT, "", WEBSOCKET_BAD_TEXT},
        {WEBSOCKET_BINARY, "", 1003},
        {WEBSOCKET_BINARY, "\1x", 1003},
    };
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket good = {0};
    _cleanup_buf_ struct buf large = buf_make(0);
    struct started p;

    fixture_start(f, "\"argv\": [\"cat\"], \"stdin\": \"open\"", &p);
    attach(f, &p, "", &good);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};

        attach(f, &p, "", &w);
        rig_websocket_send(&w, cases[i].opcode, span_of_str(cases[i].payload));
        while (rig_websocket_receive(&w)) {
        }
        assert_int_equal(w.closed, cases[i].code);
    }
    for (int i = 0; i < 70000; i++) {
        buf_put_u8(&large, 0);
    }
    {
        _cleanup_rig_websocket_ struct rig_websocket w = {0};

        attach(f, &p, "", &w);
        rig_websocket_send(&w, WEBSOCKET_BINARY, buf_span(&large));
        while (rig_websocket_receive(&w)) {
        }
        assert_int_equal(w.closed, WEBSOCKET_TOO_LONG);
    }
    rig_websocket_write(&good, span_of_str("fine"));
    rig_websocket_until_bytes(&good, 0, 4);
}

/* ---- lives ---- */

static void test_start_on_attach(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket looker = {0};
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    _cleanup_answer_ struct answer object = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"cat; echo over\", \"stdin\": \"open\", \"start\": \"on_attach\"",
                  &p);
    attach(f, &p, "?read_only=true", &looker);
    fixture_ask(f, &p, "GET", "", NULL, &object);
    assert_string_equal(answer_text(&object, "state"), "starting");
    attach(f, &p, "", &w);
    rig_websocket_write(&w, span_of_str("early\n"));
    rig_websocket_tell(&w, "{\"type\":\"eof\"}");
    rig_websocket_until(&w, "process_started");
    read_to_end(&w);
    read_to_end(&looker);
    assert_string_equal(buf_str(&w.output[0]), "early\nover\n");
    assert_string_equal(buf_str(&looker.output[0]), "early\nover\n");
}

static void test_ends_of_sandboxes_and_records(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;
    char path[64];

    fixture_start(f, "\"shell\": \"echo x; sleep 100\"", &p);
    attach(f, &p, "", &w);
    rig_websocket_until_bytes(&w, 0, 2);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    rig_websocket_until(&w, "process_lost");
    assert_string_equal(rig_websocket_text(&w, "reason"), "deleted");
    read_to_end(&w);
}

static void test_refusals(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer plain = {0};
    _cleanup_rig_websocket_ struct rig_websocket unknown = {0};
    _cleanup_rig_websocket_ struct rig_websocket bad = {0};
    struct started p;
    char path[300];

    fixture_start(f, "\"argv\": [\"true\"]", &p);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/attach", f->sandbox,
                   p.session);
    rig_ask(f->rig, "GET", path, NULL, &plain);
    assert_int_equal(plain.status, 400);
    assert_string_equal(answer_text(&plain, "error.code"), "invalid_request");
    assert_int_equal(try_attach(f, &p, "?x=1", &bad), 400);
    memcpy(&p.session[2], "000000000000000000", 18);
    assert_int_equal(try_attach(f, &p, "", &unknown), 404);
}

static void test_readers_are_counted(void **state)
{
    const struct fixture *f = *state;
    struct rig_websocket readers[8];
    _cleanup_rig_websocket_ struct rig_websocket over = {0};
    _cleanup_answer_ struct answer events = {0};
    struct started p;
    char path[300];

    rig_kill(f->rig);
    f->rig->settings = "node.max_attached=8";
    rig_start(f->rig);
    fixture_start(f, "\"argv\": [\"sleep\", \"100\"]", &p);
    for (size_t i = 0; i < 8; i++) {
        attach(f, &p, "", &readers[i]);
    }
    assert_int_equal(try_attach(f, &p, "", &over), 409);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events", f->sandbox,
                   p.session);
    rig_ask(f->rig, "GET", path, NULL, &events);
    assert_int_equal(events.status, 409);
    assert_string_equal(answer_text(&events, "error.details.limit"), "node.max_attached");
    for (size_t i = 0; i < 8; i++) {
        rig_websocket_close(&readers[i]);
    }
    for (int tries = 0; tries < 1000; tries++) {
        _cleanup_rig_websocket_ struct rig_websocket again = {0};

        if (try_attach(f, &p, "", &again) == 101) {
            return;
        }
        (void)usleep(1000);
    }
    fail();
}

/* ---- what it costs ---- */

static uint64_t private_kib(const struct fixture *f)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    const char *at;
    uint64_t kib = 0;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)f->rig->pid);
    assert_int_equal(file_read(AT_FDCWD, path, 65536, &text), 0);
    at = strstr(buf_str(&text), "Pss_Anon:");
    assert_non_null(at);
    at += strlen("Pss_Anon:");
    at += strspn(at, " ");
    assert_int_equal(span_parse_u64(span_make(at, strspn(at, "0123456789")), 1U << 30U, &kib), 0);
    return kib;
}

/* Readers that have read a lot and now wait cost little. */
static void test_idle_readers(void **state)
{
    const struct fixture *f = *state;
    struct rig_websocket *readers = calloc(IDLE_READERS, sizeof(*readers));
    uint64_t before;
    uint64_t after;
    struct started p;

    assert_non_null(readers);
    fixture_start(f, "\"shell\": \"head -c 200000 /dev/zero; sleep 100\"", &p);
    attach(f, &p, "", &readers[0]);
    rig_websocket_until_bytes(&readers[0], 0, 200000);
    before = private_kib(f);
    for (size_t i = 1; i < IDLE_READERS; i++) {
        attach(f, &p, "", &readers[i]);
        rig_websocket_until_bytes(&readers[i], 0, 200000);
        buf_done(&readers[i].output[0]);
    }
    after = private_kib(f);
    print_message("an idle reader: %.1f KiB\n", (double)(after - before) / (IDLE_READERS - 1));
    assert_true(after - before < IDLE_READER_KIB * IDLE_READERS);
    for (size_t i = 0; i < IDLE_READERS; i++) {
        rig_websocket_close(&readers[i]);
    }
    free(readers);
}

/* A flood with readers that do not read: the host end stays small, the process is not slowed and
 * can be killed. */
static void test_flood(void **state)
{
    const struct fixture *f = *state;
    struct rig_websocket lazy[4];
    _cleanup_answer_ struct answer killed = {0};
    _cleanup_answer_ struct answer result = {0};
    uint64_t before = private_kib(f);
    struct started p;
    int64_t omitted;

    fixture_start(f, "\"shell\": \"yes | head -c 300000000; sleep 100\", \"spool_bytes\": 1048576",
                  &p);
    for (size_t i = 0; i < 4; i++) {
        attach(f, &p, "", &lazy[i]);
    }
    for (int64_t deadline = clock_monotonic_ms() + 60000;;) {
        _cleanup_answer_ struct answer output = {0};

        rig_read_output(f->rig, f->sandbox, p.session, "offset=300000000&wait=0.1", &output);
        if (output.status == 200) {
            break;
        }
        assert_true(clock_monotonic_ms() < deadline);
    }
    assert_true(private_kib(f) < before + FLOOD_KIB);
    fixture_ask(f, &p, "POST", "/kill", NULL, &killed);
    assert_true(json_is_true(json_object_get(killed.json, "killed")));
    fixture_ask(f, &p, "GET", "/result?max_output_bytes=1000", NULL, &result);
    omitted = answer_number(&result, "stdout_omitted_bytes");
    assert_int_equal(omitted, 300000000 - 1000);
    for (size_t i = 0; i < 4; i++) {
        rig_websocket_close(&lazy[i]);
    }
}

/* Counts the error events with this code until there are `total`. */
static unsigned int count_errors(struct rig_websocket *w, unsigned int total, const char *code)
{
    unsigned int found = 0;

    for (unsigned int i = 0; i < total; i++) {
        rig_websocket_until(w, "error");
        found += strcmp(rig_websocket_text(w, "code"), code) == 0 ? 1 : 0;
    }
    return found;
}

/* A client that is told again and again what it may not do, and reads none of it, is not read
 * either; when it reads, it has an answer to each frame. */
static void test_answers_do_not_pile_up(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket looker = {0};
    _cleanup_buf_ struct buf frame = buf_make(0);
    const uint8_t mask[4] = {1, 2, 3, 4};
    unsigned int sent = 0;
    struct started p;

    fixture_start(f, "\"shell\": \"cat\", \"stdin\": \"open\"", &p);
    attach(f, &p, "?read_only=true", &looker);
    websocket_put_frame(&frame, WEBSOCKET_TEXT, span_of_str("{\"type\": \"eof\"}"), mask);
    for (;;) {
        struct pollfd out = {.fd = looker.fd, .events = POLLOUT};

        if (poll(&out, 1, 3000) == 0) {
            break;
        }
        assert_int_equal(send(looker.fd, frame.p, frame.n, MSG_NOSIGNAL), frame.n);
        assert_true(++sent < 100000);
    }
    assert_int_equal(count_errors(&looker, sent, "forbidden"), sent);
    rig_websocket_tell(&looker, "{\"type\": \"eof\"}");
    assert_int_equal(count_errors(&looker, 1, "forbidden"), 1);
}

static void send_many(const struct rig_websocket *w, const char *json, unsigned int count)
{
    _cleanup_buf_ struct buf frames = buf_make(0);
    const uint8_t mask[4] = {1, 2, 3, 4};

    for (unsigned int i = 0; i < count; i++) {
        websocket_put_frame(&frames, WEBSOCKET_TEXT, span_of_str(json), mask);
    }
    assert_int_equal(send(w->fd, frames.p, frames.n, MSG_NOSIGNAL), frames.n);
}

/* What comes in one piece is taken in one piece, before the guest can answer any of it. */
static void test_signals_are_limited(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    struct started p;

    fixture_start(
        f, "\"shell\": \"trap : USR1; echo ready; read x; echo over\", \"stdin\": \"open\"", &p);
    attach(f, &p, "", &w);
    rig_websocket_until_bytes(&w, 0, 6);
    send_many(&w, "{\"type\": \"signal\", \"signal\": \"SIGURG\"}", 100);
    assert_int_equal(count_errors(&w, 92, "rate_limited"), 92);
    rig_websocket_write(&w, span_of_str("x\n"));
    rig_websocket_until(&w, "process_exited");
    assert_string_equal(buf_str(&w.output[0]), "ready\nover\n");
}

/* Of many sizes the last one counts, and it is there before input that follows it. */
static void test_sizes_are_gathered(void **state)
{
    const struct fixture *f = *state;
    _cleanup_rig_websocket_ struct rig_websocket w = {0};
    _cleanup_answer_ struct answer object = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"stty -echo; echo ready; read x; stty size; read x; stty size\", "
                  "\"tty\": {\"cols\": 100, \"rows\": 30}",
                  &p);
    attach(f, &p, "", &w);
    rig_websocket_until_bytes(&w, 0, 7);
    send_many(&w, "{\"type\": \"resize\", \"cols\": 90, \"rows\": 20}", 500);
    rig_websocket_tell(&w, "{\"type\": \"resize\", \"cols\": 120, \"rows\": 50}");
    rig_websocket_write(&w, span_of_str("x\n"));
    rig_websocket_until_bytes(&w, 0, 15);
    rig_websocket_tell(&w, "{\"type\": \"resize\", \"cols\": 121, \"rows\": 51}");
    rig_websocket_write(&w, span_of_str("x\n"));
    rig_websocket_until(&w, "process_exited");
    assert_string_equal(buf_str(&w.output[0]), "ready\r\n50 120\r\n51 121\r\n");
    fixture_ask(f, &p, "GET", "", NULL, &object);
    assert_int_equal(answer_number(&object, "tty.cols"), 121);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_set_up, fixture_tear_down)

/* An argument names the only test to run (with * and ?). */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_attach),
        CASE(test_end_of_an_attachment_is_activity),
        CASE(test_attach_anywhere),
        CASE(test_attach_behind_a_gap),
        CASE(test_input_of_several),
        CASE(test_input_is_exact),
        CASE(test_input_waits_for_the_process),
        CASE(test_requests),
        CASE(test_requests_that_cannot_be),
        CASE(test_broken_frames),
        CASE(test_start_on_attach),
        CASE(test_ends_of_sandboxes_and_records),
        CASE(test_refusals),
        CASE(test_readers_are_counted),
        CASE(test_idle_readers),
        CASE(test_flood),
        CASE(test_answers_do_not_pile_up),
        CASE(test_signals_are_limited),
        CASE(test_sizes_are_gathered),
    };

    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
