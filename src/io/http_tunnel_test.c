/* Upgrades on the client's side, and HTTP through a tunnel to a server that may say anything. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "io/byte_stream.h"
#include "io/http_call.h"
#include "io/http_server.h"
#include "io/loop.h"

#define BIG_BYTES 8000000U

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct loop_timer *watchdog;
    char directory[64];
    char path[96];
    int open; /* calls and taken streams that have not ended */
    int tunnels;

    /* The server behind the tunnel: it answers once it has got `wants` bytes or a whole head. */
    const char *answer;
    size_t wants;
    bool closes;
    bool echoes; /* from the answer on */
    struct buf got;
    bool answered;
    bool got_end;
    struct byte_stream *far; /* NULL when it is gone */
};

struct result {
    struct fixture *f;
    struct http_call *call;
    bool takes;
    struct byte_stream *stream;
    int heads;
    int done;
    int status;
    int stream_closed;
    int stream_errnum;
    struct error error;
    struct buf body;
    struct buf headers;
    size_t position;
};

static void on_watchdog(void *arg)
{
    (void)arg;
    fail_msg("nothing happened for 20 s");
}

static void on_stop(void *arg)
{
    loop_stop(arg);
}

/* ---- the node ---- */

static void on_far_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct fixture *f = arg;

    if (f->answered && f->echoes) {
        if (byte_stream_write(stream, bytes) == 0) {
            byte_stream_pause(stream, true);
        }
        return;
    }
    buf_put(&f->got, bytes);
    if (f->answered || f->answer == NULL || f->got.n < f->wants ||
        strstr(buf_str(&f->got), "\r\n\r\n") == NULL) {
        return;
    }
    f->answered = true;
    (void)byte_stream_write(stream, span_of_str(f->answer));
    if (f->closes) {
        byte_stream_end(stream);
    }
}

static void on_far_end(void *arg, struct byte_stream *stream)
{
    struct fixture *f = arg;

    f->got_end = true;
    byte_stream_end(stream);
}

static void on_far_drain(void *arg, struct byte_stream *stream)
{
    (void)arg;
    byte_stream_pause(stream, false);
}

static void on_far_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct fixture *f = arg;

    (void)err;
    if (stream == f->far) {
        f->far = NULL;
    }
    if (--f->open == 0) {
        loop_stop(f->loop);
    }
}

static void open_far(struct fixture *f, struct http_exchange *exchange, const char *protocol)
{
    static const struct byte_stream_callbacks callbacks = {on_far_data, on_far_end, on_far_drain,
                                                           on_far_closed};

    f->far = http_exchange_upgrade(exchange, protocol, NULL, 0);
    assert_non_null(f->far);
    f->open++;
    byte_stream_set_callbacks(f->far, &callbacks, f);
    byte_stream_pause(f->far, false);
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    struct fixture *f = ctx;
    const char *path = http_exchange_path(exchange);
    const struct http_header type = {"Content-Type", "application/json"};

    if (strcmp(path, "/tcp") == 0) {
        const char *id = http_exchange_header(exchange, "X-Request-Id");

        assert_non_null(id);
        assert_string_equal(id, "rq1");
        f->tunnels++;
        open_far(f, exchange, "space-tcp");
    } else if (strcmp(path, "/up") == 0) {
        f->answered = true;
        open_far(f, exchange, "websocket");
    } else if (strcmp(path, "/refuse") == 0) {
        http_exchange_respond(
            exchange, 502, &type, 1,
            span_of_str("{\"error\": {\"code\": \"bad_gateway\", \"message\": \"nothing listens on "
                        "port 80\", \"details\": {}, \"retryable\": true, \"request_id\": \"\"}}"));
    } else {
        http_exchange_respond(exchange, 404, NULL, 0, span_of_str("no envelope"));
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    (void)ctx;
    http_exchange_respond(exchange, error_code_status(err->code), NULL, 0, span_make(NULL, 0));
}

static void set_up(struct fixture *f)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    const struct http_server_limits limits = {.max_connections = 100};
    struct error err;

    *f = (struct fixture){.got = buf_make(0)};
    f->loop = loop_new(0);
    assert_non_null(f->loop);
    f->watchdog = loop_timer_new(f->loop, on_watchdog, NULL);
    loop_timer_start(f->watchdog, 20000);
    (void)snprintf(f->directory, sizeof(f->directory), "/tmp/http-tunnel-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    (void)snprintf(f->path, sizeof(f->path), "%s/s", f->directory);
    f->client = http_client_new(f->loop, f->path, 4);
    assert_non_null(f->client);
    assert_int_equal(http_server_new(f->loop, &limits, &callbacks, f, &f->server, &err), 0);
    assert_int_equal(http_server_listen_unix(f->server, f->path, 0600, (gid_t)-1, &err), 0);
}

static void tear_down(struct fixture *f)
{
    http_client_free(f->client);
    http_server_free(f->server);
    loop_timer_free(f->watchdog);
    loop_free(f->loop);
    buf_done(&f->got);
    assert_int_equal(rmdir(f->directory), 0);
}

/* ---- calls ---- */

static void leave(struct result *r)
{
    if (--r->f->open == 0) {
        loop_stop(r->f->loop);
    }
}

static void on_stream_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct result *r = arg;

    buf_put(&r->body, bytes);
    if (r->body.n == 12) {
        byte_stream_end(stream);
    }
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct result *r = arg;

    (void)stream;
    r->stream = NULL;
    r->stream_closed++;
    r->stream_errnum = err == NULL ? 0 : err->errnum;
    leave(r);
}

