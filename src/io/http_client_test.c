/* The client against our own server and against servers that misbehave, all on one loop. */
#include "io/http_client.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/socket.h>

#include <cmocka.h>
#include <event2/event.h>

#include "base/buf.h"
#include "io/http_call.h"
#include "io/http_server.h"
#include "io/listen.h"
#include "io/loop.h"

#define BIG_BYTES 8000000U

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct loop_timer *watchdog;
    char directory[64];
    char path[96];
    int requests;
    int open; /* calls not yet done */

    /* A server of a few canned bytes instead of ours. */
    int fake_fd;
    struct loop_watch *fake_watch;
    const char *fake_answer;
    int fake_connections;
    int fake_drop; /* connections that are closed at once */
    int fake_fds[8];
};

struct result {
    struct fixture *f;
    struct http_call *call;
    int heads;
    int done;
    int status;
    enum error_code code;
    int errnum;
    struct buf body;
    char header[64];
    size_t position;
    bool pause_next;
    int pauses;
    struct loop_timer *timer;
};

static void on_watchdog(void *arg)
{
    (void)arg;
    fail_msg("nothing happened for 20 s");
}

/* ---- our server ---- */

static void
on_echo(void *arg, struct http_exchange *exchange, struct span body, const struct error *err)
{
    (void)arg;
    http_exchange_respond(exchange, err == NULL ? 200 : error_code_status(err->code), NULL, 0,
                          body);
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    if (err != NULL) {
        http_exchange_abort(exchange);
        return;
    }
    if (http_exchange_write(exchange, piece) == 0) {
        http_exchange_pause_body(exchange, true);
    }
    (void)arg;
    if (last) {
        http_exchange_end(exchange);
    }
}

static void on_drained(void *arg)
{
    http_exchange_pause_body(arg, false);
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    struct fixture *f = ctx;
    const char *path = http_exchange_path(exchange);
    const struct http_header header = {"X-Path", path};
    struct http_header dated[2] = {{"Date", "Thu, 01 Jan 1970 00:00:00 GMT"}};

    f->requests++;
    if (strcmp(path, "/last-header") == 0) {
        unsigned int at = 0;

        while (http_exchange_header_at(exchange, at, &dated[1])) {
            at++;
        }
        http_exchange_respond(exchange, (int)(200 + at), dated, 2, span_make(NULL, 0));
    } else if (strcmp(path, "/echo") == 0) {
        http_exchange_collect_body(exchange, 1000000, on_echo, NULL);
    } else if (strcmp(path, "/stream") == 0) {
        http_exchange_on_drain(exchange, on_drained, exchange);
        http_exchange_start(exchange, 200, &header, 1, -1);
        http_exchange_stream_body(exchange, on_piece, NULL);
    } else if (strcmp(path, "/early") == 0) {
        http_exchange_respond(exchange, 409, NULL, 0, span_of_str("no"));
    } else if (strcmp(path, "/abort") == 0) {
        http_exchange_start(exchange, 200, NULL, 0, -1);
        http_exchange_abort(exchange);
    } else if (strcmp(path, "/hang") != 0) {
        http_exchange_respond(exchange, 200, &header, 1, span_of_str("hello"));
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    (void)ctx;
    http_exchange_respond(exchange, error_code_status(err->code), NULL, 0, span_make(NULL, 0));
}

static void start_server(struct fixture *f, int64_t idle_timeout_ms)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    const struct http_server_limits limits = {
        .max_connections = 1000,
        .idle_timeout_ms = idle_timeout_ms,
    };
    struct error err;

    assert_int_equal(http_server_new(f->loop, &limits, &callbacks, f, &f->server, &err), 0);
    assert_int_equal(http_server_listen_unix(f->server, f->path, 0600, (gid_t)-1, &err), 0);
}

/* ---- a fake server ---- */

static void on_fake_connection(void *arg, int fd, short events)
{
    struct fixture *f = arg;
    int accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    char request[4096];

    (void)events;
    assert_true(accepted >= 0);
    f->fake_connections++;
    if (f->fake_connections <= f->fake_drop) {
        (void)close(accepted);
        return;
    }
    assert_true(read(accepted, request, sizeof(request)) > 0); /* it came with the connect */
    assert_int_equal(write(accepted, f->fake_answer, strlen(f->fake_answer)),
                     strlen(f->fake_answer));
    if (strstr(f->fake_answer, "keep") != NULL) {
        f->fake_fds[f->fake_connections % 8] = accepted;
    } else {
        (void)close(accepted);
    }
}

