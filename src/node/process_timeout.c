#include "node/process_timeout.h"

#include <errno.h>

#include "base/clock.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/sandbox.h"

static int64_t guard_ms(const struct process *p)
{
    return p->leave_on_timeout ? 0 : p->table->data->timeout_guard_ms;
}

/* Without the time that its sandbox was paused. */
static int64_t time_left_ms(const struct process *p)
{
    int64_t paused = sandbox_paused_ms(p->table->sandbox) - p->paused_before_ms;

    return p->started_at_ms + p->timeout_ms + guard_ms(p) + p->timeout.more_ms + paused -
           clock_real_ms();
}

/* The guest has at least a whole guard from now on. */
static void begin_guard(struct process *p)
{
    int64_t short_ms = guard_ms(p) - time_left_ms(p);

    p->timeout.was_withheld = p->timeout.withheld;
    p->timeout.more_ms += short_ms > 0 ? short_ms : 0;
}

static void start_timer(struct process *p)
{
    int64_t left = time_left_ms(p);

    loop_timer_start(p->timeout.timer, sandbox_timer_delay(p->table->sandbox, left < 0 ? 0 : left));
}

static void on_timer(void *arg)
{
    struct process *p = arg;

    /* One that rests cannot answer, and how long it did is known at the end. */
    if (time_left_ms(p) > 0 || sandbox_is_resting(p->table->sandbox)) {
        start_timer(p);
        return;
    }
    if (p->exit_held) {
        return;
    }
    if (p->leave_on_timeout) {
        p->timed_out = true;
        process_notify(p, PROCESS_EVENT_TIMEOUT);
        return;
    }
    if (p->timeout.was_withheld) {
        begin_guard(p);
        start_timer(p);
        return;
    }
    sandbox_fail(p->table->sandbox, "agent_timeout",
                 "the agent did not end a command that was over its time");
}

int process_timeout_start(struct process *p)
{
    if (p->timeout_ms == 0) {
        return 0;
    }
    process_timeout_stop(p);
    p->timeout.timer = loop_timer_new(p->table->data->node->loop, on_timer, p);
    if (p->timeout.timer == NULL) {
        return -ENOMEM;
    }
    if (!p->leave_on_timeout) {
        begin_guard(p); /* after a restart the guest has yet to be asked */
    }
    start_timer(p);
    return 0;
}

void process_timeout_stop(struct process *p)
{
    loop_timer_free(TAKE(p->timeout.timer));
}

void process_timeout_note(struct process *p, bool withheld)
{
    p->timeout.withheld = withheld;
    p->timeout.was_withheld = p->timeout.was_withheld || withheld;
}
