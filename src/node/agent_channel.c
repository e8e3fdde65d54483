/* Channels: START to EXITED of one process, its streams and their windows. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "io/loop.h"
#include "node/agent_input.h"
#include "node/agent_private.h"
#include "node/agent_quiet.h"

/* Beyond it nothing new is started: what a guest may leave waiting, and beside it the least that
 * each channel may send, which is no fault of a guest. */
#define START_QUEUE_MAX (AGENT_QUEUE_MAX + AGENT_CHANNELS_MAX * AGENT_INPUT_SMALL)

#define LATE_FRAMES_MAX AGENT_CONTROL_FRAMES_PER_SECOND

/* Index of the first channel with a number of at least `number`. */
static size_t lower_bound(const struct agent *agent, uint32_t number)
{
    size_t low = 0;
    size_t high = agent->channel_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (agent->channels[middle]->number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct agent_channel *agent_channel_find(struct agent *agent, uint32_t number)
{
    size_t i = lower_bound(agent, number);

    return i < agent->channel_count && agent->channels[i]->number == number ? agent->channels[i]
                                                                            : NULL;
}

static int insert(struct agent *agent, struct agent_channel *channel)
{
    size_t i;

    if (agent->channel_count == agent->channel_room) {
        size_t room = agent->channel_room == 0 ? 4 : agent->channel_room * 2;
        struct agent_channel **grown =
            realloc(agent->channels, room * sizeof(struct agent_channel *));

        if (grown == NULL) {
            return -ENOMEM;
        }
        agent->channels = grown;
        agent->channel_room = room;
    }
    i = lower_bound(agent, channel->number);
    memmove(&agent->channels[i + 1], &agent->channels[i],
            (agent->channel_count - i) * sizeof(struct agent_channel *));
    agent->channels[i] = channel;
    agent->channel_count++;
    return 0;
}

void agent_channel_remove(struct agent_channel *channel)
{
    struct agent *agent = channel->agent;

    size_t i = lower_bound(agent, channel->number);

    agent->channel_count--;
    memmove(&agent->channels[i], &agent->channels[i + 1],
            (agent->channel_count - i) * sizeof(struct agent_channel *));
    buf_done(&channel->start);
    free(channel->cwd);
    free(channel);
}

static struct agent_channel *
channel_new(struct agent *agent, const struct agent_channel_ops *ops, void *arg)
{
    struct agent_channel *channel = calloc(1, sizeof(*channel));

    if (channel != NULL) {
        channel->agent = agent;
        channel->ops = ops;
        channel->arg = arg;
        channel->start = buf_make(0);
    }
    return channel;
}

static void set_start_deadline(struct agent_channel *channel, int64_t wait_ms)
{
    if (!channel->is_service) {
        channel->start_deadline_ms = clock_monotonic_ms() + wait_ms;
        agent_watch_deadline(channel->agent, channel->start_deadline_ms);
    }
}

void agent_channel_send_start(struct agent_channel *channel)
{
    buf_put(&channel->agent->out, buf_span(&channel->start));
    channel->start_sent = true;
    channel->tried = true;
    set_start_deadline(channel, channel->agent->start_wait_ms);
    agent_schedule_flush(channel->agent);
}

struct agent_channel *agent_channel_start(struct agent *agent,
                                          const struct agent_start *start,
                                          const struct agent_channel_ops *ops,
                                          void *arg,
                                          struct error *err)
{
    struct agent_channel *channel;
    int r;

    if (agent->state == AGENT_STATE_FAILED || agent->channel_count >= AGENT_CHANNELS_MAX ||
        agent_queued(agent) > START_QUEUE_MAX) {
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox's agent takes no more commands now");
        return NULL;
    }
    channel = channel_new(agent, ops, arg);
    if (channel == NULL) {
        (void)error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    channel->number = agent->next_channel;
    channel->phase = AGENT_CHANNEL_STARTING;
    channel->is_service = (start->flags & AGENT_START_SERVICE) != 0;
    agent_start_format(&channel->start, channel->number, start);
    r = buf_error(&channel->start);
    if (r == 0) {
        r = insert(agent, channel);
    }
    if (r < 0) {
        buf_done(&channel->start);
        free(channel);
        if (r == -ENOMEM) {
            (void)error_set(err, ENOMEM, "out of memory");
        } else {
            (void)error_set_code(err, ERROR_INVALID_REQUEST, "argv", "the command is too long");
        }
        return NULL;
    }
    agent->next_channel++;
    if (agent_can_send(agent)) {
        agent_channel_send_start(channel);
    } else {
        set_start_deadline(channel, 2 * agent->start_wait_ms);
    }
    return channel;
}

struct agent_channel *agent_channel_adopt(struct agent *agent,
                                          const struct agent_channel_state *state,
                                          const struct agent_channel_ops *ops,
                                          void *arg)
{
    struct agent_channel *channel = channel_new(agent, ops, arg);

    if (channel == NULL) {
        return NULL;
    }
    channel->number = state->channel;
    channel->phase = AGENT_CHANNEL_ADOPTED;
    channel->received[0] = state->stdout_offset;
    channel->received[1] = state->stderr_offset;
    if (agent_channel_find(agent, state->channel) != NULL || insert(agent, channel) < 0) {
        free(channel);
        return NULL;
    }
    return channel;
}

uint32_t agent_next_channel(const struct agent *agent)
{
    return agent->next_channel;
}

/* Shown in JSON: what is no UTF-8 is repaired, what is no absolute path is not believed. */
void agent_channel_set_cwd(struct agent_channel *channel, struct span cwd)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    utf8_repair(cwd, &text);
    if (buf_error(&text) == 0 && buf_str(&text)[0] == '/') {
        free(channel->cwd);
        channel->cwd = strdup(buf_str(&text));
    }
}

const char *agent_channel_cwd(const struct agent_channel *channel)
{
    return channel->cwd != NULL ? channel->cwd : "";
}

void agent_channel_resize(struct agent_channel *channel, uint16_t cols, uint16_t rows)
{
    struct agent_resize m = {cols, rows};

    if (channel->phase == AGENT_CHANNEL_RUNNING) {
        struct buf *out = agent_out_or_held(channel->agent);

        if (out != NULL) {
            agent_resize_format(out, channel->number, &m);
        }
    }
}

/* ---- acknowledgements ---- */

void agent_channel_send_acks(struct agent_channel *channel)
{
    for (size_t i = 0; i < AGENT_STREAMS; i++) {
        if (channel->kept[i] > channel->acked[i]) {
            struct agent_output_ack ack = {(uint8_t)(AGENT_STDOUT + i), channel->kept[i]};

            agent_output_ack_format(&channel->agent->out, channel->number, &ack);
            channel->acked[i] = channel->kept[i];
            agent_schedule_flush(channel->agent);
        }
    }
}

void agent_on_ack_timer(void *arg)
{
    struct agent *agent = arg;

    agent->ack_timer_set = false;
    if (!agent_is_open(agent)) {
        return;
    }
    for (size_t i = 0; i < agent->channel_count; i++) {
        if (agent->channels[i]->phase == AGENT_CHANNEL_RUNNING) {
            agent_channel_send_acks(agent->channels[i]);
        }
    }
}

void agent_channel_ack(struct agent_channel *channel, unsigned int stream, uint64_t offset)
{
    struct agent *agent = channel->agent;
    size_t i = stream - AGENT_STDOUT;

    if (i >= AGENT_STREAMS || offset <= channel->kept[i]) {
        return;
    }
    channel->kept[i] = offset;
    if (agent_is_open(agent) && offset - channel->acked[i] >= AGENT_ACK_BATCH) {
        agent_channel_send_acks(channel);
        return;
    }
    if (!agent->ack_timer_set) {
        agent->ack_timer_set = true;
        loop_timer_start(agent->ack_timer, AGENT_ACK_DELAY_MS);
    }
}

void agent_channel_abandon(struct agent_channel *channel)
{
    struct agent *agent = channel->agent;

    if (channel->number < agent->first_channel || channel->number >= agent->next_channel) {
        agent->adopted_closed = true;
    }
    agent_channel_remove(channel);
}

void agent_channel_close(struct agent_channel *channel)
{
    struct buf *out = NULL;

    if (channel->phase != AGENT_CHANNEL_ADOPTED && (channel->tried || channel->reported)) {
        out = agent_out_or_held(channel->agent);
    }
    if (out != NULL) {
        agent_forget_format(out, channel->number);
    }
    agent_channel_abandon(channel);
}

void agent_detach_channels(struct agent *agent)
{
    while (agent->channel_count > 0) {
        struct agent_channel *channel = agent->channels[agent->channel_count - 1];
        const struct agent_channel_ops *ops = channel->ops;
        void *arg = channel->arg;

        agent_channel_remove(channel);
        ops->on_detached(arg);
    }
}

/* The first channel with a number above `last`, or NULL: owners may close channels while all are
 * gone through. */
static struct agent_channel *next_channel(const struct agent *agent, uint32_t last)
{
    for (size_t i = 0; i < agent->channel_count; i++) {
        if (agent->channels[i]->number > last) {
            return agent->channels[i];
        }
    }
    return NULL;
}

void agent_wake_channels(struct agent *agent)
{
    struct agent_channel *channel = next_channel(agent, 0);

    while (channel != NULL && agent->state == AGENT_STATE_READY) {
        uint32_t number = channel->number;

        if (channel->phase == AGENT_CHANNEL_STARTING && !channel->start_sent) {
            agent_channel_send_start(channel);
        } else if (channel->phase == AGENT_CHANNEL_RUNNING) {
            agent_channel_send_acks(channel);
            /* Nothing new; but whoever has stdin to send can do so from now on. */
            channel->ops->on_stdin_ack(channel->arg, channel->stdin_acked, channel->stdin_closed);
        }
        channel = next_channel(agent, number);
    }
}

void agent_shift_channels(struct agent *agent, int64_t by_ms)
{
    for (size_t i = 0; i < agent->channel_count; i++) {
        if (agent->channels[i]->start_deadline_ms != 0) {
            agent->channels[i]->start_deadline_ms += by_ms;
        }
    }
}

static struct agent_channel *find_given_up(const struct agent *agent, int64_t now_ms)
{
    for (size_t i = 0; i < agent->channel_count; i++) {
        struct agent_channel *channel = agent->channels[i];

        if (channel->phase == AGENT_CHANNEL_STARTING && channel->start_deadline_ms != 0 &&
            channel->start_deadline_ms <= now_ms) {
            return channel;
        }
    }
    return NULL;
}

void agent_give_up_starts(struct agent *agent, int64_t now_ms)
{
    const struct agent_start_failed failure = {ETIMEDOUT, AGENT_WHAT_RESOURCES};
    struct agent_channel *channel;

    while (agent_is_stalled(agent) && (channel = find_given_up(agent, now_ms)) != NULL) {
        const struct agent_channel_ops *ops = channel->ops;
        void *arg = channel->arg;
        uint32_t number = channel->number;

        if (channel->start_sent) {
            agent_channel_close(channel);
            agent_kill_given_up(agent, number);
        } else {
            agent_channel_remove(channel);
        }
        ops->on_start_failed(arg, &failure);
    }
}

int64_t agent_check_channels(struct agent *agent, int64_t now_ms)
{
    int64_t next = 0;

    if (agent->quiet_since_ms != 0) {
        return 0;
    }
    for (size_t i = 0; i < agent->channel_count; i++) {
        int64_t deadline = agent->channels[i]->start_deadline_ms;

        if (deadline != 0 && deadline <= now_ms) {
            agent_fail(agent, AGENT_FAILURE_TIMEOUT, "the agent did not answer START in time");
            return -1;
        }
        if (deadline != 0 && (next == 0 || deadline < next)) {
            next = deadline;
        }
    }
    return next;
}

/* ---- frames ---- */

/* A frame that changes nothing and is no lie: only so many. */
static void count_useless(struct agent *agent)
{
    int64_t now = clock_monotonic_ms();

    if (now - agent->late_window_ms >= 1000) {
        agent->late_window_ms = now;
        agent->late_count = 0;
    }
    if (++agent->late_count > LATE_FRAMES_MAX) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL,
                   "the guest sent more than %u useless frames within a second", LATE_FRAMES_MAX);
    }
}

