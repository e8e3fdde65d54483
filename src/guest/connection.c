#include "guest/connection.h"

#include <errno.h>
#include <fcntl.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "guest/agent.h"
#include "guest/listeners.h"

#define LISTENERS_TRIED 16U
#define FIXED_ADDRESSES 2U /* 127.0.0.1 and ::1 */

struct connection {
    struct source source; /* while it connects */
    struct channel *channel;
    uint16_t port;
    bool with_input;
    bool was_refused;
    int error;   /* of the last address */
    size_t next; /* address to try */
    size_t n_listeners;
    struct listener listeners[LISTENERS_TRIED];
};

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static bool try_next(struct connection *n);

/* Those that the fixed addresses stand for: they were tried. */
static bool is_fixed(const struct service_listener *l)
{
    static const uint8_t any[16];
    static const uint8_t loopback4[16] = {127, 0, 0, 1};
    static const uint8_t loopback6[16] = {[15] = 1};

    return memcmp(l->address, any, sizeof(any)) == 0 ||
           memcmp(l->address, l->family == 4 ? loopback4 : loopback6, sizeof(any)) == 0;
}

static void list_others(struct connection *n)
{
    size_t all = listeners_read(n->port, n->listeners, LISTENERS_TRIED);

    for (size_t i = 0; i < all; i++) {
        if (!is_fixed(&n->listeners[i].record)) {
            n->listeners[n->n_listeners++] = n->listeners[i];
        }
    }
}

/* The address to try now; false when there is none left. */
static bool next_address(struct connection *n, union address *ret, socklen_t *ret_size)
{
    const struct service_listener *l = NULL;

    if (n->next == FIXED_ADDRESSES) {
        list_others(n);
    }
    if (n->next >= FIXED_ADDRESSES + n->n_listeners) {
        return false;
    }
    if (n->next >= FIXED_ADDRESSES) {
        l = &n->listeners[n->next - FIXED_ADDRESSES].record;
    }
    if (l != NULL ? l->family == 4 : n->next == 0) {
        ret->in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(n->port)};
        ret->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (l != NULL) {
            memcpy(&ret->in.sin_addr, l->address, sizeof(ret->in.sin_addr));
        }
        *ret_size = sizeof(ret->in);
    } else {
        ret->in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(n->port)};
        ret->in6.sin6_addr = in6addr_loopback;
        if (l != NULL) {
            memcpy(&ret->in6.sin6_addr, l->address, sizeof(ret->in6.sin6_addr));
        }
        *ret_size = sizeof(ret->in6);
    }
    n->next++;
    return true;
}

/* The answer that there is no connection. */
static void refuse(struct connection *n, int error)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct channel *c = n->channel;

    service_error_format(&b, &(struct service_error){(uint32_t)error, span_make(NULL, 0)});
    if (buf_error(&b) != 0 || stream_put(&c->streams[0], buf_span(&b)) < 0) {
        channel_on_exit(c, CHANNEL_CUT_OFF); /* an answer that is cut off */
        return;
    }
    channel_on_exit(c, 0);
}

static int put_body(struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    service_body_format(&b, &(struct service_body){0, SERVICE_LENGTH_UNKNOWN});
    return buf_error(&b) != 0 ? buf_error(&b) : stream_put(&c->streams[0], buf_span(&b));
}

