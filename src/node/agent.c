#include "node/agent.h"

#include <errno.h>
#include <string.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <event2/event.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent_input.h"
#include "node/agent_private.h"
#include "node/agent_quiet.h"

#define READ_BYTES        (256U * 1024U)
#define OUT_KEEP_BYTES    65536U /* a larger queue gives its memory back when it is empty */
#define CHANNEL_FIRST_MAX 0x3fffffffU
#define HELD_MAX          65536U
#define CONNECT_AGAIN_MS  50

void agent_close_stream(struct agent *agent)
{
    loop_watch_free(TAKE(agent->watch));
    if (agent->fd >= 0) {
        (void)close(TAKE_FD(agent->fd));
    }
    buf_done(&agent->out);
    agent->out = buf_make(0);
    agent->out_start = 0;
    agent->stuck_ms = 0;
    buf_done(&agent->in);
    agent->in = buf_make(0);
    loop_timer_stop(agent->hello_timer);
    if (agent->connect_timer != NULL) {
        loop_timer_stop(agent->connect_timer);
    }
}

void agent_enter(struct agent *agent)
{
    agent->busy++;
}

static void destroy(struct agent *agent)
{
    free(agent->channels);
    buf_done(&agent->held);
    loop_timer_free(agent->connect_timer);
    loop_timer_free(agent->flush_timer);
    loop_timer_free(agent->hello_timer);
    loop_timer_free(agent->deadline_timer);
    loop_timer_free(agent->ack_timer);
    free(agent);
}

bool agent_leave(struct agent *agent)
{
    agent->busy--;
    if (agent->busy == 0 && agent->dying) {
        destroy(agent);
        return false;
    }
    return true;
}

static void cancel_all(struct agent *agent)
{
    agent_end_begin(agent, -ECANCELED);
    agent_cancel_requests(agent);
    agent_cancel_rehearsals(agent);
    agent_detach_channels(agent);
}

static void tell_failure(struct agent *agent)
{
    agent_enter(agent);
    cancel_all(agent);
    if (!agent->dying) {
        agent->callbacks.on_failed(agent->arg, agent, agent->failure, agent->failure_message);
    }
    (void)agent_leave(agent);
}

size_t agent_queued(const struct agent *agent)
{
    return agent->out.n - agent->out_start;
}

static void set_events(struct agent *agent)
{
    loop_watch_set_events(agent->watch,
                          (short)(EV_READ | (agent_queued(agent) > 0 ? EV_WRITE : 0)));
}

/* A guest may be slow, but one that takes nothing at all while more and more waits for it ends. */
static void watch_queue(struct agent *agent, bool moved)
{
    if (agent_queued(agent) <= AGENT_QUEUE_MAX) {
        agent->stuck_ms = 0;
    } else if (moved || agent->stuck_ms == 0) {
        agent->stuck_ms = clock_monotonic_ms();
        agent_watch_deadline(agent, agent->stuck_ms + agent->stuck_wait_ms);
    }
}

static void flush(struct agent *agent)
{
    size_t before = agent_queued(agent);

    if (buf_error(&agent->out) != 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "out of memory for the agent's queue");
        return;
    }
    while (agent_queued(agent) > 0) {
        ssize_t n = send(agent->fd, &agent->out.p[agent->out_start], agent_queued(agent),
                         MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n < 0) {
            agent_fail(agent, AGENT_FAILURE_CLOSED, "the agent's channel is closed: %s",
                       strerror(errno));
            return;
        }
        agent->out_start += (size_t)n;
    }
    if (agent_queued(agent) == 0) {
        agent->out_start = 0;
        if (agent->out.room > OUT_KEEP_BYTES) {
            buf_done(&agent->out);
            agent->out = buf_make(0);
        } else {
            buf_clear(&agent->out);
        }
    }
    watch_queue(agent, agent_queued(agent) < before);
    set_events(agent);
    if (agent_has_input_turn(agent)) {
        agent_schedule_flush(agent); /* which gives the turns */
    }
}

