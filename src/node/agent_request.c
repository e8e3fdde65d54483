/* Requests that the guest answers by id: IDENTITY, SILENCE, WAKE, POWEROFF, PING, RESET, SIGNAL and
 * WRITE_FILE. Each keeps its frame until it was answered. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "node/agent_private.h"
#include "node/agent_quiet.h"

#define ERRNO_MAX 4095U

static void request_free(struct agent_request *request)
{
    list_remove(&request->link);
    buf_done(&request->frame);
    free(request);
}

/* Tells the result and frees the request. */
static void
finish(struct agent_request *request, int result, const struct agent_identity_ok *identity)
{
    agent_done_fn done = request->done;
    agent_identity_fn identity_done = request->identity_done;
    void *arg = request->arg;

    request_free(request);
    if (identity_done != NULL) {
        identity_done(arg, result, identity);
    } else if (done != NULL) {
        done(arg, result);
    }
}

static void send_request(struct agent *agent, struct agent_request *request)
{
    request->sent = true;
    request->tried = true;
    request->answered = 0;
    if (request->type == AGENT_SILENCE) {
        agent->hushed = true;
        agent_begin_quiet(agent); /* what waits behind it is not to blame for that */
    }
    buf_put(&agent->out, buf_span(&request->frame));
    agent_schedule_flush(agent);
}

/* The caller formats `frame` with the id and then calls enqueue. Without memory the agent fails,
 * which answers every request with -ECANCELED. */
static struct agent_request *make_request(struct agent *agent, uint8_t type, int64_t deadline_ms)
{
    struct agent_request *request = calloc(1, sizeof(*request));

    if (request == NULL) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "out of memory for a request to the agent");
        return NULL;
    }
    request->type = type;
    request->id = agent->next_id++;
    request->repeat = true;
    request->deadline_ms = deadline_ms != 0 ? clock_monotonic_ms() + deadline_ms : 0;
    request->frame = buf_make(0);
    list_append(&agent->requests, &request->link);
    return request;
}

/* A guest that knows its place in the stream takes it behind HELLO. */
static bool may_identify(const struct agent *agent)
{
    return agent->hold &&
           (agent->state == AGENT_STATE_HELD ||
            ((agent->state == AGENT_STATE_GREETING || agent->state == AGENT_STATE_REPORTING) &&
             agent->known_silent));
}

static void enqueue(struct agent *agent, struct agent_request *request)
{
    if (buf_error(&request->frame) != 0) {
        agent_fail(agent, AGENT_FAILURE_CLOSED, "a request to the agent cannot be formatted: %s",
                   strerror(-buf_error(&request->frame)));
        return;
    }
    if (agent->state == AGENT_STATE_FAILED) {
        agent_schedule_flush(agent);
        return;
    }
    if (request->deadline_ms != 0) {
        agent_watch_deadline(agent, request->deadline_ms);
    }
    if (agent_can_send(agent) || (request->type == AGENT_WAKE && agent_is_hushed(agent)) ||
        (request->type == AGENT_IDENTITY && may_identify(agent))) {
        send_request(agent, request);
    }
}

static void simple_request(struct agent *agent,
                           uint8_t type,
                           uint8_t flags,
                           int64_t deadline_ms,
                           agent_done_fn done,
                           void *arg)
{
    struct agent_request *request = make_request(agent, type, deadline_ms);

    if (request == NULL) {
        done(arg, -ENOMEM);
        return;
    }
    request->done = done;
    request->arg = arg;
    agent_id_format(&request->frame, type, flags, request->id);
    enqueue(agent, request);
}

void agent_reset(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    simple_request(agent, AGENT_RESET, 0, deadline_ms, done, arg);
}

void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    simple_request(agent, AGENT_SILENCE, flags, deadline_ms, done, arg);
}

