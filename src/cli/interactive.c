#include "cli/interactive.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <sys/signalfd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/live.h"
#include "cli/rest.h"

#define INPUT_STEP  16384U
#define PATIENCE_MS 600000 /* somebody sits there and can leave */
#define HANG_UP_MS  3000   /* for the command to end after SIGHUP */
#define CONTROL_C   0x03
#define DESCRIPTORS 3

enum escape {
    ESCAPE_NONE,
    ESCAPE_LINE, /* at the beginning of a line */
    ESCAPE_TILDE /* `~` came there */
};

struct interactive {
    const struct attach *a;
    struct live live;
    struct tty tty;
    int out_fd; /* of our own, without blocking where that is possible */
    enum escape escape;
    bool watch_input;
    bool was_lost;
    bool left;             /* by `~.` or, without a connection, Ctrl-C */
    int signal;            /* that ends us; 0: none */
    int interrupts;        /* SIGINT without raw mode */
    int64_t hang_up_at_ms; /* leave then; 0: not hanging up */
};

/* A line on stderr, while the terminal may be raw. */
static void say(const struct interactive *s, const char *text)
{
    _cleanup_buf_ struct buf line = buf_make(0);

    buf_printf(&line, s->tty.is_raw ? "\r\nspace: %s\r\n" : "space: %s\n", text);
    (void)fd_write_all(STDERR_FILENO, buf_span(&line));
}

static void on_state(void *arg, enum live_state state)
{
    struct interactive *s = arg;

    if (state == LIVE_LOST) {
        say(s, s->tty.is_raw ? "connection lost, trying again (Ctrl-C leaves) …"
                             : "connection lost, trying again …");
        s->was_lost = true;
    } else if (state == LIVE_ATTACHED && s->was_lost) {
        s->was_lost = false;
        say(s, "connected again");
    }
}

static void on_error(void *arg, const char *message)
{
    (void)arg;
    (void)message; /* the command has ended or does not read: its end tells */
}

static void on_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    char text[80];

    (void)stream;
    (void)snprintf(text, sizeof(text), "%" PRIu64 " bytes of output were dropped", bytes);
    say(arg, text);
}

static bool take_signal(struct interactive *s);

/* -EINTR when a signal is to end us while our output is stuck. */
static int on_output(void *arg, enum follow_stream stream, struct span bytes)
{
    struct interactive *s = arg;
    int fd = stream == FOLLOW_STDOUT ? s->out_fd : STDERR_FILENO;

    while (bytes.n > 0) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT},
                                {.fd = s->a->signal_fd, .events = POLLIN}};
        ssize_t n;

        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            return -errno;
        }
        if (fds[1].revents != 0 && !take_signal(s)) {
            return -EINTR;
        }
        if (fds[0].revents == 0) {
            continue;
        }
        n = write(fd, bytes.p, bytes.n < PIPE_BUF ? bytes.n : PIPE_BUF);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -errno;
        }
        bytes = span_skip(bytes, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

static const struct live_sink interactive_sink = {{on_output, on_gap}, on_state, on_error};

/* ---- signals ---- */

static int watch_signals(const struct interactive *s, struct error *err)
{
    static const int numbers[] = {SIGINT,   SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGWINCH, SIGTSTP, SIGCONT, SIGTTOU};
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)sigaddset(&set, numbers[i]);
    }
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0) {
        return error_set(err, errno, "cannot set up signals: %s", strerror(errno));
    }
    (void)sigdelset(&set, SIGTTOU); /* blocked only: setting a mode in the background then works */
    if (signalfd(s->a->signal_fd, &set, 0) < 0) {
        return error_set(err, errno, "cannot set up signals: %s", strerror(errno));
    }
    return 0;
}

/* Somebody stops us from outside: with the terminal as it was. */
static void stop_ourselves(struct interactive *s)
{
    if (s->tty.is_raw) {
        (void)tcsetattr(s->tty.fd, TCSADRAIN, &s->tty.saved);
    }
    (void)kill(getpid(), SIGSTOP); /* SIGCONT does the rest */
}

/* As when a terminal is closed: SIGHUP, and the end of input for who waits in a read. */
static void hang_up(struct interactive *s, int number)
{
    s->signal = number;
    s->hang_up_at_ms = clock_monotonic_ms() + HANG_UP_MS;
    s->watch_input = false;
    live_signal(&s->live, SIGHUP);
    live_end_input(&s->live);
}

/* Returns false when we are to leave now. */
static bool take_signal(struct interactive *s)
{
    int number = attach_read_signal(s->a->signal_fd);

    switch (number) {
    case 0:
        return true;
    case SIGWINCH:
        live_resize(&s->live, tty_get_size());
        return true;
    case SIGTSTP:
        stop_ourselves(s);
        return true;
    case SIGCONT: /* while we were stopped the shell has set its own mode */
        tty_set_raw_again(&s->tty);
        live_resize(&s->live, tty_get_size());
        return true;
    case SIGINT:
        if (!s->tty.is_raw && s->interrupts++ == 0) {
            live_signal(&s->live, SIGINT);
            return true;
        }
        break;
    default:
        break;
    }
    if (s->signal != 0) {
        return false;
    }
    hang_up(s, number);
    return true;
}

/* ---- input ---- */

static void put_byte(struct buf *out, uint8_t byte)
{
    buf_put(out, span_make(&byte, 1));
}

