/* The node's routes for watches, ports, connections and metrics, against an agent whose services do
 * what they are told. */
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

#define TEXT_MAX (4U * 1024U * 1024U)

static int set_up_with(void **state, const char *setting)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->rig = rig_new_fake(setting);
    rig_make_sandbox(f->rig, f->sandbox);
    *state = f;
    return 0;
}

static int set_up(void **state)
{
    return set_up_with(state, "node.max_watches=2");
}

static int set_up_connections(void **state)
{
    return set_up_with(state, "node.max_connections=2");
}

static int set_up_metrics(void **state)
{
    return set_up_with(state, "node.metrics_interval_seconds=1");
}

static int start(const struct fixture *f, const char *rest, const char *headers)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s%s", f->sandbox, rest);
    return rig_send_with(f->rig, "GET", path, headers, span_make(NULL, 0));
}

static void
ask(const struct fixture *f, const char *rest, const char *headers, struct answer *answer)
{
    _cleanup_buf_ struct buf all = buf_make(0);

    buf_printf(&all, "Connection: close\r\n%s", headers);
    rig_receive(start(f, rest, buf_str(&all)), answer);
}

/* Reads until the text has `count` of these. */
static void read_until(int fd, struct buf *text, const char *needle, unsigned int count)
{
    size_t from = 0; /* what was searched already */
    unsigned int seen = 0;

    for (;;) {
        const uint8_t *at;
        uint8_t *to;
        ssize_t n;

        while (text->n > from &&
               (at = memmem(&text->p[from], text->n - from, needle, strlen(needle))) != NULL) {
            from = (size_t)(at - text->p) + 1;
            if (++seen == count) {
                return;
            }
        }
        if (text->n > from + strlen(needle)) {
            from = text->n - strlen(needle);
        }
        to = buf_reserve(text, 65536);
        assert_non_null(to);
        n = recv(fd, to, 65536, 0);
        if (n <= 0) {
            fail_msg("the stream ended without %s: %s", needle, buf_str(text));
        }
        buf_commit(text, (size_t)n);
    }
}

/* The id of the last event. */
static void last_id(const struct buf *text, char out[64])
{
    const char *at = NULL;

    for (const char *next = buf_str(text); (next = strstr(next, "id: ")) != NULL; next++) {
        at = next;
    }
    assert_non_null(at);
    (void)snprintf(out, 64, "%.*s", (int)strcspn(&at[4], "\n"), &at[4]);
}

static json_int_t watches_started(const struct fixture *f)
{
    _cleanup_answer_ struct answer answer = {0};

    ask(f, "/files/stat?path=/watches", "", &answer);
    return answer_number(&answer, "size_bytes");
}

/* ---- watches ---- */

static void test_watch_tells_and_replays(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf first = buf_make(TEXT_MAX);
    _cleanup_buf_ struct buf second = buf_make(TEXT_MAX);
    _cleanup_buf_ struct buf headers = buf_make(0);
    char id[64];
    int fd = start(f, "/files/watch?path=/changes/3&recursive=true", "");

    read_until(fd, &first, "event: created", 3);
    assert_non_null(strstr(buf_str(&first), "HTTP/1.1 200 OK"));
    assert_non_null(strstr(buf_str(&first), "Content-Type: text/event-stream"));
    assert_true(strstr(buf_str(&first), "event: watching") < strstr(buf_str(&first), "created"));
    assert_non_null(strstr(buf_str(&first), "\"path\":\"/changes/2\""));
    (void)close(fd);
    /* Back within the time that the watch lives on: from the second event. */
    last_id(&first, id);
    assert_string_equal(strchr(id, '-'), "-3");
    *strrchr(id, '3') = '1';
    buf_printf(&headers, "Last-Event-ID: %s\r\n", id);
    fd = start(f, "/files/watch?path=/changes/3&recursive=true", buf_str(&headers));
    read_until(fd, &second, "event: created", 2);
    assert_null(strstr(buf_str(&second), "overflow"));
    assert_null(strstr(buf_str(&second), "/changes/1\""));
    (void)close(fd);
    assert_int_equal(watches_started(f), 1);
}

static void test_readers_share_a_watch(void **state)
{
    const struct fixture *f = *state;
    int fds[3];

    for (int i = 0; i < 3; i++) {
        _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);

        fds[i] = start(f, "/files/watch?path=/changes/0", "");
        read_until(fds[i], &text, "event: watching", 1);
    }
    assert_int_equal(watches_started(f), 1);
    for (int i = 0; i < 3; i++) {
        (void)close(fds[i]);
    }
}

