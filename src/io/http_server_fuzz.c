/* A whole connection of the server: the input's bytes arrive in pieces, an application answers in
 * the way that the path chooses. Every exchange must end exactly once, and what the client reads
 * must be whole answers in order, up to a cut that the application asked for. After an upgrade all
 * that follows the head must come back as it was. */
#include <errno.h>

#include <sys/socket.h>

#include "io/byte_stream.h"
#include "io/http_conn.h"
#include "io/loop.h"

#define MAX_REQUESTS 256U
#define MAX_TURNS    64

struct run {
    struct loop *loop;
    struct http_server *server;
    struct http_exchange *waiting; /* for the next turn */
    unsigned int opened;
    unsigned int closed;
    bool may_cut;
    bool is_upgraded;
    bool stream_closed;
    size_t streamed; /* bytes that the stream delivered */
    size_t sent;     /* of the input */
    bool is_head[MAX_REQUESTS];
    unsigned int answers;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void on_close(void *arg, struct http_exchange *exchange, bool complete)
{
    struct run *run = arg;

    (void)complete;
    run->closed++;
    if (run->waiting == exchange) {
        run->waiting = NULL;
    }
}

static void
on_body(void *arg, struct http_exchange *exchange, struct span body, const struct error *err)
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
    struct run *run = arg;

    if (err != NULL) {
        run->may_cut = true;
        http_exchange_abort(exchange);
        return;
    }
    (void)http_exchange_write(exchange, piece);
    if (last) {
        http_exchange_end(exchange);
    } else {
        http_exchange_pause_body(exchange, true);
        run->waiting = exchange;
    }
}

static void on_stream_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct run *run = arg;

    run->streamed += bytes.n;
    (void)byte_stream_write(stream, bytes);
}

static void on_stream_end(void *arg, struct byte_stream *stream)
{
    (void)arg;
    byte_stream_end(stream);
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct run *run = arg;

    (void)stream;
    require(!run->stream_closed && err == NULL);
    run->stream_closed = true;
}

static void answer_upgrade(struct run *run, struct http_exchange *exchange)
{
    static const struct byte_stream_callbacks callbacks = {on_stream_data, on_stream_end, NULL,
                                                           on_stream_closed};
    struct byte_stream *stream = http_exchange_upgrade(exchange, "x", NULL, 0);

    require((stream != NULL) == http_exchange_wants_upgrade(exchange, "x"));
    if (stream == NULL) {
        http_exchange_respond(exchange, 426, NULL, 0, span_make(NULL, 0));
        return;
    }
    run->is_upgraded = true;
    byte_stream_set_callbacks(stream, &callbacks, run);
    byte_stream_pause(stream, false);
}

