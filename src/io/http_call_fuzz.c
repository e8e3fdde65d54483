/* A whole call of the HTTP client against a server that sends the input's bytes: plainly, as the
 * answer to a request for a tunnel, or through an open tunnel; with and without an upgrade. The
 * call ends exactly once, or its connection becomes a stream that delivers all that follows the
 * head; pieces of any size give the same. */
#include <errno.h>

#include <sys/socket.h>

#include "base/buf.h"
#include "io/byte_stream.h"
#include "io/http_client.h"
#include "io/listen.h"
#include "io/loop.h"

#define MAX_TURNS 200
#define MAX_BODY  4096U

enum {
    HAS_TUNNEL = 1U << 0U,
    OPENS_TUNNEL = 1U << 1U,
    HAS_UPGRADE = 1U << 2U,
    IS_HEAD = 1U << 3U,
};

struct outcome {
    int status;
    int heads;
    int done;
    int streams;
    int closed;
    enum error_code code;
    struct buf headers;
    struct buf body; /* of the answer, or what the stream delivered */
};

struct run {
    struct loop *loop;
    struct http_client *client;
    int listener;
    int fd;
    struct outcome *out;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void stop(void *arg)
{
    loop_stop(arg);
}

static void turn(struct run *run)
{
    require(loop_defer(run->loop, stop, run->loop) == 0);
    require(loop_run(run->loop) == 0);
}

static void on_stream_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct outcome *out = arg;

    (void)stream;
    buf_put(&out->body, bytes);
}

static void on_stream_end(void *arg, struct byte_stream *stream)
{
    (void)arg;
    byte_stream_end(stream);
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct outcome *out = arg;

    (void)stream;
    require(err == NULL);
    out->closed++;
}

static void put_header(void *arg, const char *name, const char *value)
{
    buf_printf(arg, "%s: %s\n", name, value);
}

static void on_head(void *arg, struct http_call *call, int status)
{
    static const struct byte_stream_callbacks callbacks = {on_stream_data, on_stream_end, NULL,
                                                           on_stream_closed};
    struct outcome *out = arg;
    struct byte_stream *stream;

    out->heads++;
    out->status = status;
    require(status >= 200 || status == 101);
    http_call_each_header(call, put_header, &out->headers);
    stream = http_call_take_stream(call);
    require((stream != NULL) == (status == 101));
    if (stream != NULL) {
        out->streams++;
        byte_stream_set_callbacks(stream, &callbacks, out);
        byte_stream_pause(stream, false);
    }
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct outcome *out = arg;

    require(http_call_status(call) == out->status && out->streams == 0);
    out->done++;
    out->code = err != NULL ? err->code : ERROR_NONE;
    if (err == NULL) {
        buf_put(&out->body, http_call_body(call));
    }
}

static void start(struct run *run, unsigned int flags)
{
    static const struct http_call_callbacks callbacks = {on_head, NULL, on_done};
    const struct http_call_request request = {
        .method = (flags & IS_HEAD) != 0 ? "HEAD" : "GET",
        .target = "/",
        .max_body = MAX_BODY,
        .upgrade = (flags & HAS_UPGRADE) != 0 ? "x, y" : NULL,
        .tunnel = (flags & HAS_TUNNEL) != 0 ? "/tcp" : NULL,
    };
    char path[64];
    struct error err;

    (void)snprintf(path, sizeof(path), "/tmp/http-call-fuzz-%d", (int)getpid());
    run->loop = loop_new(0);
    require(run->loop != NULL);
    run->listener = listen_unix(path, 0600, (gid_t)-1, &err);
    require(run->listener >= 0);
    run->client = http_client_new(run->loop, path, 1);
    require(run->client != NULL);
    require(http_client_start(run->client, &request, &callbacks, run->out, &err) != NULL);
    run->fd = accept4(run->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    require(run->fd >= 0);
    (void)unlink(path);
}

/* Sends in pieces until all is sent or the client has closed. */
static void feed(struct run *run, struct span bytes, size_t step)
{
    while (bytes.n > 0) {
        struct span piece = span_head(bytes, step);
        ssize_t n = send(run->fd, piece.p, piece.n, MSG_NOSIGNAL);

        turn(run);
        if (n < 0 && errno != EAGAIN) {
            return;
        }
        bytes = span_skip(bytes, n > 0 ? (size_t)n : 0);
    }
}

static bool is_over(const struct outcome *out)
{
    return out->done + out->closed > 0;
}

static void play(unsigned int flags, struct span bytes, size_t step, struct outcome *out)
{
    static const char opening[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: space-tcp\r\n"
                                  "Connection: Upgrade\r\n\r\n";
    struct run run = {.out = out};

    start(&run, flags);
    if ((flags & OPENS_TUNNEL) != 0) {
        feed(&run, span_make(opening, sizeof(opening) - 1), sizeof(opening));
    }
    feed(&run, bytes, step);
    (void)shutdown(run.fd, SHUT_WR);
    for (int i = 0; i < MAX_TURNS && !is_over(out); i++) {
        turn(&run);
    }
    require(out->done + out->streams == 1 && out->streams == out->closed && out->heads <= 1);
    (void)close(run.fd);
    (void)close(run.listener);
    http_client_free(run.client);
    loop_free(run.loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span bytes = span_skip(span_make(data, size), 2);
    struct outcome whole = {.headers = buf_make(0), .body = buf_make(0)};
    struct outcome pieces = {.headers = buf_make(0), .body = buf_make(0)};

    if (bytes.n == 0 || bytes.n > 20000) {
        return 0;
    }
    play(data[0], bytes, bytes.n, &whole);
    play(data[0], bytes, (size_t)data[1] + 1U, &pieces);
    require(whole.status == pieces.status && whole.code == pieces.code &&
            whole.streams == pieces.streams && whole.heads == pieces.heads);
    require(span_equals(buf_span(&whole.headers), buf_span(&pieces.headers)));
    require(whole.code != ERROR_NONE || span_equals(buf_span(&whole.body), buf_span(&pieces.body)));
    buf_done(&whole.headers);
    buf_done(&whole.body);
    buf_done(&pieces.headers);
    buf_done(&pieces.body);
    return 0;
}