void agent_on_late_frame(struct agent *agent, const struct agent_frame *frame)
{
    if (frame->channel != 0 &&
        (frame->channel < agent->first_channel || frame->channel >= agent->next_channel) &&
        !agent->adopted_closed) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent %s for an unknown channel, %u",
                   agent_type_name(frame->type), frame->channel);
        return;
    }
    count_useless(agent);
}

static const char *on_started(struct agent_channel *channel, const struct agent_frame *frame)
{
    struct agent_started m;

    if (agent_started_parse(frame, &m) < 0 || channel->phase != AGENT_CHANNEL_STARTING) {
        return "a bad STARTED";
    }
    channel->phase = AGENT_CHANNEL_RUNNING;
    channel->start_deadline_ms = 0;
    buf_done(&channel->start);
    channel->start = buf_make(0);
    agent_channel_set_cwd(channel, m.cwd);
    channel->ops->on_started(channel->arg, m.pid, 0);
    return NULL;
}

static const char *on_start_failed(struct agent_channel *channel, const struct agent_frame *frame)
{
    const struct agent_channel_ops *ops = channel->ops;
    void *arg = channel->arg;
    struct agent_start_failed failure;

    if (agent_start_failed_parse(frame, &failure) < 0 || channel->phase != AGENT_CHANNEL_STARTING ||
        failure.errnum == 0 || failure.errnum > INT32_MAX) {
        return "a bad START_FAILED";
    }
    agent_channel_remove(channel);
    ops->on_start_failed(arg, &failure);
    return NULL;
}

