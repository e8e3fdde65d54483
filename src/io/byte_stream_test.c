/* Streams over socket pairs, both ends on one loop, and relays between them. */
#include "io/byte_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "io/byte_stream_inner.h"
#include "io/loop.h"

#define BIG_BYTES 8000000U

struct fixture {
    struct loop *loop;
    struct loop_timer *watchdog;
    int open;        /* ends that are not yet closed; the loop stops with the last */
    int relays_gone; /* on_closed of relays */
};

/* One end with what happened to it. */
struct end {
    struct fixture *f;
    struct byte_stream *stream;
    struct byte_stream *given; /* the holder's pointer */
    struct buf got;
    bool keeps;     /* what it gets, in got */
    size_t count;   /* of bytes got */
    size_t to_send; /* of the pattern */
    size_t sent;
    bool ends_when_sent;
    int ended;
    int drains;
    int closed;
    int errnum;
    enum error_code code;
    bool frees_on_data;
    bool frees_on_end;
    bool frees_on_drain;
    bool echoes;
    bool answers_end;
    size_t max_queued;
};

static void on_watchdog(void *arg)
{
    (void)arg;
    fail_msg("nothing happened for 20 s");
}

static void set_up(struct fixture *f)
{
    *f = (struct fixture){0};
    f->loop = loop_new(0);
    assert_non_null(f->loop);
    f->watchdog = loop_timer_new(f->loop, on_watchdog, NULL);
    loop_timer_start(f->watchdog, 20000);
}

static void tear_down(struct fixture *f)
{
    loop_timer_free(f->watchdog);
    loop_free(f->loop);
}

static void run(struct fixture *f)
{
    assert_int_equal(loop_run(f->loop), 0);
}

static void on_stop(void *arg)
{
    loop_stop(arg);
}

static void turns(struct fixture *f, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(loop_defer(f->loop, on_stop, f->loop), 0);
        run(f);
    }
}

static uint8_t pattern(size_t at)
{
    return (uint8_t)((at * 31U + at / 251U) & 0xffU);
}

static void drop(struct end *e)
{
    byte_stream_free(TAKE(e->stream));
    if (--e->f->open == 0) {
        loop_stop(e->f->loop);
    }
}

static void pump(struct end *e)
{
    uint8_t piece[50000];
    int room = 1;

    while (room == 1 && e->sent < e->to_send) {
        size_t n = e->to_send - e->sent < sizeof(piece) ? e->to_send - e->sent : sizeof(piece);

        for (size_t i = 0; i < n; i++) {
            piece[i] = pattern(e->sent + i);
        }
        room = byte_stream_write(e->stream, span_make(piece, n));
        e->sent += n;
        if (byte_stream_queued(e->stream) > e->max_queued) {
            e->max_queued = byte_stream_queued(e->stream);
        }
    }
    if (e->sent == e->to_send && e->ends_when_sent) {
        byte_stream_end(e->stream);
    }
}

static void on_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct end *e = arg;

    assert_ptr_equal(stream, e->stream);
    if (e->keeps) {
        buf_put(&e->got, bytes);
    }
    e->count += bytes.n;
    if (e->echoes && byte_stream_write(stream, bytes) == 0) {
        byte_stream_pause(stream, true);
    }
    if (e->frees_on_data) {
        drop(e);
    }
}

static void on_end(void *arg, struct byte_stream *stream)
{
    struct end *e = arg;

    e->ended++;
    if (e->frees_on_end) {
        drop(e);
    } else if (e->answers_end) {
        byte_stream_end(stream);
    }
}

static void on_drain(void *arg, struct byte_stream *stream)
{
    struct end *e = arg;

    assert_true(byte_stream_queued(stream) <= STREAM_HIGH_BYTES / 2);
    e->drains++;
    if (e->frees_on_drain) {
        drop(e);
    } else if (e->echoes) {
        byte_stream_pause(stream, false);
    } else {
        pump(e);
    }
}

static void on_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct end *e = arg;

    e->closed++;
    e->errnum = err != NULL ? err->errnum : 0;
    e->code = err != NULL ? err->code : ERROR_NONE;
    e->stream = NULL;
    byte_stream_free(stream); /* harmless here */
    assert_int_equal(byte_stream_write(stream, span_of_str("x")), 0);
    if (--e->f->open == 0) {
        loop_stop(e->f->loop);
    }
}