void agent_flush(struct agent *agent)
{
    if (agent->state != AGENT_STATE_FAILED && agent->fd >= 0) {
        loop_timer_stop(agent->flush_timer);
        flush(agent);
    }
}

static void on_flush_timer(void *arg)
{
    struct agent *agent = arg;

    agent_flush(agent);
    if (agent_wake_input(agent) && agent->state == AGENT_STATE_FAILED) {
        tell_failure(agent);
    }
}

void agent_schedule_flush(struct agent *agent)
{
    if (agent->state != AGENT_STATE_FAILED && agent->fd >= 0) {
        loop_timer_start(agent->flush_timer, 0);
    }
}

bool agent_is_open(const struct agent *agent)
{
    return agent->state == AGENT_STATE_READY && !agent->hushed;
}

bool agent_is_hushed(const struct agent *agent)
{
    return agent->state == AGENT_STATE_SILENT ||
           (agent->state == AGENT_STATE_READY && agent->hushed);
}

bool agent_is_stalled(const struct agent *agent)
{
    return agent->state == AGENT_STATE_READY && agent->hushed && agent->quiet_since_ms == 0;
}

bool agent_is_behind(const struct agent *agent)
{
    return agent->state == AGENT_STATE_READY && agent->hushed && !agent->stands_still;
}

struct buf *agent_out_or_held(struct agent *agent)
{
    if (agent_is_open(agent)) {
        agent_schedule_flush(agent);
        return &agent->out;
    }
    return agent->hushed && agent->held.n < HELD_MAX ? &agent->held : NULL;
}

void agent_end_hush(struct agent *agent)
{
    agent->hushed = false;
    buf_put(&agent->out, buf_span(&agent->held));
    if (buf_error(&agent->held) != 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "out of memory for the agent's queue");
    }
    buf_clear(&agent->held);
    agent_wake_channels(agent);
    if (agent->state == AGENT_STATE_READY) {
        agent_resend_requests(agent, false);
        agent_resend_requests(agent, true);
        agent_schedule_flush(agent);
    }
}

bool agent_can_send(const struct agent *agent)
{
    switch (agent->state) {
    case AGENT_STATE_READY:
        return !agent->hushed;
    case AGENT_STATE_HELD:
        break;
    case AGENT_STATE_GREETING:
    case AGENT_STATE_REPORTING:
        return agent->known_silent && !agent->hold;
    case AGENT_STATE_CLOSED:
    case AGENT_STATE_IDLE:
    case AGENT_STATE_SILENT:
    case AGENT_STATE_FAILED:
        break;
    }
    return false;
}

/* Keeps the bytes of a frame that is not complete yet. */
static void keep_rest(struct agent *agent, struct span rest)
{
    if (rest.n == 0) {
        buf_done(&agent->in);
        agent->in = buf_make(0);
        return;
    }
    buf_clear(&agent->in);
    buf_put(&agent->in, rest);
    if (buf_error(&agent->in) != 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "out of memory for the agent's channel");
    }
}

static void on_readable(struct agent *agent)
{
    /* One buffer per turn instead of one per agent; never read before it was written. */
    __attribute__((uninitialized)) uint8_t bytes[READ_BYTES];
    size_t have = agent->in.n;
    size_t used;
    ssize_t n;

    if (have > 0) {
        memcpy(bytes, agent->in.p, have);
    }
    n = recv(agent->fd, &bytes[have], sizeof(bytes) - have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "the agent's channel was closed%s%s",
                   n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
        return;
    }
    agent_enter(agent);
    used = agent_receive(agent, span_make(bytes, have + (size_t)n));
    if (agent_leave(agent) && agent->state != AGENT_STATE_FAILED) {
        keep_rest(agent, span_skip(span_make(bytes, have + (size_t)n), used));
    }
}

static void on_stream(void *arg, int fd, short events)
{
    struct agent *agent = arg;

    (void)fd;
    if ((events & EV_WRITE) != 0) {
        flush(agent);
    }
    if ((events & EV_READ) != 0 && agent->state != AGENT_STATE_FAILED) {
        on_readable(agent);
    }
}

