#include "node/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <event2/event.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/qmp_parse.h"

#define QMP_READ_BYTES   16384U
#define CONNECT_AGAIN_MS 50

struct qmp_command {
    struct list link;
    uint64_t id;
    char *text;
    size_t size;
    size_t sent;
    int fd;
    qmp_reply_fn fn;
    void *arg;
};

struct qmp {
    struct loop *loop;
    struct qmp_callbacks callbacks;
    void *arg;
    int fd;
    struct sockaddr_un address;
    struct loop_timer *connect_timer; /* NULL: never needed */
    struct loop_watch *watch;
    struct list unsent;
    struct list waiting; /* sent, without an answer */
    struct buf in;
    uint64_t next_id;
    bool ready;
    bool failed;
    bool freed;
    unsigned int busy; /* depth of callbacks: qmp_free inside one is put off */
};

static void command_free(struct qmp_command *c)
{
    if (c->fd >= 0) {
        (void)close(c->fd);
    }
    free(c->text);
    free(c);
}

static void qmp_destroy(struct qmp *qmp)
{
    struct list *it;
    struct list *following;
    struct list *lists[] = {&qmp->unsent, &qmp->waiting};

    for (size_t i = 0; i < 2; i++) {
        list_foreach(it, following, lists[i])
        {
            list_remove(it);
            command_free(list_entry(it, struct qmp_command, link));
        }
    }
    loop_timer_free(qmp->connect_timer);
    loop_watch_free(qmp->watch);
    if (qmp->fd >= 0) {
        (void)close(qmp->fd);
    }
    buf_done(&qmp->in);
    free(qmp);
}

struct qmp *qmp_new(struct loop *loop, const struct qmp_callbacks *callbacks, void *arg)
{
    struct qmp *qmp = calloc(1, sizeof(*qmp));

    if (qmp == NULL) {
        return NULL;
    }
    qmp->loop = loop;
    qmp->callbacks = *callbacks;
    qmp->arg = arg;
    qmp->fd = -1;
    qmp->next_id = 1;
    qmp->in = buf_make(QMP_LINE_MAX + QMP_READ_BYTES);
    list_init(&qmp->unsent);
    list_init(&qmp->waiting);
    return qmp;
}

void qmp_free(struct qmp *qmp)
{
    if (qmp == NULL) {
        return;
    }
    qmp->freed = true;
    qmp->failed = true;
    if (qmp->busy == 0) {
        qmp_destroy(qmp);
    }
}

static void leave(struct qmp *qmp)
{
    if (--qmp->busy == 0 && qmp->freed) {
        qmp_destroy(qmp);
    }
}

static void fail(struct qmp *qmp, const char *message)
{
    struct error err = {0};
    struct list *lists[] = {&qmp->waiting, &qmp->unsent};

    if (qmp->failed) {
        return;
    }
    qmp->failed = true;
    qmp->busy++;
    if (qmp->watch != NULL) {
        loop_watch_set_events(qmp->watch, 0);
    }
    (void)error_set(&err, EPIPE, "control connection: %.200s", message);
    for (size_t i = 0; i < 2; i++) {
        while (!list_is_empty(lists[i]) && !qmp->freed) {
            struct qmp_command *c = list_entry(lists[i]->next, struct qmp_command, link);

            list_remove(&c->link);
            if (c->fn != NULL) {
                c->fn(c->arg, NULL, &err);
            }
            command_free(c);
        }
    }
    if (!qmp->freed) {
        qmp->callbacks.on_failed(qmp->arg, err.message);
    }
    leave(qmp);
}

/* Deferred with one `busy` taken, so that qmp is still there. */
static void fail_later(void *arg)
{
    struct qmp *qmp = arg;

    if (!qmp->freed) {
        fail(qmp, "cannot send");
    }
    leave(qmp);
}

/* One sendmsg of what is left of c. 1 done, 0 later, -errno. */
static int send_command(struct qmp *qmp, struct qmp_command *c)
{
    struct iovec iov = {c->text + c->sent, c->size - c->sent};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (c->fd >= 0) {
        struct cmsghdr *head;

        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &c->fd, sizeof(int));
    }
    n = sendmsg(qmp->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    }
    if (c->fd >= 0) {
        (void)close(TAKE_FD(c->fd));
    }
    c->sent += (size_t)n;
    return c->sent == c->size ? 1 : 0;
}

static int flush(struct qmp *qmp)
{
    while (!list_is_empty(&qmp->unsent)) {
        struct qmp_command *c = list_entry(qmp->unsent.next, struct qmp_command, link);
        int r = send_command(qmp, c);

        if (r < 0) {
            return r;
        }
        if (r == 0) {
            break;
        }
        list_remove(&c->link);
        list_append(&qmp->waiting, &c->link);
    }
    loop_watch_set_events(qmp->watch, list_is_empty(&qmp->unsent) ? EV_READ : EV_READ | EV_WRITE);
    return 0;
}

static struct qmp_command *command_new(struct qmp *qmp, const char *command, json_t *args, int fd)
{
    struct qmp_command *c = calloc(1, sizeof(*c));
    json_t *root = json_pack("{s:s, s:I}", "execute", command, "id", (json_int_t)qmp->next_id);

    if (c == NULL || root == NULL ||
        (args != NULL && json_object_set(root, "arguments", args) < 0)) {
        goto failed;
    }
    c->fd = -1;
    c->id = qmp->next_id;
    c->text = json_dumps(root, JSON_COMPACT);
    if (c->text == NULL) {
        goto failed;
    }
    c->size = strlen(c->text);
    if (fd >= 0) {
        c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (c->fd < 0) {
            goto failed;
        }
    }
    json_decref(root);
    qmp->next_id++;
    return c;
failed:
    json_decref(root);
    if (c != NULL) {
        c->fd = -1;
        command_free(c);
    }
    return NULL;
}