/* Takes `~.` and `~~` out of what was typed. */
static void take_typed(struct interactive *s, struct span typed, struct buf *out)
{
    for (size_t i = 0; i < typed.n && !s->left; i++) {
        uint8_t c = typed.p[i];

        if (c == CONTROL_C && s->live.state != LIVE_ATTACHED) {
            s->left = true;
            s->signal = SIGINT;
        } else if (s->escape == ESCAPE_LINE && c == '~') {
            s->escape = ESCAPE_TILDE;
            continue;
        } else if (s->escape == ESCAPE_TILDE && c == '.') {
            s->left = true;
        } else {
            if (s->escape == ESCAPE_TILDE && c != '~') {
                put_byte(out, '~');
            }
            put_byte(out, c);
        }
        s->escape = c == '\r' || c == '\n' ? ESCAPE_LINE : ESCAPE_NONE;
    }
}

static void read_input(struct interactive *s)
{
    _cleanup_buf_ struct buf typed = buf_make(0);
    uint8_t bytes[INPUT_STEP];
    size_t room = live_input_room(&s->live);
    ssize_t n = read(STDIN_FILENO, bytes, room < sizeof(bytes) ? room : sizeof(bytes));

    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n <= 0) {
        s->watch_input = false;
        live_end_input(&s->live);
        return;
    }
    if (!s->tty.is_raw) {
        live_put_input(&s->live, span_make(bytes, (size_t)n));
        return;
    }
    take_typed(s, span_make(bytes, (size_t)n), &typed);
    live_put_input(&s->live, buf_span(&typed));
}

/* ---- the loop ---- */

static int wait_for_something(struct interactive *s)
{
    struct pollfd fds[DESCRIPTORS] = {{.fd = s->a->signal_fd, .events = POLLIN}};
    int64_t now_ms = clock_monotonic_ms();
    unsigned int count = 1;
    unsigned int input = 0;
    short events = 0;
    int fd = -1;
    int wait_ms = live_wait(&s->live, now_ms, &fd, &events);

    if (s->hang_up_at_ms != 0 && s->hang_up_at_ms - now_ms < wait_ms) {
        wait_ms = s->hang_up_at_ms > now_ms ? (int)(s->hang_up_at_ms - now_ms) : 0;
    }
    if (fd >= 0 && events != 0) {
        fds[count++] = (struct pollfd){.fd = fd, .events = events};
    }
    if (s->watch_input && live_input_room(&s->live) > 1) {
        input = count;
        fds[count++] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    }
    (void)rest_poll(s->a->cli->rest, fds, count, wait_ms);
    if (fds[0].revents != 0 && !take_signal(s)) {
        return -EINTR;
    }
    if (input > 0 && fds[input].revents != 0) {
        read_input(s);
    }
    return 0;
}

/* What is said when we leave and the command stays. */
static void tell_how_to_return(const struct interactive *s)
{
    char text[160];

    (void)snprintf(text, sizeof(text),
                   "left; the command goes on: `space attach %s` returns, `space kill %s` ends it",
                   s->a->process_id, s->a->process_id);
    say(s, text);
}

static int final_status(struct interactive *s, struct error *err)
{
    char note[FOLLOW_NOTE_SIZE];

    if (s->signal != 0) {
        return 128 + s->signal;
    }
    if (s->live.follow.end == FOLLOW_END_LOST) {
        return error_set(err, ESRCH, "the process was lost: %s", s->live.follow.lost_reason);
    }
    follow_exit_note(&s->live.follow, s->a->limit_s, note);
    if (note[0] != '\0') {
        say(s, note);
    }
    return follow_exit_status(&s->live.follow);
}

static int run(struct interactive *s, struct error *err)
{
    for (;;) {
        int r = live_step(&s->live, clock_monotonic_ms(), err);

        if (r > 0) {
            return final_status(s, err);
        }
        if (r == -EINTR || (s->signal != 0 && (r < 0 || clock_monotonic_ms() > s->hang_up_at_ms) &&
                            s->hang_up_at_ms != 0)) {
            return 128 + s->signal;
        }
        if (r == -EPIPE) {
            return 128 + SIGPIPE;
        }
        if (r < 0) {
            tell_how_to_return(s);
            return r;
        }
        if (s->left) {
            tell_how_to_return(s);
            return s->signal != 0 ? 128 + s->signal : EXIT_STATUS_DONE;
        }
        if (wait_for_something(s) < 0) {
            return 128 + s->signal;
        }
    }
}

/* A description of our own of the terminal, so that writing never blocks and others that share it
 * are not disturbed. */
static int open_output(void)
{
    int fd = isatty(STDOUT_FILENO) == 1
                 ? open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
                 : -1;

    return fd >= 0 ? fd : fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
}

int interactive_run(const struct attach *a, uint64_t stdout_offset, struct error *err)
{
    _cleanup_free_ struct interactive *s = calloc(1, sizeof(*s));
    _cleanup_close_ int out_fd = open_output();
    int status;

    if (s == NULL || out_fd < 0) {
        return error_set(err, ENOMEM, "out of memory");
    }
    s->a = a;
    s->out_fd = out_fd;
    s->tty.fd = STDIN_FILENO;
    s->watch_input = a->forward_input;
    live_init(&s->live, a->cli->rest, a->session_id, stdout_offset, &interactive_sink, s);
    s->live.patience_ms = PATIENCE_MS;
    live_resize(&s->live, tty_get_size());
    status = watch_signals(s, err);
    if (status == 0 && a->forward_input && isatty(STDIN_FILENO) == 1) {
        s->escape = ESCAPE_LINE;
        status = tty_set_raw(&s->tty, err);
    }
    if (status == 0) {
        status = run(s, err);
    }
    tty_restore(&s->tty);
    live_done(&s->live);
    return status;
}