static const struct byte_stream_callbacks callbacks = {on_data, on_end, on_drain, on_closed};

/* A stream over fd, which it takes; `first` was received before it existed. */
static struct byte_stream *
stream_over(struct fixture *f, int fd, struct byte_stream **holder, const char *first)
{
    struct byte_stream *stream = byte_stream_new(f->loop);
    struct http_transport transport;
    struct http_output out;
    struct buf in = buf_make(0);

    assert_non_null(stream);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(http_transport_init(&transport, fd, NULL), 0);
    http_output_init(&out);
    byte_stream_adopt(stream, &transport, &out, holder);
    assert_ptr_equal(*holder, stream);
    buf_put_str(&in, first);
    byte_stream_begin(stream, &in);
    return stream;
}

static void end_open(struct fixture *f, struct end *e, int fd, const char *first)
{
    *e = (struct end){.f = f, .got = buf_make(0), .keeps = true, .answers_end = true};
    e->stream = stream_over(f, fd, &e->given, first);
    byte_stream_set_callbacks(e->stream, &callbacks, e);
    f->open++;
}

static void pair_of_sockets(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void pair_open(struct fixture *f, struct end *a, struct end *b)
{
    int fds[2];

    pair_of_sockets(fds);
    end_open(f, a, fds[0], "");
    end_open(f, b, fds[1], "");
    byte_stream_pause(a->stream, false);
    byte_stream_pause(b->stream, false);
}

static void tcp_pair(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&address, sizeof(address)), 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fds[1] >= 0);
    (void)close(listener);
}

static void expect_pattern(struct end *e, size_t total)
{
    assert_int_equal(e->count, total);
    for (size_t i = 0; i < total; i++) {
        if (e->got.p[i] != pattern(i)) {
            fail_msg("byte %zu differs", i);
        }
    }
}

static void expect_closed(struct end *e, int errnum)
{
    assert_int_equal(e->closed, 1);
    assert_int_equal(e->errnum, errnum);
    buf_done(&e->got);
}

/* ---- streams ---- */

static void test_both_ways_with_back_pressure(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    pair_open(&f, &a, &b);
    a.to_send = BIG_BYTES;
    a.ends_when_sent = true;
    b.echoes = true;
    pump(&a);
    assert_int_equal(a.closed + b.closed, 0); /* nothing from inside */
    run(&f);
    expect_pattern(&a, BIG_BYTES);
    assert_true(a.drains > 0);
    assert_true(a.max_queued < STREAM_HIGH_BYTES + 50000);
    assert_int_equal(a.ended + b.ended, 2);
    expect_closed(&a, 0);
    expect_closed(&b, 0);
    tear_down(&f);
}

static void test_small_writes_in_order(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    pair_open(&f, &a, &b);
    for (int i = 0; i < 1000; i++) {
        char text[8];

        (void)snprintf(text, sizeof(text), "%d,", i);
        assert_int_equal(byte_stream_write(a.stream, span_of_str(text)), 1);
        assert_int_equal(byte_stream_write(a.stream, span_make(NULL, 0)), 1);
    }
    byte_stream_end(a.stream);
    assert_int_equal(byte_stream_write(a.stream, span_of_str("late")), 0);
    run(&f);
    for (size_t i = 0, at = 0; i < 1000; i++) {
        char text[8];
        size_t n = (size_t)snprintf(text, sizeof(text), "%zu,", i);

        assert_memory_equal(&b.got.p[at], text, n);
        at += n;
    }
    assert_int_equal(b.got.n, 3890);
    expect_closed(&a, 0);
    expect_closed(&b, 0);
    tear_down(&f);
}

/* Born paused, with bytes that came before it. */
static void test_first_bytes_and_pause(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];

    (void)state;
    set_up(&f);
    pair_of_sockets(fds);
    end_open(&f, &a, fds[0], "first ");
    assert_null(a.given->holder);
    assert_int_equal(write(fds[1], "second", 6), 6);
    turns(&f, 5);
    assert_int_equal(a.count, 0);
    byte_stream_pause(a.stream, false);
    assert_int_equal(a.count, 0);
    turns(&f, 5);
    assert_string_equal(buf_str(&a.got), "first second");
    byte_stream_pause(a.stream, true);
    assert_int_equal(write(fds[1], "third", 5), 5);
    turns(&f, 5);
    assert_int_equal(a.count, 12);
    byte_stream_free(a.stream);
    buf_done(&a.got);
    (void)close(fds[1]);
    tear_down(&f);
}

