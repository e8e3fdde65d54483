/* Routes about sessions, creation and restarts, with real agents and no virtual machines. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/span.h"
#include "node/routes_rig.h"

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER
#endif
#endif
#ifdef UNDER_ADDRESS_SANITIZER
#define KEPT_KIB 500000 /* it keeps what was freed */
#else
#define KEPT_KIB 5000
#endif

static void run(const struct fixture *f, const char *fields, struct answer *answer)
{
    rig_command(f->rig, f->sandbox, "run", fields, answer);
}

/* ---- output and events ---- */

static void test_output(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer part = {0};
    _cleanup_answer_ struct answer rest = {0};
    _cleanup_answer_ struct answer end = {0};
    _cleanup_answer_ struct answer beyond = {0};
    _cleanup_answer_ struct answer none = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"seq 1 20000; echo e >&2\"", &p);
    fixture_ask(f, &p, "GET", "/result?wait=10", NULL, &part);
    answer_done(&part);
    rig_read_output(f->rig, f->sandbox, p.session, "offset=2&limit=4", &part);
    assert_string_equal(buf_str(&part.body), "2\n3\n");
    assert_true(answer_has(&part, "X-Space-Next-Offset: 6"));
    assert_true(answer_has(&part, "X-Space-End: false"));
    rig_read_output(f->rig, f->sandbox, p.session, "offset=6", &rest);
    assert_int_equal(rest.body.n, 108894 - 6);
    assert_true(answer_has(&rest, "X-Space-End: true"));
    rig_read_output(f->rig, f->sandbox, p.session, "stream=stderr&offset=2&wait=5", &end);
    assert_int_equal(end.status, 200);
    assert_true(answer_has(&end, "X-Space-End: true"));
    rig_read_output(f->rig, f->sandbox, p.session, "offset=108895", &beyond);
    assert_int_equal(beyond.status, 400);
    rig_read_output(f->rig, f->sandbox, "se0123456789abcdefgh", "", &none);
    assert_int_equal(none.status, 404);
    assert_string_equal(answer_text(&none, "error.details.resource"), "session");
}

static void read_events(const struct fixture *f,
                        const struct started *p,
                        const char *query,
                        struct answer *answer)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events%s", f->sandbox,
                   p->session, query);
    rig_ask(f->rig, "GET", path, NULL, answer);
}

static void test_events(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer all = {0};
    _cleanup_answer_ struct answer tail = {0};
    _cleanup_answer_ struct answer after = {0};
    _cleanup_answer_ struct answer bad = {0};
    struct started p;

    fixture_start(f, "\"shell\": \"printf abc; sleep 0.1; printf de >&2; sleep 0.1; exit 2\"", &p);
    read_events(f, &p, "", &all);
    assert_int_equal(all.status, 200);
    assert_non_null(strstr(buf_str(&all.body), "event: process_started\n"));
    assert_non_null(strstr(buf_str(&all.body),
                           "data: {\"stream\": \"stdout\", \"offset\": 0, \"data\": \"YWJj\"}\n"));
    assert_non_null(strstr(buf_str(&all.body),
                           "data: {\"stream\": \"stderr\", \"offset\": 0, \"data\": \"ZGU=\"}\n"));
    assert_non_null(strstr(buf_str(&all.body), "event: process_exited\ndata: {\"exit_code\":2"));
    read_events(f, &p, "?tail_bytes=3", &tail);
    assert_non_null(strstr(buf_str(&tail.body),
                           "data: {\"stream\": \"stdout\", \"offset\": 2, \"data\": \"Yw==\"}\n"));
    read_events(f, &p, "?after=3-1-1", &after);
    assert_null(strstr(buf_str(&after.body), "process_started"));
    assert_non_null(strstr(buf_str(&after.body),
                           "data: {\"stream\": \"stderr\", \"offset\": 1, \"data\": \"ZQ==\"}\n"));
    read_events(f, &p, "?after=1-1-1", &bad);
    assert_int_equal(bad.status, 400);
    assert_string_equal(answer_text(&bad, "error.details.field"), "after");
}

/* Behind the last event is nothing, ever. While the end is not on record, as after a kill just
 * behind the telling of it, its id is where the output stands. */
