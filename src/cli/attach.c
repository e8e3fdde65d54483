#include "cli/attach.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include <sys/signalfd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/follow.h"
#include "cli/rest.h"

#define INPUT_CHUNK      65536U
#define INPUT_PAUSE_MS   200
#define INPUT_LOST_MS    60000
#define CONTROL_LIMIT_MS 15000

enum input_state {
    INPUT_NONE,    /* not forwarded, or finished */
    INPUT_READING, /* our standard input is watched */
    INPUT_SENDING, /* one chunk is on its way */
    INPUT_WAITING  /* the same chunk goes again at resend_at_ms */
};

struct input {
    enum input_state state;
    uint64_t offset; /* accepted by the command */
    size_t n;        /* bytes in `chunk`; 0: end of file */
    int64_t resend_at_ms;
    int64_t lost_since_ms;
    char path[REST_REQUEST_SIZE];
    struct rest_request request;
    struct rest_transfer transfer;
    uint8_t chunk[INPUT_CHUNK];
};

struct control {
    bool busy;
    json_t *body;
    char path[REST_REQUEST_SIZE];
    struct rest_request request;
    struct rest_transfer transfer;
};

struct session {
    const struct attach *a;
    struct rest *rest;
    struct follow follow;
    struct input input;
    struct control control;
    int first_signal; /* that we were sent; 0: none */
    int signal_count;
    int pending_signal; /* to be sent to the command when the control call is free */
    bool pending_kill;
};

int attach_take_signals(struct error *err)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t set;
    int fd;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    if (sigaction(SIGPIPE, &ignore, NULL) < 0 || sigprocmask(SIG_BLOCK, &set, NULL) < 0) {
        return error_set(err, errno, "cannot set up signals: %s", strerror(errno));
    }
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd >= 0 ? fd : error_set(err, errno, "cannot set up signals: %s", strerror(errno));
}

int attach_read_signal(int signal_fd)
{
    struct signalfd_siginfo info;

    return read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info) ? (int)info.ssi_signo : 0;
}

/* Returns false at the third signal: leave now. */
static bool take_signal(struct session *s)
{
    int number = attach_read_signal(s->a->signal_fd);

    if (number == 0) {
        return true;
    }
    s->signal_count++;
    if (s->first_signal == 0) {
        s->first_signal = number;
    }
    if (s->signal_count == 1) {
        s->pending_signal = number;
    } else {
        s->pending_kill = true;
    }
    return s->signal_count < 3;
}

/* Writes in pieces that a ready pipe takes without blocking, so that signals are seen while the
 * reader of our output is stuck. -EINTR after a second signal. */
static int on_output(void *arg, enum follow_stream stream, struct span bytes)
{
    struct session *s = arg;
    int out = stream == FOLLOW_STDOUT ? STDOUT_FILENO : STDERR_FILENO;

    while (bytes.n > 0) {
        struct pollfd fds[2] = {{.fd = out, .events = POLLOUT},
                                {.fd = s->a->signal_fd, .events = POLLIN}};
        struct span piece = span_head(bytes, PIPE_BUF);
        ssize_t n;

        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            return -errno;
        }
        if (fds[1].revents != 0) {
            (void)take_signal(s);
            if (s->signal_count >= 2) {
                return -EINTR;
            }
        }
        if (fds[0].revents == 0) {
            continue;
        }
        n = write(out, piece.p, piece.n);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -errno;
        }
        bytes = span_skip(bytes, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

static void on_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    (void)arg;
    cli_note("space: %" PRIu64 " bytes of %s were dropped (the session's spool is bounded)", bytes,
             stream == FOLLOW_STDOUT ? "stdout" : "stderr");
}

static const struct follow_sink attach_sink = {on_output, on_gap};

/* Sends the waiting signal or kill, one at a time. */
static void step_control(struct session *s)
{
    struct control *c = &s->control;
    const char *verb = s->pending_kill ? "kill" : "signal";

    if (c->busy && c->transfer.done) {
        rest_finish(s->rest, &c->transfer); /* a refusal means that the process has ended */
        json_decref(TAKE(c->body));
        c->busy = false;
    }
    if (c->busy || (s->pending_signal == 0 && !s->pending_kill)) {
        return;
    }
    (void)snprintf(c->path, sizeof(c->path), "/v1/sandboxes/%s/processes/%s/%s", s->a->sandbox_id,
                   s->a->process_id, verb);
    if (!s->pending_kill) {
        char name[16];

        (void)snprintf(name, sizeof(name), "SIG%s", sigabbrev_np(s->pending_signal));
        c->body = json_pack("{s:s}", "signal", name);
    } else {
        c->body = json_object();
    }
    s->pending_signal = 0;
    s->pending_kill = false;
    c->request = (struct rest_request){.method = "POST",
                                       .path = c->path,
                                       .json = c->body,
                                       .idempotent = true,
                                       .timeout_ms = CONTROL_LIMIT_MS};
    c->busy = rest_start(s->rest, &c->transfer, &c->request, NULL) == 0;
}

static void send_input(struct session *s)
{
    struct input *in = &s->input;

    (void)snprintf(in->path, sizeof(in->path),
                   "/v1/sandboxes/%s/processes/%s/stdin?offset=%" PRIu64 "%s", s->a->sandbox_id,
                   s->a->process_id, in->offset, in->n == 0 ? "&eof=true" : "");
    in->request = (struct rest_request){
        .method = "POST", .path = in->path, .raw = span_make(in->chunk, in->n)};
    in->state =
        rest_start(s->rest, &in->transfer, &in->request, NULL) == 0 ? INPUT_SENDING : INPUT_NONE;
}