/* The peer closes both directions while we had not ended ours: a cut, after all it had sent. */
static void test_vanished_peer(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];

    (void)state;
    set_up(&f);
    pair_of_sockets(fds);
    end_open(&f, &a, fds[0], "");
    byte_stream_pause(a.stream, false);
    assert_int_equal(write(fds[1], "last words", 10), 10);
    (void)close(fds[1]);
    run(&f);
    assert_string_equal(buf_str(&a.got), "last words");
    assert_int_equal(a.ended, 0);
    assert_int_equal(a.code, ERROR_BAD_GATEWAY);
    expect_closed(&a, ECONNRESET);
    tear_down(&f);
}

/* A write finds out first: what the peer had sent still comes. */
static void test_vanished_peer_while_writing(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];
    static uint8_t words[150000];

    (void)state;
    set_up(&f);
    pair_of_sockets(fds);
    end_open(&f, &a, fds[0], "");
    assert_int_equal(write(fds[1], words, sizeof(words)), sizeof(words));
    (void)close(fds[1]);
    turns(&f, 1);
    assert_int_equal(byte_stream_write(a.stream, span_of_str("hello?")), 0);
    turns(&f, 5);
    assert_int_equal(a.closed, 0);
    byte_stream_pause(a.stream, false);
    run(&f);
    assert_int_equal(a.count, sizeof(words));
    expect_closed(&a, EPIPE);
    tear_down(&f);
}

/* It has ended its direction, and then is gone: seen by the look that the timer takes. */
static void test_half_closed_peer_vanishes(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];

    (void)state;
    set_up(&f);
    pair_of_sockets(fds);
    end_open(&f, &a, fds[0], "");
    a.answers_end = false;
    byte_stream_pause(a.stream, false);
    assert_int_equal(shutdown(fds[1], SHUT_WR), 0);
    turns(&f, 5);
    assert_int_equal(a.ended, 1);
    assert_true(a.stream->timer_ms != 0);
    loop_timer_start(a.stream->timer, 0);
    (void)usleep(1000);
    turns(&f, 5);
    assert_int_equal(a.closed, 0);
    (void)close(fds[1]);
    loop_timer_start(a.stream->timer, 0);
    run(&f);
    expect_closed(&a, ECONNRESET);
    tear_down(&f);
}

/* Held back, with bytes that nobody wants: the same look finds it. */
static void test_paused_peer_vanishes(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];

    (void)state;
    set_up(&f);
    pair_of_sockets(fds);
    end_open(&f, &a, fds[0], "");
    byte_stream_pause(a.stream, false);
    turns(&f, 2);
    byte_stream_pause(a.stream, true);
    assert_int_equal(write(fds[1], "unwanted", 8), 8);
    turns(&f, 5);
    assert_true(a.stream->timer_ms != 0);
    loop_timer_start(a.stream->timer, 0);
    (void)usleep(1000);
    turns(&f, 5);
    assert_int_equal(a.closed, 0);
    assert_true(a.stream->timer_ms != 0);
    (void)close(fds[1]);
    loop_timer_start(a.stream->timer, 0);
    run(&f);
    assert_int_equal(a.count, 0);
    expect_closed(&a, ECONNRESET);
    tear_down(&f);
}

static void expect_reset(int fd, size_t total)
{
    static uint8_t bytes[100000];
    size_t got = 0;
    ssize_t n;

    while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
        got += (size_t)n;
    }
    assert_true(n < 0 && errno == ECONNRESET);
    assert_true(got <= total);
}

/* TCP: all that was queued reaches the socket, then a reset. */
static void test_abort(void **state)
{
    struct fixture f;
    struct end a;
    int fds[2];

    (void)state;
    set_up(&f);
    tcp_pair(fds);
    end_open(&f, &a, fds[0], "");
    a.to_send = 100000;
    pump(&a);
    byte_stream_abort(a.stream);
    byte_stream_abort(a.stream);
    assert_int_equal(byte_stream_write(a.stream, span_of_str("late")), 0);
    assert_int_equal(a.closed, 0);
    run(&f);
    expect_closed(&a, ECONNABORTED);
    expect_reset(fds[1], 100000);
    (void)close(fds[1]);

    tcp_pair(fds);
    end_open(&f, &a, fds[0], "");
    byte_stream_free(a.stream); /* before our direction ended: a cut, too */
    expect_reset(fds[1], 0);
    (void)close(fds[1]);
    tear_down(&f);
}

