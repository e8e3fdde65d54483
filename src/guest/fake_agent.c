/* fake-agent: a lying agent for the tests of the host's end.
 *
 * It speaks the protocol well enough to be believed, and at one point misbehaves in the way that
 * its mode names. What it does right: WELCOME, no processes, identity confirmed, every START
 * answered by STARTED, five bytes of output and EXITED 0, SIGNAL and the rest by RESULT 0. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "base/fd.h"
#include "base/reader.h"
#include "wire/agent_process.h"

#define BYTE_PAUSE_US 100000
#define BUSY_US       1000000
#define WINDOW_FRAMES 40 /* of 32 KiB: 1.25 MiB, five windows */

struct fake;

struct mode {
    const char *name;
    const char *help;
    uint8_t at;   /* the frame from the host that sets it off */
    bool instead; /* the usual answer is not given */
    void (*act)(struct fake *f, const struct agent_frame *cause);
};

struct fake {
    int fd;
    const struct mode *mode;
    struct agent_reader reader;
    bool failed; /* the host went away */
};

static void send_span(struct fake *f, struct span s)
{
    if (!f->failed && fd_write_all(f->fd, s) < 0) {
        f->failed = true;
    }
}

static void send_buf(struct fake *f, const struct buf *b)
{
    send_span(f, buf_span(b));
}

static void send_welcome(struct fake *f, const struct agent_frame *cause, uint8_t spoil)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_welcome m = {.version = AGENT_VERSION, .boot_id = {1, 2, 3}};
    struct agent_hello hello;

    if (agent_hello_parse(cause, &hello) < 0) {
        return;
    }
    memcpy(m.nonce, hello.nonce, sizeof(m.nonce));
    m.nonce[5] ^= spoil;
    agent_welcome_format(&b, &m);
    agent_process_end_format(&b, 0);
    send_buf(f, &b);
}

static void send_output(struct fake *f, uint32_t channel, uint64_t offset, struct span bytes)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_output m = {.stream = AGENT_STDOUT, .offset = offset, .bytes = bytes};

    agent_output_format(&b, channel, &m);
    send_buf(f, &b);
}

static void send_started(struct fake *f, uint32_t channel)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    agent_started_format(&b, channel, &(struct agent_started){.pid = 100 + channel});
    send_buf(f, &b);
}

static void send_exited(struct fake *f, uint32_t channel, uint64_t stdout_end)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_exited m = {.kind = AGENT_EXIT_CODE, .stdout_end = stdout_end, .duration_ns = 1};

    agent_exited_format(&b, channel, &m);
    send_buf(f, &b);
}

static void send_identity_ok(struct fake *f,
                             const struct agent_frame *cause,
                             uint32_t done,
                             uint64_t epoch_error)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_identity_ok m = {.done = done};
    struct agent_identity identity;

    if (agent_identity_parse(cause, &identity) < 0) {
        return;
    }
    m.id = identity.id;
    m.epoch = identity.epoch + epoch_error;
    m.errnum = done == AGENT_IDENTITY_ALL ? 0 : EIO;
    agent_identity_ok_format(&b, &m);
    send_buf(f, &b);
}

static void send_id(struct fake *f, uint8_t type, uint32_t id)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    agent_id_format(&b, type, 0, id);
    send_buf(f, &b);
}

static void send_head(struct fake *f, size_t length, uint8_t type)
{
    uint8_t head[AGENT_HEAD_BYTES];
    struct agent_frame frame = {.type = type};

    frame.payload.n = length;
    agent_head_format(head, &frame);
    send_span(f, span_make(head, sizeof(head)));
}

/* ---- the modes ---- */

static void act_nothing(struct fake *f, const struct agent_frame *cause)
{
    (void)f;
    (void)cause;
}

static void act_wrong_nonce(struct fake *f, const struct agent_frame *cause)
{
    send_welcome(f, cause, 1);
}

static void act_close(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    f->failed = true;
}

static void act_long_head(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    send_head(f, 0xfffffff0U, AGENT_PONG);
}

static void act_endless_frame(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    send_head(f, AGENT_PAYLOAD_MAX, AGENT_OUTPUT);
    send_span(f, span_of_str("and then nothing"));
}

