#include "io/http_test_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cmocka.h>
#include <event2/event.h>

#include "io/byte_stream.h"
#include "io/http_conn.h"
#include "io/loop.h"

#define PIECE_BYTES      30000U
#define FILE_PIECE_BYTES 1000U
#define WAIT_SECONDS     20

struct rig {
    struct loop *loop;
    struct http_server *server;
    struct rig_counters counters;
    pthread_t thread;
    int stop_fds[2];
    int file; /* RIG_BIG_BYTES of the pattern */
    int port;
};

/* One request of the streaming routes. */
struct job {
    struct rig *rig;
    struct http_exchange *exchange;
    struct loop_timer *timer;
    uint64_t position;
    uint64_t total;
};

uint8_t rig_pattern(uint64_t position)
{
    return (uint8_t)((position * 31U + position / 251U) & 0xffU);
}

static void note_queue(struct job *job)
{
    const struct http_conn *conn = job->exchange->conn;
    struct rig_counters *c = &job->rig->counters;

    if ((int)conn->out.queued > c->max_queued) {
        c->max_queued = (int)conn->out.queued;
    }
    if ((int)conn->in.n > c->max_ahead) {
        c->max_ahead = (int)conn->in.n;
    }
}

static void on_job_closed(void *arg, struct http_exchange *exchange, bool complete)
{
    struct job *job = arg;

    (void)exchange;
    atomic_fetch_add(
        complete ? &job->rig->counters.closed_complete : &job->rig->counters.closed_incomplete, 1);
    loop_timer_free(job->timer);
}

static void respond_text(struct http_exchange *exchange, int status, const char *text)
{
    const struct http_header type = {"Content-Type", "text/plain"};

    http_exchange_respond(exchange, status, &type, 1, span_of_str(text));
}

/* "CODE FIELD: MESSAGE" */
static void respond_error(struct http_exchange *exchange, const struct error *err)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "%s %s: %s", error_code_name(err->code), err->field,
                   err->message);
    respond_text(exchange, error_code_status(err->code), text);
}

/* ---- routes ---- */

static void
on_echo_body(void *arg, struct http_exchange *exchange, struct span body, const struct error *err)
{
    (void)arg;
    if (err != NULL) {
        respond_error(exchange, err);
        return;
    }
    http_exchange_respond(exchange, 200, NULL, 0, body);
}

static void on_echo_drain(void *arg)
{
    struct job *job = arg;

    job->rig->counters.drains++;
    http_exchange_pause_body(job->exchange, false);
}

static void on_echo_piece(void *arg,
                          struct http_exchange *exchange,
                          struct span piece,
                          bool last,
                          const struct error *err)
{
    struct job *job = arg;

    if (err != NULL) {
        http_exchange_abort(exchange);
        return;
    }
    if (http_exchange_write(exchange, piece) == 0) {
        http_exchange_pause_body(exchange, true);
    }
    note_queue(job);
    if (last) {
        http_exchange_end(exchange);
    }
}

/* Takes one piece and no more. */
static void on_held_piece(void *arg,
                          struct http_exchange *exchange,
                          struct span piece,
                          bool last,
                          const struct error *err)
{
    struct job *job = arg;

    (void)piece;
    (void)last;
    (void)err;
    http_exchange_pause_body(exchange, true);
    job->rig->counters.held++;
}

static void on_count_piece(void *arg,
                           struct http_exchange *exchange,
                           struct span piece,
                           bool last,
                           const struct error *err)
{
    struct job *job = arg;
    char text[64];

    if (err != NULL) {
        respond_error(exchange, err);
        return;
    }
    for (size_t i = 0; i < piece.n; i++) {
        if (piece.p[i] != rig_pattern(job->position + i)) {
            job->total++; /* differences */
        }
    }
    job->position += piece.n;
    note_queue(job);
    if (last) {
        (void)snprintf(text, sizeof(text), "%llu %llu", (unsigned long long)job->position,
                       (unsigned long long)job->total);
        respond_text(exchange, 200, text);
    }
}

