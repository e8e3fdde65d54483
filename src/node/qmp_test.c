#include "node/qmp.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>
#include <event2/event.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/fd.h"
#include "io/loop.h"

#define GREETING "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n"

/* A fake VMM: greets, then for each command line that comes sends the next scripted text. */
struct fake {
    struct loop *loop;
    struct qmp *qmp;
    int listener;
    int fd;
    struct loop_watch *accepting;
    struct loop_watch *reading;
    char path[64];
    const char *const *script;
    struct buf heard;
    unsigned int fds_received;

    int other; /* a connection that takes all the room the socket has */
    struct loop_timer *timer;
    bool ready;
    char event[64];
    char failure[256];
    char answers[256];
};

static void say(const struct fake *f, const char *text)
{
    assert_int_equal(fd_write_all(f->fd, span_of_str(text)), 0);
}

static void on_fake_input(void *arg, int fd, short events)
{
    struct fake *f = arg;
    char text[4096];
    char control[256];
    struct iovec iov = {text, sizeof(text)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    (void)events;
    if (n <= 0) {
        loop_watch_set_events(f->reading, 0);
        return;
    }
    if (CMSG_FIRSTHDR(&msg) != NULL) {
        int got;

        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(got));
        (void)close(got);
        f->fds_received++;
    }
    buf_put(&f->heard, span_make(text, (size_t)n));
    if (f->script != NULL && *f->script != NULL) {
        say(f, *f->script++);
    }
}

static void on_fake_accept(void *arg, int fd, short events)
{
    struct fake *f = arg;

    (void)events;
    f->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(f->fd >= 0);
    f->reading = loop_watch_new(f->loop, f->fd, EV_READ, on_fake_input, f);
    loop_watch_set_events(f->accepting, 0);
    say(f, *f->script++);
}

static void on_ready(void *arg)
{
    struct fake *f = arg;

    f->ready = true;
    loop_stop(f->loop);
}

static void on_event(void *arg, const char *name, const json_t *data)
{
    struct fake *f = arg;

    (void)data;
    (void)snprintf(f->event, sizeof(f->event), "%s", name);
    loop_stop(f->loop);
}

static void on_failed(void *arg, const char *message)
{
    struct fake *f = arg;

    (void)snprintf(f->failure, sizeof(f->failure), "%s", message);
    loop_stop(f->loop);
}

static void on_reply(void *arg, const json_t *body, const struct error *err)
{
    struct fake *f = arg;
    size_t n = strlen(f->answers);

    (void)snprintf(f->answers + n, sizeof(f->answers) - n, "%s;",
                   err != NULL ? err->message : json_string_value(body));
}

static void on_last_reply(void *arg, const json_t *body, const struct error *err)
{
    struct fake *f = arg;

    on_reply(arg, body, err);
    loop_stop(f->loop);
}

static void listen_at(struct fake *f, int backlog)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    f->heard = buf_make(65536);
    f->loop = loop_new(0);
    (void)snprintf(f->path, sizeof(f->path), "/tmp/qmp-test-%d", (int)getpid());
    (void)unlink(f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->path);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(f->listener, backlog), 0);
}

static void start(struct fake *f, const char *const *script)
{
    static const struct qmp_callbacks callbacks = {on_ready, on_event, on_failed};

    *f = (struct fake){.fd = -1, .other = -1, .script = script};
    listen_at(f, 1);
    f->accepting = loop_watch_new(f->loop, f->listener, EV_READ, on_fake_accept, f);
    f->qmp = qmp_new(f->loop, &callbacks, f);
    assert_int_equal(qmp_connect(f->qmp, f->path), 0);
    assert_int_equal(loop_run(f->loop), 0);
}

static void finish(struct fake *f)
{
    qmp_free(f->qmp);
    loop_watch_free(f->reading);
    loop_watch_free(f->accepting);
    (void)close(f->fd);
    (void)close(f->listener);
    (void)unlink(f->path);
    buf_done(&f->heard);
    loop_free(f->loop);
}

static void test_commands(void **state)
{
    static const char *const script[] = {GREETING, "{\"return\": {}, \"id\": 1}\n",
                                         "{\"return\": \"one\", \"id\": 2}\n{\"event\": \"STOP\"}\n"
                                         "{\"error\": {\"desc\": \"bad\"}, \"id\": 3}\n",
                                         NULL};
    struct fake f;

    (void)state;
    start(&f, script);
    assert_true(f.ready);
    qmp_send(f.qmp, "first", json_pack("{s:i}", "a", 1), STDERR_FILENO, on_reply, &f);
    qmp_send(f.qmp, "second", NULL, -1, on_last_reply, &f);
    while (strchr(f.answers, ';') == strrchr(f.answers, ';') && f.failure[0] == '\0') {
        assert_int_equal(loop_run(f.loop), 0);
    }
    assert_string_equal(f.answers, "one;VMM: bad;");
    assert_string_equal(f.event, "STOP");
    assert_int_equal(f.fds_received, 1);
    assert_non_null(strstr(buf_str(&f.heard), "\"arguments\":{\"a\":1}"));
    finish(&f);
}

/* Each script makes the connection fail, whatever it says. */
static void expect_failure(const char *const *script)
{
    struct fake f;

    start(&f, script);
    if (f.failure[0] == '\0') {
        qmp_send(f.qmp, "first", NULL, -1, on_reply, &f);
        while (f.failure[0] == '\0') {
            assert_int_equal(loop_run(f.loop), 0);
        }
        /* The command heard of it too. */
        assert_non_null(strstr(f.answers, "control connection"));
    }
    finish(&f);
}

static void test_lies(void **state)
{
    static const char *const wrong_id[] = {GREETING, "{\"return\": {}, \"id\": 1}\n",
                                           "{\"return\": {}, \"id\": 5}\n", NULL};
    static const char *const no_json[] = {"hello\n", NULL};
    static const char *const unasked[] = {"{\"return\": {}, \"id\": 1}\n", NULL};
    static const char *const greeted_twice[] = {GREETING, GREETING, NULL};
    static const char *const empty_line[] = {GREETING, "\n", NULL};

    (void)state;
    expect_failure(wrong_id);
    expect_failure(no_json);
    expect_failure(unasked);
    expect_failure(greeted_twice);
    expect_failure(empty_line);
}

static void on_room(void *arg)
{
    struct fake *f = arg;
    int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);

    assert_true(fd >= 0);
    (void)close(fd);
    f->accepting = loop_watch_new(f->loop, f->listener, EV_READ, on_fake_accept, f);
}

/* A VMM that stands still accepts nobody; it is no reason to give it up. */
static void test_a_socket_without_room_is_tried_again(void **state)
{
    static const struct qmp_callbacks callbacks = {on_ready, on_event, on_failed};
    static const char *const script[] = {GREETING, "{\"return\": {}, \"id\": 1}\n", NULL};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct fake f = {.fd = -1, .script = script};

    (void)state;
    listen_at(&f, 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f.path);
    f.other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(f.other, (struct sockaddr *)&address, sizeof(address)), 0);
    f.qmp = qmp_new(f.loop, &callbacks, &f);
    assert_int_equal(qmp_connect(f.qmp, f.path), 0);
    f.timer = loop_timer_new(f.loop, on_room, &f);
    loop_timer_start(f.timer, 120);
    assert_int_equal(loop_run(f.loop), 0);
    assert_string_equal(f.failure, "");
    assert_true(f.ready);
    loop_timer_free(f.timer);
    (void)close(f.other);
    finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_a_socket_without_room_is_tried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