/* All that is queued gets out before the cut, however slowly it is read. */
static void test_abort_delivers_what_is_queued(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    pair_open(&f, &a, &b);
    byte_stream_pause(b.stream, true);
    a.to_send = BIG_BYTES;
    pump(&a);
    assert_true(byte_stream_queued(a.stream) > 0);
    byte_stream_abort(a.stream);
    turns(&f, 10);
    assert_int_equal(a.closed, 0);
    byte_stream_pause(b.stream, false);
    run(&f);
    expect_pattern(&b, a.sent);
    expect_closed(&a, ECONNABORTED);
    expect_closed(&b, ECONNRESET);
    tear_down(&f);
}

static void test_free_from_callbacks(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    for (int i = 0; i < 3; i++) {
        set_up(&f);
        pair_open(&f, &a, &b);
        b.frees_on_data = i == 0;
        b.frees_on_end = i == 1;
        a.frees_on_drain = i == 2;
        a.to_send = i == 1 ? 5 : BIG_BYTES;
        a.ends_when_sent = true;
        a.answers_end = false;
        pump(&a);
        run(&f);
        assert_true(i == 2 ? a.stream == NULL && a.closed == 0 : b.closed == 0);
        buf_done(&a.got);
        buf_done(&b.got);
        tear_down(&f);
    }
}

static void test_idle_limits(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    /* The peer does not read. */
    pair_open(&f, &a, &b);
    byte_stream_pause(b.stream, true);
    byte_stream_set_idle(a.stream, 30, false);
    a.to_send = BIG_BYTES;
    pump(&a);
    turns(&f, 3);
    assert_int_equal(a.closed, 0);
    drop(&b);
    b = (struct end){.got = b.got};
    buf_done(&b.got);
    run(&f);
    assert_int_equal(a.closed, 1);
    buf_done(&a.got);

    pair_open(&f, &a, &b);
    byte_stream_pause(b.stream, true);
    byte_stream_set_idle(a.stream, 30, false);
    a.to_send = BIG_BYTES;
    pump(&a);
    f.open--; /* b stays */
    run(&f);
    assert_int_equal(a.code, ERROR_DEADLINE_EXCEEDED);
    expect_closed(&a, ETIMEDOUT);
    byte_stream_free(b.stream);
    buf_done(&b.got);

    /* It does not write; a pause is our own doing. */
    pair_open(&f, &a, &b);
    f.open--;
    byte_stream_pause(a.stream, true);
    byte_stream_set_idle(a.stream, 20, true);
    (void)usleep(30000);
    turns(&f, 5);
    assert_int_equal(a.closed, 0);
    byte_stream_pause(a.stream, false);
    run(&f);
    expect_closed(&a, ETIMEDOUT);
    byte_stream_free(b.stream);
    buf_done(&b.got);
    tear_down(&f);
}

/* A keystroke beside a transfer at full speed on the same loop waits for little of it. */
static void test_fairness(void **state)
{
    struct fixture f;
    struct end from;
    struct end to;
    struct end key;
    struct end echo;

    (void)state;
    set_up(&f);
    pair_open(&f, &from, &to);
    pair_open(&f, &key, &echo);
    to.keeps = false;
    echo.echoes = true;
    from.to_send = SIZE_MAX;
    pump(&from);
    for (size_t i = 1; i <= 100; i++) {
        size_t before = to.count;

        assert_int_equal(byte_stream_write(key.stream, span_of_str("k")), 1);
        while (key.count < i) {
            turns(&f, 1);
        }
        assert_true(to.count - before <= 8U * LOOP_SCRATCH_BYTES);
    }
    byte_stream_free(from.stream);
    byte_stream_free(to.stream);
    byte_stream_free(key.stream);
    byte_stream_free(echo.stream);
    buf_done(&key.got);
    buf_done(&echo.got);
    tear_down(&f);
}