static void test_events_behind_the_last(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer beyond = {0};
    _cleanup_answer_ struct answer early = {0};
    _cleanup_answer_ struct answer all = {0};
    _cleanup_answer_ struct answer over = {0};
    struct started p;
    char path[300];
    int fd;

    fixture_start(f, "\"shell\": \"read x\", \"stdin\": \"open\"", &p);
    read_events(f, &p, "?after=1-0-2", &beyond);
    assert_int_equal(beyond.status, 400);
    assert_string_equal(answer_text(&beyond, "error.details.field"), "after");
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events?after=0-0-2",
                   f->sandbox, p.session);
    fd = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
    fixture_ask(f, &p, "POST", "/kill", "{}", &all);
    answer_done(&all);
    rig_receive(fd, &early);
    assert_int_equal(early.status, 200);
    assert_null(strstr(buf_str(&early.body), "process_started"));
    assert_non_null(strstr(buf_str(&early.body), "id: 0-0-2\nevent: process_exited\n"));
    read_events(f, &p, "", &all);
    assert_non_null(strstr(buf_str(&all.body), "id: 0-0-2\nevent: process_exited\n"));
    read_events(f, &p, "?after=0-0-2", &over);
    assert_int_equal(over.status, 204);
    assert_int_equal(over.body.n, 0);
}

/* A reader that never reads holds up nobody and costs no memory to speak of. */
static void test_slow_reader(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer result = {0};
    struct started p;
    char path[300];
    int fds[8];

    fixture_start(f, "\"shell\": \"sleep 0.3; head -c 40000000 /dev/zero\"", &p);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events", f->sandbox,
                   p.session);
    for (size_t i = 0; i < 8; i++) {
        fds[i] = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
        assert_true(fds[i] >= 0);
    }
    fixture_ask(f, &p, "GET", "/result?wait=60&max_output_bytes=10", NULL, &result);
    assert_int_equal(result.status, 200);
    assert_true(rig_anonymous_kib(f->rig) < 60000); /* the sanitizers' own memory included */
    for (size_t i = 0; i < 8; i++) {
        (void)close(fds[i]);
    }
}

static void test_block_when_full(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer held = {0};
    _cleanup_answer_ struct answer all = {0};
    struct started p;

    fixture_start(f,
                  "\"shell\": \"head -c 3000000 /dev/zero\", \"spool_bytes\": 65536, \"on_full\": "
                  "\"block\"",
                  &p);
    fixture_ask(f, &p, "GET", "/result?wait=0.5", NULL, &held);
    assert_int_equal(held.status, 202);
    read_events(f, &p, "", &all);
    assert_null(strstr(buf_str(&all.body), "event: gap"));
    assert_non_null(strstr(buf_str(&all.body), "\"stdout_bytes\":3000000"));
}

static void test_block_when_full_by_output(void **state)
{
    const struct fixture *f = *state;
    uint64_t offset = 0;
    bool end = false;
    struct started p;

    fixture_start(f,
                  "\"shell\": \"head -c 3000000 /dev/zero\", \"spool_bytes\": 65536, \"on_full\": "
                  "\"block\"",
                  &p);
    for (int i = 0; i < 1000 && !end; i++) {
        _cleanup_answer_ struct answer answer = {0};
        char query[64];

        (void)snprintf(query, sizeof(query), "offset=%llu&limit=50000&wait=10",
                       (unsigned long long)offset);
        rig_read_output(f->rig, f->sandbox, p.session, query, &answer);
        assert_int_equal(answer.status, 200);
        offset += answer.body.n;
        end = answer_has(&answer, "X-Space-End: true");
    }
    assert_int_equal(offset, 3000000);
}

/* Where a reader waits for more of a flood, it does not wait when there is no more. */
static void test_output_of_a_flood_that_pauses(void **state)
{
    const struct fixture *f = *state;
    uint64_t offset = 0;
    bool end = false;
    struct started p;

    fixture_start(
        f, "\"shell\": \"head -c 10000000 /dev/zero; echo more; read line\", \"stdin\": \"open\"",
        &p);
    while (!end) {
        _cleanup_answer_ struct answer answer = {0};
        char query[64];

        (void)snprintf(query, sizeof(query), "offset=%llu&wait=200", (unsigned long long)offset);
        rig_read_output(f->rig, f->sandbox, p.session, query, &answer);
        assert_int_equal(answer.status, 200);
        assert_true(answer.body.n > 0);
        offset += answer.body.n;
        end = offset == 10000005;
    }
}