void agent_watch_deadline(struct agent *agent, int64_t deadline_ms)
{
    int64_t now = clock_monotonic_ms();

    if (agent->next_deadline_ms != 0 && agent->next_deadline_ms <= deadline_ms) {
        return;
    }
    agent->next_deadline_ms = deadline_ms;
    loop_timer_start(agent->deadline_timer, deadline_ms > now ? deadline_ms - now : 0);
}

void agent_begin_quiet(struct agent *agent)
{
    if (agent->quiet_since_ms == 0) {
        agent->quiet_since_ms = clock_monotonic_ms();
    }
}

void agent_end_quiet(struct agent *agent)
{
    int64_t lasted = clock_monotonic_ms() - agent->quiet_since_ms;

    if (agent->quiet_since_ms == 0) {
        return;
    }
    agent->quiet_since_ms = 0;
    agent_shift_requests(agent, lasted);
    agent_shift_channels(agent, lasted);
    agent->stands_still = false;
    agent_watch_deadline(agent, clock_monotonic_ms()); /* looks at all of them */
}

void agent_stand_still(struct agent *agent)
{
    if (agent->state != AGENT_STATE_READY) {
        return;
    }
    agent->hushed = true;
    agent->stands_still = true;
    agent->stuck_ms = 0;
    agent_begin_quiet(agent);
    agent_enter(agent);
    agent_cancel_wakes(agent);
    (void)agent_leave(agent);
}

static void on_deadline_timer(void *arg)
{
    struct agent *agent = arg;
    int64_t now = clock_monotonic_ms();
    int64_t next[4];

    agent->next_deadline_ms = 0;
    agent_enter(agent);
    if (agent->state != AGENT_STATE_CLOSED) {
        agent_give_up_requests(agent, now);
        agent_give_up_starts(agent, now);
    }
    if (!agent_leave(agent) || agent->state == AGENT_STATE_FAILED ||
        agent->state == AGENT_STATE_CLOSED) {
        return;
    }
    if (agent->begin_deadline_ms != 0 && agent->begin_deadline_ms <= now) {
        agent_fail(agent, AGENT_FAILURE_TIMEOUT, "the agent did not answer a hello in time");
        return;
    }
    if (agent->stuck_ms != 0 && agent->stuck_ms + agent->stuck_wait_ms <= now) {
        agent_fail(agent, AGENT_FAILURE_TIMEOUT, "the guest takes nothing of what is sent to it");
        return;
    }
    next[0] = agent->begin_deadline_ms;
    next[1] = agent_check_requests(agent, now);
    next[2] = agent_check_channels(agent, now);
    next[3] = agent->stuck_ms != 0 ? agent->stuck_ms + agent->stuck_wait_ms : 0;
    for (size_t i = 0; i < 4; i++) {
        if (next[i] > 0) {
            agent_watch_deadline(agent, next[i]);
        }
    }
}

struct agent *agent_new(struct loop *loop, const struct agent_callbacks *callbacks, void *arg)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    uint32_t first = 0;

    if (agent == NULL) {
        return NULL;
    }
    agent->loop = loop;
    agent->callbacks = *callbacks;
    agent->arg = arg;
    agent->fd = -1;
    agent->out = buf_make(0);
    agent->in = buf_make(0);
    agent->held = buf_make(0);
    list_init(&agent->requests);
    list_init(&agent->rehearsals);
    /* A random first number: an adopted guest may know numbers of an earlier run of this program
     * and is never given one of them again. */
    if (random_bytes(&first, sizeof(first)) < 0) {
        first = (uint32_t)clock_real_ns();
    }
    agent->first_channel = (first & CHANNEL_FIRST_MAX) + 1;
    agent->next_channel = agent->first_channel;
    agent->next_id = 1;
    agent->start_wait_ms = AGENT_START_WAIT_MS;
    agent->stuck_wait_ms = AGENT_STUCK_MS;
    agent->flush_timer = loop_timer_new(loop, on_flush_timer, agent);
    agent->hello_timer = loop_timer_new(loop, agent_on_hello_timer, agent);
    agent->deadline_timer = loop_timer_new(loop, on_deadline_timer, agent);
    agent->ack_timer = loop_timer_new(loop, agent_on_ack_timer, agent);
    if (agent->flush_timer == NULL || agent->hello_timer == NULL || agent->deadline_timer == NULL ||
        agent->ack_timer == NULL) {
        agent_free(agent);
        return NULL;
    }
    return agent;
}

