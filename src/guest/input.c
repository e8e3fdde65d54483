#include "guest/input.h"

#include <errno.h>

#include <sys/socket.h>

#include "guest/agent.h"
#include "guest/channel.h"
#include "guest/connection.h"

/* Tell the host at the latest after so many bytes, and whenever nothing waits. */
#define ACK_STEP_BYTES   16384U
#define TTY_END_OF_INPUT 0x04
#define ROOM_FIRST       4096U

void input_init(struct input *in, int epoll_fd)
{
    *in = (struct input){.source = {.fd = -1}, .epoll_fd = epoll_fd};
}

static void input_drop(struct input *in)
{
    free(in->bytes);
    in->bytes = NULL;
    in->room = 0;
    in->first = 0;
    in->waiting = 0;
}

void input_close(struct input *in)
{
    source_close(&in->source);
    in->watched = false;
    in->is_held = false;
    input_drop(in);
}

bool input_is_closed(const struct input *in)
{
    return in->source.fd < 0 && !in->is_held;
}

/* Writes what it can of s. Returns the bytes written; closes the input when nobody reads. */
static size_t input_write(struct input *in, struct span s)
{
    size_t done = 0;

    while (in->source.fd >= 0 && done < s.n) {
        ssize_t n = write(in->source.fd, &s.p[done], s.n - done);

        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                input_close(in);
            }
            break;
        }
        done += (size_t)n;
    }
    in->consumed += done;
    return done;
}

static void input_finish(struct input *in)
{
    const uint8_t end = TTY_END_OF_INPUT;

    if (in->source.fd < 0 || !in->end || in->waiting > 0) {
        return;
    }
    if (in->kind != INPUT_TTY) {
        if (in->kind == INPUT_SOCKET) {
            (void)shutdown(in->source.fd, SHUT_WR); /* the other direction holds it open */
        }
        input_close(in);
        return;
    }
    /* A terminal stays open; when it is so full that this does not fit, it is lost. */
    if (write(in->source.fd, &end, 1) == 1) {
        in->end = false;
        in->end_acknowledged = false;
    }
}

static void input_flush(struct input *in)
{
    while (in->source.fd >= 0 && in->waiting > 0) {
        size_t chunk = in->room - in->first;
        size_t n;

        chunk = chunk < in->waiting ? chunk : in->waiting;
        n = input_write(in, span_make(&in->bytes[in->first], chunk));
        if (in->bytes == NULL) {
            return;
        }
        in->first = (in->first + n) % in->room;
        in->waiting -= n;
        if (n < chunk) {
            return;
        }
    }
    if (in->waiting == 0) {
        input_drop(in);
    }
    input_finish(in);
}

static void on_writable(struct source *s, uint32_t events)
{
    struct input *in = source_owner(s, struct input, source);
    struct channel *c = source_owner(in, struct channel, input);

    (void)events;
    input_flush(in);
    agent_tell_input(c);
    connection_on_input(c);
}

static int input_watch(struct input *in)
{
    int r;

    if (in->watched || in->source.fd < 0) {
        return 0;
    }
    in->source.on_ready = on_writable;
    r = source_open(&in->source, in->epoll_fd, in->source.fd, EPOLLOUT | EPOLLET);
    in->watched = r == 0;
    if (r < 0) {
        input_drop(in);
    }
    return r;
}

void input_open(struct input *in, int fd, enum input_kind kind)
{
    in->source.fd = fd;
    in->kind = (uint8_t)kind;
    in->is_held = false;
    input_flush(in);
    if (in->waiting > 0 && input_watch(in) < 0) {
        input_close(in);
    }
}

void input_hold(struct input *in)
{
    in->is_held = true;
}

/* Makes the ring large enough for `more` bytes behind what waits: most processes take their input
 * at once, and many that do not must not cost a window each. */
static int input_grow(struct input *in, size_t more)
{
    size_t room = in->room == 0 ? ROOM_FIRST : in->room;
    size_t head = in->room - in->first;
    uint8_t *bytes;

    while (room < in->waiting + more) {
        room *= 2;
    }
    if (room == in->room) {
        return 0;
    }
    bytes = malloc(room);
    if (bytes == NULL) {
        return -ENOMEM;
    }
    if (in->waiting > 0) {
        head = head < in->waiting ? head : in->waiting;
        memcpy(bytes, &in->bytes[in->first], head);
        memcpy(&bytes[head], in->bytes, in->waiting - head);
    }
    free(in->bytes);
    in->bytes = bytes;
    in->room = room;
    in->first = 0;
    return 0;
}

static int input_keep(struct input *in, struct span s)
{
    size_t at;

    if (s.n == 0) {
        return 0;
    }
    if (input_grow(in, s.n) < 0) {
        return -ENOMEM;
    }
    at = (in->first + in->waiting) % in->room;
    for (size_t done = 0; done < s.n;) {
        size_t n = in->room - at;

        n = n < s.n - done ? n : s.n - done;
        memcpy(&in->bytes[at], &s.p[done], n);
        at = (at + n) % in->room;
        done += n;
    }
    in->waiting += s.n;
    return input_watch(in);
}

int input_put(struct input *in, const struct agent_stdin *m)
{
    uint64_t received = in->consumed + in->waiting;
    struct span s = m->bytes;

    if (input_is_closed(in)) {
        return 0; /* the rest is discarded; the acknowledgement says so */
    }
    if (m->offset > received) {
        return -EBADMSG;
    }
    s = span_skip(s, (size_t)(received - m->offset)); /* what it has already */
    if (s.n > AGENT_STDIN_WINDOW - in->waiting) {
        return -EMSGSIZE;
    }
    if (in->waiting == 0) {
        s = span_skip(s, input_write(in, s));
    }
    if (input_is_closed(in)) {
        return 0;
    }
    if (input_keep(in, s) < 0) {
        return -ENOMEM;
    }
    in->end = in->end || m->end;
    input_finish(in);
    return 0;
}

bool input_take_ack(struct input *in, struct agent_stdin_ack *ret)
{
    bool closed = input_is_closed(in);

    if (in->consumed - in->acknowledged < ACK_STEP_BYTES &&
        (in->waiting > 0 || in->consumed == in->acknowledged) &&
        (!closed || in->end_acknowledged)) {
        return false;
    }
    in->acknowledged = in->consumed;
    in->end_acknowledged = closed;
    *ret = (struct agent_stdin_ack){in->consumed, closed};
    return true;
}

void input_rewind(struct input *in)
{
    input_drop(in);
    in->end = false;
    in->acknowledged = in->consumed;
    in->end_acknowledged = false;
}