static void act_slow_frame(struct fake *f, const struct agent_frame *cause)
{
    const uint8_t zero = 0;

    (void)cause;
    send_head(f, AGENT_PAYLOAD_MAX, AGENT_OUTPUT);
    while (!f->failed) {
        send_span(f, span_make(&zero, 1));
        (void)usleep(BYTE_PAUSE_US);
    }
}

static void act_bad_check(struct fake *f, const struct agent_frame *cause)
{
    static const uint8_t bytes[AGENT_HEAD_BYTES + 5] = {4, 0, 0, 0, AGENT_PONG, 0, 1, 2};

    (void)cause;
    send_span(f, span_make(bytes, sizeof(bytes)));
}

static void act_bad_tail(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)cause;
    agent_id_format(&b, AGENT_PONG, 0, 1);
    b.p[b.n - 1] = 0;
    send_buf(f, &b);
}

static void act_short_payload(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_frame frame = {.type = AGENT_STARTED, .channel = cause->channel};

    frame.payload = span_of_str("ab");
    agent_frame_format(&b, &frame);
    send_buf(f, &b);
}

static void act_host_type(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    send_id(f, AGENT_POWEROFF, 1);
}

static void act_unknown_channel(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    send_output(f, 4000000000U, 0, span_of_str("who?"));
}

static void act_unknown_process(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_process m = {.pid = 7};
    struct agent_welcome welcome = {.version = AGENT_VERSION, .flags = AGENT_WELCOME_PROCESSES};
    struct agent_hello hello;

    if (agent_hello_parse(cause, &hello) < 0) {
        return;
    }
    memcpy(welcome.nonce, hello.nonce, sizeof(welcome.nonce));
    agent_welcome_format(&b, &welcome);
    agent_process_format(&b, 4000000000U, &m);
    agent_process_end_format(&b, 1);
    send_buf(f, &b);
}

static void act_over_window(struct fake *f, const struct agent_frame *cause)
{
    static const uint8_t zeros[AGENT_OUTPUT_DATA_MAX];
    uint64_t offset = 0;

    send_started(f, cause->channel);
    for (int i = 0; i < WINDOW_FRAMES; i++) {
        send_output(f, cause->channel, offset, span_make(zeros, sizeof(zeros)));
        offset += sizeof(zeros);
    }
}

static void act_gap(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_output(f, cause->channel, 0, span_of_str("start"));
    send_output(f, cause->channel, 100, span_of_str("after a gap"));
}

static void act_backwards(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_output(f, cause->channel, 0, span_of_str("start"));
    send_output(f, cause->channel, 2, span_of_str("again"));
}

static void act_early_end(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_exited(f, cause->channel, 1000);
}

static void act_exited_first(struct fake *f, const struct agent_frame *cause)
{
    send_exited(f, cause->channel, 0);
    send_started(f, cause->channel);
}

static void act_two_ends(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_exited(f, cause->channel, 0);
    send_exited(f, cause->channel, 0);
}

static void act_two_starts(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_started(f, cause->channel);
}

static void act_output_after_end(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
    send_exited(f, cause->channel, 0);
    send_output(f, cause->channel, 0, span_of_str("late"));
}

static void act_stdin_beyond(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    send_started(f, cause->channel);
    agent_stdin_ack_format(&b, cause->channel, &(struct agent_stdin_ack){1000000000, false});
    send_buf(f, &b);
}

static void act_started_only(struct fake *f, const struct agent_frame *cause)
{
    send_started(f, cause->channel);
}

static void act_flood_control(struct fake *f, const struct agent_frame *cause)
{
    (void)cause;
    for (uint32_t id = 1; !f->failed; id++) {
        send_id(f, AGENT_PONG, id);
    }
}

static void act_flood_output(struct fake *f, const struct agent_frame *cause)
{
    uint64_t offset = 0;

    send_started(f, cause->channel);
    while (!f->failed) {
        send_output(f, cause->channel, offset, span_of_str("x"));
        offset++;
    }
}

static void act_flood_garbage(struct fake *f, const struct agent_frame *cause)
{
    uint8_t bytes[4096];
    uint32_t state = 12345;

    (void)cause;
    while (!f->failed) {
        for (size_t i = 0; i < sizeof(bytes); i++) {
            state = state * 1664525U + 1013904223U;
            bytes[i] = (uint8_t)(state >> 24U);
        }
        send_span(f, span_make(bytes, sizeof(bytes)));
    }
}

static void act_unasked_result(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    agent_result_format(&b, cause->channel, &(struct agent_result){4000000000U, 0});
    send_buf(f, &b);
}