/* ---- relays ---- */

static void on_relay_closed(void *arg)
{
    struct fixture *f = arg;

    f->relays_gone++;
    if (--f->open == 0) {
        loop_stop(f->loop);
    }
}

/* a - relay - b; returns the relay. */
static struct byte_relay *relay_open(struct fixture *f, struct end *a, struct end *b)
{
    struct byte_stream *holders[2];
    int left[2];
    int right[2];
    struct byte_relay *relay;

    pair_of_sockets(left);
    pair_of_sockets(right);
    end_open(f, a, left[0], "");
    end_open(f, b, right[1], "");
    byte_stream_pause(a->stream, false);
    byte_stream_pause(b->stream, false);
    relay = byte_relay_new(stream_over(f, left[1], &holders[0], ""),
                           stream_over(f, right[0], &holders[1], ""), on_relay_closed, f);
    assert_non_null(relay);
    f->open++;
    return relay;
}

static void test_relay(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    (void)relay_open(&f, &a, &b);
    a.to_send = BIG_BYTES;
    a.ends_when_sent = true;
    b.echoes = true;
    pump(&a);
    run(&f);
    expect_pattern(&a, BIG_BYTES);
    assert_int_equal(f.relays_gone, 1);
    expect_closed(&a, 0);
    expect_closed(&b, 0);
    tear_down(&f);
}

/* Each direction ends on its own. */
static void test_relay_half_close(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    (void)relay_open(&f, &a, &b);
    b.answers_end = false;
    byte_stream_end(a.stream);
    turns(&f, 20);
    assert_int_equal(b.ended, 1);
    assert_int_equal(a.ended, 0);
    b.to_send = 100000;
    b.ends_when_sent = true;
    pump(&b);
    run(&f);
    expect_pattern(&a, 100000);
    expect_closed(&a, 0);
    expect_closed(&b, 0);
    tear_down(&f);
}

/* What one side sent before it vanished reaches the other, and then that is cut. */
static void test_relay_of_a_cut(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;

    (void)state;
    set_up(&f);
    (void)relay_open(&f, &a, &b);
    byte_stream_pause(b.stream, true);
    a.to_send = 500000;
    pump(&a);
    while (byte_stream_queued(a.stream) > 0 && a.drains < 100) {
        turns(&f, 1);
        byte_stream_pause(b.stream, false);
    }
    byte_stream_free(TAKE(a.stream));
    f.open--;
    run(&f);
    expect_pattern(&b, 500000);
    assert_int_equal(b.ended, 0);
    assert_int_equal(f.relays_gone, 1);
    expect_closed(&b, ECONNRESET);
    buf_done(&a.got);
    tear_down(&f);
}

/* A reader that takes nothing stops the sender; little is kept in between. */
static void test_relay_back_pressure(void **state)
{
    struct fixture f;
    struct end a;
    struct end b;
    struct byte_relay *relay;

    (void)state;
    set_up(&f);
    relay = relay_open(&f, &a, &b);
    byte_stream_pause(b.stream, true);
    a.to_send = 4U * BIG_BYTES;
    pump(&a);
    turns(&f, 200);
    assert_true(a.sent < 3000000);
    assert_true(byte_stream_queued(a.stream) > 0);
    byte_relay_free(relay);
    f.open--;
    byte_stream_pause(b.stream, false);
    run(&f);
    assert_int_equal(f.relays_gone, 0);
    assert_int_equal(a.closed + b.closed, 2);
    buf_done(&a.got);
    buf_done(&b.got);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways_with_back_pressure),
        cmocka_unit_test(test_small_writes_in_order),
        cmocka_unit_test(test_first_bytes_and_pause),
        cmocka_unit_test(test_vanished_peer),
        cmocka_unit_test(test_vanished_peer_while_writing),
        cmocka_unit_test(test_half_closed_peer_vanishes),
        cmocka_unit_test(test_paused_peer_vanishes),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_delivers_what_is_queued),
        cmocka_unit_test(test_free_from_callbacks),
        cmocka_unit_test(test_idle_limits),
        cmocka_unit_test(test_fairness),
        cmocka_unit_test(test_relay),
        cmocka_unit_test(test_relay_half_close),
        cmocka_unit_test(test_relay_of_a_cut),
        cmocka_unit_test(test_relay_back_pressure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