static void start_fake(struct fixture *f, const char *answer)
{
    struct error err;

    f->fake_answer = answer;
    f->fake_fd = listen_unix(f->path, 0600, (gid_t)-1, &err);
    assert_true(f->fake_fd >= 0);
    f->fake_watch = loop_watch_new(f->loop, f->fake_fd, EV_READ, on_fake_connection, f);
}

static void stop_fake(struct fixture *f)
{
    loop_watch_free(TAKE(f->fake_watch));
    (void)close(TAKE_FD(f->fake_fd));
    (void)unlink(f->path);
}

static void set_up(struct fixture *f)
{
    *f = (struct fixture){.fake_fd = -1};
    f->loop = loop_new(0);
    assert_non_null(f->loop);
    f->watchdog = loop_timer_new(f->loop, on_watchdog, NULL);
    loop_timer_start(f->watchdog, 20000);
    (void)snprintf(f->directory, sizeof(f->directory), "/tmp/http-client-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    (void)snprintf(f->path, sizeof(f->path), "%s/s", f->directory);
    f->client = http_client_new(f->loop, f->path, 4);
    assert_non_null(f->client);
}

static void tear_down(struct fixture *f)
{
    http_client_free(f->client);
    http_server_free(f->server);
    loop_timer_free(f->watchdog);
    loop_free(f->loop);
    assert_int_equal(rmdir(f->directory), 0);
}

/* ---- calls ---- */

static void on_head(void *arg, struct http_call *call, int status)
{
    struct result *r = arg;

    assert_ptr_equal(call, r->call);
    assert_int_equal(status, http_call_status(call));
    r->heads++;
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct result *r = arg;
    const char *header = http_call_header(call, "x-path");

    r->done++;
    r->status = http_call_status(call);
    if (header != NULL) {
        (void)snprintf(r->header, sizeof(r->header), "%s", header);
    }
    if (err != NULL) {
        r->code = err->code;
        r->errnum = err->errnum;
    }
    buf_put(&r->body, http_call_body(call));
    r->call = NULL;
    if (--r->f->open == 0) {
        loop_stop(r->f->loop);
    }
}

static const struct http_call_callbacks collecting = {on_head, NULL, on_done};

static void begin(struct fixture *f,
                  struct result *r,
                  const struct http_call_request *request,
                  const struct http_call_callbacks *callbacks)
{
    struct error err;

    *r = (struct result){.f = f, .body = buf_make(0)};
    f->open++;
    r->call = http_client_start(f->client, request, callbacks, r, &err);
    assert_non_null(r->call);
    assert_int_equal(r->done, 0); /* never from inside */
}

static void run(struct fixture *f)
{
    assert_int_equal(loop_run(f->loop), 0);
    assert_int_equal(f->open, 0);
}

static void result_done(struct result *r)
{
    assert_int_equal(r->done, 1);
    buf_done(&r->body);
    loop_timer_free(r->timer);
}

static void expect(struct fixture *f,
                   const struct http_call_request *request,
                   int status,
                   enum error_code code,
                   const char *body)
{
    struct result r;

    begin(f, &r, request, &collecting);
    run(f);
    if (r.status != status || r.code != code) {
        fail_msg("%s: status %d code %d errno %d", request->target, r.status, (int)r.code,
                 r.errnum);
    }
    assert_int_equal(r.heads, status != 0);
    if (body != NULL) {
        assert_string_equal(buf_str(&r.body), body);
    }
    result_done(&r);
}

static const struct http_call_request get_hello = {.method = "GET", .target = "/x?y=z"};

static void test_simple_calls(void **state)
{
    const struct http_header headers[] = {{"X-A", "b"}, {"X-C", "d"}};
    const struct http_call_request post = {
        .method = "POST",
        .target = "/echo",
        .headers = headers,
        .header_count = 2,
        .body = span_of_str("body"),
    };
    const struct http_call_request empty = {.method = "POST", .target = "/echo"};
    const struct http_call_request head = {.method = "HEAD", .target = "/x"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &get_hello, &collecting);
    run(&f);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.header, "/x");
    assert_string_equal(buf_str(&r.body), "hello");
    result_done(&r);
    expect(&f, &post, 200, ERROR_NONE, "body");
    expect(&f, &empty, 200, ERROR_NONE, "");
    expect(&f, &head, 200, ERROR_NONE, "");
    expect(&f, &get_hello, 200, ERROR_NONE, "hello");
    assert_int_equal(http_server_connections(f.server), 1); /* kept alive */
    tear_down(&f);
}