static void act_part_identity(struct fake *f, const struct agent_frame *cause)
{
    send_identity_ok(f, cause, AGENT_IDENTITY_ALL & ~AGENT_IDENTITY_ENTROPY, 0);
}

static void act_wrong_epoch(struct fake *f, const struct agent_frame *cause)
{
    send_identity_ok(f, cause, AGENT_IDENTITY_ALL, 1);
}

static void act_speak_in_silence(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint32_t id;

    if (agent_id_parse(cause, &id) < 0) {
        return;
    }
    agent_result_format(&b, 0, &(struct agent_result){id, 0});
    send_buf(f, &b);
    send_id(f, AGENT_PONG, 1);
}

static void act_busy(struct fake *f, const struct agent_frame *cause)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint32_t id;

    if (agent_id_parse(cause, &id) < 0) {
        return;
    }
    (void)usleep(BUSY_US);
    agent_result_format(&b, 0, &(struct agent_result){id, 0});
    send_buf(f, &b);
}

static const struct mode modes[] = {
    {"good", "no misbehaviour", 0, false, act_nothing},
    {"no-welcome", "never answers HELLO", AGENT_HELLO, true, act_nothing},
    {"wrong-nonce", "answers HELLO with another nonce", AGENT_HELLO, true, act_wrong_nonce},
    {"close", "closes the connection at HELLO", AGENT_HELLO, true, act_close},
    {"garbage", "answers HELLO with endless random bytes", AGENT_HELLO, true, act_flood_garbage},
    {"long-head", "a head of 4 GiB after WELCOME", AGENT_HELLO, false, act_long_head},
    {"endless-frame", "a frame that stops in the middle", AGENT_HELLO, false, act_endless_frame},
    {"slow-frame", "a frame of one byte every 100 ms", AGENT_HELLO, false, act_slow_frame},
    {"bad-check", "a head with a wrong check", AGENT_HELLO, false, act_bad_check},
    {"bad-tail", "a frame with a wrong tail", AGENT_HELLO, false, act_bad_tail},
    {"host-type", "a frame of a type only the host may send", AGENT_HELLO, false, act_host_type},
    {"unknown-process", "PROCESS for a channel never started", AGENT_HELLO, true,
     act_unknown_process},
    {"flood-control", "endless PONGs after WELCOME", AGENT_HELLO, false, act_flood_control},
    {"no-identity", "never answers IDENTITY", AGENT_IDENTITY, true, act_nothing},
    {"part-identity", "IDENTITY_OK without entropy", AGENT_IDENTITY, true, act_part_identity},
    {"wrong-epoch", "IDENTITY_OK of another epoch", AGENT_IDENTITY, true, act_wrong_epoch},
    {"no-started", "never answers START", AGENT_START, true, act_nothing},
    {"never-ends", "STARTED and then nothing", AGENT_START, true, act_started_only},
    {"short-payload", "STARTED with half its payload", AGENT_START, true, act_short_payload},
    {"unknown-channel", "OUTPUT for a channel never started", AGENT_START, true,
     act_unknown_channel},
    {"over-window", "OUTPUT of five windows without a pause", AGENT_START, true, act_over_window},
    {"gap", "OUTPUT that leaves bytes out", AGENT_START, true, act_gap},
    {"backwards", "OUTPUT that repeats bytes", AGENT_START, true, act_backwards},
    {"early-end", "EXITED with more output than was sent", AGENT_START, true, act_early_end},
    {"exited-first", "EXITED before STARTED", AGENT_START, true, act_exited_first},
    {"two-ends", "EXITED twice", AGENT_START, true, act_two_ends},
    {"two-starts", "STARTED twice", AGENT_START, true, act_two_starts},
    {"late-output", "OUTPUT after EXITED", AGENT_START, true, act_output_after_end},
    {"stdin-beyond", "STDIN_ACK beyond what was sent", AGENT_START, true, act_stdin_beyond},
    {"flood-output", "endless OUTPUT of one byte each", AGENT_START, true, act_flood_output},
    {"unasked-result", "RESULT for an id nobody sent", AGENT_START, true, act_unasked_result},
    {"speak-in-silence", "a frame after SILENCE's RESULT", AGENT_SILENCE, true,
     act_speak_in_silence},
    {"no-silence", "never answers SILENCE", AGENT_SILENCE, true, act_nothing},
    {"busy", "reads nothing for a second at SILENCE, then answers", AGENT_SILENCE, true, act_busy},
};

