/* The WebSocket end of a server against a client made of the HTTP client and the frame parser, all
 * on one loop. */
#include "io/websocket.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/byte_stream_inner.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "io/websocket_inner.h"
#include "io/websocket_key.h"

#define MAX_MESSAGE 100000U
#define KEY         "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT      "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct loop_timer *watchdog;
    char directory[64];
    char path[96];

    /* The server's end. */
    struct websocket *ws;
    struct error refused;
    struct buf got; /* messages as "t:…;" or "b:…;" */
    int closed;
    unsigned int close_code;
    int drains;
    bool echoes;
    bool pauses; /* after each message */
    bool frees_on_message;
    const char *closes_on_message; /* reason */

    /* The client's. */
    struct byte_stream *stream;
    struct websocket_parser parser;
    struct buf seen; /* as the opcode's number and payload */
    size_t seen_bytes;
    bool keeps_count_only;
    bool answers_close;
    bool stream_ended;
    int status;
    char accept[64];
    char subprotocol[16];
    bool stream_closed;
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

static void turns(struct fixture *f, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(loop_defer(f->loop, on_stop, f->loop), 0);
        assert_int_equal(loop_run(f->loop), 0);
    }
}

/* ---- the server's end ---- */

static void on_message(void *arg, struct websocket *ws, bool is_text, struct span message)
{
    struct fixture *f = arg;

    assert_ptr_equal(ws, f->ws);
    buf_printf(&f->got, "%c:", is_text ? 't' : 'b');
    buf_put(&f->got, message);
    buf_put_str(&f->got, ";");
    if (f->echoes) {
        (void)websocket_send(ws, is_text, span_head(message, 1), span_skip(message, 1));
    }
    if (f->closes_on_message != NULL) {
        websocket_close(ws, 4000, f->closes_on_message);
        websocket_close(ws, 4001, "again");
        assert_int_equal(websocket_send(ws, true, span_of_str("late"), span_make(NULL, 0)), 0);
    }
    if (f->pauses) {
        websocket_pause(ws, true);
    }
    if (f->frees_on_message) {
        websocket_free(TAKE(f->ws));
    }
}

static void on_drain(void *arg, struct websocket *ws)
{
    struct fixture *f = arg;

    (void)ws;
    f->drains++;
}