static void read_input(struct session *s)
{
    struct input *in = &s->input;
    ssize_t n = read(STDIN_FILENO, in->chunk, sizeof(in->chunk));

    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    in->n = n > 0 ? (size_t)n : 0;
    in->lost_since_ms = 0;
    send_input(s);
}

/* The command has taken bytes up to `accepted`: what of the chunk is left goes again. */
static void accept_input(struct session *s, uint64_t accepted)
{
    struct input *in = &s->input;
    size_t taken;

    if (in->n == 0) {
        in->state = INPUT_NONE;
        return;
    }
    taken = accepted > in->offset ? (size_t)(accepted - in->offset) : 0;
    taken = taken < in->n ? taken : in->n;
    memmove(in->chunk, &in->chunk[taken], in->n - taken);
    in->n -= taken;
    in->offset += taken;
    in->state = in->n == 0 ? INPUT_READING : INPUT_WAITING;
    in->resend_at_ms = clock_monotonic_ms() + (taken > 0 ? 0 : INPUT_PAUSE_MS);
}

static uint64_t accepted_offset(const struct input *in)
{
    json_t *answer = json_loadb((const char *)in->transfer.body.p, in->transfer.body.n, 0, NULL);
    const json_t *offset = json_object_get(answer, "offset");
    uint64_t accepted =
        json_is_integer(offset) ? (uint64_t)json_integer_value(offset) : in->offset + in->n;

    json_decref(answer);
    return accepted;
}

static void finish_input_call(struct session *s, int64_t now_ms)
{
    struct input *in = &s->input;
    struct error why = {0};
    int r = rest_result(s->rest, &in->transfer, &why);
    bool again = r == -ENOTCONN || (r < 0 && error_code_is_retryable(why.code));
    uint64_t accepted = r == 0 ? accepted_offset(in) : 0;

    rest_finish(s->rest, &in->transfer);
    if (r == 0) {
        in->lost_since_ms = 0;
        accept_input(s, accepted);
        return;
    }
    if (in->lost_since_ms == 0) {
        in->lost_since_ms = now_ms;
    }
    if (again && now_ms - in->lost_since_ms < INPUT_LOST_MS) {
        in->state = INPUT_WAITING;
        in->resend_at_ms = now_ms + INPUT_PAUSE_MS;
        return;
    }
    in->state = INPUT_NONE; /* the command closed its input, or has ended */
}

static void step_input(struct session *s, int64_t now_ms)
{
    if (s->input.state == INPUT_SENDING && s->input.transfer.done) {
        finish_input_call(s, now_ms);
    }
    if (s->input.state == INPUT_WAITING && now_ms >= s->input.resend_at_ms) {
        send_input(s);
    }
}

static int wait_ms(const struct session *s, int64_t now_ms)
{
    int wait = follow_wait_ms(&s->follow, now_ms);

    if (s->input.state == INPUT_WAITING) {
        int64_t left = s->input.resend_at_ms - now_ms;

        left = left > 0 ? left : 0;
        wait = wait < 0 || left < wait ? (int)left : wait;
    }
    return wait;
}

/* Kills the command because nobody reads its output any more. */
static void kill_now(struct session *s)
{
    int64_t end = clock_monotonic_ms() + CONTROL_LIMIT_MS;

    s->pending_kill = true;
    do {
        step_control(s);
        (void)rest_poll(s->rest, NULL, 0, 100);
    } while ((s->control.busy || s->pending_kill) && clock_monotonic_ms() < end);
}

static int final_status(struct session *s, struct error *err)
{
    char note[FOLLOW_NOTE_SIZE];

    if (s->first_signal != 0) {
        return 128 + s->first_signal;
    }
    if (s->follow.end == FOLLOW_END_LOST) {
        return error_set(err, ESRCH, "the process was lost: %s", s->follow.lost_reason);
    }
    follow_exit_note(&s->follow, s->a->limit_s, note);
    if (note[0] != '\0') {
        cli_note("%s", note);
    }
    return follow_exit_status(&s->follow);
}

static int session_loop(struct session *s, struct error *err)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = s->a->signal_fd, .events = POLLIN},
                                {.fd = STDIN_FILENO, .events = POLLIN}};
        unsigned int count;
        int64_t now_ms = clock_monotonic_ms();
        int r = follow_step(&s->follow, now_ms, err);

        if (r == -EPIPE || r == -EINTR) {
            kill_now(s);
            return 128 + (r == -EPIPE ? SIGPIPE : s->first_signal);
        }
        if (r != 0) {
            return r < 0 ? r : final_status(s, err);
        }
        step_input(s, now_ms);
        step_control(s);
        count = s->input.state == INPUT_READING ? 2 : 1;
        if (rest_poll(s->rest, fds, count, wait_ms(s, now_ms)) == 0) {
            continue;
        }
        if (fds[0].revents != 0 && !take_signal(s)) {
            return 128 + s->first_signal;
        }
        if (count == 2 && fds[1].revents != 0) {
            read_input(s);
        }
    }
}

int attach_run(const struct attach *a, struct error *err)
{
    _cleanup_free_ struct session *s = calloc(1, sizeof(*s));
    int status;

    if (s == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    s->a = a;
    s->rest = a->cli->rest;
    s->input.state = a->forward_input ? INPUT_READING : INPUT_NONE;
    s->input.offset = a->input_offset;
    follow_init(&s->follow, s->rest, a->session_id, a->tail_bytes, &attach_sink, s);
    status = session_loop(s, err);
    if (s->input.state == INPUT_SENDING) {
        rest_finish(s->rest, &s->input.transfer);
    }
    if (s->control.busy) {
        rest_finish(s->rest, &s->control.transfer);
    }
    json_decref(s->control.body);
    follow_done(&s->follow);
    return status;
}
