/* The begin of a conversation: HELLO, WELCOME, the guest's report of its processes. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/agent_hold.h"
#include "node/agent_private.h"
#include "node/agent_quiet.h"

static void queue_hello(struct agent *agent)
{
    struct agent_hello hello = {.version = AGENT_VERSION};

    if (random_bytes(agent->nonce, sizeof(agent->nonce)) < 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "no random bytes for a hello");
        return;
    }
    memcpy(hello.nonce, agent->nonce, sizeof(hello.nonce));
    agent_hello_format(&agent->out, &hello);
    agent_schedule_flush(agent);
}

/* What was sent in an earlier conversation, or behind a HELLO that was not answered, is unsent. */
static void forget_sent(struct agent *agent)
{
    agent_forget_sent_requests(agent);
    for (size_t i = 0; i < agent->channel_count; i++) {
        agent->channels[i]->start_sent = false;
        agent->channels[i]->reported = false;
    }
}

void agent_on_hello_timer(void *arg)
{
    struct agent *agent = arg;
    uint8_t *zeroes;

    if (agent->state != AGENT_STATE_GREETING) {
        return;
    }
    if (agent->out.n - agent->out_start >= AGENT_FLUSH_BYTES) {
        /* The last attempt has not left yet: more would only pile up. */
        loop_timer_start(agent->hello_timer, AGENT_HELLO_REPEAT_MS);
        return;
    }
    /* The position in the stream is in doubt: complete any half-read frame and begin again. */
    agent->known_silent = false;
    forget_sent(agent);
    zeroes = buf_reserve(&agent->out, AGENT_FLUSH_BYTES);
    if (zeroes != NULL) {
        memset(zeroes, 0, AGENT_FLUSH_BYTES);
        buf_commit(&agent->out, AGENT_FLUSH_BYTES);
    }
    queue_hello(agent);
    loop_timer_start(agent->hello_timer, AGENT_HELLO_REPEAT_MS);
}

void agent_expect_wake(struct agent *agent)
{
    agent->wake_expected = true;
}

void agent_begin(
    struct agent *agent, bool known_silent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    if (agent->state == AGENT_STATE_FAILED || agent->state == AGENT_STATE_CLOSED) {
        agent->begin_done = done;
        agent->begin_arg = arg;
        agent_fail(agent, AGENT_FAILURE_CLOSED, "the agent's channel is not connected");
        return;
    }
    agent_end_begin(agent, -ECANCELED);
    agent_end_quiet(agent);
    agent->hushed = agent->wake_expected;
    agent->wake_expected = false;
    buf_clear(&agent->held); /* the reports tell what to forget */
    agent->begin_done = done;
    agent->begin_arg = arg;
    agent->state = AGENT_STATE_GREETING;
    agent->synchronised = false;
    agent->known_silent = known_silent;
    agent->report_count = 0;
    agent->begin_deadline_ms = clock_monotonic_ms() + deadline_ms;
    forget_sent(agent);
    queue_hello(agent);
    agent_watch_deadline(agent, agent->begin_deadline_ms);
    loop_timer_start(agent->hello_timer,
                     known_silent ? AGENT_SILENT_RETRY_MS : AGENT_HELLO_FIRST_MS);
    if (known_silent && !agent->hold) {
        agent_resend_requests(agent, false);
    }
}

void agent_end_begin(struct agent *agent, int result)
{
    agent_done_fn done = TAKE(agent->begin_done);

    agent->begin_deadline_ms = 0;
    if (done != NULL) {
        done(agent->begin_arg, result);
    }
}

void agent_on_welcome(struct agent *agent, const struct agent_frame *frame)
{
    struct agent_welcome welcome;

    if (agent_welcome_parse(frame, &welcome) < 0) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent a bad WELCOME");
        return;
    }
    if (welcome.version != AGENT_VERSION) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest's agent speaks version %u, not %u",
                   welcome.version, AGENT_VERSION);
        return;
    }
    agent->welcome = welcome;
    agent->state = AGENT_STATE_REPORTING;
    agent->report_count = 0;
    loop_timer_stop(agent->hello_timer);
}

/* Whether what the guest says of its output fits with what was received and acknowledged. */
static bool report_fits(const struct agent_channel *channel, const struct agent_process *m)
{
    const uint64_t start[AGENT_STREAMS] = {m->stdout_start, m->stderr_start};
    const uint64_t end[AGENT_STREAMS] = {m->stdout_end, m->stderr_end};

    for (size_t i = 0; i < AGENT_STREAMS; i++) {
        if (start[i] > channel->received[i] || end[i] < channel->received[i] ||
            end[i] - start[i] > 2U * AGENT_WINDOW) {
            return false;
        }
    }
    if (m->exited && (m->exit.stdout_end != end[0] || m->exit.stderr_end != end[1])) {
        return false;
    }
    return channel->phase == AGENT_CHANNEL_ADOPTED || m->stdin_offset <= channel->stdin_sent;
}

/* An adopted channel knows only what was written down. What was acknowledged with a full disk may
 * not have been: that is no lie of the guest's. The bound keeps sums of offsets within their type.
 */