static void write_big(void *arg)
{
    struct job *job = arg;
    uint8_t piece[PIECE_BYTES];
    int room = 1;

    job->rig->counters.drains++;
    while (room == 1 && job->position < job->total) {
        size_t n = 0;

        while (n < sizeof(piece) && job->position + n < job->total) {
            piece[n] = rig_pattern(job->position + n);
            n++;
        }
        job->position += n;
        room = http_exchange_write(job->exchange, span_make(piece, n));
        note_queue(job);
    }
    if (job->position == job->total && !http_exchange_is_started(job->exchange)) {
        return;
    }
    if (job->position == job->total) {
        http_exchange_end(job->exchange);
    }
}

static void on_later(void *arg)
{
    struct job *job = arg;

    respond_text(job->exchange, 200, "later");
}

static void respond_with_facts(struct http_exchange *exchange)
{
    const char *value = http_exchange_header(exchange, "x-fact");
    char text[512];

    (void)snprintf(text, sizeof(text), "%s|%s|%s|%s|%u|%s|%lld", http_exchange_method(exchange),
                   http_exchange_path(exchange), http_exchange_query(exchange),
                   value != NULL ? value : "(none)", http_exchange_header_count(exchange, "X-FACT"),
                   http_exchange_peer(exchange), (long long)http_exchange_content_length(exchange));
    respond_text(exchange, 200, text);
}

static void start_file(struct job *job, int64_t declared, int64_t count)
{
    http_exchange_start(job->exchange, 200, NULL, 0, declared);
    (void)http_exchange_write(job->exchange, span_of_str("<"));
    assert_true(http_exchange_write_file(job->exchange, job->rig->file, 1, count) >= 0);
    (void)http_exchange_write(job->exchange, span_of_str(">"));
    http_exchange_end(job->exchange);
}

/* The file, each piece when the one before has left. */
static void write_file_piece(void *arg)
{
    struct job *job = arg;
    uint64_t n = job->total - job->position;

    if (n == 0) {
        http_exchange_end(job->exchange);
        return;
    }
    n = n < FILE_PIECE_BYTES ? n : FILE_PIECE_BYTES;
    assert_int_equal(
        http_exchange_write_file(job->exchange, job->rig->file, (int64_t)job->position, (int64_t)n),
        0);
    job->position += n;
}

static void start_file_pieces(struct job *job, uint64_t count)
{
    job->total = count;
    http_exchange_on_drain(job->exchange, write_file_piece, job);
    http_exchange_start(job->exchange, 200, NULL, 0, (int64_t)count);
    write_file_piece(job);
}

/* Answers in two parts of five bytes, declared as n (-1: not). */
static void respond_in_parts(struct http_exchange *exchange, int64_t declared)
{
    http_exchange_start(exchange, 200, NULL, 0, declared);
    (void)http_exchange_write(exchange, span_of_str("hello"));
    (void)http_exchange_write(exchange, span_make(NULL, 0));
    (void)http_exchange_write(exchange, span_of_str("world"));
    http_exchange_end(exchange);
    http_exchange_end(exchange);
    (void)http_exchange_write(exchange, span_of_str("too late"));
}

static void start_big(struct job *job, int64_t declared)
{
    job->total = RIG_BIG_BYTES;
    http_exchange_on_drain(job->exchange, write_big, job);
    http_exchange_start(job->exchange, 200, NULL, 0, declared);
    write_big(job);
}

static void start_echo_stream(struct job *job)
{
    http_exchange_on_drain(job->exchange, on_echo_drain, job);
    http_exchange_start(job->exchange, 200, NULL, 0, -1);
    http_exchange_stream_body(job->exchange, on_echo_piece, job);
}

static void start_abort(struct job *job)
{
    http_exchange_start(job->exchange, 200, NULL, 0, -1);
    (void)http_exchange_write(job->exchange, span_of_str("part"));
    http_exchange_abort(job->exchange);
    http_exchange_end(job->exchange);
}

static void start_later(struct job *job)
{
    job->timer = loop_timer_new(job->rig->loop, on_later, job);
    assert_non_null(job->timer);
    loop_timer_start(job->timer, 5);
}

/* ---- upgraded connections: an echo ---- */

static void on_stream_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct rig *rig = arg;

    if (byte_stream_write(stream, bytes) == 0) {
        byte_stream_pause(stream, true);
    }
    if ((int)byte_stream_queued(stream) > rig->counters.max_queued) {
        rig->counters.max_queued = (int)byte_stream_queued(stream);
    }
}