static void put_header(void *arg, const char *name, const char *value)
{
    buf_printf(arg, "%s=%s;", name, value);
}

static void on_head(void *arg, struct http_call *call, int status)
{
    static const struct byte_stream_callbacks callbacks = {on_stream_data, NULL, NULL,
                                                           on_stream_closed};
    struct result *r = arg;

    r->heads++;
    r->status = status;
    http_call_each_header(call, put_header, &r->headers);
    if (status != 101 || !r->takes) {
        assert_null(status == 101 ? NULL : http_call_take_stream(call));
        return;
    }
    r->stream = http_call_take_stream(call);
    assert_non_null(r->stream);
    assert_null(http_call_take_stream(call));
    byte_stream_set_callbacks(r->stream, &callbacks, r);
    byte_stream_pause(r->stream, false);
    (void)byte_stream_write(r->stream, span_of_str("hello stream"));
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct result *r = arg;

    r->done++;
    r->status = http_call_status(call);
    r->error = err != NULL ? *err : (struct error){0};
    buf_put(&r->body, http_call_body(call));
    r->call = NULL;
    leave(r);
}

static const struct http_call_callbacks collecting = {on_head, NULL, on_done};
static const struct http_header request_id = {"X-Request-Id", "rq1"};

static void begin(struct fixture *f,
                  struct result *r,
                  const struct http_call_request *request,
                  const struct http_call_callbacks *callbacks)
{
    struct error err;

    *r = (struct result){.f = f, .body = buf_make(0), .headers = buf_make(0), .takes = true};
    f->open++;
    r->call = http_client_start(f->client, request, callbacks, r, &err);
    assert_non_null(r->call);
    assert_int_equal(r->done, 0);
}

static void run(struct fixture *f)
{
    assert_int_equal(loop_run(f->loop), 0);
    assert_int_equal(f->open, 0);
}

static void result_done(struct result *r)
{
    buf_done(&r->body);
    buf_done(&r->headers);
}

static struct http_call_request tunnelled(const char *method, const char *target)
{
    return (struct http_call_request){
        .method = method,
        .target = target,
        .tunnel = "/tcp",
        .tunnel_headers = &request_id,
        .tunnel_header_count = 1,
    };
}

/* ---- upgrades ---- */