void qmp_send(
    struct qmp *qmp, const char *command, json_t *args, int fd, qmp_reply_fn fn, void *arg)
{
    struct qmp_command *c = command_new(qmp, command, args, fd);

    json_decref(args);
    if (c != NULL) {
        c->fn = fn;
        c->arg = arg;
        list_append(&qmp->unsent, &c->link);
        if (!qmp->failed && qmp->fd >= 0 && flush(qmp) == 0) {
            return;
        }
    }
    if (loop_defer(qmp->loop, fail_later, qmp) == 0) {
        qmp->busy++;
    }
}

static void on_negotiated(void *arg, const json_t *body, const struct error *err)
{
    struct qmp *qmp = arg;

    (void)body;
    if (err == NULL) {
        qmp->ready = true;
        qmp->callbacks.on_ready(qmp->arg);
    }
}

static int handle_answer(struct qmp *qmp, const struct qmp_message *m)
{
    struct qmp_command *c;
    struct error err = {0};

    if (list_is_empty(&qmp->waiting)) {
        return -EBADMSG;
    }
    /* QEMU answers in order: anything else is not QEMU. */
    c = list_entry(qmp->waiting.next, struct qmp_command, link);
    if (c->id != m->id) {
        return -EBADMSG;
    }
    list_remove(&c->link);
    if (m->kind == QMP_KIND_ERROR) {
        (void)error_set(&err, EIO, "VMM: %.200s", m->name);
    }
    if (c->fn != NULL) {
        c->fn(c->arg, m->kind == QMP_KIND_ERROR ? NULL : m->body,
              m->kind == QMP_KIND_ERROR ? &err : NULL);
    }
    command_free(c);
    return 0;
}

static int handle_message(struct qmp *qmp, const struct qmp_message *m)
{
    switch (m->kind) {
    case QMP_KIND_GREETING:
        if (qmp->next_id != 1) {
            return -EBADMSG;
        }
        qmp_send(qmp, "qmp_capabilities", NULL, -1, on_negotiated, qmp);
        return 0;
    case QMP_KIND_EVENT:
        if (qmp->ready) {
            qmp->callbacks.on_event(qmp->arg, m->name, m->body);
        }
        return 0;
    case QMP_KIND_RETURN:
    case QMP_KIND_ERROR:
        return handle_answer(qmp, m);
    }
    return -EBADMSG;
}

/* Takes every complete line out of the buffer. */
static int handle_lines(struct qmp *qmp)
{
    while (!qmp->failed) {
        struct span line;
        struct qmp_message m;
        int used = qmp_split_line(buf_span(&qmp->in), &line);
        int r;

        if (used <= 0) {
            return used;
        }
        r = line.n > 0 ? qmp_parse_line(line, &m) : -EBADMSG;
        buf_consume(&qmp->in, (size_t)used);
        if (r == 0) {
            r = handle_message(qmp, &m);
            qmp_message_done(&m);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int receive(struct qmp *qmp)
{
    uint8_t *room = buf_reserve(&qmp->in, QMP_READ_BYTES);
    ssize_t n;

    if (room == NULL) {
        return -ENOMEM;
    }
    n = read(qmp->fd, room, QMP_READ_BYTES);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    }
    if (n == 0) {
        return -EPIPE;
    }
    buf_commit(&qmp->in, (size_t)n);
    return handle_lines(qmp);
}

static void on_socket(void *arg, int fd, short events)
{
    struct qmp *qmp = arg;
    int r = 0;

    (void)fd;
    qmp->busy++;
    if ((events & EV_WRITE) != 0) {
        r = flush(qmp);
    }
    if (r == 0 && (events & EV_READ) != 0) {
        r = receive(qmp);
    }
    if (r < 0 && !qmp->freed) {
        fail(qmp, r == -EPIPE ? "closed by the VMM" : strerror(-r));
    }
    leave(qmp);
}

static int try_connect(struct qmp *qmp)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&qmp->address, sizeof(qmp->address)) < 0) {
        return -errno;
    }
    qmp->watch = loop_watch_new(qmp->loop, fd, EV_READ, on_socket, qmp);
    if (qmp->watch == NULL) {
        return -ENOMEM;
    }
    qmp->fd = TAKE_FD(fd);
    return 0;
}

static void on_connect_timer(void *arg)
{
    struct qmp *qmp = arg;
    int r = try_connect(qmp);

    if (r == -EAGAIN) {
        loop_timer_start(qmp->connect_timer, CONNECT_AGAIN_MS);
    } else if (r < 0) {
        fail(qmp, strerror(-r));
    }
}

static int connect_later(struct qmp *qmp)
{
    qmp->connect_timer = loop_timer_new(qmp->loop, on_connect_timer, qmp);
    if (qmp->connect_timer == NULL) {
        return -ENOMEM;
    }
    loop_timer_start(qmp->connect_timer, CONNECT_AGAIN_MS);
    return 0;
}

int qmp_connect(struct qmp *qmp, const char *path)
{
    int r;

    if (strlen(path) >= sizeof(qmp->address.sun_path)) {
        return -ENAMETOOLONG;
    }
    qmp->address.sun_family = AF_UNIX;
    (void)snprintf(qmp->address.sun_path, sizeof(qmp->address.sun_path), "%s", path);
    r = try_connect(qmp);
    return r == -EAGAIN ? connect_later(qmp) : r;
}