static void on_closed(void *arg, struct websocket *ws, unsigned int code)
{
    struct fixture *f = arg;

    f->closed++;
    f->close_code = code;
    f->ws = NULL;
    websocket_free(ws); /* harmless here */
    assert_int_equal(websocket_send(ws, true, span_of_str("x"), span_make(NULL, 0)), 0);
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    static const struct websocket_callbacks callbacks = {on_message, on_drain, on_closed};
    struct fixture *f = ctx;
    const struct websocket_options options = {
        .loop = f->loop,
        .subprotocol = http_exchange_header(exchange, "Sec-WebSocket-Protocol"),
        .max_message = MAX_MESSAGE,
        .callbacks = &callbacks,
        .arg = f,
    };

    if (websocket_accept(exchange, &options, &f->ws, &f->refused) < 0) {
        http_exchange_respond(exchange, 400, NULL, 0, span_make(NULL, 0));
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    (void)ctx;
    http_exchange_respond(exchange, error_code_status(err->code), NULL, 0, span_make(NULL, 0));
}

/* ---- the client's end ---- */

static void on_bytes(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct fixture *f = arg;

    while (bytes.n > 0) {
        struct websocket_message message;
        bool has;
        int r = websocket_parser_next(&f->parser, bytes, &has, &message);

        assert_true(r > 0);
        bytes = span_skip(bytes, (size_t)r);
        if (!has) {
            continue;
        }
        f->seen_bytes += message.payload.n;
        if (f->keeps_count_only && message.opcode == WEBSOCKET_BINARY) {
            continue;
        }
        buf_printf(&f->seen, "%d:", (int)message.opcode);
        if (message.opcode == WEBSOCKET_CLOSE) {
            buf_printf(&f->seen, "%u:", message.close_code);
        }
        buf_put(&f->seen, message.payload);
        buf_put_str(&f->seen, ";");
        if (message.opcode == WEBSOCKET_CLOSE && f->answers_close) {
            _cleanup_buf_ struct buf frame = buf_make(0);

            websocket_put_close(&frame, message.close_code, "", (const uint8_t *)"abcd");
            (void)byte_stream_write(stream, buf_span(&frame));
        }
    }
}

static void on_stream_end(void *arg, struct byte_stream *stream)
{
    struct fixture *f = arg;

    f->stream_ended = true;
    if (f->answers_close) {
        byte_stream_end(stream);
    }
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct fixture *f = arg;

    (void)stream;
    (void)err;
    f->stream = NULL;
    f->stream_closed = true;
}

static void on_head(void *arg, struct http_call *call, int status)
{
    static const struct byte_stream_callbacks callbacks = {on_bytes, on_stream_end, NULL,
                                                           on_stream_closed};
    struct fixture *f = arg;
    const char *accept = http_call_header(call, "Sec-WebSocket-Accept");
    const char *protocol = http_call_header(call, "Sec-WebSocket-Protocol");

    f->status = status;
    (void)snprintf(f->accept, sizeof(f->accept), "%s", accept != NULL ? accept : "");
    (void)snprintf(f->subprotocol, sizeof(f->subprotocol), "%s", protocol != NULL ? protocol : "");
    if (status == 101) {
        f->stream = http_call_take_stream(call);
        assert_non_null(f->stream);
        byte_stream_set_callbacks(f->stream, &callbacks, f);
        byte_stream_pause(f->stream, false);
    }
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    (void)arg;
    (void)call;
    assert_null(err);
}

static void ask(struct fixture *f, const struct http_call_request *request)
{
    static const struct http_call_callbacks callbacks = {on_head, NULL, on_done};
    struct error err;

    f->status = 0;
    assert_non_null(http_client_start(f->client, request, &callbacks, f, &err));
    while (f->status == 0) {
        turns(f, 1);
    }
}

static const struct http_header good_headers[] = {
    {"Sec-WebSocket-Version", "13"},
    {"Sec-WebSocket-Key", KEY},
    {"Sec-WebSocket-Protocol", "one"},
};

static void set_up(struct fixture *f)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    const struct http_server_limits limits = {.max_connections = 10};
    struct error err;

    *f = (struct fixture){.got = buf_make(0), .seen = buf_make(0), .answers_close = true};
    websocket_parser_init(&f->parser, false, 10U * MAX_MESSAGE);
    f->loop = loop_new(0);
    assert_non_null(f->loop);
    f->watchdog = loop_timer_new(f->loop, on_watchdog, NULL);
    loop_timer_start(f->watchdog, 20000);
    (void)snprintf(f->directory, sizeof(f->directory), "/tmp/websocket-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    (void)snprintf(f->path, sizeof(f->path), "%s/s", f->directory);
    f->client = http_client_new(f->loop, f->path, 4);
    assert_non_null(f->client);
    assert_int_equal(http_server_new(f->loop, &limits, &callbacks, f, &f->server, &err), 0);
    assert_int_equal(http_server_listen_unix(f->server, f->path, 0600, (gid_t)-1, &err), 0);
}

static void set_up_open(struct fixture *f)
{
    const struct http_call_request request = {.method = "GET",
                                              .target = "/",
                                              .upgrade = "websocket",
                                              .headers = good_headers,
                                              .header_count = 3};

    set_up(f);
    ask(f, &request);
    assert_int_equal(f->status, 101);
    assert_string_equal(f->accept, ACCEPT);
    assert_string_equal(f->subprotocol, "one");
    assert_non_null(f->ws);
}

static void tear_down(struct fixture *f)
{
    websocket_free(f->ws);
    byte_stream_free(f->stream);
    websocket_parser_done(&f->parser);
    http_client_free(f->client);
    http_server_free(f->server);
    loop_timer_free(f->watchdog);
    loop_free(f->loop);
    buf_done(&f->got);
    buf_done(&f->seen);
    assert_int_equal(rmdir(f->directory), 0);
}

static void send_frame(struct fixture *f, enum websocket_opcode opcode, const char *text)
{
    _cleanup_buf_ struct buf frame = buf_make(0);

    websocket_put_frame(&frame, opcode, span_of_str(text), (const uint8_t *)"\x01\x80z\xff");
    (void)byte_stream_write(f->stream, buf_span(&frame));
}

static void run_until_closed(struct fixture *f)
{
    while (f->closed == 0) {
        turns(f, 1);
    }
    turns(f, 5);
    assert_int_equal(f->closed, 1);
}

/* ---- tests ---- */

static void test_keys(void **state)
{
    char key[WEBSOCKET_KEY_SIZE];
    char accept[WEBSOCKET_ACCEPT_SIZE];

    (void)state;
    assert_int_equal(websocket_key_accept(KEY, accept), 0);
    assert_string_equal(accept, ACCEPT);
    assert_int_equal(websocket_key_make(key), 0);
    assert_true(websocket_key_is_valid(key));
    assert_true(websocket_key_is_valid(KEY));
    assert_false(websocket_key_is_valid(""));
    assert_false(websocket_key_is_valid("dGhlIHNhbXBsZSBub25jZR=="));
    assert_false(websocket_key_is_valid("dGhlIHNhbXBsZSBub25jZQ="));
    assert_false(websocket_key_is_valid("dGhlIHNhbXBsZSBub25jZQ==="));
    assert_false(websocket_key_is_valid("dGhlIHNhbXBsZSBub25jZ!=="));
    assert_false(websocket_key_is_valid("aGhlIHNhbXBsZSBub25jZQaaQQ=="));
}

static void test_refused_handshakes(void **state)
{
    static const struct {
        const char *method;
        const char *upgrade;
        struct http_header headers[3];
        const char *field;
    } cases[] = {
        {"GET", NULL, {{"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", KEY}}, "Upgrade"},
        {"GET", "x", {{"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", KEY}}, "Upgrade"},
        {"PUT",
         "websocket",
         {{"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", KEY}},
         "Upgrade"},
        {"GET",
         "websocket",
         {{"Sec-WebSocket-Version", "8"}, {"Sec-WebSocket-Key", KEY}},
         "Sec-WebSocket-Version"},
        {"GET", "websocket", {{"X", "y"}, {"Sec-WebSocket-Key", KEY}}, "Sec-WebSocket-Version"},
        {"GET", "websocket", {{"Sec-WebSocket-Version", "13"}, {"X", "y"}}, "Sec-WebSocket-Key"},
        {"GET",
         "websocket",
         {{"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", "short"}},
         "Sec-WebSocket-Key"},
        {"GET",
         "websocket",
         {{"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", KEY}, {"Sec-WebSocket-Key", KEY}},
         "Sec-WebSocket-Key"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct http_call_request request = {.method = cases[i].method,
                                                  .target = "/",
                                                  .upgrade = cases[i].upgrade,
                                                  .headers = cases[i].headers,
                                                  .header_count =
                                                      cases[i].headers[2].name != NULL ? 3 : 2};
        struct fixture f;

        set_up(&f);
        ask(&f, &request);
        assert_int_equal(f.status, 400);
        assert_int_equal(f.refused.code, ERROR_INVALID_REQUEST);
        assert_string_equal(f.refused.field, cases[i].field);
        tear_down(&f);
    }
}

static void test_messages(void **state)
{
    static const uint8_t big[100000];
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.echoes = true;
    send_frame(&f, WEBSOCKET_TEXT, "hello");
    send_frame(&f, WEBSOCKET_BINARY, "\xff\xfe");
    send_frame(&f, WEBSOCKET_PING, "are you there?");
    send_frame(&f, WEBSOCKET_TEXT, "");
    send_frame(&f, WEBSOCKET_PONG, "unasked");
    turns(&f, 10);
    assert_string_equal(buf_str(&f.got), "t:hello;b:\xff\xfe;t:;");
    assert_string_equal(buf_str(&f.seen), "1:hello;2:\xff\xfe;10:are you there?;1:;");
    buf_clear(&f.seen);
    /* A long head, and a body longer than any buffer. */
    assert_true(websocket_send(f.ws, false, span_make(big, 100), span_make(big, sizeof(big))) >= 0);
    f.seen_bytes = 0;
    turns(&f, 10);
    assert_int_equal(f.seen_bytes, 100100);
    assert_int_equal(f.closed, 0);
    tear_down(&f);
}

static void test_pause_between_messages(void **state)
{
    _cleanup_buf_ struct buf frames = buf_make(0);
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.pauses = true;
    for (int i = 0; i < 5; i++) {
        char text[2] = {(char)('a' + i), '\0'};

        websocket_put_frame(&frames, WEBSOCKET_TEXT, span_of_str(text), (const uint8_t *)"zzzz");
    }
    (void)byte_stream_write(f.stream, buf_span(&frames));
    for (size_t i = 1; i <= 5; i++) {
        turns(&f, 10);
        assert_int_equal(f.got.n, 4 * i);
        websocket_pause(f.ws, false);
        assert_int_equal(f.got.n, 4 * i); /* not from inside */
    }
    turns(&f, 10);
    assert_string_equal(buf_str(&f.got), "t:a;t:b;t:c;t:d;t:e;");
    tear_down(&f);
}

static void test_client_closes(void **state)
{
    static const char *const payloads[] = {"\003\350bye", "\017\240", ""};
    static const unsigned int codes[] = {1000, 4000, WEBSOCKET_NO_CODE};
    static const char *const answers[] = {"8:1000:;", "8:4000:;", "8:1005:;"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct fixture f;

        set_up_open(&f);
        f.answers_close = false;
        send_frame(&f, WEBSOCKET_CLOSE, payloads[i]);
        send_frame(&f, WEBSOCKET_TEXT, "too late");
        turns(&f, 10);
        assert_int_equal(f.closed, 0);
        assert_true(f.stream_ended);
        assert_string_equal(buf_str(&f.seen), answers[i]);
        byte_stream_end(f.stream);
        run_until_closed(&f);
        assert_int_equal(f.close_code, codes[i]);
        assert_int_equal(f.got.n, 0);
        tear_down(&f);
    }
}

static void test_server_closes(void **state)
{
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.closes_on_message = "enough";
    send_frame(&f, WEBSOCKET_TEXT, "one");
    send_frame(&f, WEBSOCKET_TEXT, "two");
    run_until_closed(&f);
    assert_string_equal(buf_str(&f.seen), "8:4000:enough;");
    assert_string_equal(buf_str(&f.got), "t:one;");
    assert_int_equal(f.close_code, 4000);
    tear_down(&f);

    /* While paused: the peer's close frame is seen all the same. */
    set_up_open(&f);
    f.pauses = true;
    send_frame(&f, WEBSOCKET_TEXT, "one");
    turns(&f, 10);
    websocket_close(f.ws, 1001, NULL);
    run_until_closed(&f);
    assert_int_equal(f.close_code, 1001);
    tear_down(&f);

    /* A peer that does not answer. */
    set_up_open(&f);
    f.answers_close = false;
    f.ws->close_ms = 20;
    websocket_close(f.ws, 1000, "bye");
    run_until_closed(&f);
    assert_int_equal(f.close_code, WEBSOCKET_CUT);
    tear_down(&f);
}

/* What is queued before the last word gets through, even when it takes longer than the peer has to
 * answer it. */
static void test_close_behind_a_queue(void **state)
{
    static uint8_t bytes[50000];
    struct fixture f;
    size_t sent = 0;

    (void)state;
    set_up_open(&f);
    f.keeps_count_only = true;
    byte_stream_pause(f.stream, true);
    while (websocket_send(f.ws, false, span_make(NULL, 0), span_make(bytes, sizeof(bytes))) == 1) {
        sent += sizeof(bytes);
    }
    sent += sizeof(bytes);
    f.ws->close_ms = 20;
    websocket_close(f.ws, 1000, "bye");
    (void)usleep(30000);
    turns(&f, 5);
    assert_int_equal(f.closed, 0);
    byte_stream_pause(f.stream, false);
    run_until_closed(&f);
    assert_int_equal(f.close_code, 1000);
    assert_int_equal(f.seen_bytes, sent + 3);
    assert_string_equal(buf_str(&f.seen), "8:1000:bye;");
    tear_down(&f);

    /* It never takes it. */
    set_up_open(&f);
    byte_stream_pause(f.stream, true);
    while (websocket_send(f.ws, false, span_make(NULL, 0), span_make(bytes, sizeof(bytes))) == 1) {
    }
    f.ws->close_ms = 5;
    f.ws->drop_ms = 30;
    websocket_close(f.ws, 1000, "bye");
    run_until_closed(&f);
    assert_int_equal(f.close_code, WEBSOCKET_CUT);
    tear_down(&f);
}

static void test_broken_protocol(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        unsigned int code;
        const char *answer;
    } cases[] = {
        {"\x81\x05Hello", 7, 1002, "8:1002:;"},
        {"\x82\xff\0\0\0\0\0\x01\x86\xa1zzzz", 14, 1009, "8:1009:;"},
        {"\x81\x81\0\0\0\0\xff", 7, 1007, "8:1007:;"},
        {"\xff\xff\xff\xff", 4, 1002, "8:1002:;"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;

        set_up_open(&f);
        (void)byte_stream_write(f.stream, span_make(cases[i].bytes, cases[i].n));
        send_frame(&f, WEBSOCKET_TEXT, "dropped");
        run_until_closed(&f);
        assert_string_equal(buf_str(&f.seen), cases[i].answer);
        assert_int_equal(f.close_code, cases[i].code);
        assert_int_equal(f.got.n, 0);
        tear_down(&f);
    }
}

static void test_cut(void **state)
{
    struct fixture f;

    (void)state;
    for (int i = 0; i < 2; i++) {
        set_up_open(&f);
        if (i == 0) {
            byte_stream_free(TAKE(f.stream));
        } else {
            byte_stream_end(f.stream); /* without a close frame */
        }
        run_until_closed(&f);
        assert_int_equal(f.close_code, WEBSOCKET_CUT);
        tear_down(&f);
    }
}

static void test_free_from_a_callback(void **state)
{
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.frees_on_message = true;
    send_frame(&f, WEBSOCKET_TEXT, "one");
    send_frame(&f, WEBSOCKET_TEXT, "two");
    while (!f.stream_closed) {
        turns(&f, 1);
    }
    assert_string_equal(buf_str(&f.got), "t:one;");
    assert_int_equal(f.closed, 0);
    tear_down(&f);
}

/* The server goes while it is open. */
static void test_server_is_freed(void **state)
{
    struct fixture f;

    (void)state;
    set_up_open(&f);
    http_server_free(TAKE(f.server));
    assert_int_equal(f.closed, 1);
    assert_int_equal(f.close_code, WEBSOCKET_CUT);
    tear_down(&f);
}

static void test_pings(void **state)
{
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.ws->ping_ms = 1;
    f.ws->drop_ms = 60000;
    loop_timer_start(f.ws->timer, 1);
    while (strncmp(buf_str(&f.seen), "9:;9:;", 6) != 0) {
        turns(&f, 1);
        assert_int_equal(f.closed, 0);
    }
    f.ws->drop_ms = 20;
    run_until_closed(&f); /* this client never answers a ping */
    assert_int_equal(f.close_code, WEBSOCKET_CUT);
    tear_down(&f);

    /* A pause of our own does not count against it. */
    set_up_open(&f);
    f.ws->ping_ms = 5;
    f.ws->drop_ms = 20;
    loop_timer_start(f.ws->timer, 5);
    websocket_pause(f.ws, true);
    (void)usleep(30000);
    turns(&f, 20);
    assert_int_equal(f.closed, 0);
    websocket_pause(f.ws, false);
    run_until_closed(&f);
    tear_down(&f);
}

/* One that pings and does not read costs a bounded queue. */
static void test_ping_flood(void **state)
{
    static char payload[126];
    struct fixture f;

    (void)state;
    memset(payload, 'p', sizeof(payload) - 1);
    set_up_open(&f);
    byte_stream_pause(f.stream, true);
    for (int i = 0; i < 20000; i++) {
        send_frame(&f, WEBSOCKET_PING, payload);
        if (byte_stream_queued(f.stream) > 0) {
            turns(&f, 1);
        }
    }
    turns(&f, 50);
    assert_int_equal(f.closed, 0);
    assert_true(byte_stream_queued(f.ws->stream) >= WEBSOCKET_PONG_QUEUE);
    assert_true(byte_stream_queued(f.ws->stream) < WEBSOCKET_PONG_QUEUE + 200);
    tear_down(&f);
}

static void test_drain(void **state)
{
    static uint8_t bytes[50000];
    struct fixture f;

    (void)state;
    set_up_open(&f);
    f.keeps_count_only = true;
    byte_stream_pause(f.stream, true);
    while (websocket_send(f.ws, false, span_of_str("x"), span_make(bytes, sizeof(bytes))) == 1) {
    }
    turns(&f, 5);
    assert_int_equal(f.drains, 0);
    byte_stream_pause(f.stream, false);
    while (f.drains == 0) {
        turns(&f, 1);
    }
    assert_true(byte_stream_queued(f.ws->stream) <= STREAM_HIGH_BYTES / 2);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_refused_handshakes),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_pause_between_messages),
        cmocka_unit_test(test_client_closes),
        cmocka_unit_test(test_server_closes),
        cmocka_unit_test(test_close_behind_a_queue),
        cmocka_unit_test(test_broken_protocol),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_free_from_a_callback),
        cmocka_unit_test(test_server_is_freed),
        cmocka_unit_test(test_pings),
        cmocka_unit_test(test_ping_flood),
        cmocka_unit_test(test_drain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
