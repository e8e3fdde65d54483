/* connect, ports and metrics by an agent on this machine, over its loopback. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/fd.h"
#include "guest/service_rig.h"

#define WAIT_MS 5000

static struct answer answer;

/* A listening socket on some address, and its port as text. */
static int listen_on(const struct sockaddr *address, socklen_t size, char port[8])
{
    struct sockaddr_in6 got = {.sin6_family = 0};
    socklen_t got_size = sizeof(got);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, address, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&got, &got_size), 0);
    (void)snprintf(port, 8, "%u", ntohs(got.sin6_port)); /* at the same place in both families */
    return fd;
}

static int listen_ipv4(uint32_t address, char port[8])
{
    const struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(address)}};

    return listen_on((const struct sockaddr *)&in, sizeof(in), port);
}

static int accept_one(int listener)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};
    int fd;

    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* Reads until the end; returns the bytes, or -errno. */
static ssize_t read_to_end(int fd, char *text, size_t size)
{
    size_t n = 0;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        got = read(fd, &text[n], size - n);
        if (got <= 0) {
            return got < 0 ? -errno : (ssize_t)n;
        }
        n += (size_t)got;
    }
}

static uint32_t begin(struct service_rig *s, const char *port, bool with_input)
{
    uint32_t channel = service_rig_begin(s, ARGS("connect", port), with_input);

    rig_until(&s->rig, &s->rig.channels[channel].started);
    assert_int_equal(s->rig.channels[channel].pid, 0);
    return channel;
}

static void test_connect_carries_both_ways(void **state)
{
    struct service_rig *s = *state;
    char port[8];
    char text[64];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = begin(s, port, true);
    _cleanup_close_ int fd = accept_one(listener);

    rig_stdin(&s->rig, channel, 0, span_of_str("question"), true);
    assert_int_equal(read_to_end(fd, text, sizeof(text)), 8);
    assert_memory_equal(text, "question", 8);
    assert_int_equal(fd_write_all(fd, span_of_str("answer")), 0);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    rig_wait_end(&s->rig, channel);
    assert_int_equal(s->rig.channels[channel].exit.status, 0);
    service_rig_read(s, channel, &answer);
    assert_true(answer.has_body);
    assert_int_equal(answer.body.length, SERVICE_LENGTH_UNKNOWN);
    assert_true(span_equals_str(answer.bytes, "answer"));
}

/* A port that closes its direction first still gets what the host sends. */
static void test_connect_half_open(void **state)
{
    struct service_rig *s = *state;
    char port[8];
    char text[64];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = begin(s, port, true);
    _cleanup_close_ int fd = accept_one(listener);

    assert_int_equal(fd_write_all(fd, span_of_str("bye")), 0);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    rig_until(&s->rig, &s->rig.channels[channel].output_ended);
    service_rig_read(s, channel, &answer);
    assert_true(span_equals_str(answer.bytes, "bye"));
    assert_false(s->rig.channels[channel].ended);
    rig_stdin(&s->rig, channel, 0, span_of_str("more"), true);
    assert_int_equal(read_to_end(fd, text, sizeof(text)), 4);
    rig_wait_end(&s->rig, channel);
    assert_int_equal(s->rig.channels[channel].exit.status, 0);
    /* Without more to send, the end of the input is enough; a reset is one of the whole. */
    channel = begin(s, port, true);
    (void)close(accept_one(listener));
    rig_until(&s->rig, &s->rig.channels[channel].output_ended);
    rig_stdin(&s->rig, channel, 0, span_make(NULL, 0), true);
    rig_wait_end(&s->rig, channel);
}

static void test_connect_without_input_ends_its_side(void **state)
{
    struct service_rig *s = *state;
    char port[8];
    char text[8];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = begin(s, port, false);
    int fd = accept_one(listener);

    assert_int_equal(read_to_end(fd, text, sizeof(text)), 0);
    assert_int_equal(close(fd), 0);
    rig_wait_end(&s->rig, channel);
}

static void test_connect_finds_other_addresses(void **state)
{
    const struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct service_rig *s = *state;
    char port[8];
    _cleanup_close_ int other = listen_ipv4(INADDR_LOOPBACK + 41, port);
    uint32_t channel = begin(s, port, false);
    int six;

    (void)close(accept_one(other));
    rig_wait_end(&s->rig, channel);
    six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (six < 0) {
        return; /* a machine without IPv6 */
    }
    (void)close(six);
    six = listen_on((const struct sockaddr *)&any6, sizeof(any6), port);
    channel = begin(s, port, false);
    (void)close(accept_one(six));
    rig_wait_end(&s->rig, channel);
    (void)close(six);
}

static void test_connect_refused(void **state)
{
    struct service_rig *s = *state;
    char port[8];
    int listener = listen_ipv4(INADDR_LOOPBACK, port);

    assert_int_equal(close(listener), 0);
    service_rig_fails(s, ARGS("connect", port), ECONNREFUSED);
    service_rig_fails(s, ARGS("connect", "0"), EINVAL);
    service_rig_fails(s, ARGS("connect", "65536"), EINVAL);
    service_rig_fails(s, ARGS("connect", "http"), EINVAL);
    service_rig_fails(s, ARGS("connect"), EINVAL);
    service_rig_fails(s, ARGS("connect", port, port), EINVAL);
    service_rig_call(s, ARGS("connect", port), span_of_str("lost"), &answer);
    assert_int_equal(answer.error.errnum, ECONNREFUSED);
}

