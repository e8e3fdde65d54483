#include "guest/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include <sys/ioctl.h>

#include "base/clock.h"
#include "guest/agent.h"

#define STREAM_EVENTS   (EPOLLIN | EPOLLRDHUP | EPOLLET) /* a socket's end is its own event */
#define BULK_PIPE_BYTES 262144
#define BULK_BYTES      49152U /* or */
#define BULK_READS      8U     /* in so many nanoseconds: */
#define BULK_TIME_NS    5000000
#define REST_FIRST_NS   200000
#define REST_MIN_NS     50000
#define REST_MAX_NS     500000
/* A pipe found fuller than this was left alone too long, one found emptier not long enough. */
#define BURST_HIGH 196608U
#define BURST_LOW  98304U
/* Rests without a byte after which a stream is quiet again. */
#define MISSES_MAX 2U

void stream_init(struct stream *s, struct channel *c, uint8_t number)
{
    *s = (struct stream){.source = {.fd = -1}, .channel = c, .number = number};
    list_init(&s->in_active);
    list_init(&s->in_resting);
    kept_init(&s->kept);
}

void stream_done(struct stream *s)
{
    list_remove(&s->in_active);
    list_remove(&s->in_resting);
    source_close(&s->source);
    kept_clear(&s->kept, &s->channel->agent->pool);
}

void stream_activate(struct stream *s)
{
    if (list_is_empty(&s->in_active)) {
        list_append(&s->channel->agent->active, &s->in_active);
    }
}

/* Before all others, once. */
static void activate_first(struct stream *s)
{
    list_remove(&s->in_active);
    list_append(s->channel->agent->active.next, &s->in_active);
}