static void on_stream_end(void *arg, struct byte_stream *stream)
{
    (void)arg;
    byte_stream_end(stream);
}

static void on_stream_drain(void *arg, struct byte_stream *stream)
{
    struct rig *rig = arg;

    rig->counters.drains++;
    byte_stream_pause(stream, false);
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct rig *rig = arg;

    (void)stream;
    atomic_fetch_add(err == NULL ? &rig->counters.streams_ended : &rig->counters.streams_broken, 1);
}

static void start_upgrade(struct job *job)
{
    static const struct byte_stream_callbacks callbacks = {on_stream_data, on_stream_end,
                                                           on_stream_drain, on_stream_closed};
    const struct http_header header = {"X-Fact", "upgraded"};
    struct byte_stream *stream;

    if (!http_exchange_wants_upgrade(job->exchange, "space-tcp")) {
        assert_null(http_exchange_upgrade(job->exchange, "space-tcp", NULL, 0));
        respond_text(job->exchange, 200, "plain");
        return;
    }
    stream = http_exchange_upgrade(job->exchange, "space-tcp", &header, 1);
    assert_non_null(stream);
    assert_null(http_exchange_upgrade(job->exchange, "space-tcp", NULL, 0));
    respond_text(job->exchange, 200, "too late");
    byte_stream_set_callbacks(stream, &callbacks, job->rig);
    byte_stream_pause(stream, false);
}

static void on_later_upgrade(void *arg)
{
    start_upgrade(arg);
}

static bool route_upgrades(struct job *job, const char *path)
{
    if (strcmp(path, "/upgrade") == 0) {
        start_upgrade(job);
    } else if (strcmp(path, "/upgrade-later") == 0) {
        job->timer = loop_timer_new(job->rig->loop, on_later_upgrade, job);
        assert_non_null(job->timer);
        loop_timer_start(job->timer, 5);
    } else if (strcmp(path, "/upgrade-refused") == 0) {
        respond_text(job->exchange, 404, "not here");
    } else {
        return false;
    }
    return true;
}

static bool route_streams(struct job *job, const char *path)
{
    if (strcmp(path, "/big") == 0) {
        start_big(job, -1);
    } else if (strcmp(path, "/big-fixed") == 0) {
        start_big(job, RIG_BIG_BYTES);
    } else if (strcmp(path, "/file") == 0) {
        start_file(job, -1, RIG_BIG_BYTES - 1);
    } else if (strcmp(path, "/file-fixed") == 0) {
        start_file(job, RIG_BIG_BYTES + 1, RIG_BIG_BYTES - 1);
    } else if (strcmp(path, "/file-pieces") == 0) {
        start_file_pieces(job, 10 * FILE_PIECE_BYTES);
    } else if (strcmp(path, "/file-short") == 0) {
        start_file(job, RIG_BIG_BYTES + 102, RIG_BIG_BYTES + 100);
    } else if (strcmp(path, "/parts") == 0) {
        respond_in_parts(job->exchange, -1);
    } else if (strcmp(path, "/parts-fixed") == 0) {
        respond_in_parts(job->exchange, 10);
    } else if (strcmp(path, "/parts-less") == 0) {
        respond_in_parts(job->exchange, 11);
    } else if (strcmp(path, "/parts-more") == 0) {
        respond_in_parts(job->exchange, 9);
    } else if (strcmp(path, "/abort") == 0) {
        start_abort(job);
    } else {
        return false;
    }
    return true;
}