static void test_unknown_ids_are_an_overflow(void **state)
{
    static const char *const ids[] = {"9999-1", "x", "1-2-3", "-"};
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
        char headers[64];
        int fd;

        (void)snprintf(headers, sizeof(headers), "Last-Event-ID: %s\r\n", ids[i]);
        fd = start(f, "/files/watch?path=/changes/0", headers);
        read_until(fd, &text, "event: overflow", 1);
        (void)close(fd);
    }
}

/* Moves, hostile names, an overflow of the guest, and the end of the directory. */
static void test_watch_to_its_end(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer answer = {0};
    const char *text;

    ask(f, "/files/watch?path=/moves", "", &answer);
    text = buf_str(&answer.body);
    assert_non_null(strstr(text, "event: moved\ndata: {\"path\":\"/moves/b\xef\xbf\xbd\","
                                 "\"path_base64\":\"L21vdmVzL2L/\",\"from\":\"/moves/a\""));
    assert_non_null(strstr(text, "event: overflow"));
    assert_non_null(strstr(text, "event: deleted"));
    assert_non_null(strstr(text, "event: error\ndata: {\"code\":\"not_found\""));
    assert_non_null(strstr(text, "0\r\n\r\n")); /* a proper end */
}

static void test_watch_errors(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer missing = {0};
    _cleanup_answer_ struct answer many = {0};

    ask(f, "/files/watch?path=/errno/2", "", &missing);
    assert_int_equal(missing.status, 404);
    assert_string_equal(answer_text(&missing, "error.details.errno"), "ENOENT");
    ask(f, "/files/watch?path=/errno/28", "", &many);
    assert_int_equal(many.status, 409);
    assert_string_equal(answer_text(&many, "error.details.limit"), "watched_directories");
}

static void test_watch_that_is_cut_starts_again(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    int fd = start(f, "/files/watch?path=/cut-once", "");

    read_until(fd, &text, "event: overflow", 1);
    for (int i = 0; i < 1000 && watches_started(f) < 2; i++) {
        (void)usleep(5000);
    }
    assert_int_equal(watches_started(f), 2);
    (void)close(fd);
}

static void test_limit_of_watches(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer third = {0};
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    int one = start(f, "/files/watch?path=/changes/0", "");
    int two = start(f, "/files/watch?path=/changes/0&recursive=true", "");
    int again;

    read_until(one, &text, "watching", 1);
    read_until(two, &text, "watching", 2);
    ask(f, "/files/watch?path=/changes/1", "", &third);
    assert_int_equal(third.status, 409);
    assert_string_equal(answer_text(&third, "error.details.limit"), "node.max_watches");
    /* One that nobody reads any more makes room. */
    (void)close(one);
    do {
        _cleanup_buf_ struct buf begin = buf_make(TEXT_MAX);

        again = start(f, "/files/watch?path=/changes/1", "");
        read_until(again, &begin, "\r\n\r\n", 1);
        if (strstr(buf_str(&begin), " 200 ") != NULL) {
            read_until(again, &begin, "event: created", 1);
            break;
        }
        (void)close(again);
    } while (true);
    (void)close(again);
    (void)close(two);
}

/* Who does not read misses events, and is told; nobody's memory grows. */
static void test_flood_of_changes(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(0);
    int lazy = start(f, "/files/watch?path=/flood", "");
    int eager = start(f, "/files/watch?path=/flood", "");

    read_until(eager, &text, "event: modified", 12000);
    buf_clear(&text);
    read_until(lazy, &text, "event: overflow", 1);
    (void)close(lazy);
    (void)close(eager);
}

static void test_deleted_sandbox_ends_watches(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    char path[64];
    int fd = start(f, "/files/watch?path=/changes/0", "");

    read_until(fd, &text, "watching", 1);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    read_until(fd, &text, "event: error", 1);
    (void)close(fd);
}

/* ---- ports ---- */

