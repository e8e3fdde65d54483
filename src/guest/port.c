#include "guest/port.h"

#include <errno.h>
#include <fcntl.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"
#include "base/fd.h"

#define PORT_CLASS     "/sys/class/virtio-ports"
#define PORT_NAME      "space.agent\n"
#define DEVICE_FLAGS   (O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)
#define REOPEN_TRIES   50
#define REOPEN_WAIT_US 2000

static void port_lose(struct port *p);

static void on_port(struct source *s, uint32_t events)
{
    struct port *p = source_owner(s, struct port, source);

    if ((events & (EPOLLHUP | EPOLLERR)) == 0) {
        p->connected = true;
    }
    if ((events & EPOLLIN) != 0) {
        p->readable = true;
    }
    if ((events & EPOLLOUT) != 0) {
        p->blocked = false;
        source_watch(&p->source, p->epoll_fd, EPOLLIN | EPOLLET);
    }
    /* A device that nobody ever connected to reports a hang-up too. */
    if ((events & EPOLLHUP) != 0 && p->connected) {
        port_lose(p);
    }
}

static int port_take(struct port *p, int fd)
{
    p->source.on_ready = on_port;
    p->readable = true;
    p->blocked = false;
    return source_open(&p->source, p->epoll_fd, fd, EPOLLIN | EPOLLET);
}

/* Opening can fail for a moment while the driver still finishes the close. */
static int open_device(const char *path)
{
    for (int i = 0; i < REOPEN_TRIES; i++) {
        int fd = open(path, DEVICE_FLAGS);

        if (fd >= 0) {
            return fd;
        }
        (void)usleep(REOPEN_WAIT_US);
    }
    return -errno;
}

static void port_lose(struct port *p)
{
    int fd;

    source_close(&p->source);
    p->connected = false;
    p->readable = false;
    p->lost = true;
    if (!p->is_device) {
        p->gone = p->listener.fd < 0;
        return;
    }
    fd = open_device(p->path);
    if (fd < 0 || port_take(p, fd) < 0) {
        p->gone = true;
    }
}

static bool is_agent_port(int class_fd, const char *name)
{
    _cleanup_buf_ struct buf text = buf_make(64);
    char path[288];

    (void)snprintf(path, sizeof(path), "%s/name", name);
    return file_read(class_fd, path, 64, &text) == 0 && span_equals_str(buf_span(&text), PORT_NAME);
}

int port_open_device(struct port *p, int epoll_fd)
{
    _cleanup_closedir_ DIR *dir = opendir(PORT_CLASS);
    const struct dirent *entry;
    int fd;

    *p = (struct port){.source = {.fd = -1}, .listener = {.fd = -1}, .epoll_fd = epoll_fd};
    p->is_device = true;
    if (dir == NULL) {
        return -errno;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && is_agent_port(dirfd(dir), entry->d_name)) {
            (void)snprintf(p->path, sizeof(p->path), "/dev/%.100s", entry->d_name);
            fd = open(p->path, DEVICE_FLAGS);
            return fd < 0 ? -errno : port_take(p, fd);
        }
    }
    return -ENODEV;
}

int port_open_fd(struct port *p, int epoll_fd, int fd)
{
    int r = fd_set_nonblock(fd);

    *p = (struct port){.source = {.fd = -1}, .listener = {.fd = -1}, .epoll_fd = epoll_fd};
    p->connected = true;
    return r < 0 ? r : port_take(p, fd);
}

static void on_listener(struct source *s, uint32_t events)
{
    struct port *p = source_owner(s, struct port, listener);
    int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)events;
    if (fd < 0) {
        return;
    }
    if (p->source.fd >= 0) {
        port_lose(p);
    }
    p->connected = port_take(p, fd) == 0;
}

int port_open_path(struct port *p, int epoll_fd, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    *p = (struct port){.source = {.fd = -1}, .listener = {.fd = -1}, .epoll_fd = epoll_fd};
    if (fd < 0 ||
        span_copy_str(span_of_str(path), address.sun_path, sizeof(address.sun_path)) < 0 ||
        (unlink(path) < 0 && errno != ENOENT) ||
        bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0) {
        int r = errno != 0 ? -errno : -EINVAL;

        cleanup_close(&fd);
        return r;
    }
    p->listener.on_ready = on_listener;
    return source_open(&p->listener, epoll_fd, fd, EPOLLIN);
}

void port_close(struct port *p)
{
    source_close(&p->source);
    source_close(&p->listener);
}

size_t port_read(struct port *p, uint8_t *to, size_t room)
{
    ssize_t n;

    if (p->source.fd < 0 || !p->readable) {
        return 0;
    }
    n = read(p->source.fd, to, room);
    if (n > 0) {
        p->connected = true;
        return (size_t)n;
    }
    if (n < 0 && errno == EINTR) {
        return 0;
    }
    p->readable = false;
    /* A device without a host reads as at its end; the hang-up event tells when there was one. */
    if (!p->is_device && (n == 0 || errno != EAGAIN)) {
        port_lose(p);
    }
    return 0;
}

size_t port_write(struct port *p, struct span s)
{
    ssize_t n;

    if (p->source.fd < 0 || p->blocked || s.n == 0) {
        return 0;
    }
    n = write(p->source.fd, s.p, s.n);
    if (n >= 0) {
        return (size_t)n;
    }
    if (errno == EINTR) {
        return 0;
    }
    if (errno != EAGAIN && !p->is_device) {
        port_lose(p);
        return 0;
    }
    /* Only now: the driver reports room after every buffer that the host took. */
    p->blocked = true;
    source_watch(&p->source, p->epoll_fd, EPOLLIN | EPOLLOUT | EPOLLET);
    return 0;
}
