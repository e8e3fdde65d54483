/* The bare floors: QEMU driven directly, with nothing of space-node between. One run is one VM; its
 * times go to stdout as one JSON object.
 *
 *   bench-floor restore STATE DISK REPEATS -- QEMU ARGS...
 *     STATE is a base's device state and DISK a clone of its disk that may be written. Restore,
 *     first handshake and first `true` (cold); a rehearsal as a waiting sandbox gets one; silence
 *     and stop, and a first line of output. After a line on stdin, so that it has waited as
 *     sandboxes wait, while others worked: `cont`, handshake and `true` in one go (warm), and a
 *     second line of output. After another line on stdin, so that its memory can be looked at:
 *     repeated `true`, pings, pauses (silence and stop) and wakes (`cont` and WAKE), echoes, and
 *     what floor_suspend.c measures, with files beside DISK.
 *   bench-floor waiting STATE DISK REPEATS -- QEMU ARGS...
 *     The same of a machine that waits as it was restored, which is how they wait where the
 *     processor runs guests itself: without the cold run and the rehearsal.
 *   bench-floor bulk DISK BYTES -- QEMU ARGS...
 *     Boots from the kernel with a second serial port, to which the barest agent there is copies a
 *     child's pipe (`head | cat`), while the host writes what it reads to a file. Then the other
 *     way: the host writes to the port what it reads from a file, and the barest agent copies the
 *     port to a child's pipe (`head | cat`).
 *
 * QEMU finds its descriptors where space-node puts them: 3 control, 4 agent (both listening), 5 and
 * 6 the disk, 7 a tap in a network namespace of its own, 8 the second port (listening). */
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <linux/if.h>
#include <linux/if_tun.h>

#include "wire/agent_message.h"
#include "wire/agent_process.h"

#define DEADLINE_MS     60000
#define READ_BYTES      262144U
#define LAST_FD         8
#define BULK_WARM_BYTES 8000000U

double floor_now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

void floor_die(const char *what)
{
    (void)fprintf(stderr, "bench-floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- setting up ---- */

static void socket_path(const struct floor *f, const char *name, struct sockaddr_un *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->sun_family = AF_UNIX;
    (void)snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/%s", f->dir, name);
}

static void listen_at(const struct floor *f, const char *name, int wanted)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    socket_path(f, name, &address);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 1) < 0 ||
        dup2(fd, wanted) < 0) {
        floor_die(name);
    }
    if (fd != wanted) {
        (void)close(fd);
    }
}

static int connect_to(const struct floor *f, const char *name)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    socket_path(f, name, &address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        floor_die("connect");
    }
    return fd;
}

void floor_open_at(const char *path, int flags, int wanted)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0 || dup2(fd, wanted) < 0) {
        floor_die(path);
    }
    if (fd != wanted) {
        (void)close(fd);
    }
}

static void make_tap(int wanted)
{
    struct ifreq request;
    int fd;

    if (unshare(CLONE_NEWNET) < 0) {
        floor_die("unshare");
    }
    fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    memset(&request, 0, sizeof(request));
    memcpy(request.ifr_name, "tap0", 5);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0 || dup2(fd, wanted) < 0) {
        floor_die("tap");
    }
    if (fd != wanted) {
        (void)close(fd);
    }
}