/* Input that is sent before the connection is there waits for it. */
static void test_connect_moves_much(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf content = buf_make(0);
    _cleanup_free_ char *got = malloc(3000001);
    char port[8];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = service_rig_begin(s, ARGS("connect", port), true);
    pid_t pid;

    for (int i = 0; i < 3000000; i++) {
        buf_put_u8(&content, (uint8_t)rig_random(&s->rig, 256));
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = accept_one(listener);
        ssize_t n = read_to_end(fd, got, 3000001);

        _exit(n == 3000000 && fd_write_all(fd, span_make(got, 3000000)) == 0 ? 0 : 1);
    }
    service_rig_feed(s, channel, buf_span(&content), true);
    rig_wait_end(&s->rig, channel);
    service_rig_read(s, channel, &answer);
    assert_true(span_equals(answer.bytes, buf_span(&content)));
}

static void test_a_cut_connection_is_reset(void **state)
{
    struct service_rig *s = *state;
    char port[8];
    char text[8];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = begin(s, port, true);
    int fd = accept_one(listener);

    rig_stdin(&s->rig, channel, 0, span_of_str("half"), false);
    assert_int_equal(read(fd, text, 4), 4);
    rig_forget(&s->rig, channel);
    s->rig.channels[channel].started = false;
    assert_int_equal(read_to_end(fd, text, sizeof(text)), -ECONNRESET);
    assert_int_equal(close(fd), 0);
    channel = begin(s, port, true);
    fd = accept_one(listener);
    rig_hello(&s->rig, false);
    s->rig.channels[channel].started = false;
    assert_int_equal(read_to_end(fd, text, sizeof(text)), -ECONNRESET);
    assert_int_equal(close(fd), 0);
    /* What was sent to its end arrives, forgotten or not. */
    channel = begin(s, port, true);
    fd = accept_one(listener);
    rig_stdin(&s->rig, channel, 0, span_of_str("whole"), true);
    while (!s->rig.channels[channel].stdin_closed) {
        (void)rig_step(&s->rig, 100);
    }
    rig_forget(&s->rig, channel);
    s->rig.channels[channel].started = false;
    assert_int_equal(read_to_end(fd, text, sizeof(text)), 5);
    assert_int_equal(close(fd), 0);
}

static void test_a_reset_is_a_cut_off(void **state)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct service_rig *s = *state;
    char port[8];
    _cleanup_close_ int listener = listen_ipv4(INADDR_LOOPBACK, port);
    uint32_t channel = begin(s, port, true);
    int fd = accept_one(listener);

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    assert_int_equal(close(fd), 0);
    rig_wait_end(&s->rig, channel);
    assert_int_equal(s->rig.channels[channel].exit.status, 1);
}

static const struct service_listener *find_port(const char *port)
{
    for (size_t i = 0; i < answer.n_listeners; i++) {
        if (answer.listeners[i].port == (uint16_t)strtoul(port, NULL, 10)) {
            return &answer.listeners[i];
        }
    }
    return NULL;
}

static void test_ports(void **state)
{
    static const uint8_t address[16] = {127, 0, 0, 1};
    struct service_rig *s = *state;
    char port[8];
    int listener = listen_ipv4(INADDR_LOOPBACK, port);
    const struct service_listener *l;

    service_rig_call(s, ARGS("ports"), NO_INPUT, &answer);
    assert_int_equal(answer.done.count, answer.n_listeners);
    l = find_port(port);
    assert_non_null(l);
    assert_int_equal(l->family, 4);
    assert_memory_equal(l->address, address, 16);
    assert_int_equal(l->pid, getpid());
    assert_int_equal(close(listener), 0);
    service_rig_call(s, ARGS("ports"), NO_INPUT, &answer);
    assert_null(find_port(port));
}

static void test_metrics(void **state)
{
    struct service_rig *s = *state;

    service_rig_call(s, ARGS("metrics"), NO_INPUT, &answer);
    assert_true(answer.has_sample && answer.is_done);
    assert_true(answer.sample.memory_total_bytes > answer.sample.memory_used_bytes);
    assert_true(answer.sample.cpu_ns > 0);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_connect_carries_both_ways),
        SERVICE_TEST(test_connect_half_open),
        SERVICE_TEST(test_connect_without_input_ends_its_side),
        SERVICE_TEST(test_connect_finds_other_addresses),
        SERVICE_TEST(test_connect_refused),
        SERVICE_TEST(test_connect_moves_much),
        SERVICE_TEST(test_a_cut_connection_is_reset),
        SERVICE_TEST(test_a_reset_is_a_cut_off),
        SERVICE_TEST(test_ports),
        SERVICE_TEST(test_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