static void route_plain(struct job *job, const char *path)
{
    struct http_exchange *exchange = job->exchange;

    if (strcmp(path, "/echo") == 0) {
        http_exchange_collect_body(exchange, 1000000, on_echo_body, job);
    } else if (strcmp(path, "/paid") == 0 || strcmp(path, "/paid-by-another") == 0) {
        http_exchange_set_payer(exchange, path[5] == '\0' ? "one" : "another");
        http_exchange_collect_body(exchange, 1000000, on_echo_body, job);
    } else if (strcmp(path, "/large") == 0) {
        http_exchange_collect_body(exchange, 1U << 30, on_echo_body, job);
    } else if (strcmp(path, "/echo-stream") == 0) {
        start_echo_stream(job);
    } else if (strcmp(path, "/hold") == 0) {
        http_exchange_stream_body(exchange, on_held_piece, job);
    } else if (strcmp(path, "/count") == 0) {
        http_exchange_stream_body(exchange, on_count_piece, job);
    } else if (strcmp(path, "/later") == 0) {
        start_later(job);
    } else if (strcmp(path, "/facts") == 0) {
        respond_with_facts(exchange);
    } else if (strcmp(path, "/none") == 0) {
        http_exchange_respond(exchange, 204, NULL, 0, span_make(NULL, 0));
    } else if (strcmp(path, "/split") == 0) {
        const struct http_header bad = {"X-Bad", "a\r\nEvil: yes"};

        http_exchange_respond(exchange, 200, &bad, 1, span_of_str("safe"));
    } else if (strcmp(path, "/hang") != 0) {
        respond_text(exchange, 200, "hello");
    }
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    struct rig *rig = ctx;
    struct job *job = http_exchange_alloc(exchange, sizeof(*job));
    const char *path = http_exchange_path(exchange);

    assert_non_null(job);
    job->rig = rig;
    job->exchange = exchange;
    http_exchange_on_close(exchange, on_job_closed, job);
    if (!route_upgrades(job, path) && !route_streams(job, path)) {
        route_plain(job, path);
    }
    atomic_fetch_add(&rig->counters.requests, 1);
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    struct rig *rig = ctx;

    respond_error(exchange, err);
    atomic_fetch_add(&rig->counters.refused, 1);
}

/* ---- the thread ---- */

static void on_stop(void *arg, int fd, short events)
{
    struct rig *rig = arg;

    (void)fd;
    (void)events;
    loop_stop(rig->loop);
}

static void *rig_main(void *arg)
{
    struct rig *rig = arg;
    struct loop_watch *watch = loop_watch_new(rig->loop, rig->stop_fds[0], EV_READ, on_stop, rig);

    (void)loop_run(rig->loop);
    loop_watch_free(watch);
    http_server_free(rig->server);
    loop_free(rig->loop);
    return NULL;
}

static int make_file(void)
{
    uint8_t *bytes = malloc(RIG_BIG_BYTES);
    char path[] = "/tmp/http-test-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);

    assert_non_null(bytes);
    assert_true(fd >= 0);
    (void)unlink(path);
    for (size_t i = 0; i < RIG_BIG_BYTES; i++) {
        bytes[i] = rig_pattern(i);
    }
    assert_int_equal(write(fd, bytes, RIG_BIG_BYTES), RIG_BIG_BYTES);
    free(bytes);
    return fd;
}

struct rig *rig_start(const struct http_server_limits *limits,
                      const char *unix_path,
                      const char *certificate,
                      const char *key)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    struct rig *rig = calloc(1, sizeof(*rig));
    struct error err;

    assert_non_null(rig);
    rig->loop = loop_new(0);
    assert_non_null(rig->loop);
    assert_int_equal(http_server_new(rig->loop, limits, &callbacks, rig, &rig->server, &err), 0);
    assert_int_equal(http_server_listen_tcp(rig->server, "127.0.0.1:0", certificate, key, &err), 0);
    if (unix_path != NULL) {
        assert_int_equal(http_server_listen_unix(rig->server, unix_path, 0600, (gid_t)-1, &err), 0);
    }
    rig->port = http_server_port(rig->server);
    rig->file = make_file();
    assert_int_equal(pipe2(rig->stop_fds, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&rig->thread, NULL, rig_main, rig), 0);
    return rig;
}

void rig_stop(struct rig *rig)
{
    (void)close(rig->stop_fds[1]);
    assert_int_equal(pthread_join(rig->thread, NULL), 0);
    (void)close(rig->stop_fds[0]);
    (void)close(rig->file);
    free(rig);
}

struct rig_counters *rig_counters(struct rig *rig)
{
    return &rig->counters;
}

int rig_port(const struct rig *rig)
{
    return rig->port;
}

void rig_wait(const atomic_int *counter, int value)
{
    for (int i = 0; i < WAIT_SECONDS * 1000 && atomic_load(counter) < value; i++) {
        (void)usleep(1000);
    }
    assert_true(atomic_load(counter) >= value);
}