/* What made room for newer commands is gone, and says so. */
static void test_expired_session(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer output = {0};
    _cleanup_answer_ struct answer process = {0};
    struct started p;

    fixture_start(f, "\"argv\": [\"true\"]", &p);
    for (size_t i = 0; i < 20; i++) {
        _cleanup_answer_ struct answer answer = {0};

        run(f, "\"argv\": [\"echo\", \"x\"]", &answer);
        assert_int_equal(answer.status, 200);
    }
    rig_read_output(f->rig, f->sandbox, p.session, "", &output);
    assert_int_equal(output.status, 410);
    assert_string_equal(answer_text(&output, "error.code"), "gone");
    fixture_ask(f, &p, "GET", "", NULL, &process);
    assert_int_equal(process.status, 404);
    for (int round = 0; round < 2; round++) {
        _cleanup_answer_ struct answer result = {0};
        _cleanup_answer_ struct answer events = {0};

        fixture_ask(f, &p, "GET", "/result", NULL, &result);
        assert_int_equal(result.status, 410);
        read_events(f, &p, "", &events);
        assert_int_equal(events.status, 410);
        rig_kill(f->rig);
        rig_start(f->rig);
    }
}

/* ---- all spools of a sandbox ---- */

static void start_with_total(struct fixture *f, const char *setting)
{
    rig_kill(f->rig);
    f->rig->settings = setting;
    rig_start(f->rig);
}

static void test_ended_sessions_make_room(void **state)
{
    struct fixture *f = *state;
    struct started p[4];

    start_with_total(f, "node.spool_total_mib=1");
    for (size_t i = 0; i < 4; i++) {
        _cleanup_answer_ struct answer result = {0};

        fixture_start(f, "\"shell\": \"head -c 400000 /dev/zero\"", &p[i]);
        fixture_ask(f, &p[i], "GET", "/result?wait=10&max_output_bytes=1", NULL, &result);
        assert_int_equal(result.status, 200);
    }
    for (int round = 0; round < 2; round++) {
        _cleanup_answer_ struct answer first = {0};
        _cleanup_answer_ struct answer last = {0};
        _cleanup_answer_ struct answer events = {0};
        _cleanup_answer_ struct answer result = {0};

        rig_read_output(f->rig, f->sandbox, p[0].session, "offset=0", &first);
        assert_int_equal(first.status, 410);
        rig_read_output(f->rig, f->sandbox, p[3].session, "offset=0", &last);
        assert_int_equal(last.body.n, 400000);
        read_events(f, &p[0], "", &events);
        assert_non_null(strstr(buf_str(&events.body),
                               "event: gap\ndata: "
                               "{\"stream\":\"stdout\",\"offset\":0,\"bytes\":400000}"));
        fixture_ask(f, &p[0], "GET", "/result", NULL, &result);
        assert_int_equal(answer_number(&result, "exit_code"), 0);
        assert_int_equal(answer_number(&result, "stdout_omitted_bytes"), 400000);
        rig_kill(f->rig);
        rig_start(f->rig);
    }
}