static void put_wake(struct agent *agent, struct agent_request *request)
{
    if (agent_takes_time(agent)) {
        agent_wake_format(&request->frame,
                          &(struct agent_wake){request->id, (uint64_t)clock_real_ns()});
    } else {
        agent_id_format(&request->frame, AGENT_WAKE, 0, request->id);
    }
    enqueue(agent, request);
}

void agent_wake(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    struct agent_request *request = make_request(agent, AGENT_WAKE, deadline_ms);

    if (request == NULL) {
        done(arg, -ENOMEM);
        return;
    }
    request->done = done;
    request->arg = arg;
    put_wake(agent, request);
}

void agent_power_off(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    simple_request(agent, AGENT_POWEROFF, 0, deadline_ms, done, arg);
}

void agent_ping(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    simple_request(agent, AGENT_PING, 0, deadline_ms, done, arg);
}

void agent_identify(struct agent *agent,
                    const struct agent_identity *identity,
                    int64_t deadline_ms,
                    agent_identity_fn done,
                    void *arg)
{
    struct agent_request *request = make_request(agent, AGENT_IDENTITY, deadline_ms);
    struct agent_identity message = *identity;

    if (request == NULL) {
        done(arg, -ENOMEM, NULL);
        return;
    }
    request->identity_done = done;
    request->arg = arg;
    message.id = request->id;
    request->epoch = identity->epoch;
    agent_identity_format(&request->frame, &message);
    enqueue(agent, request);
}

void agent_put_file(struct agent *agent,
                    const struct agent_file *file,
                    int64_t deadline_ms,
                    agent_done_fn done,
                    void *arg)
{
    struct agent_request *request = make_request(agent, AGENT_WRITE_FILE, deadline_ms);
    struct agent_write_file message = {
        .path = span_of_str(file->path),
        .mode = file->mode,
        .uid = file->uid,
        .gid = file->gid,
        .create = true,
    };
    struct span rest = file->content;

    if (request == NULL) {
        done(arg, -ENOMEM);
        return;
    }
    request->done = done;
    request->arg = arg;
    message.id = request->id;
    /* One request of several frames; the guest answers each, and the last or first bad one counts.
     */
    do {
        message.bytes = span_head(rest, AGENT_FILE_DATA_MAX);
        rest = span_skip(rest, message.bytes.n);
        agent_write_file_format(&request->frame, &message);
        message.offset += message.bytes.n;
        message.create = false;
        request->parts++;
    } while (rest.n > 0);
    enqueue(agent, request);
}

static void send_signal(struct agent *agent,
                        uint32_t channel,
                        struct agent_signal message,
                        agent_done_fn done,
                        void *arg)
{
    int64_t deadline_ms = done != NULL ? agent->start_wait_ms : 0;
    struct agent_request *request = make_request(agent, AGENT_SIGNAL, deadline_ms);

    if (request == NULL) {
        if (done != NULL) {
            done(arg, -ENOMEM);
        }
        return;
    }
    /* Delivered twice is not the same as once. */
    request->repeat = false;
    request->done = done;
    request->arg = arg;
    message.id = request->id;
    agent_signal_format(&request->frame, channel, &message);
    enqueue(agent, request);
}

void agent_channel_signal(struct agent_channel *channel,
                          unsigned int signal,
                          enum agent_scope scope,
                          agent_done_fn done,
                          void *arg)
{
    send_signal(channel->agent, channel->number,
                (struct agent_signal){.signal = (uint8_t)signal, .scope = (uint8_t)scope}, done,
                arg);
}

void agent_signal_left(
    struct agent *agent, uint32_t channel, unsigned int signal, agent_done_fn done, void *arg)
{
    send_signal(agent, channel,
                (struct agent_signal){.signal = (uint8_t)signal, .scope = AGENT_SCOPE_TREE}, done,
                arg);
}

void agent_kill_given_up(struct agent *agent, uint32_t channel)
{
    send_signal(agent, channel, (struct agent_signal){.signal = SIGKILL, .scope = AGENT_SCOPE_TREE},
                NULL, NULL);
}

