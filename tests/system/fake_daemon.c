/* A stand-in for space-node and space-api in the tests of the supervisor and of `space up`, by the
 * name it runs under.
 *
 *   space-api    answers every request on api.listen with 200, unless <run_dir>/api-dies exists:
 *                then it says why and exits 1; --create-key prints a key's record
 *   space-node   waits; --stop-all makes <run_dir>/stopped-all
 *
 * With `--ready-fd N` as last arguments each says when it serves, as the real ones do.
 *
 * SIGUSR2 writes 1,000 lines to standard error. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

static void read_setting(const char *path, const char *key, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    char line[512];
    size_t n = strlen(key);

    out[0] = '\0';
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, n) == 0 && strncmp(&line[n], " = ", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(out, size, "%s", &line[n + 3]);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
}

static void touch(const char *dir, const char *name)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static int has(const char *dir, const char *name)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static int listen_on(const char *text)
{
    const char *colon = strrchr(text, ':');
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    address.sin_port = htons((unsigned short)strtoul(colon + 1, NULL, 10));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 16) < 0) {
        perror("cannot listen");
        exit(1);
    }
    return fd;
}

static void answer(int listen_fd)
{
    static const char text[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        "Content-Length: 18\r\nConnection: close\r\n\r\n{\"status\":\"ready\"}";
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    char head[4096];

    if (fd >= 0 && read(fd, head, sizeof(head)) > 0) {
        (void)!write(fd, text, sizeof(text) - 1);
    }
    (void)close(fd);
}

static int wait_signal(int signal_fd)
{
    struct signalfd_siginfo info;

    if (read(signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info) ||
        info.ssi_signo == SIGTERM) {
        return 1;
    }
    for (int i = 0; i < 1000; i++) {
        (void)fprintf(stderr, "line %06d of a daemon that has much to say about nothing\n", i);
    }
    return 0;
}

static int write_key(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    return fd < 0 || dprintf(fd, "space_00000000000000000000000000000000\n") < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    int is_api = strstr(argv[0], "space-api") != NULL;
    char run_dir[512];
    char address[128];
    int listen_fd = -1;
    sigset_t set;
    int signal_fd;

    if (argc < 3) {
        return 2;
    }
    read_setting(argv[2], "run_dir", run_dir, sizeof(run_dir));
    if (argc > 3 && strcmp(argv[3], "--create-key") == 0) {
        if (strcmp(argv[argc - 2], "--out") == 0) {
            return write_key(argv[argc - 1]);
        }
        (void)printf("{\"id\": \"ky000000000000000000\", \"name\": \"%s\", \"role\": \"admin\", "
                     "\"created_at\": \"2026-01-01T00:00:00.000Z\", \"expires_at\": null, "
                     "\"key\": \"space_00000000000000000000000000000000\"}\n",
                     argv[4]);
        return 0;
    }
    if (argc > 3 && strcmp(argv[3], "--stop-all") == 0) {
        touch(run_dir, "stopped-all");
        return 0;
    }
    if (is_api && has(run_dir, "api-dies")) {
        (void)fprintf(stderr, "the store is newer than this program\n");
        return 1;
    }
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGUSR2);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (is_api) {
        read_setting(argv[2], "api.listen", address, sizeof(address));
        listen_fd = listen_on(address);
    }
    if (argc > 4 && strcmp(argv[argc - 2], "--ready-fd") == 0) {
        int ready_fd = (int)strtol(argv[argc - 1], NULL, 10);

        (void)!write(ready_fd, "+", 1);
        (void)close(ready_fd);
    }
    for (;;) {
        struct pollfd fds[2] = {{.fd = signal_fd, .events = POLLIN},
                                {.fd = listen_fd, .events = POLLIN}};

        (void)poll(fds, 2, -1);
        if (fds[0].revents != 0 && wait_signal(signal_fd)) {
            return 0;
        }
        if (fds[1].revents != 0) {
            answer(listen_fd);
        }
    }
}