/* ---- what it does right ---- */

static void answer_start(struct fake *f, const struct agent_frame *frame)
{
    if ((frame->flags & AGENT_START_MORE) != 0) {
        return;
    }
    send_started(f, frame->channel);
    send_output(f, frame->channel, 0, span_of_str("fake\n"));
    send_exited(f, frame->channel, 5);
}

static void answer_result(struct fake *f, const struct agent_frame *frame)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct reader r = reader_make(frame->payload);

    agent_result_format(&b, frame->channel, &(struct agent_result){reader_get_u32(&r), 0});
    send_buf(f, &b);
}

static void answer(struct fake *f, const struct agent_frame *frame)
{
    struct reader r = reader_make(frame->payload);

    if (frame->type == AGENT_HELLO) {
        send_welcome(f, frame, 0);
    } else if (frame->type == AGENT_IDENTITY) {
        send_identity_ok(f, frame, AGENT_IDENTITY_ALL, 0);
    } else if (frame->type == AGENT_START) {
        answer_start(f, frame);
    } else if (frame->type == AGENT_PING) {
        send_id(f, AGENT_PONG, reader_get_u32(&r));
    } else if (frame->type == AGENT_SIGNAL || frame->type == AGENT_SILENCE ||
               frame->type == AGENT_WAKE || frame->type == AGENT_POWEROFF ||
               frame->type == AGENT_RESET || frame->type == AGENT_WRITE_FILE) {
        answer_result(f, frame);
    }
}

static void on_frame(struct fake *f, const struct agent_frame *frame)
{
    bool now = frame->type == f->mode->at;

    if (!now || !f->mode->instead) {
        answer(f, frame);
    }
    if (now) {
        f->mode->act(f, frame);
    }
}

static int serve(int fd, const struct mode *mode)
{
    struct fake f = {.fd = fd, .mode = mode};
    int r = agent_reader_init(&f.reader, AGENT_HELLO, true);

    while (r == 0 && !f.failed) {
        struct agent_frame frame;
        size_t room;
        uint8_t *to = agent_reader_space(&f.reader, &room);
        ssize_t n = read(fd, to, room);

        if (n <= 0) {
            break;
        }
        agent_reader_commit(&f.reader, (size_t)n);
        while (!f.failed && agent_reader_next(&f.reader, &frame) > 0) {
            on_frame(&f, &frame);
        }
    }
    agent_reader_done(&f.reader);
    return r;
}

static int open_socket(const char *path, bool connecting)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r;

    if (fd < 0 ||
        span_copy_str(span_of_str(path), address.sun_path, sizeof(address.sun_path)) < 0) {
        return -EINVAL;
    }
    if (connecting) {
        r = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    } else {
        (void)unlink(path);
        r = bind(fd, (const struct sockaddr *)&address, sizeof(address));
        if (r == 0) {
            r = listen(fd, 4);
        }
    }
    return r < 0 ? -errno : TAKE_FD(fd);
}

static void print_help(void)
{
    (void)printf("usage: fake-agent [--connect] MODE SOCKET\n"
                 "Listens on a Unix socket like a guest's agent port (with --connect: connects to\n"
                 "one), serves one connection after the other, and misbehaves once. Modes:\n");
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        (void)printf("  %-18s%s\n", modes[i].name, modes[i].help);
    }
}

static const struct mode *find_mode(const char *name)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(modes[i].name, name) == 0) {
            return &modes[i];
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    bool connecting = argc == 4 && strcmp(argv[1], "--connect") == 0;
    const struct mode *mode = argc >= 3 ? find_mode(argv[argc - 2]) : NULL;
    int fd;

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_help();
        return 0;
    }
    if (mode == NULL || (argc != 3 && !connecting)) {
        (void)fprintf(stderr, "fake-agent: see --help\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    fd = open_socket(argv[argc - 1], connecting);
    if (fd < 0) {
        (void)fprintf(stderr, "fake-agent: %s: %s\n", argv[argc - 1], strerror(-fd));
        return 1;
    }
    while (!connecting) {
        _cleanup_close_ int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

        if (peer >= 0 && serve(peer, mode) < 0) {
            break;
        }
    }
    return connecting && serve(fd, mode) == 0 ? 0 : 1;
}