/* ---- the client ---- */

static void limit_time(int fd)
{
    const struct timeval limit = {.tv_sec = WAIT_SECONDS};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
}

int rig_connect(const struct rig *rig)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)rig->port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    limit_time(fd);
    return fd;
}

int rig_connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(span_copy_str(span_of_str(path), address.sun_path, sizeof(address.sun_path)),
                     0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    limit_time(fd);
    return fd;
}

void rig_send_bytes(int fd, struct span bytes)
{
    while (bytes.n > 0) {
        ssize_t n = send(fd, bytes.p, bytes.n, MSG_NOSIGNAL);

        if (n <= 0) {
            fail_msg("send: %s", strerror(errno));
        }
        bytes = span_skip(bytes, (size_t)n);
    }
}

void rig_send(int fd, const char *text)
{
    rig_send_bytes(fd, span_of_str(text));
}

/* Reads more into left; 1, or 0 at the end. */
static int read_more(int fd, struct buf *left)
{
    uint8_t *to = buf_reserve(left, 65536);
    ssize_t n = recv(fd, to, 65536, 0);

    if (n < 0 && errno == ECONNRESET) {
        return 0;
    }
    if (n < 0) {
        fail_msg("recv: %s", strerror(errno));
    }
    buf_commit(left, (size_t)n);
    return n > 0;
}

static void read_chunked(int fd, struct buf *left, struct rig_answer *answer)
{
    struct http1_chunks chunks;

    http1_chunks_init(&chunks);
    while (!http1_chunks_is_done(&chunks)) {
        struct span data;
        int used = http1_chunks_next(&chunks, buf_span(left), &data);

        assert_true(used >= 0);
        buf_put(&answer->body, data);
        buf_consume(left, (size_t)used);
        if (used == 0 && read_more(fd, left) == 0) {
            answer->closed = true;
            return;
        }
    }
}

static void read_counted(int fd, struct buf *left, uint64_t count, struct rig_answer *answer)
{
    while (count > 0) {
        struct span data = span_head(buf_span(left), count < left->n ? (size_t)count : left->n);
        size_t n = data.n;

        buf_put(&answer->body, data);
        buf_consume(left, n);
        count -= n;
        if (count > 0 && read_more(fd, left) == 0) {
            answer->closed = true;
            return;
        }
    }
}

void rig_read_answer(int fd, struct buf *left, bool to_head, struct rig_answer *ret_answer)
{
    struct http1_field fields[32];
    struct http1_head head;
    int used;

    *ret_answer = (struct rig_answer){.body = buf_make(0)};
    http1_head_init(&head, HTTP1_RESPONSE, fields, 32, 4095);
    while ((used = http1_head_parse(&head, buf_span(left))) == 0) {
        if (read_more(fd, left) == 0) {
            assert_int_equal(left->n, 0);
            ret_answer->closed = true;
            return;
        }
    }
    assert_true(used > 0);
    ret_answer->status = head.status;
    assert_int_equal(span_copy_str(span_head(buf_span(left), (size_t)used), ret_answer->head,
                                   sizeof(ret_answer->head)),
                     0);
    buf_consume(left, (size_t)used);
    switch (http1_head_body(&head, to_head)) {
    case HTTP1_BODY_NONE:
        break;
    case HTTP1_BODY_LENGTH:
        read_counted(fd, left, (uint64_t)head.content_length, ret_answer);
        break;
    case HTTP1_BODY_CHUNKED:
        read_chunked(fd, left, ret_answer);
        break;
    case HTTP1_BODY_UNTIL_CLOSE:
        read_counted(fd, left, UINT64_MAX, ret_answer);
        break;
    }
}

void rig_answer_done(struct rig_answer *answer)
{
    buf_done(&answer->body);
}

bool rig_read_to_end(int fd, struct buf *out)
{
    for (;;) {
        uint8_t *to = buf_reserve(out, 65536);
        ssize_t n = recv(fd, to, 65536, 0);

        if (n < 0 && errno == ECONNRESET) {
            return true;
        }
        if (n < 0) {
            fail_msg("recv: %s", strerror(errno));
        }
        if (n == 0) {
            return false;
        }
        buf_commit(out, (size_t)n);
    }
}