static void test_running_sessions_share_the_room(void **state)
{
    struct fixture *f = *state;
    struct started p[3];

    start_with_total(f, "node.spool_total_mib=1");
    for (size_t i = 0; i < 3; i++) {
        fixture_start(f, "\"shell\": \"head -c 3000000 /dev/zero; echo end >&2; sleep 100\"",
                      &p[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer end = {0};
        _cleanup_answer_ struct answer begin = {0};

        rig_read_output(f->rig, f->sandbox, p[i].session, "stream=stderr&wait=20", &end);
        /* Read before the other stream, it may be what is dropped first. */
        assert_true(end.status == 410 || strcmp(buf_str(&end.body), "end\n") == 0);
        /* The other stream may be behind. */
        do {
            answer_done(&begin);
            begin = (struct answer){0};
            rig_read_output(f->rig, f->sandbox, p[i].session, "offset=0", &begin);
        } while (begin.status == 200);
        assert_int_equal(begin.status, 410);
    }
}

/* What a reader has had of one that blocks is kept for its reconnection, until the sandbox's room
 * is used up: then others need it more. */
static void test_nothing_stays_behind_readers_without_room(void **state)
{
    struct fixture *f = *state;
    _cleanup_answer_ struct answer all = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_answer_ struct answer asked = {0};
    _cleanup_answer_ struct answer said = {0};
    _cleanup_answer_ struct answer other = {0};
    _cleanup_answer_ struct answer gone = {0};
    _cleanup_answer_ struct answer rest = {0};
    struct started p;
    struct started q;

    start_with_total(f, "node.spool_total_mib=1");
    fixture_start(
        f,
        "\"shell\": \"head -c 300000 /dev/zero; read line; echo more\", \"stdin\": \"open\", "
        "\"max_output_bytes\": 2, \"spool_bytes\": 600000, \"on_full\": \"block\"",
        &p);
    while (all.body.n < 300000) {
        answer_done(&all);
        all = (struct answer){0};
        rig_read_output(f->rig, f->sandbox, p.session, "offset=0&wait=10", &all);
    }
    rig_read_output(f->rig, f->sandbox, p.session, "offset=300000", &asked);
    assert_int_equal(asked.status, 200); /* who asks for what follows has had it */
    rig_read_output(f->rig, f->sandbox, p.session, "offset=0", &again);
    assert_int_equal(again.body.n, 300000);
    fixture_start(f, "\"shell\": \"head -c 900000 /dev/zero\"", &q);
    fixture_ask(f, &q, "GET", "/result?wait=20&max_output_bytes=1", NULL, &said);
    assert_int_equal(said.status, 200);
    rig_read_output(f->rig, f->sandbox, q.session, "offset=0", &other);
    assert_int_equal(other.body.n, 900000);
    rig_read_output(f->rig, f->sandbox, p.session, "offset=0", &gone);
    assert_int_equal(gone.status, 410);
    rig_read_output(f->rig, f->sandbox, p.session, "offset=300000", &rest);
    assert_int_equal(rest.status, 200);
    assert_int_equal(rest.body.n, 0);
}

/* node.spool_bytes is what a command gets that asks for nothing, and the most that one can ask for.
 */
static void test_room_of_a_session(void **state)
{
    struct fixture *f = *state;

    for (int small = 0; small < 2; small++) {
        _cleanup_answer_ struct answer over = {0};
        _cleanup_answer_ struct answer result = {0};
        _cleanup_answer_ struct answer begin = {0};
        _cleanup_answer_ struct answer end = {0};
        struct started p;

        start_with_total(f, small == 1 ? "node.spool_bytes=65536" : "node.spool_bytes=4000000");
        rig_command(f->rig, f->sandbox, "commands", "\"shell\": \"true\", \"spool_bytes\": 65537",
                    &over);
        assert_int_equal(over.status, small == 1 ? 400 : 201);
        fixture_start(f, "\"shell\": \"head -c 3000000 /dev/zero\"", &p);
        fixture_ask(f, &p, "GET", "/result?wait=20&max_output_bytes=1", NULL, &result);
        assert_int_equal(result.status, 200);
        rig_read_output(f->rig, f->sandbox, p.session, "offset=1000000&limit=10", &begin);
        assert_int_equal(begin.status, small == 1 ? 410 : 200);
        rig_read_output(f->rig, f->sandbox, p.session, "offset=2943000", &end);
        assert_int_equal(end.status, 200);
        assert_int_equal(end.body.n, 57000);
        if (small == 1) {
            assert_string_equal(answer_text(&over, "error.details.field"), "spool_bytes");
        }
    }
}

static void test_blocking_sessions_reserve_their_room(void **state)
{
    struct fixture *f = *state;
    _cleanup_answer_ struct answer over = {0};
    _cleanup_answer_ struct answer all = {0};
    struct started p;
    struct started q;

    start_with_total(f, "node.spool_total_mib=1");
    fixture_start(f,
                  "\"shell\": \"head -c 3000000 /dev/zero\", \"spool_bytes\": 600000, "
                  "\"on_full\": \"block\"",
                  &p);
    rig_command(f->rig, f->sandbox, "commands",
                "\"shell\": \"true\", \"spool_bytes\": 600000, \"on_full\": \"block\"", &over);
    assert_int_equal(over.status, 409);
    assert_string_equal(answer_text(&over, "error.code"), "limit_exceeded");
    assert_string_equal(answer_text(&over, "error.details.limit"), "node.spool_total_mib");
    /* Others fill the rest; what blocks loses nothing by it and comes to its end. */
    fixture_start(f, "\"shell\": \"head -c 5000000 /dev/zero; sleep 100\"", &q);
    read_events(f, &p, "", &all);
    assert_null(strstr(buf_str(&all.body), "event: gap"));
    assert_non_null(strstr(buf_str(&all.body), "\"stdout_bytes\":3000000"));
}

/* ---- create with a first command ---- */

static void put(const struct fixture *f, const char *id, const char *fields, struct answer *answer)
{
    _cleanup_buf_ struct buf body = buf_make(0);
    char process[ID_SIZE];
    char session[ID_SIZE];
    char path[80];

    assert_int_equal(id_make_within("pr", id, process), 0);
    assert_int_equal(id_make_within("se", id, session), 0);
    buf_printf(&body,
               "{\"template\": \"base\", \"run\": {\"process_id\": \"%s\", \"session_id\": "
               "\"%s\", %s}",
               process, session, fields);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    rig_ask(f->rig, "PUT", path, buf_str(&body), answer);
}

static void wait_until_gone(const struct fixture *f, const char *id)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    for (int i = 0; i < 500; i++) {
        _cleanup_answer_ struct answer answer = {0};

        rig_ask(f->rig, "GET", path, NULL, &answer);
        if (answer.status == 404) {
            return;
        }
        (void)usleep(10000);
    }
    fail_msg("%s is still there", id);
}

static void test_put_with_run(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer kept = {0};
    _cleanup_answer_ struct answer gone = {0};
    _cleanup_answer_ struct answer failed = {0};
    char file[80];
    char fields[400];
    char id[3][ID_SIZE];

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(id_make("sb", id[i]), 0);
    }
    (void)snprintf(file, sizeof(file), "%s/data/f", f->rig->dir);
    (void)snprintf(fields, sizeof(fields),
                   "\"argv\": [\"cat\", \"%s\"]}, \"files\": [{\"path\": \"%s\", \"text\": "
                   "\"content\"}], \"env\": {\"A\": \"b\"}",
                   file, file);
    put(f, id[0], fields, &kept);
    assert_int_equal(kept.status, 200);
    assert_string_equal(answer_text(&kept, "stdout"), "content");
    assert_string_equal(answer_text(&kept, "sandbox_id"), id[0]);
    assert_true(answer_has(&kept, "X-Space-Sandbox: {\"id\":"));
    assert_true(answer_has(&kept, "\"state\":\"running\""));
    put(f, id[1], "\"shell\": \"echo once\"}, \"delete_after\": true", &gone);
    assert_int_equal(gone.status, 200);
    assert_string_equal(answer_text(&gone, "stdout"), "once\n");
    wait_until_gone(f, id[1]);
    put(f, id[2], "\"argv\": [\"/no/such\"]}", &failed);
    assert_int_equal(failed.status, 400);
    assert_string_equal(answer_text(&failed, "error.details.errno"), "ENOENT");
    wait_until_gone(f, id[2]);
}