static void test_upgrade(void **state)
{
    const struct http_call_request request = {
        .method = "GET", .target = "/up", .upgrade = "h2c, websocket", .timeout_ms = 10000};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    f.echoes = true;
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.heads, 1);
    assert_int_equal(r.status, 101);
    assert_int_equal(r.done, 0);
    assert_string_equal(buf_str(&r.body), "hello stream");
    assert_int_equal(r.stream_closed, 1);
    assert_int_equal(r.stream_errnum, 0);
    assert_true(f.got_end);
    assert_int_equal(f.client->idle_count, 0);
    result_done(&r);
    tear_down(&f);
}

static void test_upgrade_refused_is_an_answer(void **state)
{
    const struct http_call_request request = {
        .method = "GET", .target = "/nothing", .upgrade = "websocket"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.status, 404);
    assert_int_equal(r.error.code, ERROR_NONE);
    assert_string_equal(buf_str(&r.body), "no envelope");
    assert_int_equal(f.client->idle_count, 1); /* it goes on as HTTP */
    result_done(&r);
    tear_down(&f);
}

static void test_upgrade_nobody_takes(void **state)
{
    const struct http_call_request request = {
        .method = "GET", .target = "/up", .upgrade = "websocket"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    begin(&f, &r, &request, &collecting);
    r.takes = false;
    run(&f);
    assert_int_equal(r.done, 1);
    assert_int_equal(r.error.code, ERROR_BAD_GATEWAY);
    result_done(&r);
    tear_down(&f);
}

/* The stream outlives the client that made it, and a call may be dropped meanwhile. */
static void test_taken_stream_is_its_own(void **state)
{
    const struct http_call_request request = {
        .method = "GET", .target = "/up", .upgrade = "websocket"};
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    begin(&f, &r, &request, &collecting);
    while (r.stream == NULL) {
        assert_int_equal(loop_defer(f.loop, on_stop, f.loop), 0);
        assert_int_equal(loop_run(f.loop), 0);
    }
    http_client_free(TAKE(f.client));
    byte_stream_free(TAKE(r.stream));
    f.open--;
    run(&f);
    assert_int_equal(r.done + r.stream_closed, 0);
    result_done(&r);
    tear_down(&f);
}

/* ---- through a tunnel ---- */

struct far_case {
    const char *answer;
    int status;
    enum error_code code;
    const char *body;
};

static void test_answers_of_the_far_server(void **state)
{
    static const struct far_case cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, ERROR_NONE, "ok"},
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, ERROR_NONE, "until the end"},
        {"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, ERROR_NONE, "until the end"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 "
         "Gone\r\nContent-Length: 2\r\n\r\nno",
         404, ERROR_NONE, "no"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200,
         ERROR_NONE, "ok"},
        {"HTTP/1.1 204 No Content\r\n\r\n", 204, ERROR_NONE, ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", 200, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", 0,
         ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok", 0,
         ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\nok", 0, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 200 OK\r\nX : a\r\n\r\nok", 0, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/1.1 101 Up\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 0, ERROR_BAD_GATEWAY,
         NULL},
        {"{\"error\": {\"code\": \"not_found\", \"message\": \"x\"}}", 0, ERROR_BAD_GATEWAY, NULL},
        {"HTTP/2 200\r\n\r\n", 0, ERROR_BAD_GATEWAY, NULL},
        {"", 0, ERROR_BAD_GATEWAY, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_call_request request = tunnelled("GET", "/a?b");
        struct fixture f;
        struct result r;

        set_up(&f);
        f.answer = cases[i].answer;
        f.closes = true;
        request.host = "8080-abc.example";
        begin(&f, &r, &request, &collecting);
        run(&f);
        if (r.status != cases[i].status || r.error.code != cases[i].code) {
            fail_msg("%s: %d %s", cases[i].answer, r.status, r.error.message);
        }
        if (cases[i].body != NULL) {
            assert_string_equal(buf_str(&r.body), cases[i].body);
        }
        assert_int_equal(r.heads, cases[i].status != 0);
        assert_null(strstr(r.error.message, f.directory)); /* it is for users */
        assert_string_equal(
            buf_str(&f.got),
            "GET /a?b HTTP/1.1\r\nHost: 8080-abc.example\r\nConnection: close\r\n\r\n");
        assert_int_equal(f.client->idle_count, 0);
        result_done(&r);
        tear_down(&f);
    }
}

