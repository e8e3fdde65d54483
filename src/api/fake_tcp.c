#include "api/fake_tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <event2/event.h>

#include "base/buf.h"
#include "io/byte_stream.h"
#include "io/http_server.h"
#include "io/loop.h"

#define PIECE      65536U
#define QUEUED_MAX 262144U

struct fake_tcp {
    struct byte_stream *stream;
    struct loop_watch *watch;
    struct buf out; /* for the application */
    int fd;
    bool stream_ended;
    bool fd_ended;
    bool reads; /* from the application */
};

static void tcp_free(struct fake_tcp *tcp)
{
    loop_watch_free(tcp->watch);
    (void)close(tcp->fd);
    buf_done(&tcp->out);
    free(tcp);
}

static void update(struct fake_tcp *tcp)
{
    short events =
        (short)((tcp->reads && !tcp->fd_ended ? EV_READ : 0) | (tcp->out.n > 0 ? EV_WRITE : 0));

    loop_watch_set_events(tcp->watch, events);
}

static void flush(struct fake_tcp *tcp)
{
    while (tcp->out.n > 0) {
        ssize_t n = send(tcp->fd, tcp->out.p, tcp->out.n, MSG_NOSIGNAL);

        if (n < 0) {
            if (errno != EAGAIN) {
                buf_clear(&tcp->out); /* it reads no more; what it says still counts */
            }
            break;
        }
        buf_consume(&tcp->out, (size_t)n);
    }
    if (tcp->out.n == 0 && tcp->stream_ended) {
        (void)shutdown(tcp->fd, SHUT_WR);
    }
    if (tcp->out.n < QUEUED_MAX / 2) {
        byte_stream_pause(tcp->stream, false);
    }
    update(tcp);
}

static void on_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct fake_tcp *tcp = arg;

    buf_put(&tcp->out, bytes);
    if (tcp->out.n > QUEUED_MAX) {
        byte_stream_pause(stream, true);
    }
    update(tcp);
}

static void on_end(void *arg, struct byte_stream *stream)
{
    struct fake_tcp *tcp = arg;

    (void)stream;
    tcp->stream_ended = true;
    flush(tcp);
}

static void on_drain(void *arg, struct byte_stream *stream)
{
    struct fake_tcp *tcp = arg;

    (void)stream;
    tcp->reads = true;
    update(tcp);
}

static void on_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    (void)stream;
    (void)err;
    tcp_free(arg);
}

static void on_readable(struct fake_tcp *tcp)
{
    uint8_t piece[PIECE];
    ssize_t n = read(tcp->fd, piece, sizeof(piece));

    if (n < 0 && errno == EAGAIN) {
        return;
    }
    if (n < 0) {
        byte_stream_free(tcp->stream);
        tcp_free(tcp);
        return;
    }
    if (n == 0) {
        tcp->fd_ended = true;
        update(tcp);
        byte_stream_end(tcp->stream);
        return;
    }
    if (byte_stream_write(tcp->stream, span_make(piece, (size_t)n)) == 0) {
        tcp->reads = false;
        update(tcp);
    }
}

static void on_event(void *arg, int fd, short events)
{
    struct fake_tcp *tcp = arg;

    (void)fd;
    if ((events & EV_WRITE) != 0) {
        flush(tcp);
    }
    if ((events & EV_READ) != 0) {
        on_readable(tcp);
    }
}

/* A descriptor, or -1. */
static int open_port(unsigned int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

bool fake_tcp_listens(unsigned int port)
{
    int fd = open_port(port);

    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

bool fake_tcp_serve(struct loop *loop, struct http_exchange *exchange, unsigned int port)
{
    static const struct byte_stream_callbacks callbacks = {on_data, on_end, on_drain, on_closed};
    int fd = open_port(port);
    struct fake_tcp *tcp;

    if (fd < 0) {
        return false;
    }
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL) {
        abort();
    }
    *tcp = (struct fake_tcp){.fd = fd, .reads = true, .out = buf_make(0)};
    tcp->stream = http_exchange_upgrade(exchange, "space-tcp", NULL, 0);
    tcp->watch = loop_watch_new(loop, fd, EV_READ, on_event, tcp);
    if (tcp->stream == NULL || tcp->watch == NULL) {
        abort();
    }
    byte_stream_set_callbacks(tcp->stream, &callbacks, tcp);
    byte_stream_pause(tcp->stream, false);
    return true;
}

json_t *fake_tcp_describe(unsigned int port)
{
    return json_pack("{s:i, s:s, s:n}", "port", (int)port, "address", "127.0.0.1", "process_id");
}