static void test_many_at_once_share_a_pool(void **state)
{
    struct fixture f;
    struct result results[100];

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            begin(&f, &results[i], &get_hello, &collecting);
        }
        run(&f);
        for (int i = 0; i < 100; i++) {
            assert_string_equal(buf_str(&results[i].body), "hello");
            result_done(&results[i]);
        }
    }
    assert_int_equal(f.client->idle_count, 4);
    tear_down(&f);
}

static void test_nobody_there(void **state)
{
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    begin(&f, &r, &get_hello, &collecting);
    run(&f);
    assert_int_equal(r.code, ERROR_SERVICE_UNAVAILABLE);
    assert_int_equal(r.errnum, ENOENT);
    result_done(&r);
    start_fake(&f, "");
    (void)close(f.fake_fd);
    loop_watch_free(TAKE(f.fake_watch));
    begin(&f, &r, &get_hello, &collecting);
    run(&f);
    assert_int_equal(r.code, ERROR_SERVICE_UNAVAILABLE);
    assert_int_equal(r.errnum, ECONNREFUSED);
    result_done(&r);
    (void)unlink(f.path);
    tear_down(&f);
}

static void test_bad_requests_are_our_fault(void **state)
{
    const struct http_call_request bad = {.method = "GET", .target = "/a b"};
    struct fixture f;
    struct error err;

    (void)state;
    set_up(&f);
    assert_null(http_client_start(f.client, &bad, &collecting, NULL, &err));
    assert_int_equal(err.errnum, EINVAL);
    tear_down(&f);
}

static void test_timeout_and_cancel(void **state)
{
    const struct http_call_request hang = {.method = "GET", .target = "/hang", .timeout_ms = 20};
    struct fixture f;
    struct result r;
    struct result dropped;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &dropped, &hang, &collecting);
    begin(&f, &r, &hang, &collecting);
    http_call_cancel(dropped.call);
    f.open--;
    run(&f);
    assert_int_equal(r.code, ERROR_DEADLINE_EXCEEDED);
    assert_int_equal(dropped.done, 0);
    result_done(&r);
    tear_down(&f);
}

static void test_open_calls_end_with_the_client(void **state)
{
    const struct http_call_request hang = {.method = "GET", .target = "/hang"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &hang, &collecting);
    http_client_free(TAKE(f.client));
    assert_int_equal(r.code, ERROR_SERVICE_UNAVAILABLE);
    result_done(&r);
    tear_down(&f);
}

struct fake_case {
    const char *answer;
    int status;
    enum error_code code;
    const char *body;
};

static void test_odd_answers(void **state)
{
    static const struct fake_case cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, ERROR_NONE, "ok"},
        {"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, ERROR_NONE, "until the end"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", 201,
         ERROR_NONE, ""},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200,
         ERROR_NONE, "ok"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", 200, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 200, ERROR_BAD_GATEWAY,
         NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n", 200, ERROR_BAD_GATEWAY,
         NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n012345678901234567890", 200,
         ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Le", 0, ERROR_BAD_GATEWAY, NULL},
        {"SSH-2.0-x\r\n", 0, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 101 Up\r\n\r\n", 0, ERROR_BAD_GATEWAY, NULL},
        {"", 0, ERROR_SERVICE_UNAVAILABLE, NULL},
    };
    const struct http_call_request request = {.method = "GET", .target = "/", .max_body = 20};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;

        set_up(&f);
        start_fake(&f, cases[i].answer);
        expect(&f, &request, cases[i].status, cases[i].code, cases[i].body);
        stop_fake(&f);
        tear_down(&f);
    }
}