static struct agent_request *find_request(struct agent *agent, uint32_t id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        if (request->id == id) {
            return request;
        }
    }
    return NULL;
}

/* The answer's type must be the one that the request asks for. */
static bool answers(const struct agent_request *request, uint8_t type)
{
    switch (request->type) {
    case AGENT_IDENTITY:
        return type == AGENT_IDENTITY_OK;
    case AGENT_PING:
        return type == AGENT_PONG;
    default:
        return type == AGENT_RESULT;
    }
}

static void on_result(struct agent *agent, struct agent_request *request, uint32_t errnum)
{
    bool is_refused_silence = request->type == AGENT_SILENCE && errnum != 0;

    request->answered++;
    if (errnum == 0 && request->answered < request->parts) {
        return;
    }
    if (request->type == AGENT_SILENCE && errnum == 0) {
        agent->state = AGENT_STATE_SILENT;
        agent_begin_quiet(agent);
    }
    if (request->type == AGENT_WAKE && agent_is_hushed(agent)) {
        /* It speaks, whatever became of its clock. */
        agent->state = AGENT_STATE_READY;
        agent_end_quiet(agent);
        finish(request, (int)errnum, NULL);
        agent_end_hush(agent);
        return;
    }
    if (is_refused_silence) {
        agent_end_quiet(agent);
    }
    finish(request, (int)errnum, NULL);
    if (is_refused_silence && agent->state == AGENT_STATE_READY) {
        agent_end_hush(agent);
    }
}

/* Fails closed: what was not confirmed in full is a failure, whatever the guest calls it. */
static void on_identity_ok(struct agent *agent,
                           struct agent_request *request,
                           const struct agent_identity_ok *m)
{
    if (m->epoch != request->epoch) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest confirmed an identity not given");
        return;
    }
    if (m->errnum == 0 && m->done != AGENT_IDENTITY_ALL) {
        finish(request, EPROTO, m);
        return;
    }
    finish(request, (int)m->errnum, m);
}

void agent_on_answer(struct agent *agent, const struct agent_frame *frame)
{
    struct agent_identity_ok identity = {0};
    struct agent_result result = {0};
    struct agent_request *request;
    int r;

    if (frame->type == AGENT_IDENTITY_OK) {
        r = agent_identity_ok_parse(frame, &identity);
        result = (struct agent_result){identity.id, identity.errnum};
    } else if (frame->type == AGENT_PONG) {
        r = agent_id_parse(frame, &result.id);
    } else {
        r = agent_result_parse(frame, &result);
    }
    if (r < 0 || result.errnum > ERRNO_MAX) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest sent a bad %s",
                   agent_type_name(frame->type));
        return;
    }
    request = find_request(agent, result.id);
    if (request == NULL && result.id != 0 && result.id < agent->next_id) {
        /* Of a multi-part request that failed at its first part. */
        agent_on_late_frame(agent, frame);
        return;
    }
    if (request == NULL || !request->sent || !answers(request, frame->type)) {
        agent_fail(agent, AGENT_FAILURE_PROTOCOL, "the guest answered what was not asked");
        return;
    }
    if (frame->type == AGENT_IDENTITY_OK) {
        on_identity_ok(agent, request, &identity);
        return;
    }
    on_result(agent, request, result.errnum);
}

void agent_forget_sent_requests(struct agent *agent)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &agent->requests)
    {
        list_entry(it, struct agent_request, link)->sent = false;
    }
}

void agent_resend_requests(struct agent *agent, bool signals)
{
    struct list cancelled;
    struct list *it;
    struct list *following;

    list_init(&cancelled);
    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        if (request->sent || signals != (request->type == AGENT_SIGNAL) ||
            (agent->hushed && request->type != AGENT_WAKE)) {
            continue;
        }
        if (request->tried && !request->repeat) {
            list_remove(&request->link);
            list_append(&cancelled, &request->link);
            continue;
        }
        send_request(agent, request);
    }
    while (!list_is_empty(&cancelled)) {
        finish(list_entry(cancelled.next, struct agent_request, link), -ECANCELED, NULL);
    }
}