/* A client that reads nothing of a long result does not keep its sandbox. */
static void test_put_with_a_long_result(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer late = {0};
    _cleanup_buf_ struct buf body = buf_make(0);
    char id[ID_SIZE];
    char path[80];
    char first;
    int fd;

    assert_int_equal(id_make("sb", id), 0);
    buf_printf(&body,
               "{\"template\": \"base\", \"run\": {\"process_id\": \"pr%.18s\", \"session_id\": "
               "\"se%.18s\", \"shell\": \"head -c 3000000 /dev/zero | tr '\\\\0' x\", "
               "\"max_output_bytes\": 16777216}, \"delete_after\": true}",
               &id[2], &id[2]);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    fd = rig_send(f->rig, "PUT", path, buf_span(&body), true);
    assert_true(fd >= 0);
    assert_int_equal(recv(fd, &first, 1, MSG_PEEK), 1); /* it has begun */
    wait_until_gone(f, id);
    rig_receive(fd, &late);
    assert_int_equal(late.status, 200);
    assert_string_equal(answer_text(&late, "sandbox_id"), id);
    assert_int_equal(strlen(answer_text(&late, "stdout")), 3000000);
}

/* Sandboxes live for days: what came with their creation is not kept for as long. */
static void test_put_keeps_no_files(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf fields = buf_make(0);
    uint64_t before = 0;

    buf_printf(
        &fields,
        "\"shell\": \"true\"}, \"files\": [{\"path\": \"%s/data/f\", \"text\": \"%1000000d\"}]",
        f->rig->dir, 0);
    for (size_t i = 0; i < 12; i++) {
        _cleanup_answer_ struct answer answer = {0};
        char id[ID_SIZE];

        assert_int_equal(id_make("sb", id), 0);
        put(f, id, buf_str(&fields), &answer);
        assert_int_equal(answer.status, 200);
        before = i == 1 ? rig_anonymous_kib(f->rig) : before;
    }
    assert_true(rig_anonymous_kib(f->rig) < before + KEPT_KIB);
}