static void test_endless_interim_answers(void **state)
{
    const struct http_call_request request = tunnelled("GET", "/");
    _cleanup_buf_ struct buf answer = buf_make(0);
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    for (int i = 0; i < 1000; i++) {
        buf_put_str(&answer, "HTTP/1.1 102 Processing\r\n\r\n");
    }
    f.answer = buf_str(&answer);
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.error.code, ERROR_BAD_GATEWAY);
    result_done(&r);
    tear_down(&f);
}

static void test_refused_tunnels(void **state)
{
    struct fixture f;
    struct result r;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct http_call_request request = tunnelled("POST", "/");

        set_up(&f);
        request.tunnel = i == 0 ? "/refuse" : "/nothing";
        request.stream_body = i == 0;
        begin(&f, &r, &request, &collecting);
        (void)http_call_write(r.call, span_of_str("never sent"));
        run(&f);
        assert_int_equal(r.error.code, ERROR_BAD_GATEWAY);
        if (i == 0) {
            assert_string_equal(r.error.message, "nothing listens on port 80");
        }
        assert_int_equal(r.status, 0);
        assert_int_equal(r.heads, 0);
        assert_int_equal(r.body.n, 0);
        assert_int_equal(f.client->idle_count, 0);
        result_done(&r);
        tear_down(&f);
    }
}

static void test_headers(void **state)
{
    static const struct http_header hop = {"TE", "trailers"};
    static const struct http_header coding = {"Transfer-Encoding", "chunked"};
    static const struct http_header host = {"Host", "x"};
    static const struct http_header length = {"Content-Length", "3"};
    static const struct http_header *const bad[] = {&hop, &coding, &host, &length};
    struct http_call_request request = tunnelled("GET", "/");
    struct fixture f;
    struct result r;
    struct error err;

    (void)state;
    set_up(&f);
    request.header_count = 1;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        request.headers = bad[i];
        assert_null(http_client_start(f.client, &request, &collecting, NULL, &err));
        assert_int_equal(err.errnum, EINVAL);
    }
    request.headers = &hop;
    request.allow_any_headers = true;
    f.answer = "HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 0\r\nx-b: 2\r\nX-A: 3\r\n\r\n";
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.status, 200);
    assert_string_equal(buf_str(&r.headers), "X-A=1;Content-Length=0;x-b=2;X-A=3;");
    assert_string_equal(
        buf_str(&f.got),
        "GET / HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\nConnection: close\r\n\r\n");
    result_done(&r);
    tear_down(&f);
}

static void test_streamed_bodies(void **state)
{
    struct fixture f;
    struct result r;

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct http_call_request request = tunnelled("PUT", "/");

        set_up(&f);
        request.stream_body = true;
        request.stream_length = i > 0 ? 10 : 0;
        f.answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
        f.wants = i == 0 ? 107 : 84; /* head and body */
        begin(&f, &r, &request, &collecting);
        assert_int_equal(http_call_write(r.call, span_of_str("hello")), 1);
        if (i == 2) { /* too little */
            http_call_end(r.call);
        } else {
            (void)http_call_write(r.call, span_of_str(i == 3 ? "world!" : "world"));
            http_call_end(r.call);
        }
        run(&f);
        if (i < 2) {
            assert_int_equal(r.status, 201);
            assert_non_null(strstr(buf_str(&f.got), i == 0 ? "5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n"
                                                           : "\r\n\r\nhelloworld"));
        } else {
            assert_int_equal(r.error.code, ERROR_INTERNAL);
        }
        result_done(&r);
        tear_down(&f);
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
        assert_true(r->call->request.n <= 262144 + 60000);
    }
    if (r->position == BIG_BYTES) {
        r->position++;
        http_call_end(r->call);
    }
}

static void on_big_data(void *arg, struct http_call *call, struct span piece)
{
    struct result *r = arg;

    buf_put(&r->body, piece);
    (void)call;
}