/* The server closes a kept connection just when it is used again. */
static void test_retry_on_a_dead_kept_connection(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    start_fake(&f, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkeep");
    expect(&f, &get_hello, 200, ERROR_NONE, "keep");
    assert_int_equal(f.client->idle_count, 1);
    (void)close(f.fake_fds[1]); /* unseen until the next call is under way */
    expect(&f, &get_hello, 200, ERROR_NONE, "keep");
    assert_int_equal(f.fake_connections, 2);
    /* A fresh connection that dies is not tried again. */
    f.fake_drop = 10;
    (void)close(f.fake_fds[2]);
    expect(&f, &get_hello, 0, ERROR_SERVICE_UNAVAILABLE, NULL);
    assert_int_equal(f.fake_connections, 3);
    stop_fake(&f);
    tear_down(&f);
}

static void stop_when_pool_is_empty(void *arg)
{
    struct result *r = arg;

    if (r->f->client->idle_count == 0) {
        loop_stop(r->f->loop);
    } else {
        loop_timer_start(r->timer, 1);
    }
}

static void test_kept_connection_ended_by_the_server_leaves_the_pool(void **state)
{
    struct fixture f;
    struct result r = {.f = &f};

    (void)state;
    set_up(&f);
    start_server(&f, 5);
    expect(&f, &get_hello, 200, ERROR_NONE, "hello");
    r.timer = loop_timer_new(f.loop, stop_when_pool_is_empty, &r);
    loop_timer_start(r.timer, 1);
    run(&f);
    assert_int_equal(f.client->idle_count, 0);
    expect(&f, &get_hello, 200, ERROR_NONE, "hello");
    loop_timer_free(r.timer);
    tear_down(&f);
}

static void test_server_that_stops_lets_go(void **state)
{
    const struct http_call_request request = {.method = "POST", .target = "/echo"};
    struct fixture f;
    struct result r;
    struct result idle = {.f = &f};

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &get_hello, &collecting);
    expect(&f, &request, 200, ERROR_NONE, "");
    result_done(&r);
    assert_int_equal(http_server_connections(f.server), 2);
    http_server_stop_accepting(f.server);
    idle.timer = loop_timer_new(f.loop, stop_when_pool_is_empty, &idle);
    loop_timer_start(idle.timer, 1);
    run(&f);
    assert_int_equal(http_server_connections(f.server), 0);
    loop_timer_free(idle.timer);
    expect(&f, &get_hello, 0, ERROR_SERVICE_UNAVAILABLE, NULL);
    tear_down(&f);
}

static void test_cut_answer(void **state)
{
    static const struct http_call_callbacks callbacks = {NULL, NULL, on_done};
    const struct http_call_request request = {.method = "GET", .target = "/abort"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &request, &callbacks);
    run(&f);
    assert_true(r.code == ERROR_BAD_GATEWAY || r.code == ERROR_SERVICE_UNAVAILABLE);
    result_done(&r);
    tear_down(&f);
}

/* ---- streams ---- */

static void resume(void *arg)
{
    struct result *r = arg;

    http_call_pause(r->call, false);
}

static void on_stream_data(void *arg, struct http_call *call, struct span piece)
{
    struct result *r = arg;

    buf_put(&r->body, piece);
    if (r->body.n / 1000000U > (size_t)r->pauses) {
        r->pauses++;
        http_call_pause(call, true);
        loop_timer_start(r->timer, 1);
    }
}

static void pump(void *arg)
{
    struct result *r = arg;
    uint8_t piece[50000];
    int room = 1;

    while (room == 1 && r->position < BIG_BYTES) {
        memset(piece, (int)(r->position / sizeof(piece)) & 0xff, sizeof(piece));
        room = http_call_write(r->call, span_make(piece, sizeof(piece)));
        r->position += sizeof(piece);
        assert_true(r->call->conn == NULL || r->call->conn->out.queued <= 262144 + 60000);
    }
    if (r->position == BIG_BYTES) {
        r->position++;
        http_call_end(r->call);
    }
}

