#include "io/listen.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/span.h"

#define ADDRESS_SIZE 128

/* Splits "[V6]:PORT" or "ADDRESS:PORT". */
static int split_address(const char *address, char host[ADDRESS_SIZE], char port[ADDRESS_SIZE])
{
    struct span s = span_of_str(address);
    uint64_t number;
    size_t end;

    if (s.n > 0 && s.p[0] == '[') {
        s = span_skip(s, 1);
        end = span_find(s, 0, ']');
        if (span_copy_str(span_head(s, end), host, ADDRESS_SIZE) < 0) {
            return -EINVAL;
        }
        s = span_skip(s, end + 1);
    } else {
        end = span_find(s, 0, ':');
        if (span_copy_str(span_head(s, end), host, ADDRESS_SIZE) < 0) {
            return -EINVAL;
        }
        s = span_skip(s, end);
    }
    if (s.n < 2 || s.p[0] != ':' || span_parse_u64(span_skip(s, 1), UINT16_MAX, &number) < 0) {
        return -EINVAL;
    }
    return span_copy_str(span_skip(s, 1), port, ADDRESS_SIZE);
}

static int bind_and_listen(int fd, const struct addrinfo *info)
{
    const int on = 1;

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        (info->ai_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
        bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
        return -errno;
    }
    return 0;
}

int listen_tcp(const char *address, struct error *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
    };
    struct addrinfo *info = NULL;
    char host[ADDRESS_SIZE];
    char port[ADDRESS_SIZE];
    _cleanup_close_ int fd = -1;
    int r;

    if (split_address(address, host, port) < 0 || getaddrinfo(host, port, &hints, &info) != 0) {
        return error_set(err, EINVAL,
                         "cannot listen on %.100s: expected ADDRESS:PORT or [V6ADDRESS]:PORT",
                         address);
    }
    fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = fd < 0 ? -errno : bind_and_listen(fd, info);
    freeaddrinfo(info);
    if (r == -EADDRINUSE) {
        return error_set(err, EADDRINUSE,
                         "%.100s is in use by another program: stop it or choose another port",
                         address);
    }
    if (r < 0) {
        return error_set(err, -r, "cannot listen on %.100s: %s", address, strerror(-r));
    }
    return TAKE_FD(fd);
}

static int unix_address(const char *path, struct sockaddr_un *ret_address)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return span_copy_str(span_of_str(path), ret_address->sun_path, sizeof(ret_address->sun_path));
}

/* Whether somebody accepts connections at path. */
static bool unix_is_answered(const struct sockaddr_un *address)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        return false;
    }
    /* EAGAIN is a listener whose backlog is full. */
    return connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno == EAGAIN;
}

int listen_unix(const char *path, mode_t mode, gid_t group, struct error *err)
{
    struct sockaddr_un address;
    struct sockaddr_un fresh;
    char fresh_path[sizeof(address.sun_path)];
    _cleanup_close_ int fd = -1;
    int n = snprintf(fresh_path, sizeof(fresh_path), "%s.new", path);

    if (n < 0 || (size_t)n >= sizeof(fresh_path) || unix_address(path, &address) < 0 ||
        unix_address(fresh_path, &fresh) < 0) {
        return error_set(err, ENAMETOOLONG, "the socket path %.150s is too long", path);
    }
    if (unix_is_answered(&address)) {
        return error_set(err, EADDRINUSE, "another program listens on %.150s", path);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Bound under another name, so that the path never shows a socket with the wrong mode. */
    if (fd < 0 || (unlink(fresh_path) < 0 && errno != ENOENT) ||
        bind(fd, (const struct sockaddr *)&fresh, sizeof(fresh)) < 0 ||
        chmod(fresh_path, mode) < 0 ||
        (group != (gid_t)-1 && chown(fresh_path, (uid_t)-1, group) < 0) ||
        listen(fd, LISTEN_BACKLOG) < 0 || rename(fresh_path, path) < 0) {
        int saved = errno;

        (void)unlink(fresh_path);
        return error_set(err, saved, "cannot listen on %.150s: %s", path, strerror(saved));
    }
    return TAKE_FD(fd);
}