void agent_free(struct agent *agent)
{
    if (agent == NULL) {
        return;
    }
    agent->state = AGENT_STATE_FAILED;
    agent_close_stream(agent);
    agent_enter(agent);
    agent->dying = true;
    cancel_all(agent);
    (void)agent_leave(agent);
}

static int take_stream(struct agent *agent, int fd)
{
    _cleanup_close_ int own = fd;

    agent->watch = loop_watch_new(agent->loop, own, EV_READ, on_stream, agent);
    if (agent->watch == NULL) {
        return -ENOMEM;
    }
    agent->fd = TAKE_FD(own);
    return 0;
}

static void become_idle(struct agent *agent)
{
    agent->state = AGENT_STATE_IDLE;
    agent_begin_quiet(agent);
}

int agent_attach(struct agent *agent, int fd)
{
    _cleanup_close_ int own = fd;
    int r;

    if (agent->state != AGENT_STATE_CLOSED) {
        return -EISCONN;
    }
    r = fd_set_nonblock(own);
    if (r == 0) {
        r = take_stream(agent, TAKE_FD(own));
    }
    if (r == 0) {
        become_idle(agent);
    }
    return r;
}

/* A unix stream connects at once or not at all. 0, -EAGAIN while its backlog is full, -errno. */
static int try_connect(struct agent *agent)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 ||
        connect(fd, (const struct sockaddr *)&agent->address, sizeof(agent->address)) < 0) {
        return -errno;
    }
    return take_stream(agent, TAKE_FD(fd));
}

static void on_connect_timer(void *arg)
{
    struct agent *agent = arg;
    int r = try_connect(agent);

    if (r == -EAGAIN) {
        loop_timer_start(agent->connect_timer, CONNECT_AGAIN_MS);
    } else if (r < 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "the agent's socket cannot be reached: %s",
                   strerror(-r));
    } else {
        agent_schedule_flush(agent);
    }
}

/* Until a conversation begins nobody waits for it. */
static int connect_later(struct agent *agent)
{
    if (agent->connect_timer == NULL) {
        agent->connect_timer = loop_timer_new(agent->loop, on_connect_timer, agent);
    }
    if (agent->connect_timer == NULL) {
        return -ENOMEM;
    }
    loop_timer_start(agent->connect_timer, CONNECT_AGAIN_MS);
    return 0;
}

int agent_connect(struct agent *agent, const char *path)
{
    size_t n = strlen(path);
    int r;

    if (n >= sizeof(agent->address.sun_path)) {
        return -ENAMETOOLONG;
    }
    if (agent->state != AGENT_STATE_CLOSED) {
        return -EISCONN;
    }
    agent->address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(agent->address.sun_path, path, n + 1);
    r = try_connect(agent);
    if (r == -EAGAIN) {
        r = connect_later(agent);
    }
    if (r == 0) {
        become_idle(agent);
    }
    return r;
}

void agent_disconnect(struct agent *agent)
{
    if (agent->state == AGENT_STATE_FAILED) {
        return;
    }
    agent_close_stream(agent);
    agent->state = AGENT_STATE_CLOSED;
    agent_end_quiet(agent);
    agent->synchronised = false;
    agent_end_begin(agent, -ECANCELED);
}

bool agent_is_ready(const struct agent *agent)
{
    return agent->state == AGENT_STATE_READY;
}

bool agent_takes_time(const struct agent *agent)
{
    return (agent->welcome.flags & AGENT_WELCOME_TIME) != 0;
}

const struct agent_welcome *agent_last_welcome(const struct agent *agent)
{
    return &agent->welcome;
}