static void test_ports(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer all = {0};
    _cleanup_answer_ struct answer one = {0};
    _cleanup_answer_ struct answer late = {0};
    _cleanup_answer_ struct answer none = {0};
    _cleanup_answer_ struct answer bad = {0};
    const json_t *item;

    ask(f, "/ports", "", &all);
    assert_int_equal(all.status, 200);
    item = json_array_get(json_object_get(all.json, "items"), 1);
    assert_int_equal(json_integer_value(json_object_get(item, "port")), 9090);
    assert_string_equal(json_string_value(json_object_get(item, "address")), "::1");
    assert_true(json_is_null(json_object_get(item, "process_id")));
    ask(f, "/ports/8080", "", &one);
    assert_int_equal(one.status, 200);
    assert_string_equal(answer_text(&one, "address"), "127.0.0.1");
    ask(f, "/ports/7070?wait=20", "", &late);
    assert_int_equal(late.status, 200);
    assert_string_equal(answer_text(&late, "address"), "10.0.0.1");
    ask(f, "/ports/4000?wait=0.2", "", &none);
    assert_int_equal(none.status, 404);
    assert_string_equal(answer_text(&none, "error.details.resource"), "port");
    ask(f, "/ports/70000", "", &bad);
    assert_int_equal(bad.status, 404);
}

/* ---- connections ---- */

static int connect_port(const struct fixture *f, unsigned int port, struct buf *head)
{
    char rest[64];
    int fd;

    (void)snprintf(rest, sizeof(rest), "/ports/%u/tcp", port);
    fd = start(f, rest, "Connection: Upgrade\r\nUpgrade: space-tcp\r\n");
    read_until(fd, head, "\r\n\r\n", 1);
    return fd;
}

