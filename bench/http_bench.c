/* What the HTTP server itself costs, on loopback and without the rest of the product: CPU of the
 * server's thread per small request, memory per idle connection, and throughput both ways. Prints
 * one JSON object. */
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <event2/event.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/http_server.h"
#include "io/loop.h"

#define REQUESTS     100000
#define IDLE         1000
#define STREAM_BYTES 1073741824LL
#define SMALL_BODY   "{\"argv\": [\"true\"], \"timeout_seconds\": 60}"
#define SMALL_REQUEST                                                                              \
    "POST /echo HTTP/1.1\r\nHost: 127.0.0.1:8700\r\nUser-Agent: bench\r\nAccept: */*\r\n"          \
    "Authorization: Bearer 0123456789012345678901234567890123456789\r\n"                           \
    "Content-Type: application/json\r\nContent-Length: 41\r\n\r\n" SMALL_BODY

struct bench {
    struct loop *loop;
    struct http_server *server;
    int stop_fds[2];
    int port;
    pthread_t thread;
    clockid_t clock; /* CPU time of the server's thread */
};

struct stream {
    struct http_exchange *exchange;
    int64_t left;
};

static void
on_body(void *arg, struct http_exchange *exchange, struct span body, const struct error *err)
{
    (void)arg;
    http_exchange_respond(exchange, err == NULL ? 200 : 400, NULL, 0, body);
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    (void)arg;
    (void)piece;
    if (last || err != NULL) {
        http_exchange_respond(exchange, 200, NULL, 0, span_make(NULL, 0));
    }
}

static void send_more(void *arg)
{
    static const uint8_t zeros[65536];
    struct stream *s = arg;
    int room = 1;

    while (room == 1 && s->left > 0) {
        room = http_exchange_write(s->exchange, span_make(zeros, sizeof(zeros)));
        s->left -= (int64_t)sizeof(zeros);
    }
    if (s->left <= 0) {
        http_exchange_end(s->exchange);
    }
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    (void)ctx;
    switch (http_exchange_path(exchange)[1]) {
    case 'u':
        http_exchange_stream_body(exchange, on_piece, NULL);
        break;
    case 'd': {
        struct stream *s = http_exchange_alloc(exchange, sizeof(*s));

        if (s == NULL) {
            http_exchange_abort(exchange);
            break;
        }
        *s = (struct stream){exchange, STREAM_BYTES};
        http_exchange_on_drain(exchange, send_more, s);
        http_exchange_start(exchange, 200, NULL, 0, STREAM_BYTES);
        send_more(s);
        break;
    }
    default:
        http_exchange_collect_body(exchange, 65536, on_body, NULL);
        break;
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    (void)ctx;
    http_exchange_respond(exchange, error_code_status(err->code), NULL, 0, span_make(NULL, 0));
}

static void on_stop(void *arg, int fd, short events)
{
    struct bench *b = arg;

    (void)fd;
    (void)events;
    loop_stop(b->loop);
}

static void *server_main(void *arg)
{
    struct bench *b = arg;
    struct loop_watch *watch = loop_watch_new(b->loop, b->stop_fds[0], EV_READ, on_stop, b);

    (void)loop_run(b->loop);
    loop_watch_free(watch);
    http_server_free(b->server);
    loop_free(b->loop);
    return NULL;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void start(struct bench *b)
{
    static const struct http_server_callbacks callbacks = {on_request, on_refused};
    const struct http_server_limits limits = {.max_connections = IDLE + 300};
    struct error err = {0};

    b->loop = loop_new(0);
    if (b->loop == NULL || http_server_new(b->loop, &limits, &callbacks, b, &b->server, &err) < 0 ||
        http_server_listen_tcp(b->server, "127.0.0.1:0", NULL, NULL, &err) < 0 ||
        pipe(b->stop_fds) < 0) {
        die(err.message);
    }
    b->port = http_server_port(b->server);
    if (pthread_create(&b->thread, NULL, server_main, b) != 0 ||
        pthread_getcpuclockid(b->thread, &b->clock) != 0) {
        die("thread");
    }
}

static int connect_to(const struct bench *b)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)b->port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0) {
        die("connect");
    }
    return fd;
}