static void on_stream(struct source *s, uint32_t events)
{
    struct stream *stream = source_owner(s, struct stream, source);

    stream->readable = true;
    stream->hung_up = stream->hung_up || (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0;
    if (stream->is_tty && stream->channel->agent->key_taken) {
        activate_first(stream); /* the echo, for all we know */
    } else {
        stream_activate(stream);
    }
}

int stream_open(struct stream *s, int fd, bool is_tty)
{
    s->is_tty = is_tty;
    s->source.on_ready = on_stream;
    return source_open(&s->source, s->channel->agent->epoll_fd, fd, STREAM_EVENTS);
}

int stream_put(struct stream *s, struct span bytes)
{
    struct agent *a = s->channel->agent;

    while (bytes.n > 0) {
        size_t room;
        uint8_t *to = kept_reserve(&s->kept, &a->pool, &room);

        if (to == NULL) {
            return -ENOMEM;
        }
        room = room < bytes.n ? room : bytes.n;
        memcpy(to, bytes.p, room);
        kept_commit(&s->kept, &a->pool, room, true);
        bytes = span_skip(bytes, room);
    }
    stream_activate(s);
    return 0;
}

void stream_note_owed(struct stream *s)
{
    int waiting = 0;

    if (s->source.fd >= 0 && ioctl(s->source.fd, FIONREAD, &waiting) == 0 && waiting > 0) {
        s->owed = (uint64_t)waiting;
    }
}

bool stream_is_ending(struct stream *s)
{
    struct pollfd look = {.fd = s->source.fd};

    if (s->source.fd < 0 || poll(&look, 1, 0) != 1 || (look.revents & (POLLHUP | POLLERR)) == 0) {
        return false;
    }
    s->readable = true;
    stream_activate(s);
    return true;
}

static void begin_rest(struct stream *s)
{
    struct agent *a = s->channel->agent;

    s->burst = 0;
    s->readable = false;
    s->rested_at_ns = clock_monotonic_ns() + s->rest_ns;
    if (list_is_empty(&s->in_resting)) {
        list_append(&a->resting, &s->in_resting);
    }
}

static void begin_bulk(struct stream *s)
{
    if (s->is_tty || !source_pause(&s->source, s->channel->agent->epoll_fd)) {
        return;
    }
    s->is_bulk = true;
    s->misses = 0;
    s->rest_ns = REST_FIRST_NS;
}

/* The agent comes before the process, so it may see each of the process' writes alone: what tells
 * bulk is not their size but how much, or how often something, comes in a short time. */
static void notice_bulk(struct stream *s, size_t n)
{
    int64_t now_ns = clock_monotonic_ns();

    if (now_ns - s->counted_from_ns > BULK_TIME_NS) {
        s->counted_from_ns = now_ns;
        s->burst = 0;
        s->reads = 0;
    }
    s->burst += n;
    s->reads++;
    if (s->burst >= BULK_BYTES || s->reads >= BULK_READS) {
        begin_bulk(s);
    }
}

/* Bulk, and the pipe is empty now. */
static void end_burst(struct stream *s)
{
    if (s->burst >= BULK_BYTES && !s->has_large_pipe) {
        s->has_large_pipe = true;
        (void)fcntl(s->source.fd, F_SETPIPE_SZ, BULK_PIPE_BYTES);
    }
    if (s->burst == 0) {
        s->misses++;
    } else {
        s->misses = 0;
        if (s->burst > BURST_HIGH && s->rest_ns > REST_MIN_NS) {
            s->rest_ns /= 2;
        } else if (s->burst < BURST_LOW && s->rest_ns < REST_MAX_NS) {
            s->rest_ns *= 2;
        }
    }
    if (s->misses > MISSES_MAX &&
        source_resume(&s->source, s->channel->agent->epoll_fd, STREAM_EVENTS)) {
        s->is_bulk = false;
        s->readable = false;
        return;
    }
    begin_rest(s);
}

int64_t streams_end_rests(struct agent *a)
{
    int64_t next = INT64_MAX;
    int64_t now_ns;
    struct list *it;
    struct list *following;

    if (list_is_empty(&a->resting)) {
        return INT64_MAX;
    }
    now_ns = clock_monotonic_ns();
    list_foreach(it, following, &a->resting)
    {
        struct stream *s = list_entry(it, struct stream, in_resting);

        if (s->rested_at_ns > now_ns) {
            next = s->rested_at_ns < next ? s->rested_at_ns : next;
            continue;
        }
        list_remove(&s->in_resting);
        s->readable = true;
        stream_activate(s);
    }
    return next;
}

/* End of file: of a pipe when nobody holds it for writing, of a terminal when nobody has it open.
 */
static void close_stream(struct stream *s)
{
    list_remove(&s->in_resting);
    source_close(&s->source);
    s->is_bulk = false;
    s->readable = false;
    s->owed = 0;
    channel_on_stream_end(s->channel, s);
}

static bool is_wanted(const struct stream *s)
{
    return !s->channel->ended && !s->channel->forgotten;
}

static void take_bytes(struct stream *s, size_t n, size_t room)
{
    struct agent *a = s->channel->agent;

    if (s->is_bulk) {
        s->burst += n;
    } else {
        notice_bulk(s, n);
    }
    if (is_wanted(s)) {
        kept_commit(&s->kept, &a->pool, n, s->channel->flowing && agent_may_speak(a));
        s->owed = s->owed > n ? s->owed - n : 0;
        channel_on_stream_bytes(s->channel);
    }
    if (n == room || s->is_tty || s->hung_up) {
        return;
    }
    /* A pipe that gave less is empty now; the next byte or its end makes a new edge. */
    if (s->is_bulk) {
        end_burst(s);
    } else {
        s->readable = false;
    }
}

/* Whether a read that failed may give more later. Where nobody has a terminal open, closing our end
 * would hang up its session's leader, which may be just about to exit: channel_on_exit looks again.
 */
static bool is_empty_for_now(const struct stream *s, int errnum)
{
    return errnum == EAGAIN || (errnum == EIO && s->is_tty && !s->channel->reaped);
}

static void read_once(struct stream *s)
{
    struct agent *a = s->channel->agent;
    size_t room = 0;
    uint8_t *to =
        is_wanted(s) ? kept_reserve(&s->kept, &a->pool, &room) : kept_dustbin(&a->pool, &room);
    ssize_t n;

    s->starved = to == NULL;
    if (to == NULL) {
        /* Full windows are opened by the host; for memory the agent must look again itself. */
        a->memory_short = a->memory_short || s->kept.end - s->kept.start < AGENT_WINDOW;
        return;
    }
    n = read(s->source.fd, to, room);
    if (n > 0) {
        take_bytes(s, (size_t)n, room);
    } else if (n < 0 && errno == EINTR) {
        s->readable = true;
    } else if (n == 0 || !is_empty_for_now(s, errno)) {
        s->failed = n < 0 && !s->is_tty; /* an error, EIO, is how a terminal says it */
        close_stream(s);
    } else if (s->is_bulk) {
        end_burst(s);
    } else {
        s->readable = false;
    }
}

static void tell_end(struct stream *s)
{
    const struct agent_output end = {.stream = s->number, .offset = s->kept.end, .end = true};

    s->tells_end = false;
    agent_output_format(&s->channel->agent->tx, s->channel->number, &end);
}

bool stream_step(struct stream *s)
{
    struct channel *c = s->channel;
    struct agent *a = c->agent;
    bool may_send = c->flowing && !c->forgotten && agent_may_speak(a);

    if (s->readable && s->source.fd >= 0) {
        read_once(s);
    }
    if (may_send && kept_has_unsent(&s->kept) && !a->port.blocked) {
        agent_send(a, kept_frame(&s->kept, c->number, s->number));
        kept_advance(&s->kept);
        channel_send_end(c);
    }
    if (may_send && kept_has_unsent(&s->kept) && !a->port.blocked) {
        return true;
    }
    if (may_send && s->tells_end && !kept_has_unsent(&s->kept)) {
        tell_end(s);
    }
    return s->readable && !s->starved;
}