static void spawn(struct floor *f, char **argv)
{
    f->pid = fork();
    if (f->pid < 0) {
        floor_die("fork");
    }
    if (f->pid == 0) {
        /* A floor that dies leaves nothing behind, and nobody waits for what it holds open. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int fd = 3; fd <= LAST_FD; fd++) {
            (void)fcntl(fd, F_SETFD, 0);
        }
        (void)execvp(argv[0], argv);
        floor_die(argv[0]);
    }
}

/* ---- QMP, just enough of it ---- */

/* Reads lines until one contains `wanted`; dies of one with "error". */
void floor_qmp_expect(struct floor *f, const char *wanted)
{
    static char text[65536];
    size_t n = 0;
    double deadline = floor_now_ms() + DEADLINE_MS;

    while (floor_now_ms() < deadline) {
        struct pollfd p = {f->control, POLLIN, 0};
        char *end;
        ssize_t got;

        if (poll(&p, 1, 1000) <= 0) {
            continue;
        }
        got = read(f->control, &text[n], sizeof(text) - 1 - n);
        if (got <= 0) {
            floor_die("the VMM closed its control socket");
        }
        n += (size_t)got;
        text[n] = '\0';
        while ((end = strchr(text, '\n')) != NULL) {
            *end = '\0';
            if (strstr(text, "\"error\"") != NULL) {
                (void)fprintf(stderr, "bench-floor: QMP: %s\n", text);
                exit(1);
            }
            if (strstr(text, wanted) != NULL) {
                return;
            }
            n -= (size_t)(end + 1 - text);
            memmove(text, end + 1, n + 1);
        }
    }
    floor_die("no answer from the VMM");
}

void floor_qmp_write(struct floor *f, const char *command, int pass_fd)
{
    struct iovec iov = {(void *)(uintptr_t)command, strlen(command)};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (pass_fd >= 0) {
        struct cmsghdr *c;

        m.msg_control = control.room;
        m.msg_controllen = sizeof(control.room);
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    if (sendmsg(f->control, &m, 0) != (ssize_t)iov.iov_len) {
        floor_die("QMP");
    }
}

void floor_start(struct floor *f, char **argv)
{
    spawn(f, argv);
    f->control = connect_to(f, "control");
    f->agent = connect_to(f, "agent");
    floor_qmp_expect(f, "\"QMP\"");
    floor_qmp_write(f, "{\"execute\":\"qmp_capabilities\"}\n", -1);
    floor_qmp_expect(f, "\"return\"");
}

void floor_load(struct floor *f, const char *state)
{
    int fd = open(state, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        floor_die(state);
    }
    floor_qmp_write(f,
                    "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":"
                    "[{\"capability\":\"events\",\"state\":true}]}}\n",
                    -1);
    floor_qmp_expect(f, "\"return\"");
    floor_qmp_write(f, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"state\"}}\n", fd);
    floor_qmp_expect(f, "\"return\"");
    floor_qmp_write(f, "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:state\"}}\n",
                    -1);
    floor_qmp_expect(f, "\"completed\"");
    (void)close(fd);
}

/* ---- the agent ---- */

void floor_flush(struct floor *f)
{
    size_t done = 0;

    if (buf_error(&f->out) < 0) {
        errno = -buf_error(&f->out);
        floor_die("frames");
    }
    while (done < f->out.n) {
        ssize_t n = write(f->agent, &f->out.p[done], f->out.n - done);

        if (n <= 0) {
            floor_die("agent port");
        }
        done += (size_t)n;
    }
    buf_clear(&f->out);
}

void floor_put_hello(struct floor *f)
{
    struct agent_hello hello = {.version = AGENT_VERSION};

    if (getrandom(hello.nonce, sizeof(hello.nonce), 0) != (ssize_t)sizeof(hello.nonce)) {
        floor_die("getrandom");
    }
    agent_reader_desynchronise(&f->reader, true);
    agent_reader_set_nonce(&f->reader, hello.nonce);
    agent_hello_format(&f->out, &hello);
}

void floor_put_identity(struct floor *f)
{
    uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct timespec t;
    struct agent_identity identity = {.id = ++f->id, .epoch = ++f->epoch};

    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (getrandom(entropy, sizeof(entropy), 0) < 0 ||
        getrandom(identity.machine_id, sizeof(identity.machine_id), 0) < 0 ||
        getrandom(identity.boot_id, sizeof(identity.boot_id), 0) < 0) {
        floor_die("getrandom");
    }
    identity.entropy = span_make(entropy, sizeof(entropy));
    identity.realtime_ns = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    identity.hostname = span_of_str("floor");
    agent_identity_format(&f->out, &identity);
}

/* argv is NULL-terminated; what else the start needs is in `start`. */
static void
put_command(struct floor *f, struct agent_start start, const char *user, const char *const *argv)
{
    struct buf raw = buf_make(0);

    start.user = span_of_str(user);
    for (; *argv != NULL; argv++) {
        buf_put_block(&raw, span_of_str(*argv));
        start.argv.count++;
    }
    start.argv.raw = buf_span(&raw);
    agent_start_format(&f->out, ++f->channel, &start);
    buf_done(&raw);
}

static void put_start(struct floor *f, const char *user, const char *const *argv)
{
    put_command(f, (struct agent_start){0}, user, argv);
}

static void put_terminal(struct floor *f, const char *user, const char *const *argv)
{
    put_command(f,
                (struct agent_start){
                    .flags = AGENT_START_TTY, .cols = 80, .rows = 24, .term = span_of_str("xterm")},
                user, argv);
}

/* Reads until a frame of this type came. Anything but output and what belongs to a start is a
 * failure. */
void floor_await(struct floor *f, uint8_t type)
{
    struct agent_frame frame;
    double deadline = floor_now_ms() + DEADLINE_MS;

    while (floor_now_ms() < deadline) {
        size_t room;
        uint8_t *space;
        ssize_t n;
        int r;

        while ((r = agent_reader_next(&f->reader, &frame)) > 0) {
            if (frame.type == AGENT_START_FAILED) {
                floor_die("START_FAILED");
            }
            if (frame.type == type) {
                return;
            }
        }
        if (r < 0) {
            floor_die("bad frame");
        }
        space = agent_reader_space(&f->reader, &room);
        n = read(f->agent, space, room < READ_BYTES ? room : READ_BYTES);
        if (n <= 0) {
            floor_die("agent port");
        }
        agent_reader_commit(&f->reader, (size_t)n);
    }
    floor_die("no answer from the agent");
}

static void forget(struct floor *f)
{
    agent_forget_format(&f->out, f->channel);
    floor_flush(f);
}

static double run_command(struct floor *f, const char *const *argv)
{
    double start = floor_now_ms();
    double end;

    put_start(f, "1000", argv);
    floor_flush(f);
    floor_await(f, AGENT_EXITED);
    end = floor_now_ms();
    forget(f);
    return end - start;
}

static const char *const command_true[] = {"/bin/true", NULL};

/* HELLO, IDENTITY and START in one write, as after a restore in the silent state. Prints the time
 * to IDENTITY_OK and the time to EXITED, both from `start`. */
static void first_run(struct floor *f, const char *name, double start)
{
    double identity;

    floor_put_hello(f);
    floor_put_identity(f);
    put_start(f, "1000", command_true);
    floor_flush(f);
    floor_await(f, AGENT_IDENTITY_OK);
    identity = floor_now_ms();
    floor_await(f, AGENT_EXITED);
    (void)printf("\"%s_identity_ms\": %.3f, \"%s_true_ms\": %.3f, ", name, identity - start, name,
                 floor_now_ms() - start);
    forget(f);
}

static void rehearse(struct floor *f)
{
    static const char *const shell[] = {"/bin/bash", "-c",
                                        "ls / | sort | head -n 1; cat /etc/hostname", NULL};
    static const char *const python[] = {"/usr/bin/python3", "-c", "pass", NULL};

    for (int i = 0; i < 2; i++) {
        (void)run_command(f, command_true);
        (void)run_command(f, shell);
        (void)run_command(f, python);
    }
}

static void fall_silent(struct floor *f)
{
    agent_id_format(&f->out, AGENT_SILENCE, 0, ++f->id);
    floor_flush(f);
    floor_await(f, AGENT_RESULT);
    floor_qmp_write(f, "{\"execute\":\"stop\"}\n", -1);
    floor_qmp_expect(f, "\"return\"");
}

static void wake(struct floor *f)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    agent_wake_format(&f->out, &(struct agent_wake){++f->id, (uint64_t)t.tv_sec * 1000000000U +
                                                                 (uint64_t)t.tv_nsec});
    floor_flush(f);
    floor_qmp_write(f, "{\"execute\":\"cont\"}\n", -1);
    floor_qmp_expect(f, "\"return\"");
    floor_await(f, AGENT_RESULT);
}

static void measure_pauses(struct floor *f, long count)
{
    (void)printf("\"pause_wake_ms\": [");
    for (long i = 0; i < count; i++) {
        double start = floor_now_ms();
        double paused;

        fall_silent(f);
        paused = floor_now_ms();
        wake(f);
        (void)printf("%s[%.3f, %.3f]", i > 0 ? ", " : "", paused - start, floor_now_ms() - paused);
    }
    (void)printf("], ");
}

static void warm_run(struct floor *f)
{
    double start = floor_now_ms();

    floor_qmp_write(f, "{\"execute\":\"cont\"}\n", -1);
    floor_qmp_expect(f, "\"return\"");
    (void)printf("\"cont_ms\": %.3f, ", floor_now_ms() - start);
    first_run(f, "warm", start);
}

/* One key at a time to a terminal, and its echo back. */
static void measure_echo(struct floor *f, long count)
{
    static const char *const argv[] = {"/bin/cat", NULL};
    const struct agent_signal kill_all = {
        .id = ++f->id, .signal = SIGKILL, .scope = AGENT_SCOPE_TREE};
    struct agent_stdin key = {.bytes = span_of_str("x")};

    put_terminal(f, "1000", argv);
    floor_flush(f);
    floor_await(f, AGENT_STARTED);
    (void)printf("\"echo_ms\": [");
    for (long i = 0; i < count; i++) {
        double start = floor_now_ms();

        key.offset = (uint64_t)i;
        agent_stdin_format(&f->out, f->channel, &key);
        floor_flush(f);
        floor_await(f, AGENT_OUTPUT);
        (void)printf("%s%.3f", i > 0 ? ", " : "", floor_now_ms() - start);
    }
    (void)printf("], ");
    agent_signal_format(&f->out, f->channel, &kill_all);
    floor_flush(f);
    floor_await(f, AGENT_EXITED);
    forget(f);
}

static void repeat(struct floor *f, long count)
{
    (void)printf("\"true_ms\": [");
    for (long i = 0; i < count; i++) {
        (void)printf("%s%.3f", i > 0 ? ", " : "", run_command(f, command_true));
    }
    (void)printf("], \"ping_ms\": [");
    for (long i = 0; i < count; i++) {
        double start = floor_now_ms();

        agent_id_format(&f->out, AGENT_PING, 0, ++f->id);
        floor_flush(f);
        floor_await(f, AGENT_PONG);
        (void)printf("%s%.3f", i > 0 ? ", " : "", floor_now_ms() - start);
    }
    (void)printf("], ");
}

/* Takes bytes from the second port to the file until there are `wanted`. */
static void copy_bulk(int port, int file, uint64_t wanted)
{
    static uint8_t bytes[READ_BYTES];

    while (wanted > 0) {
        ssize_t n = read(port, bytes, wanted < sizeof(bytes) ? (size_t)wanted : sizeof(bytes));

        if (n <= 0 || write(file, bytes, (size_t)n) != n) {
            floor_die("bulk");
        }
        wanted -= (uint64_t)n;
    }
}

/* Gives the second port `wanted` bytes of the file. */
static void feed_bulk(int port, int file, uint64_t wanted)
{
    static uint8_t bytes[READ_BYTES];

    while (wanted > 0) {
        ssize_t n = read(file, bytes, wanted < sizeof(bytes) ? (size_t)wanted : sizeof(bytes));

        if (n <= 0) {
            floor_die("bulk");
        }
        for (ssize_t done = 0; done < n;) {
            ssize_t m = write(port, &bytes[done], (size_t)(n - done));

            if (m <= 0) {
                floor_die("bulk");
            }
            done += m;
        }
        wanted -= (uint64_t)n;
    }
}

static int open_bulk(const struct floor *f, char path[96])
{
    int file;

    (void)snprintf(path, 96, "%s/out", f->dir);
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) {
        floor_die(path);
    }
    return file;
}

/* From the guest: a child's pipe to the port, the port to a file. */
static void bulk_out(struct floor *f, int port, uint64_t wanted)
{
    char command[256];
    char path[96];
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    int file = open_bulk(f, path);
    double start;

    (void)snprintf(
        command, sizeof(command),
        "exec >$(echo /dev/vport*p2); head -c %u /dev/zero | cat; head -c %llu /dev/zero | cat",
        BULK_WARM_BYTES, (unsigned long long)wanted);
    put_start(f, "", argv);
    floor_flush(f);
    copy_bulk(port, file, BULK_WARM_BYTES);
    start = floor_now_ms();
    copy_bulk(port, file, wanted);
    (void)printf("{\"bulk_mb_s\": %.1f, ", (double)wanted / 1e3 / (floor_now_ms() - start));
    (void)close(file);
    (void)unlink(path);
    floor_await(f, AGENT_EXITED);
    forget(f);
}

/* Into the guest: a file to the port, the port to a child's pipe. */
static void bulk_in(struct floor *f, int port, uint64_t wanted)
{
    char command[256];
    char path[96];
    char word[1];
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    int file = open_bulk(f, path);
    double start;

    if (ftruncate(file, (off_t)wanted + BULK_WARM_BYTES) < 0) {
        floor_die(path);
    }
    (void)snprintf(
        command, sizeof(command),
        "exec <>$(echo /dev/vport*p2) >&0; for n in %u %llu; do head -c $n | cat >/dev/null;"
        " printf .; done",
        BULK_WARM_BYTES, (unsigned long long)wanted);
    put_start(f, "", argv);
    floor_flush(f);
    feed_bulk(port, file, BULK_WARM_BYTES);
    if (read(port, word, 1) != 1) {
        floor_die("bulk");
    }
    start = floor_now_ms();
    feed_bulk(port, file, wanted);
    if (read(port, word, 1) != 1) {
        floor_die("bulk");
    }
    (void)printf("\"bulk_in_mb_s\": %.1f, ", (double)wanted / 1e3 / (floor_now_ms() - start));
    (void)close(file);
    (void)unlink(path);
    floor_await(f, AGENT_EXITED);
    forget(f);
}

static void run_bulk(struct floor *f, uint64_t wanted)
{
    int port = connect_to(f, "bulk");

    floor_put_hello(f);
    floor_flush(f);
    floor_await(f, AGENT_WELCOME);
    floor_put_identity(f);
    bulk_out(f, port, wanted);
    bulk_in(f, port, wanted);
}

static void remove_socket(const struct floor *f, const char *name)
{
    struct sockaddr_un address;

    socket_path(f, name, &address);
    (void)unlink(address.sun_path);
}

static void clean_up(struct floor *f)
{
    (void)kill(f->pid, SIGKILL);
    (void)waitpid(f->pid, NULL, 0);
    remove_socket(f, "control");
    remove_socket(f, "agent");
    remove_socket(f, "bulk");
    (void)rmdir(f->dir);
    agent_reader_done(&f->reader);
    buf_done(&f->out);
}

/* Descriptors 3 to 8 are taken first, so that nothing else lands there. */
static void set_up(struct floor *f, const char *disk)
{
    f->out = buf_make(0);
    if (mkdtemp(f->dir) == NULL || agent_reader_init(&f->reader, AGENT_WELCOME, false) < 0) {
        floor_die("mkdtemp");
    }
    for (int fd = 3; fd <= LAST_FD; fd++) {
        floor_open_at("/dev/null", O_RDONLY, fd);
    }
    listen_at(f, "control", 3);
    listen_at(f, "agent", 4);
    floor_open_at(disk, O_RDWR, 5);
    floor_open_at(disk, O_RDONLY, 6);
    make_tap(7);
    listen_at(f, "bulk", LAST_FD);
}

/* Says how far it is, and goes on after a line. */
static void await_line(const char *what)
{
    char line[8];

    (void)printf("\"%s\": true,\n", what);
    (void)fflush(stdout);
    if (fgets(line, sizeof(line), stdin) == NULL) {
        floor_die("stdin");
    }
}

static void run_restore(struct floor *f, char **argv, long repeats, bool rehearsed)
{
    const char *state = argv[2];
    const char *disk = argv[3];
    char **qemu = &argv[6];
    double start = floor_now_ms();

    floor_start(f, qemu);
    floor_load(f, state);
    (void)printf("{\"restore_ms\": %.3f, ", floor_now_ms() - start);
    if (rehearsed) {
        floor_qmp_write(f, "{\"execute\":\"cont\"}\n", -1);
        floor_qmp_expect(f, "\"return\"");
        first_run(f, "cold", start);
        rehearse(f);
        fall_silent(f);
    }
    await_line("waited");
    warm_run(f);
    await_line("ran");
    repeat(f, repeats);
    measure_pauses(f, repeats);
    measure_echo(f, repeats);
    floor_measure_suspend(f, disk, qemu);
}

int main(int argc, char **argv)
{
    struct floor f = {.epoch = 1000, .dir = "/tmp/bench-floor.XXXXXX"};

    if (argc > 6 && (strcmp(argv[1], "restore") == 0 || strcmp(argv[1], "waiting") == 0) &&
        strcmp(argv[5], "--") == 0) {
        set_up(&f, argv[3]);
        run_restore(&f, argv, strtol(argv[4], NULL, 10), strcmp(argv[1], "restore") == 0);
    } else if (argc > 5 && strcmp(argv[1], "bulk") == 0 && strcmp(argv[4], "--") == 0) {
        set_up(&f, argv[2]);
        spawn(&f, &argv[5]);
        f.agent = connect_to(&f, "agent");
        run_bulk(&f, strtoull(argv[3], NULL, 10));
    } else {
        (void)fprintf(stderr, "usage: bench-floor restore|waiting STATE DISK REPEATS -- QEMU...\n"
                              "       bench-floor bulk DISK BYTES -- QEMU...\n");
        return 2;
    }
    (void)printf("\"pid\": %d}\n", (int)f.pid);
    clean_up(&f);
    return 0;
}