static void test_put_refusals(void **state)
{
    static const char *const cases[][3] = {
        {"{}", "template", "400"},
        {"{\"template\": \"base\", \"x\": 1}", "x", "400"},
        {"{\"template\": \"base\", \"vcpus\": 9}", "vcpus", "400"},
        {"{\"template\": \"base\", \"files\": [{\"path\": \"a\"}]}", "files[0].text", "400"},
        {"{\"template\": \"base\", \"files\": [{\"path\": \"a/\", \"text\": \"\"}]}",
         "files[0].path", "400"},
        {"{\"template\": \"base\", \"run\": {\"argv\": [\"a\"]}}", "process_id", "400"},
        {"{\"template\": \"base\", \"env\": {\"A\": 1}}", "env", "400"},
    };
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer unknown = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};

        rig_ask(f->rig, "PUT", "/n1/sandboxes/sb0123456789abcdefgh", cases[i][0], &answer);
        assert_int_equal(answer.status, 400);
        assert_string_equal(answer_text(&answer, "error.details.field"), cases[i][1]);
    }
    rig_ask(f->rig, "PUT", "/n1/sandboxes/sb0123456789abcdefgh", "{\"template\": \"none\"}",
            &unknown);
    assert_int_equal(unknown.status, 404);
    rig_expect(f->rig, "GET", "/n1/sandboxes/sb0123456789abcdefgh", NULL, 404);
    rig_expect(f->rig, "GET", "/n1/nothing", NULL, 404);
    rig_expect(f->rig, "POST", "/n1/node", NULL, 405);
    rig_expect(f->rig, "PUT", "/n1/sandboxes/nonsense", "{\"template\": \"base\"}", 400);
    rig_expect(f->rig, "DELETE", "/n1/sandboxes/sb0123456789abcdefgh", NULL, 200);
}

/* ---- restarts ---- */

static void test_restart_keeps_processes(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer before = {0};
    _cleanup_answer_ struct answer old = {0};
    _cleanup_answer_ struct answer killed = {0};
    _cleanup_answer_ struct answer result = {0};
    struct started ended;
    struct started running;

    fixture_start(f, "\"shell\": \"echo kept; exit 5\"", &ended);
    fixture_ask(f, &ended, "GET", "/result?wait=10", NULL, &before);
    fixture_start(f, "\"shell\": \"echo alive; sleep 100\"", &running);
    (void)usleep(100000);
    assert_int_equal(rig_stop(f->rig), 0);
    rig_start(f->rig);
    fixture_ask(f, &ended, "GET", "/result", NULL, &old);
    assert_string_equal(buf_str(&old.body), buf_str(&before.body));
    fixture_ask(f, &running, "POST", "/kill", NULL, &killed);
    assert_true(json_is_true(json_object_get(killed.json, "killed")));
    fixture_ask(f, &running, "GET", "/result?wait=5", NULL, &result);
    assert_string_equal(answer_text(&result, "stdout"), "alive\n");
    assert_string_equal(answer_text(&result, "signal"), "SIGKILL");
}