static void test_connection_echoes(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    int fd = connect_port(f, 7, &text);
    char byte;

    assert_non_null(strstr(buf_str(&text), "101 Switching Protocols"));
    assert_int_equal(fd_write_all(fd, span_of_str("hello ")), 0);
    read_until(fd, &text, "hello ", 1);
    assert_int_equal(fd_write_all(fd, span_of_str("world")), 0);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    read_until(fd, &text, "hello world", 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    (void)close(fd);
}

static void test_refused_and_reset_connections(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer refused = {0};
    _cleanup_answer_ struct answer plain = {0};
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    char byte;
    int fd;

    ask(f, "/ports/9/tcp", "Connection: Upgrade\r\nUpgrade: space-tcp\r\n", &refused);
    assert_int_equal(refused.status, 502);
    assert_string_equal(answer_text(&refused, "error.code"), "bad_gateway");
    ask(f, "/ports/7/tcp", "", &plain);
    assert_int_equal(plain.status, 400);
    fd = connect_port(f, 10, &text);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    (void)close(fd);
}

/* The guest closes its direction, and the other one goes on. */
static void test_half_closed_connection(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    char byte;
    int fd = connect_port(f, 11, &text);

    read_until(fd, &text, "bye", 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_int_equal(fd_write_all(fd, span_of_str("still here")), 0);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    (void)close(fd);
}

static void test_limit_and_pressure_of_connections(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer third = {0};
    _cleanup_answer_ struct answer files = {0};
    _cleanup_buf_ struct buf text = buf_make(0);
    int one = connect_port(f, 19, &text); /* it sends without an end, and nobody reads */
    int two = connect_port(f, 7, &text);
    size_t got = 0;

    ask(f, "/ports/7/tcp", "Connection: Upgrade\r\nUpgrade: space-tcp\r\n", &third);
    assert_int_equal(third.status, 409);
    assert_string_equal(answer_text(&third, "error.details.limit"), "node.max_connections");
    ask(f, "/files/stat?path=/a", "", &files); /* nobody else is held up */
    assert_int_equal(files.status, 200);
    while (got < 10000000) {
        char bytes[65536];
        ssize_t n = recv(one, bytes, sizeof(bytes), 0);

        assert_true(n > 0);
        got += (size_t)n;
    }
    (void)close(one);
    (void)close(two);
    for (;;) { /* their places are free again */
        _cleanup_buf_ struct buf head = buf_make(TEXT_MAX);
        int fd = connect_port(f, 7, &head);

        (void)close(fd);
        if (strstr(buf_str(&head), " 101 ") != NULL) {
            break;
        }
    }
}

static void test_deleted_sandbox_cuts_connections(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf text = buf_make(TEXT_MAX);
    char path[64];
    char byte;
    int fd = connect_port(f, 7, &text);

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    (void)close(fd);
}

/* Whatever ends it, and nothing has gone over it: the idle rule counts from there. */
static void test_ends_are_activity(void **state)
{
    static const char *const calls[][2] = {
        {"/ports/7/tcp", "Connection: Upgrade\r\nUpgrade: space-tcp\r\n"},
        {"/ports/4000?wait=60", ""},
        {"/files/watch?path=/changes/0", ""},
    };
    const struct fixture *f = *state;
    char active[CLOCK_TEXT_SIZE];

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        _cleanup_buf_ struct buf head = buf_make(TEXT_MAX);
        int fd;

        rig_read_active(f->rig, f->sandbox, active);
        fd = start(f, calls[i][0], calls[i][1]);
        if (strstr(calls[i][0], "wait") == NULL) {
            read_until(fd, &head, "\r\n\r\n", 1);
        }
        rig_wait_active(f->rig, f->sandbox, active);
        rig_read_active(f->rig, f->sandbox, active);
        (void)close(fd);
        rig_wait_active(f->rig, f->sandbox, active);
    }
}

/* ---- metrics ---- */

static void test_metrics(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer bad = {0};
    _cleanup_answer_ struct answer later = {0};
    _cleanup_answer_ struct answer before = {0};
    json_t *first = NULL;
    json_t *second = NULL;

    for (int i = 0; i < 2000 && second == NULL; i++) {
        _cleanup_answer_ struct answer answer = {0};
        const json_t *items;

        ask(f, "/metrics", "", &answer);
        assert_int_equal(answer.status, 200);
        items = json_object_get(answer.json, "items");
        if (json_array_size(items) >= 2) {
            first = json_incref(json_array_get(items, 0));
            second = json_incref(json_array_get(items, 1));
        }
        (void)usleep(10000);
    }
    assert_int_equal(json_integer_value(json_object_get(first, "memory_used_bytes")), 100 << 20);
    assert_int_equal(json_integer_value(json_object_get(first, "memory_total_bytes")), 512 << 20);
    assert_int_equal(json_integer_value(json_object_get(first, "disk_used_bytes")), 1 << 30);
    assert_int_equal(json_integer_value(json_object_get(first, "processes")), 12);
    assert_true(json_is_real(json_object_get(first, "cpu_seconds")));
    assert_true(json_is_real(json_object_get(first, "cpu_percent")));
    /* Nonsense only spoils its own sample. */
    assert_true(json_is_null(json_object_get(second, "memory_used_bytes")));
    assert_true(json_is_null(json_object_get(second, "processes")));
    assert_true(json_is_real(json_object_get(second, "cpu_percent")));
    ask(f, "/metrics?start=yesterday", "", &bad);
    assert_string_equal(answer_text(&bad, "error.details.field"), "start");
    ask(f, "/metrics?start=2999-01-01T00:00:00Z", "", &later);
    assert_int_equal(json_array_size(json_object_get(later.json, "items")), 0);
    ask(f, "/metrics?end=2000-01-01T00:00:00Z", "", &before);
    assert_int_equal(json_array_size(json_object_get(before.json, "items")), 0);
    json_decref(first);
    json_decref(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define SERVICE_TEST(name, how) cmocka_unit_test_setup_teardown(name, how, fixture_tear_down)
        SERVICE_TEST(test_watch_tells_and_replays, set_up),
        SERVICE_TEST(test_readers_share_a_watch, set_up),
        SERVICE_TEST(test_unknown_ids_are_an_overflow, set_up),
        SERVICE_TEST(test_watch_to_its_end, set_up),
        SERVICE_TEST(test_watch_errors, set_up),
        SERVICE_TEST(test_watch_that_is_cut_starts_again, set_up),
        SERVICE_TEST(test_limit_of_watches, set_up),
        SERVICE_TEST(test_flood_of_changes, set_up),
        SERVICE_TEST(test_deleted_sandbox_ends_watches, set_up),
        SERVICE_TEST(test_ports, set_up),
        SERVICE_TEST(test_connection_echoes, set_up_connections),
        SERVICE_TEST(test_refused_and_reset_connections, set_up_connections),
        SERVICE_TEST(test_half_closed_connection, set_up_connections),
        SERVICE_TEST(test_limit_and_pressure_of_connections, set_up_connections),
        SERVICE_TEST(test_deleted_sandbox_cuts_connections, set_up_connections),
        SERVICE_TEST(test_ends_are_activity, set_up),
        SERVICE_TEST(test_metrics, set_up_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
