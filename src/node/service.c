#include "node/service.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/services.h"

#define START_MS 60000
/* What is kept of a record that is not complete: its rest comes in pieces of one frame. */
#define PARTIAL_MAX (SERVICE_RECORD_HEAD_BYTES + SERVICE_RECORD_MAX + AGENT_PAYLOAD_MAX)

struct service {
    struct list link; /* in services->open */
    struct services *services;
    struct agent *agent;
    struct agent_channel *channel; /* NULL once it is over */
    struct service_callbacks callbacks;
    void *arg;
    struct loop_timer *timer;
    struct buf partial;  /* the begin of a record */
    uint64_t received;   /* bytes of the stream */
    uint64_t taken;      /* of these not kept by anybody any more */
    uint64_t left;       /* announced raw bytes that did not come yet */
    uint64_t input_sent; /* bytes */
    uint64_t input_acked;
    int64_t progress_ms; /* when the guest did something last */
    int64_t idle_ms;
    bool goes_on;
    bool is_tolerant;
    bool is_activity;
    bool has_input;
    bool input_ended;
    bool input_closed;
    bool started;
    bool raw;          /* BODY came */
    bool over;         /* by a record of its own */
    unsigned int busy; /* callbacks are on the stack: freeing only marks */
    bool dead;
};

/* ---- arguments ---- */

void service_args_init(struct service_args *args, const char *name)
{
    args->raw = buf_make(AGENT_START_MAX);
    args->count = 0;
    service_args_add_str(args, name);
}

void service_args_add(struct service_args *args, struct span text)
{
    buf_put_block(&args->raw, text);
    args->count++;
}

void service_args_add_str(struct service_args *args, const char *text)
{
    service_args_add(args, span_of_str(text));
}

void service_args_done(struct service_args *args)
{
    buf_done(&args->raw);
}

/* ---- life ---- */

static void enter(struct service *s)
{
    s->busy++;
}

static void destroy(struct service *s)
{
    buf_done(&s->partial);
    free(s);
}

static void leave(struct service *s)
{
    if (--s->busy == 0 && s->dead) {
        destroy(s);
    }
}

/* From here on nothing of it is called or counted. */
static void detach(struct service *s)
{
    if (s->channel != NULL) {
        agent_channel_close(TAKE(s->channel));
    }
    loop_timer_free(TAKE(s->timer));
    list_remove(&s->link);
    s->dead = true;
}

void service_close(struct service *service)
{
    if (service == NULL || service->dead) {
        return;
    }
    detach(service);
    if (service->busy == 0) {
        destroy(service);
    }
}

static void finish(struct service *s, const struct service_end *end)
{
    if (s->dead) {
        return;
    }
    enter(s);
    detach(s);
    s->callbacks.on_ended(s->arg, end);
    leave(s);
}

static void cut(struct service *s)
{
    finish(s, &(struct service_end){.kind = SERVICE_END_CUT});
}

void service_cut_all(struct services *services)
{
    while (!list_is_empty(&services->open)) {
        cut(list_entry(services->open.next, struct service, link));
    }
}

static void violate(struct service *s, const char *what)
{
    if (s->dead) {
        return;
    }
    if (!s->is_tolerant) {
        agent_violate(s->agent, what);
    }
    cut(s);
}

/* ---- time ---- */

/* A clock that stands still while the sandbox is paused. */
static int64_t now_of(const struct service *s)
{
    return clock_monotonic_ms() - sandbox_paused_ms(s->services->sandbox);
}

/* Whether it is the guest that everybody waits for. */
static bool is_guests_turn(const struct service *s)
{
    if (!s->started) {
        return true;
    }
    if (s->received != s->taken && s->partial.n == 0) {
        return false; /* somebody else has bytes to take */
    }
    return !s->has_input || s->input_ended || s->input_closed || s->input_acked < s->input_sent;
}

static void on_timer(void *arg)
{
    struct service *s = arg;
    int64_t limit = s->started ? s->idle_ms : START_MS;
    int64_t now = now_of(s);

    if (limit == 0) {
        return;
    }
    if (!is_guests_turn(s)) {
        s->progress_ms = now;
    }
    if (now - s->progress_ms >= limit) {
        finish(s, &(struct service_end){.kind = SERVICE_END_TIMEOUT});
        return;
    }
    loop_timer_start(s->timer,
                     sandbox_timer_delay(s->services->sandbox, limit - (now - s->progress_ms)));
}

static void note_progress(struct service *s)
{
    s->progress_ms = now_of(s);
    if (s->is_activity) {
        sandbox_touch(s->services->sandbox);
    }
}

void service_set_idle(struct service *service, int64_t idle_ms)
{
    service->idle_ms = idle_ms;
    service->progress_ms = now_of(service);
    if (service->started && idle_ms > 0) {
        loop_timer_start(service->timer, idle_ms);
    }
}

/* ---- what the guest sends ---- */

