/* How an agent fails: once, told from the loop. */
#include <stdarg.h>
#include <stdio.h>

#include "io/loop.h"
#include "node/agent_private.h"

const char *agent_failure_code(enum agent_failure failure)
{
    switch (failure) {
    case AGENT_FAILURE_PROTOCOL:
        return "agent_protocol";
    case AGENT_FAILURE_TIMEOUT:
        return "agent_timeout";
    case AGENT_FAILURE_CLOSED:
        break;
    }
    return "agent_closed";
}

void agent_fail(struct agent *agent, enum agent_failure failure, const char *format, ...)
{
    _cleanup_buf_ struct buf message = buf_make(sizeof(agent->failure_message));
    va_list args;

    va_start(args, format);
    buf_vprintf(&message, format, args);
    va_end(args);
    if (agent->state == AGENT_STATE_FAILED) {
        return;
    }
    (void)snprintf(agent->failure_message, sizeof(agent->failure_message), "%s", buf_str(&message));
    agent->failure = failure;
    agent->state = AGENT_STATE_FAILED;
    agent_close_stream(agent);
    /* Told from the loop: this may be deep inside a call of the owner. */
    loop_timer_start(agent->flush_timer, 0);
}

void agent_violate(struct agent *agent, const char *what)
{
    agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent %s", what);
}