static void skip_lost(struct agent_channel *channel, const struct agent_process *m)
{
    const uint64_t start[AGENT_STREAMS] = {m->stdout_start, m->stderr_start};

    if (channel->phase != AGENT_CHANNEL_ADOPTED || channel->ops->on_skipped == NULL) {
        return;
    }
    for (unsigned int i = 0; i < AGENT_STREAMS; i++) {
        if (start[i] > channel->received[i] && start[i] <= AGENT_SKIP_MAX) {
            const uint64_t bytes = start[i] - channel->received[i];

            channel->received[i] = start[i];
            channel->ops->on_skipped(channel->arg, AGENT_STDOUT + i, bytes);
        }
    }
}

static void send_resume_from(struct agent_channel *channel)
{
    const struct agent_resume_from resume = {channel->received[0], channel->received[1]};

    agent_resume_from_format(&channel->agent->out, channel->number, &resume);
    agent_schedule_flush(channel->agent);
}

static void resume_channel(struct agent_channel *channel, const struct agent_process *m)
{
    struct agent *agent = channel->agent;

    channel->reported = true;
    channel->phase = AGENT_CHANNEL_RUNNING;
    buf_done(&channel->start);
    channel->start = buf_make(0);
    channel->start_deadline_ms = 0;
    channel->stdin_sent = m->stdin_offset;
    channel->stdin_acked = m->stdin_offset;
    channel->stdin_ended = false;
    for (size_t i = 0; i < AGENT_STREAMS; i++) {
        channel->kept[i] = channel->received[i];
        channel->acked[i] = channel->received[i];
    }
    if (!agent->hold) {
        send_resume_from(channel);
    }
    agent_channel_set_cwd(channel, m->cwd);
    channel->pid = m->pid; /* its owner hears of it when it may send, at the end of the reports */
}

void agent_on_report(struct agent *agent, const struct agent_frame *frame)
{
    struct agent_channel *channel = agent_channel_find(agent, frame->channel);
    struct agent_process m;

    if (agent_process_parse(frame, &m) < 0 || ++agent->report_count > AGENT_CHANNELS_MAX) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent a bad PROCESS");
        return;
    }
    if (channel == NULL && agent->reports_known &&
        (frame->channel < agent->first_channel || frame->channel >= agent->next_channel)) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest reported a process never started");
        return;
    }
    if (channel == NULL) {
        agent->adopted_closed = true; /* it may speak until it has read this */
        agent_forget_format(&agent->out, frame->channel);
        agent_schedule_flush(agent);
        if (!m.exited && !agent->spares_unknown) {
            /* Its START was given up, by an earlier run of this program too: its caller has heard
             * that it does not run. What an ended one left behind stays. */
            agent_kill_given_up(agent, frame->channel);
        }
        return;
    }
    if (!channel->reported && !channel->is_service) {
        skip_lost(channel, &m);
    }
    if (channel->reported || channel->is_service || !report_fits(channel, &m)) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest's report of a process is wrong");
        return;
    }
    resume_channel(channel, &m);
}

/* Tells the owners of the channels what the reports said. One that the guest did not report was
 * never started (START goes out again), or is lost. */
static void settle_channels(struct agent *agent)
{
    size_t i = 0;

    while (i < agent->channel_count && agent->state == AGENT_STATE_READY) {
        struct agent_channel *channel = agent->channels[i];

        if (channel->reported) {
            i++;
            channel->ops->on_started(channel->arg, channel->pid, channel->stdin_acked);
        } else if (channel->start_sent) {
            i++;
        } else if (channel->phase == AGENT_CHANNEL_STARTING &&
                   !(channel->is_service && channel->tried)) {
            if (!agent->hushed) {
                agent_channel_send_start(channel);
            }
            i++;
        } else {
            const struct agent_channel_ops *ops = channel->ops;
            void *arg = channel->arg;

            agent_channel_remove(channel);
            ops->on_lost(arg);
        }
    }
}

/* Everything may be said from here on. */
static void open_conversation(struct agent *agent)
{
    agent->state = AGENT_STATE_READY;
    agent->known_silent = false;
    agent_resend_requests(agent, false);
    if (agent->state == AGENT_STATE_READY) {
        settle_channels(agent);
    }
    if (agent->state == AGENT_STATE_READY) {
        agent_resend_requests(agent, true);
    }
    if (agent->state == AGENT_STATE_READY) {
        agent_end_begin(agent, 0);
    }
}

void agent_spare_unknown(struct agent *agent)
{
    agent->spares_unknown = true;
}

void agent_on_report_end(struct agent *agent, const struct agent_frame *frame)
{
    uint32_t count;

    if (agent_process_end_parse(frame, &count) < 0 || count != agent->report_count) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent a bad PROCESS_END");
        return;
    }
    agent->reports_known = true;
    if (agent->hold) {
        agent->state = AGENT_STATE_HELD;
        agent->begin_deadline_ms = 0;
        agent_resend_identity(agent);
        return;
    }
    open_conversation(agent);
}

void agent_hold(struct agent *agent)
{
    agent->hold = true;
}

void agent_release(struct agent *agent)
{
    agent->hold = false;
    if (agent->state != AGENT_STATE_HELD) {
        return;
    }
    agent_enter(agent);
    for (size_t i = 0; i < agent->channel_count; i++) {
        if (agent->channels[i]->reported) {
            send_resume_from(agent->channels[i]);
        }
    }
    open_conversation(agent);
    (void)agent_leave(agent);
}