static int open_stream(struct connection *n, int fd)
{
    struct channel *c = n->channel;
    const int on = 1;
    int r = put_body(c);

    if (r < 0) {
        (void)close(fd);
        return r;
    }
    /* A keystroke does not wait for the answer to the one before. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return stream_open(&c->streams[0], fd, false);
}

/* Takes the connected socket. */
static void open_connection(struct connection *n, int fd)
{
    struct channel *c = n->channel;
    int input = n->with_input ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;

    if ((n->with_input && input < 0) || (!n->with_input && shutdown(fd, SHUT_WR) < 0)) {
        int error = errno;

        (void)close(fd);
        refuse(n, error);
        return;
    }
    if (open_stream(n, fd) < 0) {
        cleanup_close(&input);
        channel_on_exit(c, CHANNEL_CUT_OFF);
        return;
    }
    if (input >= 0) {
        input_open(&c->input, input, INPUT_SOCKET);
        agent_tell_input(c);
        connection_on_input(c);
    }
}

static void note_error(struct connection *n, int error)
{
    n->error = error;
    n->was_refused = n->was_refused || error == ECONNREFUSED;
}

static void on_connected(struct source *s, uint32_t events)
{
    struct connection *n = source_owner(s, struct connection, source);
    socklen_t size = sizeof(n->error);
    int error = 0;
    int fd;

    (void)events;
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) {
        error = errno;
    }
    if (error == 0 && source_pause(s, n->channel->agent->epoll_fd)) {
        fd = s->fd;
        s->fd = -1;
        open_connection(n, fd);
        return;
    }
    source_close(s);
    if (error == ECONNRESET) {
        /* It was there, and was reset before we looked. */
        (void)put_body(n->channel);
        channel_on_exit(n->channel, CHANNEL_CUT_OFF);
        return;
    }
    note_error(n, error != 0 ? error : ENOMEM);
    while (try_next(n)) {
    }
}

/* Tries one address. True when it failed at once, and another should be tried. */
static bool try_next(struct connection *n)
{
    union address address;
    socklen_t size;
    int fd;

    if (!next_address(n, &address, &size)) {
        refuse(n, n->was_refused ? ECONNREFUSED : n->error);
        return false;
    }
    fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        note_error(n, errno);
        return true;
    }
    if (connect(fd, &address.any, size) == 0) {
        open_connection(n, fd);
        return false;
    }
    if (errno != EINPROGRESS) {
        note_error(n, errno);
        (void)close(fd);
        return true;
    }
    n->source.on_ready = on_connected;
    if (source_open(&n->source, n->channel->agent->epoll_fd, fd, EPOLLOUT | EPOLLET) < 0) {
        note_error(n, ENOMEM);
        return true;
    }
    return false;
}

int connection_start(struct channel *c, struct span port, bool with_input)
{
    struct connection *n = calloc(1, sizeof(*n));
    uint64_t number = 0;

    if (n == NULL) {
        return -ENOMEM;
    }
    *n = (struct connection){.source = {.fd = -1}, .channel = c, .with_input = with_input};
    n->error = ECONNREFUSED;
    c->connection = n;
    if (span_parse_u64(port, UINT16_MAX, &number) < 0 || number == 0) {
        refuse(n, EINVAL);
        return 0;
    }
    n->port = (uint16_t)number;
    if (with_input) {
        input_hold(&c->input);
    }
    while (try_next(n)) {
    }
    return 0;
}

void connection_on_output_end(struct channel *c)
{
    struct stream *s = &c->streams[0];

    if (c->reaped) {
        return;
    }
    if (s->failed) {
        channel_on_exit(c, CHANNEL_CUT_OFF);
    } else if (input_is_closed(&c->input)) {
        channel_on_exit(c, 0);
    } else {
        s->tells_end = true;
        stream_activate(s);
    }
}

void connection_on_input(struct channel *c)
{
    /* While it connects, the stream has no read end yet, and the input is held. */
    if (c->connection != NULL && !c->reaped && c->streams[0].source.fd < 0 &&
        input_is_closed(&c->input)) {
        channel_on_exit(c, 0);
    }
}

void connection_cut(struct channel *c)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct stream *s = &c->streams[0];

    source_close(&c->connection->source);
    if (s->source.fd >= 0 && !(c->input.end && input_is_closed(&c->input))) {
        (void)setsockopt(s->source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    list_remove(&s->in_resting);
    source_close(&s->source);
}

void connection_free(struct channel *c)
{
    if (c->connection != NULL) {
        source_close(&c->connection->source);
        free(c->connection);
        c->connection = NULL;
    }
}