static double cpu_us(const struct bench *b)
{
    struct timespec t;

    if (clock_gettime(b->clock, &t) < 0) {
        die("clock");
    }
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Small requests over `count` connections, one in flight on each. Answers fit one read. */
static void bench_small(const struct bench *b, int count, double *ret_cpu_us, double *ret_wall_us)
{
    int fds[200];
    char answer[4096];
    double cpu;
    int64_t start_ns;

    for (int i = 0; i < count; i++) {
        fds[i] = connect_to(b);
    }
    cpu = cpu_us(b);
    start_ns = clock_monotonic_ns();
    for (int done = 0; done < REQUESTS; done += count) {
        for (int i = 0; i < count; i++) {
            if (fd_write_all(fds[i], span_of_str(SMALL_REQUEST)) < 0) {
                die("write");
            }
        }
        for (int i = 0; i < count; i++) {
            if (read(fds[i], answer, sizeof(answer)) <= 0) {
                die("read");
            }
        }
    }
    *ret_wall_us = (double)(clock_monotonic_ns() - start_ns) / 1e3 / REQUESTS;
    *ret_cpu_us = (cpu_us(b) - cpu) / REQUESTS;
    for (int i = 0; i < count; i++) {
        (void)close(fds[i]);
    }
}

/* Heap bytes per idle connection that has served one request. */
static double bench_idle(const struct bench *b)
{
    static int fds[IDLE];
    char answer[4096];
    size_t before = mallinfo2().uordblks;
    double each;

    for (int i = 0; i < IDLE; i++) {
        fds[i] = connect_to(b);
        if (fd_write_all(fds[i], span_of_str(SMALL_REQUEST)) < 0 ||
            read(fds[i], answer, sizeof(answer)) <= 0) {
            die("idle");
        }
    }
    each = (double)(mallinfo2().uordblks - before) / IDLE;
    for (int i = 0; i < IDLE; i++) {
        (void)close(fds[i]);
    }
    return each;
}

/* MB/s of one large body in one direction; ret_cpu: CPU seconds of the server per GB. */
static double bench_stream(const struct bench *b, bool upload, double *ret_cpu)
{
    static uint8_t piece[65536];
    int fd = connect_to(b);
    double cpu = cpu_us(b);
    int64_t start_ns = clock_monotonic_ns();
    int64_t moved = 0;

    if (upload) {
        char head[128];

        (void)snprintf(head, sizeof(head),
                       "PUT /u HTTP/1.1\r\nHost: b\r\nContent-Length: %lld\r\n\r\n", STREAM_BYTES);
        if (fd_write_all(fd, span_of_str(head)) < 0) {
            die("write");
        }
        for (; moved < STREAM_BYTES; moved += (int64_t)sizeof(piece)) {
            if (fd_write_all(fd, span_make(piece, sizeof(piece))) < 0) {
                die("write");
            }
        }
        if (read(fd, piece, sizeof(piece)) <= 0) {
            die("read");
        }
    } else {
        if (fd_write_all(fd, span_of_str("GET /d HTTP/1.1\r\nHost: b\r\n\r\n")) < 0) {
            die("write");
        }
        while (moved < STREAM_BYTES) {
            ssize_t n = read(fd, piece, sizeof(piece));

            if (n <= 0) {
                die("read");
            }
            moved += n;
        }
    }
    (void)close(fd);
    *ret_cpu = (cpu_us(b) - cpu) / 1e6 / ((double)STREAM_BYTES / 1e9);
    return (double)STREAM_BYTES / 1e6 / ((double)(clock_monotonic_ns() - start_ns) / 1e9);
}

int main(void)
{
    static const int counts[] = {1, 20, 200};
    struct bench b = {0};
    double cpu;
    double wall;

    (void)mallopt(M_ARENA_MAX, 1); /* mallinfo2 tells of the first one only */
    start(&b);
    (void)printf("{\"small\": [");
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        bench_small(&b, counts[i], &cpu, &wall);
        (void)printf("%s{\"connections\": %d, \"server_cpu_us\": %.1f, \"wall_us\": %.1f}",
                     i > 0 ? ", " : "", counts[i], cpu, wall);
    }
    (void)printf("], \"idle_connection_bytes\": %.0f", bench_idle(&b));
    wall = bench_stream(&b, true, &cpu);
    (void)printf(", \"upload\": {\"mb_per_s\": %.0f, \"server_cpu_s_per_gb\": %.2f}", wall, cpu);
    wall = bench_stream(&b, false, &cpu);
    (void)printf(", \"download\": {\"mb_per_s\": %.0f, \"server_cpu_s_per_gb\": %.2f}}\n", wall,
                 cpu);
    (void)close(b.stop_fds[1]);
    (void)pthread_join(b.thread, NULL);
    return 0;
}
