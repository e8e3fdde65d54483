/* Rehearsals: commands run for their side effects on the guest's caches, before it is anybody's. */
#include <errno.h>
#include <string.h>

#include "base/list.h"
#include "node/agent_private.h"

struct rehearsed {
    struct list link;
    struct agent_channel *channel;
    agent_done_fn done;
    void *arg;
};

static void finish(struct rehearsed *rehearsal, int result)
{
    agent_done_fn done = rehearsal->done;
    void *arg = rehearsal->arg;

    list_remove(&rehearsal->link);
    free(rehearsal);
    done(arg, result);
}

static void on_started(void *arg, uint32_t pid, uint64_t stdin_offset)
{
    (void)arg;
    (void)pid;
    (void)stdin_offset;
}

static void on_start_failed(void *arg, const struct agent_start_failed *failure)
{
    finish(arg, (int)failure->errnum);
}

static void on_output(void *arg, unsigned int stream, uint64_t offset, struct span bytes)
{
    struct rehearsed *rehearsal = arg;

    agent_channel_ack(rehearsal->channel, stream, offset + bytes.n);
}

static void on_stdin_ack(void *arg, uint64_t offset, bool closed)
{
    (void)arg;
    (void)offset;
    (void)closed;
}

static void on_exited(void *arg, const struct agent_exited *exited)
{
    struct rehearsed *rehearsal = arg;

    (void)exited;
    agent_channel_close(TAKE(rehearsal->channel));
    finish(rehearsal, 0);
}

static void on_lost(void *arg)
{
    finish(arg, ESRCH);
}

static void on_detached(void *arg)
{
    finish(arg, -ECANCELED);
}

static const struct agent_channel_ops rehearsal_ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_lost,
    .on_detached = on_detached,
};

void agent_rehearse(struct agent *agent,
                    const char *const *argv,
                    const char *user,
                    int64_t timeout_ms,
                    agent_done_fn done,
                    void *arg)
{
    _cleanup_buf_ struct buf raw = buf_make(AGENT_START_MAX);
    struct rehearsed *rehearsal = calloc(1, sizeof(*rehearsal));
    struct agent_start start = {.flags = AGENT_START_REHEARSAL, .timeout_ms = (uint64_t)timeout_ms};

    if (rehearsal == NULL) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "out of memory for a rehearsal");
        done(arg, -ENOMEM);
        return;
    }
    list_init(&rehearsal->link);
    rehearsal->done = done;
    rehearsal->arg = arg;
    for (size_t i = 0; argv[i] != NULL; i++) {
        buf_put_block(&raw, span_of_str(argv[i]));
        start.argv.count++;
    }
    start.argv.raw = buf_span(&raw);
    start.user = span_of_str(user != NULL ? user : "");
    rehearsal->channel = agent_channel_start(agent, &start, &rehearsal_ops, rehearsal, NULL);
    if (rehearsal->channel == NULL) {
        /* The answer comes from agent_cancel_rehearsals, never from inside this call. */
        agent_fail(agent, AGENT_FAILURE_CLOSED, "a rehearsal cannot be started");
        list_append(&agent->rehearsals, &rehearsal->link);
    }
}

void agent_cancel_rehearsals(struct agent *agent)
{
    while (!list_is_empty(&agent->rehearsals)) {
        finish(list_entry(agent->rehearsals.next, struct rehearsed, link), -ECANCELED);
    }
}