/* It goes on, unseen; and the request for it that comes again does not run it a second time. */
static void test_restart_spares_what_it_cannot_read(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer output = {0};
    _cleanup_answer_ struct answer behind = {0};
    _cleanup_answer_ struct answer again = {0};
    _cleanup_close_ int fd = -1;
    struct started p;
    uint64_t pid;
    char path[300];
    char body[200];

    fixture_start(f, "\"shell\": \"printf $$; exec sleep 100\"", &p);
    rig_read_output(f->rig, f->sandbox, p.session, "wait=10", &output);
    assert_int_equal(span_parse_u64(buf_span(&output.body), INT32_MAX, &pid), 0);
    assert_int_equal(rig_stop(f->rig), 0);
    (void)snprintf(path, sizeof(path), "%s/data/%s/sessions/%s.json", f->rig->dir, f->sandbox,
                   p.session);
    fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    rig_start(f->rig);
    run(f, "\"shell\": \"echo behind\"", &behind); /* all that came with the adoption is done */
    assert_string_equal(answer_text(&behind, "stdout"), "behind\n");
    assert_int_equal(kill((pid_t)pid, 0), 0);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/run", f->sandbox);
    (void)snprintf(body, sizeof(body),
                   "{\"process_id\": \"%s\", \"session_id\": \"%s\", \"shell\": \"true\"}",
                   p.process, p.session);
    rig_ask(f->rig, "POST", path, body, &again);
    assert_int_equal(again.status, 409);
    assert_string_equal(answer_text(&again, "error.details.state"), "lost");
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
}

static void test_deletion_ends_streams(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer events = {0};
    struct started p;
    char path[300];
    int fd;

    fixture_start(f, "\"shell\": \"echo x; sleep 100\"", &p);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/events", f->sandbox,
                   p.session);
    fd = rig_send(f->rig, "GET", path, span_make(NULL, 0), true);
    (void)usleep(200000);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    rig_receive(fd, &events);
    assert_non_null(strstr(buf_str(&events.body), "eAo="));
    assert_non_null(
        strstr(buf_str(&events.body), "event: process_lost\ndata: {\"reason\":\"deleted\"}\n\n"));
}

static void test_feed(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer feed = {0};
    char path[80];
    int fd = rig_send(f->rig, "GET", "/n1/events", span_make(NULL, 0), true);
    const char *synced;
    const char *deleted;

    (void)usleep(100000);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    (void)usleep(100000);
    (void)rig_stop(f->rig);
    rig_receive(fd, &feed);
    rig_start(f->rig);
    synced = strstr(buf_str(&feed.body), "event: synced\n");
    assert_non_null(synced);
    assert_non_null(strstr(buf_str(&feed.body), f->sandbox));
    deleted = strstr(synced, "\"state\":\"deleted\"");
    assert_non_null(deleted);
    /* Nothing of it comes behind its end: what was on its way before is left out. */
    assert_null(strstr(deleted, "\"state\":\"deleting\""));
}

/* However long the listing is, a reader comes to its end. */
static void test_feed_with_a_long_listing(void **state)
{
    static const char last[] = "event: synced\n";
    const struct fixture *f = *state;
    char text[65536];
    size_t n = 0;
    int fd;

    assert_int_equal(rig_stop(f->rig), 0);
    f->rig->settings = "checkpoints=300"; /* 19 MB */
    rig_start(f->rig);
    fd = rig_send(f->rig, "GET", "/n1/events", span_make(NULL, 0), true);
    do {
        size_t kept = n < sizeof(last) ? n : sizeof(last);
        ssize_t more;

        memmove(text, &text[n - kept], kept);
        more = read(fd, &text[kept], sizeof(text) - kept);
        assert_true(more > 0); /* it was not cut */
        n = kept + (size_t)more;
    } while (memmem(text, n, last, strlen(last)) == NULL);
    (void)close(fd);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_set_up, fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_output),
        CASE(test_events),
        CASE(test_events_behind_the_last),
        CASE(test_slow_reader),
        CASE(test_block_when_full),
        CASE(test_block_when_full_by_output),
        CASE(test_output_of_a_flood_that_pauses),
        CASE(test_expired_session),
        CASE(test_ended_sessions_make_room),
        CASE(test_running_sessions_share_the_room),
        CASE(test_nothing_stays_behind_readers_without_room),
        CASE(test_room_of_a_session),
        CASE(test_blocking_sessions_reserve_their_room),
        CASE(test_put_with_run),
        CASE(test_put_with_a_long_result),
        CASE(test_put_keeps_no_files),
        CASE(test_put_refusals),
        CASE(test_restart_keeps_processes),
        CASE(test_restart_spares_what_it_cannot_read),
        CASE(test_deletion_ends_streams),
        CASE(test_feed),
        CASE(test_feed_with_a_long_listing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