/* Everything up to here is out of this side's hands. */
static void take(struct service *s, size_t bytes)
{
    s->taken += bytes;
    if (s->channel != NULL) {
        agent_channel_ack(s->channel, AGENT_STDOUT, s->taken);
    }
}

void service_take(struct service *service, size_t bytes)
{
    service->progress_ms = now_of(service);
    take(service, bytes);
}

static const char *take_body(struct service *s, const struct service_record *record)
{
    struct service_body body;
    const char *problem;

    if (service_body_parse(record->payload, &body) < 0 || s->callbacks.on_body == NULL) {
        return "a bad or unasked BODY";
    }
    s->raw = true;
    s->left = body.length;
    problem = s->callbacks.on_body(s->arg, &body);
    if (problem == NULL && !s->dead && s->left == 0) {
        s->over = true;
        finish(s, &(struct service_end){.kind = SERVICE_END_DONE});
    }
    return problem;
}

static const char *take_done(struct service *s, const struct service_record *record)
{
    struct service_end end = {.kind = SERVICE_END_DONE};
    struct service_done done;

    if (service_done_parse(record->payload, &done) < 0) {
        return "a bad DONE";
    }
    if (s->goes_on) {
        return s->callbacks.on_record(s->arg, record);
    }
    end.count = done.count;
    end.more = done.more;
    s->over = true;
    finish(s, &end);
    return NULL;
}

static const char *take_error(struct service *s, const struct service_record *record)
{
    struct service_end end = {.kind = SERVICE_END_ERROR};
    struct service_error error;

    if (service_error_parse(record->payload, &error) < 0) {
        return "a bad ERROR";
    }
    end.errnum = (int)error.errnum;
    end.path = error.path;
    s->over = true;
    finish(s, &end);
    return NULL;
}

static const char *take_record(struct service *s, const struct service_record *record)
{
    switch ((enum service_record_type)record->type) {
    case SERVICE_RECORD_BODY:
        return take_body(s, record);
    case SERVICE_RECORD_DONE:
        return take_done(s, record);
    case SERVICE_RECORD_ERROR:
        return take_error(s, record);
    case SERVICE_RECORD_ENTRY:
    case SERVICE_RECORD_CHANGE:
    case SERVICE_RECORD_LISTENER:
    case SERVICE_RECORD_SAMPLE:
        break;
    }
    return s->callbacks.on_record == NULL ? "a record that nobody asked for"
                                          : s->callbacks.on_record(s->arg, record);
}

static void take_raw(struct service *s, struct span bytes)
{
    if (bytes.n > s->left) {
        violate(s, "more bytes than it announced");
        return;
    }
    if (s->left != SERVICE_LENGTH_UNKNOWN) {
        s->left -= bytes.n;
    }
    s->callbacks.on_bytes(s->arg, bytes);
    if (!s->dead && s->left == 0) {
        finish(s, &(struct service_end){.kind = SERVICE_END_DONE});
    }
}

/* Takes whole records, and raw bytes, off `bytes`; returns how much was used. */
static size_t take_stream(struct service *s, struct span bytes)
{
    size_t used = 0;

    while (!s->dead && used < bytes.n) {
        struct span rest = span_skip(bytes, used);
        struct service_record record;
        const char *problem;
        int n;

        if (s->raw) {
            take_raw(s, rest);
            return bytes.n;
        }
        n = service_record_next(rest, &record);
        if (n == 0) {
            break;
        }
        if (n < 0) {
            violate(s, "a malformed record");
            break;
        }
        used += (size_t)n;
        take(s, (size_t)n);
        problem = take_record(s, &record);
        if (problem != NULL) {
            violate(s, problem);
        } else if (s->over && used < bytes.n && !s->is_tolerant) {
            agent_violate(s->agent, "more behind an end");
        }
    }
    return used;
}

/* The begin of a record waits for the rest of it. */
static void take_with_partial(struct service *s, struct span bytes)
{
    size_t used;

    buf_put(&s->partial, bytes);
    if (buf_error(&s->partial) != 0) {
        cut(s);
        return;
    }
    used = take_stream(s, buf_span(&s->partial));
    if (s->dead) {
        return;
    }
    if (used == s->partial.n) {
        buf_done(&s->partial);
        s->partial = buf_make(PARTIAL_MAX);
    } else {
        buf_consume(&s->partial, used);
    }
}

/* ---- the channel ---- */

static void on_started(void *arg, uint32_t pid, uint64_t stdin_offset)
{
    struct service *s = arg;

    (void)pid;
    (void)stdin_offset;
    s->started = true;
    note_progress(s);
    if (s->idle_ms > 0) {
        loop_timer_start(s->timer, s->idle_ms);
    } else {
        loop_timer_stop(s->timer);
    }
    if (s->callbacks.on_room != NULL) {
        enter(s);
        s->callbacks.on_room(s->arg);
        leave(s);
    }
}