/* The owner may have closed the channel when it got the bytes before. */
static void tell_output_end(struct agent *agent, uint32_t number)
{
    struct agent_channel *channel = agent_channel_find(agent, number);

    if (channel != NULL && channel->ops->on_output_end != NULL) {
        channel->ops->on_output_end(channel->arg);
    }
}

static const char *on_output(struct agent_channel *channel, const struct agent_frame *frame)
{
    struct agent *agent = channel->agent;
    struct agent_output m;
    size_t i;

    if (agent_output_parse(frame, &m) < 0 || channel->phase != AGENT_CHANNEL_RUNNING) {
        return "a bad OUTPUT";
    }
    i = m.stream - AGENT_STDOUT;
    if (i >= AGENT_STREAMS || m.offset != channel->received[i] || channel->output_ended) {
        return "OUTPUT out of order";
    }
    if (channel->is_service ? m.stream != AGENT_STDOUT : m.end) {
        return "OUTPUT of a kind that the channel has not";
    }
    if (m.offset + m.bytes.n - channel->acked[i] > AGENT_WINDOW) {
        return "more OUTPUT than it may";
    }
    channel->received[i] += m.bytes.n;
    channel->output_ended = m.end;
    if (m.bytes.n > 0) {
        channel->ops->on_output(channel->arg, m.stream, m.offset, m.bytes);
    }
    if (m.end) {
        tell_output_end(agent, frame->channel);
    }
    return NULL;
}