static void test_streams_both_ways(void **state)
{
    static const struct http_call_callbacks streaming = {on_head, on_stream_data, on_done};
    const struct http_call_request request = {
        .method = "POST",
        .target = "/stream",
        .stream_body = true,
    };
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &request, &streaming);
    r.timer = loop_timer_new(f.loop, resume, &r);
    http_call_on_drain(r.call, pump, &r);
    pump(&r);
    run(&f);
    assert_int_equal(r.code, ERROR_NONE);
    assert_int_equal(r.body.n, BIG_BYTES);
    assert_true(r.pauses >= 7);
    for (size_t i = 0; i < r.body.n; i += 1000) {
        assert_int_equal(r.body.p[i], (i / 50000U) & 0xff);
    }
    result_done(&r);
    expect(&f, &get_hello, 200, ERROR_NONE, "hello");
    assert_int_equal(http_server_connections(f.server), 1);
    tear_down(&f);
}

/* A body whose length is known goes out as it is; more or less than that is our own fault. */
static void test_stream_of_a_declared_length(void **state)
{
    static const struct {
        const char *pieces[2];
        enum error_code code;
    } cases[] = {
        {{"hel", "lo"}, ERROR_NONE},
        {{"hello", ""}, ERROR_NONE},
        {{"hello", "!"}, ERROR_INTERNAL},
        {{"hell", ""}, ERROR_INTERNAL},
    };
    const struct http_call_request request = {
        .method = "POST",
        .target = "/echo",
        .stream_body = true,
        .stream_length = 5,
    };
    struct fixture f;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct result r;

        begin(&f, &r, &request, &collecting);
        (void)http_call_write(r.call, span_of_str(cases[i].pieces[0]));
        (void)http_call_write(r.call, span_of_str(cases[i].pieces[1]));
        http_call_end(r.call);
        run(&f);
        assert_int_equal(r.code, cases[i].code);
        if (r.code == ERROR_NONE) {
            assert_string_equal(buf_str(&r.body), "hello");
        }
        result_done(&r);
    }
    tear_down(&f);
}

static void on_header(void *arg, const char *name, const char *value)
{
    struct buf *out = arg;

    buf_printf(out, "%s: %s|", name, value);
}

static void on_head_keep(void *arg, struct http_call *call, int status)
{
    struct result *r = arg;

    r->heads = status;
    http_call_each_header(call, on_header, &r->body);
}

static void test_headers_in_order(void **state)
{
    static const struct http_call_callbacks keeping = {on_head_keep, NULL, on_done};
    const struct http_header headers[] = {{"a", "1"}, {"b", "2"}, {"A", "3"}};
    const struct http_call_request request = {
        .method = "GET", .target = "/last-header", .headers = headers, .header_count = 3};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &request, &keeping);
    run(&f);
    assert_int_equal(r.heads, 204); /* Host and these three */
    assert_string_equal(buf_str(&r.body), "Date: Thu, 01 Jan 1970 00:00:00 GMT|A: 3|");
    result_done(&r);
    tear_down(&f);
}

static void test_early_answer_to_a_stream(void **state)
{
    const struct http_call_request request = {
        .method = "POST",
        .target = "/early",
        .stream_body = true,
    };
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    start_server(&f, 0);
    begin(&f, &r, &request, &collecting);
    http_call_on_drain(r.call, pump, &r);
    pump(&r);
    run(&f);
    assert_int_equal(r.code, ERROR_NONE);
    assert_int_equal(r.status, 409);
    assert_string_equal(buf_str(&r.body), "no");
    assert_int_equal(f.client->idle_count, 0); /* its body was never sent in full */
    result_done(&r);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simple_calls),
        cmocka_unit_test(test_many_at_once_share_a_pool),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_bad_requests_are_our_fault),
        cmocka_unit_test(test_timeout_and_cancel),
        cmocka_unit_test(test_open_calls_end_with_the_client),
        cmocka_unit_test(test_odd_answers),
        cmocka_unit_test(test_retry_on_a_dead_kept_connection),
        cmocka_unit_test(test_kept_connection_ended_by_the_server_leaves_the_pool),
        cmocka_unit_test(test_server_that_stops_lets_go),
        cmocka_unit_test(test_cut_answer),
        cmocka_unit_test(test_streams_both_ways),
        cmocka_unit_test(test_stream_of_a_declared_length),
        cmocka_unit_test(test_headers_in_order),
        cmocka_unit_test(test_early_answer_to_a_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