/* 8 MB up and, at the same time, down again; the answer has no length. */
static void test_streams_both_ways(void **state)
{
    static const struct http_call_callbacks streaming = {on_head, on_big_data, on_done};
    struct http_call_request request = tunnelled("POST", "/");
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    f.answer = "HTTP/1.1 200 OK\r\nContent-Length: 7000000\r\n\r\n";
    f.echoes = true;
    request.stream_body = true;
    request.stream_length = BIG_BYTES;
    begin(&f, &r, &request, &streaming);
    http_call_on_drain(r.call, pump, &r);
    pump(&r);
    run(&f);
    assert_int_equal(r.error.code, ERROR_NONE);
    assert_int_equal(r.body.n, 7000000);
    result_done(&r);
    tear_down(&f);
}

static void test_upgrade_through_a_tunnel(void **state)
{
    struct http_call_request request = tunnelled("GET", "/ws");
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    f.answer = "HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\n";
    f.echoes = true;
    request.upgrade = "websocket";
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.status, 101);
    assert_int_equal(r.done, 0);
    assert_int_equal(r.stream_closed, 1);
    assert_int_equal(r.stream_errnum, 0);
    assert_string_equal(buf_str(&r.body), "hello stream");
    assert_non_null(strstr(buf_str(&f.got), "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"));
    result_done(&r);
    tear_down(&f);
}

/* Bytes right behind its 101 are the stream's. */
static void test_bytes_behind_a_switch(void **state)
{
    struct http_call_request request = tunnelled("GET", "/ws");
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    f.answer = "HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello, you!!";
    request.upgrade = "x";
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_string_equal(buf_str(&r.body), "hello, you!!");
    assert_int_equal(r.stream_closed, 1);
    result_done(&r);
    tear_down(&f);
}

static void test_wrong_switches(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        "HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: x, y\r\n\r\n",
        "HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: x\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 101 Up\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 101 Up\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.0 101 Up\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct http_call_request request = tunnelled("GET", "/ws");
        struct fixture f;
        struct result r;

        set_up(&f);
        f.answer = answers[i];
        request.upgrade = "x";
        begin(&f, &r, &request, &collecting);
        run(&f);
        assert_int_equal(r.heads, 0);
        assert_int_equal(r.error.code, ERROR_BAD_GATEWAY);
        result_done(&r);
        tear_down(&f);
    }
}

static void test_timeout_and_cancel(void **state)
{
    struct http_call_request request = tunnelled("GET", "/");
    struct fixture f;
    struct result r;

    (void)state;
    set_up(&f);
    request.timeout_ms = 30;
    begin(&f, &r, &request, &collecting);
    run(&f);
    assert_int_equal(r.error.code, ERROR_DEADLINE_EXCEEDED);
    result_done(&r);

    request.timeout_ms = 0;
    begin(&f, &r, &request, &collecting);
    while (f.got.n < 100) {
        assert_int_equal(loop_defer(f.loop, on_stop, f.loop), 0);
        assert_int_equal(loop_run(f.loop), 0);
    }
    http_call_cancel(r.call); /* the far end sees the connection go */
    f.open--;
    run(&f);
    assert_int_equal(r.done, 0);
    assert_int_equal(f.tunnels, 2);
    result_done(&r);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upgrade),
        cmocka_unit_test(test_upgrade_refused_is_an_answer),
        cmocka_unit_test(test_upgrade_nobody_takes),
        cmocka_unit_test(test_taken_stream_is_its_own),
        cmocka_unit_test(test_answers_of_the_far_server),
        cmocka_unit_test(test_endless_interim_answers),
        cmocka_unit_test(test_refused_tunnels),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_streamed_bodies),
        cmocka_unit_test(test_streams_both_ways),
        cmocka_unit_test(test_upgrade_through_a_tunnel),
        cmocka_unit_test(test_bytes_behind_a_switch),
        cmocka_unit_test(test_wrong_switches),
        cmocka_unit_test(test_timeout_and_cancel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