static const char *on_stdin_ack(struct agent_channel *channel, const struct agent_frame *frame)
{
    struct agent_stdin_ack m;

    if (agent_stdin_ack_parse(frame, &m) < 0 ||
        (channel->phase != AGENT_CHANNEL_RUNNING && channel->phase != AGENT_CHANNEL_EXITED) ||
        m.offset < channel->stdin_acked || m.offset > channel->stdin_sent) {
        return "a bad STDIN_ACK";
    }
    if (channel->phase == AGENT_CHANNEL_EXITED) {
        count_useless(channel->agent); /* its pipe was closed by the exit */
        return NULL;
    }
    if (m.offset == channel->stdin_acked && m.closed == channel->stdin_closed) {
        count_useless(channel->agent);
        return NULL;
    }
    channel->stdin_acked = m.offset;
    channel->stdin_closed = m.closed;
    channel->ops->on_stdin_ack(channel->arg, m.offset, m.closed);
    return NULL;
}

static const char *on_exited(struct agent_channel *channel, const struct agent_frame *frame)
{
    struct agent_exited m;

    if (agent_exited_parse(frame, &m) < 0 || channel->phase != AGENT_CHANNEL_RUNNING) {
        return "a bad EXITED";
    }
    if (m.stdout_end != channel->received[0] || m.stderr_end != channel->received[1]) {
        return "EXITED before the end of the output";
    }
    channel->phase = AGENT_CHANNEL_EXITED;
    if (!channel->exit_told) {
        channel->exit_told = true;
        channel->ops->on_exited(channel->arg, &m);
    }
    return NULL;
}

void agent_on_channel_frame(struct agent *agent, const struct agent_frame *frame)
{
    struct agent_channel *channel = agent_channel_find(agent, frame->channel);
    const char *problem = NULL;

    if (channel == NULL) {
        agent_on_late_frame(agent, frame);
        return;
    }
    switch (frame->type) {
    case AGENT_STARTED:
        problem = on_started(channel, frame);
        break;
    case AGENT_START_FAILED:
        problem = on_start_failed(channel, frame);
        break;
    case AGENT_STDIN_ACK:
        problem = on_stdin_ack(channel, frame);
        break;
    case AGENT_OUTPUT:
        problem = on_output(channel, frame);
        break;
    default:
        problem = on_exited(channel, frame);
        break;
    }
    if (problem != NULL) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent %s", problem);
    }
}