static void on_start_failed(void *arg, const struct agent_start_failed *failure)
{
    struct service *s = arg;

    s->channel = NULL;
    finish(s, &(struct service_end){.kind = SERVICE_END_REFUSED,
                                    .errnum = (int)failure->errnum,
                                    .what = (enum agent_start_what)failure->what});
}

static void on_output(void *arg, unsigned int stream, uint64_t offset, struct span bytes)
{
    struct service *s = arg;

    (void)stream;
    (void)offset;
    s->received += bytes.n;
    note_progress(s);
    enter(s);
    if (s->partial.n > 0) {
        take_with_partial(s, bytes);
    } else {
        size_t used = take_stream(s, bytes);

        if (!s->dead && used < bytes.n) {
            buf_put(&s->partial, span_skip(bytes, used));
        }
    }
    leave(s);
}

static void on_output_end(void *arg)
{
    struct service *s = arg;

    if (s->callbacks.on_bytes_end == NULL || !s->raw) {
        violate(s, "an end of output that is none");
        return;
    }
    enter(s);
    s->callbacks.on_bytes_end(s->arg);
    leave(s);
}

static void on_stdin_ack(void *arg, uint64_t offset, bool closed)
{
    struct service *s = arg;

    s->input_acked = offset;
    s->input_closed = s->input_closed || closed;
    note_progress(s);
    if (s->callbacks.on_room != NULL) {
        enter(s);
        s->callbacks.on_room(s->arg);
        leave(s);
    }
}

static void on_exited(void *arg, const struct agent_exited *exited)
{
    struct service *s = arg;
    bool is_good = exited->kind == AGENT_EXIT_CODE && exited->status == 0;

    if (s->raw && s->left == SERVICE_LENGTH_UNKNOWN && is_good) {
        finish(s, &(struct service_end){.kind = SERVICE_END_DONE});
        return;
    }
    cut(s);
}

/* Both: the channel is gone, and what became of the work is not known. */
static void on_gone(void *arg)
{
    struct service *s = arg;

    s->channel = NULL;
    cut(s);
}

static const struct agent_channel_ops channel_ops = {
    .on_started = on_started,
    .on_start_failed = on_start_failed,
    .on_output = on_output,
    .on_stdin_ack = on_stdin_ack,
    .on_exited = on_exited,
    .on_lost = on_gone,
    .on_detached = on_gone,
    .on_output_end = on_output_end,
};

static struct service *service_new(struct services *services,
                                   const struct service_spec *spec,
                                   const struct service_callbacks *callbacks,
                                   void *arg)
{
    struct service *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->timer = loop_timer_new(services->data->node->loop, on_timer, s);
    if (s->timer == NULL) {
        free(s);
        return NULL;
    }
    list_init(&s->link);
    s->services = services;
    s->agent = sandbox_agent(services->sandbox);
    s->callbacks = *callbacks;
    s->arg = arg;
    s->partial = buf_make(PARTIAL_MAX);
    s->goes_on = spec->goes_on;
    s->is_tolerant = spec->is_tolerant;
    s->is_activity = spec->is_activity;
    s->has_input = spec->has_input;
    s->idle_ms = spec->idle_ms;
    return s;
}

struct service *service_open(struct services *services,
                             const struct service_spec *spec,
                             const struct service_callbacks *callbacks,
                             void *arg,
                             struct error *err)
{
    struct agent_start start = {
        .flags = AGENT_START_SERVICE | (spec->has_input ? AGENT_START_STDIN : 0),
        .user = span_of_str(spec->user),
    };
    struct service *s;

    if (sandbox_agent(services->sandbox) == NULL) {
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox's agent is not connected");
        return NULL;
    }
    s = service_new(services, spec, callbacks, arg);
    if (s == NULL || buf_error(&spec->args->raw) != 0) {
        service_close(s);
        (void)error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    start.argv.count = spec->args->count;
    start.argv.raw = buf_span(&spec->args->raw);
    s->channel = agent_channel_start(s->agent, &start, &channel_ops, s, err);
    if (s->channel == NULL) {
        service_close(s);
        return NULL;
    }
    list_append(&services->open, &s->link);
    note_progress(s);
    loop_timer_start(s->timer, START_MS);
    return s;
}

/* ---- input ---- */

size_t service_room(const struct service *service, size_t wanted)
{
    return service->channel == NULL || !service->started || service->input_ended
               ? 0
               : agent_channel_stdin_room(service->channel, wanted);
}

bool service_input_is_closed(const struct service *service)
{
    return service->input_closed;
}

bool service_send(struct service *service, struct span bytes, bool end)
{
    if (service->channel == NULL || service->input_ended || service->input_closed) {
        return true; /* nobody will read it */
    }
    if (!agent_channel_send_stdin(service->channel, bytes, end)) {
        return false;
    }
    note_progress(service);
    service->input_sent += bytes.n;
    service->input_ended = end;
    return true;
}
