#include "cli/forward.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/rest.h"
#include "cli/tunnel.h"

#define LISTEN_BACKLOG  128
#define READ_STEP       65536U
#define NOTE_PAUSE_MS   2000 /* the same trouble is not said more often */
#define DESCRIPTORS_MAX (1 + FORWARD_PORTS_MAX + 2 * FORWARD_CONNECTIONS_MAX)

struct connection {
    int local_fd; /* -1: the entry is free */
    uint16_t port;
    struct tunnel *tunnel;
    bool is_open;
    struct buf to_remote;
    struct buf to_local;
    bool local_ended;  /* nothing more comes from the local side */
    bool remote_ended; /* … from the sandbox */
    bool remote_told;  /* that the local side has ended */
    bool local_told;
};

struct run {
    struct forward *f;
    struct connection *connections; /* FORWARD_CONNECTIONS_MAX */
    struct pollfd fds[DESCRIPTORS_MAX];
    unsigned int count;
    char last_note[200];
    int64_t noted_at_ms;
};

static int bind_address(const struct addrinfo *a, int *ret_fd)
{
    _cleanup_close_ int fd =
        socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    int on = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
        return -errno;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* The address that was bound, as text, and its port. */
static int describe_bound(struct forward_port *port)
{
    struct sockaddr_storage bound = {0};
    socklen_t n = sizeof(bound);
    char host[64];
    char service[8];

    if (getsockname(port->listen_fd, (struct sockaddr *)&bound, &n) < 0 ||
        getnameinfo((struct sockaddr *)&bound, n, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return -EIO;
    }
    (void)snprintf(port->address, sizeof(port->address),
                   bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, service);
    return 0;
}

int forward_listen(struct forward_port *port, const char *address, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *found = NULL;
    char service[8];
    int r;

    (void)snprintf(service, sizeof(service), "%u", (unsigned int)port->local);
    if (getaddrinfo(address, service, &hints, &found) != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "--address",
                              "--address takes a numeric address, got %.60s", address);
    }
    r = bind_address(found, &port->listen_fd);
    freeaddrinfo(found);
    if (r == 0) {
        r = describe_bound(port);
    }
    if (r == -EADDRINUSE) {
        return error_set(err, EADDRINUSE,
                         "%.60s port %u is taken on this machine; `0:%u` takes a free one", address,
                         (unsigned int)port->local, (unsigned int)port->remote);
    }
    if (r == -EACCES) {
        return error_set(err, EACCES,
                         "%.60s port %u needs root on this machine; `0:%u` takes a free one",
                         address, (unsigned int)port->local, (unsigned int)port->remote);
    }
    return r < 0 ? error_set(err, -r, "cannot listen on %.60s port %u: %s", address,
                             (unsigned int)port->local, strerror(-r))
                 : 0;
}

/* One line, unless it was said a moment ago. */
static void note(struct run *run, const char *text)
{
    int64_t now_ms = clock_monotonic_ms();

    if (strcmp(run->last_note, text) == 0 && now_ms - run->noted_at_ms < NOTE_PAUSE_MS) {
        return;
    }
    (void)snprintf(run->last_note, sizeof(run->last_note), "%s", text);
    run->noted_at_ms = now_ms;
    cli_note("space: %s", text);
}

/* `reset`: the local side learns that it was no proper end. */
static void close_connection(struct connection *c, bool reset)
{
    const struct linger at_once = {.l_onoff = 1};

    if (reset) {
        (void)setsockopt(c->local_fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    (void)close(c->local_fd);
    tunnel_free(c->tunnel);
    buf_done(&c->to_remote);
    buf_done(&c->to_local);
    *c = (struct connection){.local_fd = -1};
}

static int open_tunnel(struct run *run, struct connection *c, struct error *err)
{
    char path[REST_REQUEST_SIZE];
    struct tunnel_request q = {.path = path, .upgrade = "space-tcp"};

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u/tcp", run->f->sandbox_id,
                   (unsigned int)c->port);
    return tunnel_new(run->f->rest, &q, &c->tunnel, err);
}

static struct connection *find_free(const struct run *run)
{
    for (size_t i = 0; i < FORWARD_CONNECTIONS_MAX; i++) {
        if (run->connections[i].local_fd < 0) {
            return &run->connections[i];
        }
    }
    return NULL;
}

static void accept_one(struct run *run, const struct forward_port *port)
{
    struct connection *c = find_free(run);
    struct error err = {0};
    int on = 1;
    int fd;

    if (c == NULL) {
        return; /* the listener is not waited for until there is room */
    }
    fd = accept4(port->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    *c = (struct connection){.local_fd = fd,
                             .port = port->remote,
                             .to_remote = buf_make(2 * FORWARD_BUFFER_BYTES),
                             .to_local = buf_make(2 * FORWARD_BUFFER_BYTES)};
    if (open_tunnel(run, c, &err) < 0) {
        note(run, err.message);
        close_connection(c, true);
    }
}

/* Reads what there is up to the limit; false when the connection broke. */
static bool read_local(struct connection *c)
{
    while (!c->local_ended && c->to_remote.n < FORWARD_BUFFER_BYTES) {
        uint8_t *to = buf_reserve(&c->to_remote, READ_STEP);
        ssize_t n = to != NULL ? recv(c->local_fd, to, READ_STEP, 0) : -1;

        if (n > 0) {
            buf_commit(&c->to_remote, (size_t)n);
        } else if (n == 0) {
            c->local_ended = true;
        } else if (errno != EINTR) {
            return to != NULL && errno == EAGAIN;
        }
    }
    return true;
}

static bool read_remote(struct connection *c)
{
    while (!c->remote_ended && c->to_local.n < FORWARD_BUFFER_BYTES) {
        uint8_t *to = buf_reserve(&c->to_local, READ_STEP);
        ssize_t n = to != NULL ? tunnel_read(c->tunnel, to, READ_STEP) : -ENOMEM;

        if (n > 0) {
            buf_commit(&c->to_local, (size_t)n);
        } else if (n == 0) {
            c->remote_ended = true;
        } else {
            return n == -EAGAIN;
        }
    }
    return true;
}

static bool write_local(struct connection *c)
{
    while (c->to_local.n > 0) {
        ssize_t n = send(c->local_fd, c->to_local.p, c->to_local.n, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR) {
            return errno == EAGAIN;
        }
        buf_consume(&c->to_local, n > 0 ? (size_t)n : 0);
    }
    if (c->remote_ended && !c->local_told) {
        c->local_told = true;
        (void)shutdown(c->local_fd, SHUT_WR);
    }
    return true;
}

static bool write_remote(struct connection *c)
{
    while (c->to_remote.n > 0) {
        ssize_t n = tunnel_write(c->tunnel, buf_span(&c->to_remote));

        if (n < 0) {
            return n == -EAGAIN;
        }
        buf_consume(&c->to_remote, (size_t)n);
    }
    if (c->local_ended && !c->remote_told) {
        c->remote_told = true;
        tunnel_end(c->tunnel);
    }
    return true;
}

/* Why a tunnel was not opened, in the words of somebody who typed a port. Returns -errno when no
 * other one will be opened either: the sandbox is gone. */
static int explain(struct run *run, const struct connection *c, struct error *err)
{
    char text[200];

    if (err->code == ERROR_BAD_GATEWAY) {
        (void)snprintf(text, sizeof(text), "nothing listens on port %u of %.64s",
                       (unsigned int)c->port, run->f->sandbox_word);
        note(run, text);
        return 0;
    }
    if (err->code == ERROR_NOT_FOUND || err->code == ERROR_UNAUTHORIZED ||
        err->code == ERROR_FORBIDDEN) {
        return -err->errnum;
    }
    note(run, err->message);
    return 0;
}

/* Moves what can be moved. Negative with err when forwarding makes no sense any more. */
static int step_connection(struct run *run, struct connection *c, struct error *err)
{
    if (!c->is_open) {
        int r = tunnel_step(c->tunnel, err);

        if (r < 0) {
            r = explain(run, c, err);
            close_connection(c, true);
        }
        if (r <= 0) {
            return r;
        }
        c->is_open = true;
    }
    for (int round = 0; round < 2; round++) { /* what was written makes room to read */
        if (!read_local(c) || !write_remote(c) || !read_remote(c) || !write_local(c)) {
            close_connection(c, true);
            return 0;
        }
    }
    if (c->remote_told && c->local_told && c->to_local.n == 0) {
        close_connection(c, false);
    }
    return 0;
}

static void watch(struct run *run, int fd, short events)
{
    if (events != 0 && fd >= 0) {
        run->fds[run->count++] = (struct pollfd){.fd = fd, .events = events};
    }
}

static void watch_connection(struct run *run, const struct connection *c)
{
    short local = 0;
    short remote = 0;

    if (!c->is_open) {
        watch(run, tunnel_fd(c->tunnel), tunnel_wants(c->tunnel));
        return;
    }
    local |= !c->local_ended && c->to_remote.n < FORWARD_BUFFER_BYTES ? POLLIN : 0;
    local |= c->to_local.n > 0 ? POLLOUT : 0;
    remote |= !c->remote_ended && c->to_local.n < FORWARD_BUFFER_BYTES ? POLLIN : 0;
    remote |= c->to_remote.n > 0 ? POLLOUT : 0;
    watch(run, c->local_fd, local);
    watch(run, tunnel_fd(c->tunnel), remote);
}

static void collect(struct run *run)
{
    bool room = find_free(run) != NULL;

    run->count = 0;
    watch(run, run->f->signal_fd, POLLIN);
    for (size_t i = 0; i < run->f->port_count && room; i++) {
        watch(run, run->f->ports[i].listen_fd, POLLIN);
    }
    for (size_t i = 0; i < FORWARD_CONNECTIONS_MAX; i++) {
        if (run->connections[i].local_fd >= 0) {
            watch_connection(run, &run->connections[i]);
        }
    }
}

static int run_loop(struct run *run, struct error *err)
{
    for (;;) {
        int number;

        collect(run);
        (void)rest_poll(run->f->rest, run->fds, run->count, -1);
        number = attach_read_signal(run->f->signal_fd);
        if (number != 0) {
            return number;
        }
        for (size_t i = 0; i < run->f->port_count; i++) {
            accept_one(run, &run->f->ports[i]);
        }
        for (size_t i = 0; i < FORWARD_CONNECTIONS_MAX; i++) {
            int r = run->connections[i].local_fd >= 0
                        ? step_connection(run, &run->connections[i], err)
                        : 0;

            if (r < 0) {
                return r;
            }
        }
    }
}

int forward_run(struct forward *f, struct error *err)
{
    _cleanup_free_ struct run *run = calloc(1, sizeof(*run));
    int r;

    if (run != NULL) {
        run->connections = calloc(FORWARD_CONNECTIONS_MAX, sizeof(*run->connections));
    }
    if (run == NULL || run->connections == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    run->f = f;
    for (size_t i = 0; i < FORWARD_CONNECTIONS_MAX; i++) {
        run->connections[i].local_fd = -1;
    }
    r = run_loop(run, err);
    for (size_t i = 0; i < FORWARD_CONNECTIONS_MAX; i++) {
        if (run->connections[i].local_fd >= 0) {
            close_connection(&run->connections[i], true);
        }
    }
    free(run->connections);
    return r;
}
