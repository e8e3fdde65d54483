/* From bytes to frames: finding the place in the stream, and handing frames to who awaits them. */
#include <errno.h>

#include "node/agent_private.h"

static void take_ready_frame(struct agent *agent, const struct agent_frame *frame)
{
    switch ((enum agent_type)frame->type) {
    case AGENT_IDENTITY_OK:
    case AGENT_RESULT:
    case AGENT_PONG:
        agent_on_answer(agent, frame);
        return;
    case AGENT_STARTED:
    case AGENT_START_FAILED:
    case AGENT_STDIN_ACK:
    case AGENT_OUTPUT:
    case AGENT_EXITED:
        agent_on_channel_frame(agent, frame);
        return;
    case AGENT_HELLO:
    case AGENT_WELCOME:
    case AGENT_IDENTITY:
    case AGENT_START:
    case AGENT_STDIN:
    case AGENT_OUTPUT_ACK:
    case AGENT_SIGNAL:
    case AGENT_FORGET:
    case AGENT_RESUME_FROM:
    case AGENT_PROCESS:
    case AGENT_PROCESS_END:
    case AGENT_SILENCE:
    case AGENT_WAKE:
    case AGENT_POWEROFF:
    case AGENT_PING:
    case AGENT_RESET:
    case AGENT_RESIZE:
    case AGENT_WRITE_FILE:
    case AGENT_TYPE_COUNT:
        break;
    }
    agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent %s where it may not",
               agent_type_name(frame->type));
}

static void take_frame(struct agent *agent, const struct agent_frame *frame)
{
    switch (agent->state) {
    case AGENT_STATE_REPORTING:
        if (frame->type == AGENT_PROCESS) {
            agent_on_report(agent, frame);
            return;
        }
        if (frame->type == AGENT_PROCESS_END) {
            agent_on_report_end(agent, frame);
            return;
        }
        break;
    case AGENT_STATE_READY:
        take_ready_frame(agent, frame);
        return;
    case AGENT_STATE_HELD:
        if (frame->type == AGENT_IDENTITY_OK) {
            agent_on_answer(agent, frame);
            return;
        }
        break;
    case AGENT_STATE_SILENT:
        /* Only the answer to WAKE can come. */
        if (frame->type == AGENT_RESULT) {
            agent_on_answer(agent, frame);
            return;
        }
        break;
    case AGENT_STATE_CLOSED:
    case AGENT_STATE_IDLE:
    case AGENT_STATE_GREETING:
    case AGENT_STATE_FAILED:
        break;
    }
    agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent %s where it may not",
               agent_type_name(frame->type));
}

/* Unsynchronised: everything but the WELCOME with our nonce is thrown away. */
static size_t find_welcome(struct agent *agent, struct span bytes)
{
    struct agent_frame frame;
    size_t skip = 0;
    size_t used;

    if (agent->state != AGENT_STATE_GREETING) {
        return bytes.n;
    }
    used = agent_frame_find(bytes, AGENT_WELCOME, agent->nonce, &frame, &skip);
    if (used == 0) {
        return skip;
    }
    agent->synchronised = true;
    agent_on_welcome(agent, &frame);
    return used;
}

size_t agent_receive(struct agent *agent, struct span bytes)
{
    size_t used = 0;

    while (agent->state != AGENT_STATE_FAILED && agent->state != AGENT_STATE_CLOSED) {
        struct span rest = span_skip(bytes, used);
        struct agent_frame frame;
        int n;

        if (!agent->synchronised) {
            size_t found = find_welcome(agent, rest);

            used += found;
            if (!agent->synchronised) {
                break;
            }
            continue;
        }
        n = agent_frame_parse(rest, &frame);
        if (n < 0) {
            agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent a malformed frame");
            break;
        }
        if (n == 0) {
            break;
        }
        used += (size_t)n;
        take_frame(agent, &frame);
    }
    return used;
}
