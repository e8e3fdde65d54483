#include "node/agent_input.h"

#include "node/agent_private.h"

/* Of the queue that all share. Who comes while others wait, waits behind them. */
static size_t queue_room(const struct agent_channel *channel)
{
    const struct agent *agent = channel->agent;
    size_t waiting = agent_queued(agent);

    if (waiting >= AGENT_INPUT_QUEUE_MAX ||
        (agent->input.waits && agent->input.turn != channel->number)) {
        return 0;
    }
    return AGENT_INPUT_QUEUE_MAX - waiting;
}

/* Of its own window. */
static size_t window_room(const struct agent_channel *channel)
{
    if (channel->phase != AGENT_CHANNEL_RUNNING || !agent_can_send(channel->agent) ||
        channel->stdin_closed) {
        return 0;
    }
    return AGENT_STDIN_WINDOW - (size_t)(channel->stdin_sent - channel->stdin_acked);
}

size_t agent_channel_stdin_room(struct agent_channel *channel, size_t wanted)
{
    size_t sent = (size_t)(channel->stdin_sent - channel->stdin_acked);
    size_t window = window_room(channel);
    size_t room = queue_room(channel);

    if (room < AGENT_INPUT_SMALL && sent < AGENT_INPUT_SMALL) {
        room = AGENT_INPUT_SMALL - sent;
    }
    if (room < window && room < wanted) {
        channel->stdin_waits = true;
        channel->agent->input.waits = true;
    }
    room = room < window ? room : window;
    return room < wanted ? room : wanted;
}

bool agent_channel_send_stdin(struct agent_channel *channel, struct span bytes, bool end)
{
    struct agent *agent = channel->agent;

    if (channel->stdin_ended) {
        return true;
    }
    /* An end alone needs no room, but a guest that is silent takes nothing but WAKE. */
    if (channel->phase != AGENT_CHANNEL_RUNNING || !agent_can_send(agent) ||
        bytes.n > window_room(channel)) {
        return false;
    }
    do {
        struct agent_stdin m = {.offset = channel->stdin_sent,
                                .bytes = span_head(bytes, AGENT_STDIN_DATA_MAX)};

        bytes = span_skip(bytes, m.bytes.n);
        m.end = end && bytes.n == 0;
        if (m.bytes.n == 0 && !m.end) {
            return true;
        }
        agent_stdin_format(&agent->out, channel->number, &m);
        channel->stdin_sent += m.bytes.n;
        channel->stdin_ended = m.end;
    } while (bytes.n > 0);
    agent_schedule_flush(agent);
    return true;
}

/* The one that waits and is next after `last`, or the first of those before it. */
static struct agent_channel *next_waiting(const struct agent *agent, uint32_t last)
{
    struct agent_channel *first = NULL;

    for (size_t i = 0; i < agent->channel_count; i++) {
        struct agent_channel *channel = agent->channels[i];

        if (channel->stdin_waits && channel->number > last) {
            return channel;
        }
        if (channel->stdin_waits && first == NULL) {
            first = channel;
        }
    }
    return first;
}

static unsigned int count_waiting(const struct agent *agent)
{
    unsigned int count = 0;

    for (size_t i = 0; i < agent->channel_count; i++) {
        count += agent->channels[i]->stdin_waits ? 1 : 0;
    }
    return count;
}

bool agent_has_input_turn(const struct agent *agent)
{
    return agent->input.waits && agent_can_send(agent) &&
           agent_queued(agent) <= AGENT_INPUT_QUEUE_MAX / 2;
}

/* In turn, from where the last call ended; each once at most. */
bool agent_wake_input(struct agent *agent)
{
    unsigned int turns;

    if (!agent_has_input_turn(agent)) {
        return true;
    }
    agent_enter(agent);
    for (turns = count_waiting(agent);
         turns > 0 && agent_can_send(agent) && agent_queued(agent) < AGENT_INPUT_QUEUE_MAX;
         turns--) {
        struct agent_channel *channel = next_waiting(agent, agent->input.last);

        if (channel == NULL) {
            break;
        }
        channel->stdin_waits = false;
        agent->input.last = channel->number;
        agent->input.turn = channel->number;
        channel->ops->on_stdin_ack(channel->arg, channel->stdin_acked, channel->stdin_closed);
        agent->input.turn = 0;
    }
    agent->input.waits = count_waiting(agent) > 0;
    return agent_leave(agent);
}