static void answer_parts(struct http_exchange *exchange, int64_t declared)
{
    http_exchange_start(exchange, 200, NULL, 0, declared);
    (void)http_exchange_write(exchange, span_of_str("hello"));
    (void)http_exchange_write(exchange, span_of_str("world"));
    http_exchange_end(exchange);
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    struct run *run = ctx;
    const struct http_header header = {"X-Query", http_exchange_query(exchange)};

    if (run->answers < MAX_REQUESTS) {
        run->is_head[run->answers++] = strcmp(http_exchange_method(exchange), "HEAD") == 0;
    }
    run->opened++;
    http_exchange_on_close(exchange, on_close, run);
    switch (http_exchange_path(exchange)[1]) {
    case 'c':
        http_exchange_collect_body(exchange, 100, on_body, run);
        break;
    case 's':
        run->may_cut = true; /* by a client that leaves in the middle of its body */
        http_exchange_start(exchange, 200, &header, 1, -1);
        http_exchange_stream_body(exchange, on_piece, run);
        break;
    case 'p':
        answer_parts(exchange, -1);
        break;
    case 'f':
        answer_parts(exchange, 10);
        break;
    case 'u':
        answer_upgrade(run, exchange);
        break;
    case 'l':
        run->waiting = exchange;
        break;
    case 'a':
        run->may_cut = true;
        http_exchange_start(exchange, 200, NULL, 0, -1);
        http_exchange_abort(exchange);
        break;
    case 'n':
        http_exchange_respond(exchange, 204, NULL, 0, span_make(NULL, 0));
        break;
    default:
        http_exchange_respond(exchange, 200, &header, 1, span_of_str("hello"));
        break;
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    struct run *run = ctx;

    if (run->answers < MAX_REQUESTS) {
        run->is_head[run->answers++] = false;
    }
    http_exchange_respond(exchange, error_code_status(err->code), NULL, 0,
                          span_of_str(err->message));
}

static void stop(void *arg)
{
    struct run *run = arg;

    loop_stop(run->loop);
}

/* One turn of the loop; what waited for it goes on. */
static void turn(struct run *run)
{
    struct http_exchange *waiting = TAKE(run->waiting);

    if (waiting != NULL && waiting->mode == BODY_STREAM) {
        http_exchange_pause_body(waiting, false);
    } else if (waiting != NULL) {
        http_exchange_respond(waiting, 200, NULL, 0, span_of_str("later"));
    }
    require(loop_defer(run->loop, stop, run) == 0);
    require(loop_run(run->loop) == 0);
}

static void receive(int fd, struct buf *out)
{
    ssize_t n;

    do {
        uint8_t *to = buf_reserve(out, 65536);

        n = recv(fd, to, 65536, MSG_DONTWAIT);
        if (n > 0) {
            buf_commit(out, (size_t)n);
        }
    } while (n > 0);
}

/* The length of a chunked body, or 0 when it is not complete. */
static size_t chunked_length(struct span bytes)
{
    struct http1_chunks chunks;
    size_t used = 0;

    http1_chunks_init(&chunks);
    while (!http1_chunks_is_done(&chunks)) {
        struct span data;
        int r = http1_chunks_next(&chunks, span_skip(bytes, used), &data);

        require(r >= 0);
        if (r == 0) {
            return 0;
        }
        used += (size_t)r;
    }
    return used;
}

/* Takes one answer off; false when it is cut. */
static bool take_answer(struct span *bytes, bool to_head, int *ret_status)
{
    struct http1_field fields[16];
    struct http1_head head;
    size_t length = 0;
    int used;

    http1_head_init(&head, HTTP1_RESPONSE, fields, 16, 65536);
    used = http1_head_parse(&head, *bytes);
    require(used >= 0);
    if (used == 0) {
        return false;
    }
    *ret_status = head.status;
    *bytes = span_skip(*bytes, (size_t)used);
    switch (http1_head_body(&head, to_head)) {
    case HTTP1_BODY_NONE:
        return true;
    case HTTP1_BODY_LENGTH:
        length = (size_t)head.content_length;
        break;
    case HTTP1_BODY_CHUNKED:
        length = chunked_length(*bytes);
        break;
    case HTTP1_BODY_UNTIL_CLOSE:
        length = bytes->n;
        break;
    }
    if (length > bytes->n || (length == 0 && head.is_chunked)) {
        return false;
    }
    *bytes = span_skip(*bytes, length);
    return true;
}

/* What follows the 101 is what followed the request for it. */
static void check_stream(const struct run *run, struct span bytes, struct span input)
{
    struct span rest;

    input = span_head(input, run->sent);
    require(run->stream_closed && run->streamed <= input.n && bytes.n == run->streamed);
    rest = span_skip(input, input.n - run->streamed);
    require(span_equals(rest, bytes));
    require(input.n - run->streamed >= 4 &&
            memcmp(&input.p[input.n - run->streamed - 4], "\r\n\r\n", 4) == 0);
}

static void check_answers(const struct run *run, struct span bytes, struct span input)
{
    unsigned int count = 0;

    while (bytes.n > 0 && count < MAX_REQUESTS) {
        int status = 0;

        if (!take_answer(&bytes, count < run->answers && run->is_head[count], &status)) {
            require(run->may_cut);
            return;
        }
        if (status >= 200) {
            count++;
        }
        if (status == 101) {
            require(run->is_upgraded);
            check_stream(run, bytes, input);
            return;
        }
    }
    require(!run->is_upgraded || count == MAX_REQUESTS);
    require(count <= run->answers || run->answers == MAX_REQUESTS);
}

static void feed(struct run *run, int fd, struct span bytes, size_t step, struct buf *out)
{
    while (bytes.n > 0) {
        struct span piece = span_head(bytes, step);
        ssize_t n = send(fd, piece.p, piece.n, MSG_NOSIGNAL | MSG_DONTWAIT);

        turn(run);
        receive(fd, out);
        if (n < 0 && errno != EAGAIN) {
            return;
        }
        bytes = span_skip(bytes, n > 0 ? (size_t)n : 0);
        run->sent += n > 0 ? (size_t)n : 0;
        if (n < 0 && http_server_connections(run->server) == 0) {
            return;
        }
    }
}

static void start(struct run *run, int fd)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    const struct http_server_limits limits = {
        .max_head_bytes = 2000,
        .max_headers = 10,
        .max_connections = 2,
        .max_collected_bytes = 100,
    };

    run->loop = loop_new(0);
    require(run->loop != NULL);
    require(http_server_new(run->loop, &limits, &callbacks, run, &run->server, NULL) == 0);
    conn_open(run->server, fd, NULL, "fuzz", false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run run = {0};
    _cleanup_buf_ struct buf out = buf_make(0);
    int fds[2];

    if (size < 2 || size > 20000) {
        return 0;
    }
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    start(&run, fds[0]);
    feed(&run, fds[1], span_make(&data[1], size - 1), (size_t)data[0] * 4U + 1U, &out);
    for (int i = 0; i < MAX_TURNS && http_server_connections(run.server) > 0; i++) {
        turn(&run);
        receive(fds[1], &out);
    }
    (void)shutdown(fds[1], SHUT_WR);
    for (int i = 0; i < MAX_TURNS && http_server_connections(run.server) > 0; i++) {
        turn(&run);
        receive(fds[1], &out);
    }
    require(http_server_connections(run.server) == 0);
    require(run.opened == run.closed);
    check_answers(&run, buf_span(&out), span_make(&data[1], size - 1));
    http_server_free(run.server);
    loop_free(run.loop);
    (void)close(fds[1]);
    return 0;
}