void agent_resend_identity(struct agent *agent)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        if (request->type == AGENT_IDENTITY && !request->sent) {
            send_request(agent, request);
        }
    }
}

void agent_cancel_requests(struct agent *agent)
{
    while (!list_is_empty(&agent->requests)) {
        finish(list_entry(agent->requests.next, struct agent_request, link), -ECANCELED, NULL);
    }
}

void agent_cancel_wakes(struct agent *agent)
{
    struct list cancelled;
    struct list *it;
    struct list *following;

    list_init(&cancelled);
    list_foreach(it, following, &agent->requests)
    {
        if (list_entry(it, struct agent_request, link)->type == AGENT_WAKE) {
            list_remove(it);
            list_append(&cancelled, it);
        }
    }
    while (!list_is_empty(&cancelled)) {
        finish(list_entry(cancelled.next, struct agent_request, link), -ECANCELED, NULL);
    }
}

void agent_shift_requests(struct agent *agent, int64_t by_ms)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        if (request->deadline_ms != 0 && (!request->sent || agent->stands_still)) {
            request->deadline_ms += by_ms;
        }
    }
}

/* Whether it fails alone when its time is over: a SILENCE, and what waits in front of one that the
 * guest has yet to read, or behind. */
static bool is_excused(const struct agent *agent, const struct agent_request *request)
{
    if (request->type == AGENT_SILENCE) {
        return true;
    }
    return request->sent ? request->type != AGENT_WAKE && agent_is_behind(agent)
                         : agent_is_stalled(agent);
}

static struct agent_request *find_given_up(struct agent *agent, int64_t now_ms)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        if (request->deadline_ms != 0 && request->deadline_ms <= now_ms &&
            is_excused(agent, request)) {
            return request;
        }
    }
    return NULL;
}

/* The guest is busy, which is no reason to end it. It falls silent when it reads SILENCE, and finds
 * a WAKE behind that, for which nobody waits: commands do, and have deadlines of their own. */
static void give_up(struct agent *agent, struct agent_request *late)
{
    struct agent_request *wake;

    if (late->sent && late->type == AGENT_SILENCE) {
        wake = make_request(agent, AGENT_WAKE, 0);
        if (wake == NULL) {
            return;
        }
        agent_end_quiet(agent);
        put_wake(agent, wake);
    }
    finish(late, ETIMEDOUT, NULL);
}

void agent_give_up_requests(struct agent *agent, int64_t now_ms)
{
    struct agent_request *late;

    while (agent->state != AGENT_STATE_FAILED && (late = find_given_up(agent, now_ms)) != NULL) {
        give_up(agent, late);
    }
}

int64_t agent_check_requests(struct agent *agent, int64_t now_ms)
{
    struct list *it;
    struct list *following;
    int64_t next = 0;

    list_foreach(it, following, &agent->requests)
    {
        struct agent_request *request = list_entry(it, struct agent_request, link);

        /* What was sent before is answered before SILENCE is: its time runs on, and when it is
         * over it has been given up. */
        if (request->deadline_ms == 0 ||
            (agent->quiet_since_ms != 0 && !request->sent && request->type != AGENT_SILENCE) ||
            (agent->stands_still && request->type != AGENT_WAKE)) {
            continue;
        }
        if (request->deadline_ms <= now_ms) {
            agent_fail(agent, AGENT_FAILURE_TIMEOUT, "the agent did not answer %s in time",
                       agent_type_name(request->type));
            return -1;
        }
        if (next == 0 || request->deadline_ms < next) {
            next = request->deadline_ms;
        }
    }
    return next;
}
