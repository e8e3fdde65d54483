/* GET …/sessions/{se}/events: a session as server-sent events.
 *
 * The id of an event is where the reader stands after it: the offsets of stdout and stderr on the
 * path of the output (spool_order.h) and which of the single events were sent. A reader holds no
 * output: it reads the spool when its connection has room, so a slow one costs one bounded buffer
 * and at worst a gap. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/base64.h"
#include "node/data.h"
#include "node/event_id.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/session_reader.h"

#define COMMENT_MS  15000
#define CHUNK_BYTES 49152U /* of output per event: 64 KiB of text */
/* Written in one turn before others have theirs. */
#define TURN_BYTES (512U * 1024U)

struct events_reader {
    struct list link; /* in data->readers */
    struct call *call;
    struct session_reader session;
    bool waiting;   /* for the connection to drain */
    bool gathering; /* the timer lets more come first */
    struct loop_timer *comment_timer;
};

static void reader_free(struct events_reader *reader)
{
    session_reader_detach(&reader->session);
    list_remove(&reader->link);
    loop_timer_free(reader->comment_timer);
    free(reader);
}

static void on_close(struct call *call, bool complete)
{
    (void)complete;
    reader_free(call->state);
}

static void begin_event(const struct events_reader *reader, const char *name, struct buf *text)
{
    const struct output_event_id id = {
        .at = {reader->session.at.at[0], reader->session.at.at[1]},
        .phase = (unsigned int)reader->session.phase,
    };
    char id_text[EVENT_ID_SIZE];

    output_event_id_format(&id, id_text);
    buf_printf(text, "id: %s\nevent: %s\ndata: ", id_text, name);
}

static void put_json_event(const struct events_reader *reader,
                           const char *name,
                           json_t *value,
                           struct buf *text)
{
    _cleanup_json_ json_t *own = value;

    begin_event(reader, name, text);
    if (own == NULL) {
        text->error = -ENOMEM;
        return;
    }
    json_write(own, text);
    buf_put_str(text, "\n\n");
}

/* Sends what was formatted. False when the connection wants a pause or had to be cut. */
static bool send_text(struct events_reader *reader, struct buf *text)
{
    bool more;

    if (buf_error(text) != 0) {
        http_exchange_abort(reader->call->exchange);
        return false;
    }
    if (text->n == 0) {
        return true;
    }
    more = http_exchange_write(reader->call->exchange, buf_span(text)) > 0;
    buf_clear(text);
    reader->waiting = !more;
    return more;
}

static void put_item(const struct events_reader *reader,
                     const struct session_item *item,
                     struct buf *raw,
                     struct buf *text)
{
    const char *name = session_item_name(&reader->session, item);

    if (item->kind != SESSION_ITEM_OUTPUT) {
        put_json_event(reader, name, session_item_fields(&reader->session, item), text);
        return;
    }
    begin_event(reader, name, text);
    buf_printf(text, "{\"stream\": \"%s\", \"offset\": %" PRIu64 ", \"data\": \"",
               session_stream_name(item->stream), item->offset);
    base64_format(buf_span(raw), text);
    buf_put_str(text, "\"}\n\n");
    buf_clear(raw);
}

/* Writes until the connection is full, all is said, or others have a turn. */
static void pump(struct events_reader *reader)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf text = buf_make(0);
    struct call *call = reader->call;
    struct session_item item;
    size_t written = 0;

    reader->gathering = false;
    if (reader->session.process == NULL || reader->session.phase == SESSION_PHASE_DONE) {
        http_exchange_end(call->exchange);
        return;
    }
    do {
        int r = session_reader_next(&reader->session, CHUNK_BYTES, &raw, &item);

        if (r < 0) {
            log_warning("session not readable", "session=%s error=\"%s\"",
                        reader->session.process->session_id, strerror(-r));
            http_exchange_abort(call->exchange);
            return;
        }
        if (item.kind == SESSION_ITEM_NONE) {
            break;
        }
        put_item(reader, &item, &raw, &text);
        written += text.n;
        if (!send_text(reader, &text) && !reader->waiting) {
            return; /* it was cut */
        }
    } while (!reader->waiting && item.kind != SESSION_ITEM_END && written < TURN_BYTES);
    if (item.kind == SESSION_ITEM_END) {
        http_exchange_end(call->exchange);
    } else if (!reader->waiting) {
        if (item.kind != SESSION_ITEM_NONE) {
            loop_timer_start(call->timer, 0);
        }
        session_reader_settle(&reader->session);
    }
}

static void on_timer(void *arg)
{
    struct call *call = arg;
    struct events_reader *reader = call->state;

    if (!reader->waiting) {
        pump(reader);
    }
}

static void on_drain(void *arg)
{
    struct events_reader *reader = arg;

    reader->waiting = false;
    session_reader_settle(&reader->session);
    loop_timer_start(reader->call->timer, 0);
}

static void on_comment(void *arg)
{
    struct events_reader *reader = arg;
    _cleanup_buf_ struct buf text = buf_make(0);

    loop_timer_start(reader->comment_timer, COMMENT_MS);
    if (!reader->waiting && reader->session.phase != SESSION_PHASE_DONE) {
        buf_put_str(&text, ": still here\n\n");
        (void)send_text(reader, &text);
    }
}

/* The record and its spool end here: says what can be said. */
static void say_last(struct events_reader *reader)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf text = buf_make(0);
    struct session_item item = {.kind = SESSION_ITEM_NONE};

    reader->session.unreadable = true;
    while (process_is_ended(reader->session.process) &&
           session_reader_next(&reader->session, CHUNK_BYTES, &raw, &item) == 0 &&
           item.kind != SESSION_ITEM_NONE) {
        put_item(reader, &item, &raw, &text);
    }
    (void)send_text(reader, &text);
    session_reader_detach(&reader->session);
    reader->session.phase = SESSION_PHASE_DONE;
}

static void on_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;
    struct events_reader *reader = call->state;

    (void)p;
    if ((events & (PROCESS_EVENT_GONE | PROCESS_EVENT_FAILED)) != 0) {
        process_watch_remove(&call->watch);
        say_last(reader);
        reader->waiting = false;
        loop_timer_start(call->timer, 0);
        return;
    }
    if (!reader->waiting) {
        bool gathers = session_reader_gathers(&reader->session);

        if (!gathers || !reader->gathering) {
            loop_timer_start(call->timer, gathers ? GATHER_MS : 0);
        }
        reader->gathering = gathers;
    }
}

void session_events_on_change(struct data *data, struct sandbox *sb)
{
    const char *state = sandbox_state_name(sandbox_info(sb)->state);
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->readers)
    {
        struct events_reader *reader = list_entry(it, struct events_reader, link);

        if (reader->session.process != NULL && reader->session.phase != SESSION_PHASE_DONE &&
            strcmp(reader->call->sandbox_id, sandbox_info(sb)->id) == 0 &&
            sandbox_info(sb)->state != SANDBOX_STATE_DELETED) {
            _cleanup_buf_ struct buf text = buf_make(0);

            put_json_event(reader, "sandbox", json_pack("{s:s}", "state", state), &text);
            (void)send_text(reader, &text);
        }
    }
}

static int parse_id(const char *text, struct session_reader *reader)
{
    struct output_event_id id;

    if (output_event_id_parse(text, SESSION_PHASE_DONE, &id) < 0) {
        return -EBADMSG;
    }
    reader->at.at[0] = id.at[0];
    reader->at.at[1] = id.at[1];
    reader->phase = (enum session_phase)id.phase;
    return 0;
}

/* Whether the position is one that this session's ids can name. */
static bool is_on_path(const struct session_reader *reader)
{
    struct spool *spool = reader->process->spool;
    const struct order_position *start = spool_start(spool);
    const struct order_position *end = spool_end(spool);
    struct spool_run run;
    int r;

    if (reader->at.at[0] > end->at[0] || reader->at.at[1] > end->at[1]) {
        return false;
    }
    if (order_total(&reader->at) < order_total(start)) {
        return reader->at.at[0] <= start->at[0] && reader->at.at[1] <= start->at[1];
    }
    r = spool_find_run(spool, &reader->at, &run);
    return r == 0 || r == -ESTALE;
}

static int read_position(struct call *call, struct session_reader *reader, struct error *err)
{
    static const char *const names[] = {"after", "tail_bytes", "read_only", NULL};
    const char *last_id = http_exchange_header(call->exchange, "Last-Event-ID");
    uint64_t tail = UINT64_MAX;
    char after[128];

    if (call_query_check(call, names, err) < 0 ||
        call_query_text(call, "after", after, sizeof(after), err) < 0 ||
        call_query_unsigned(call, "tail_bytes", INT64_MAX, &tail, err) < 0) {
        return -EINVAL;
    }
    if (last_id != NULL && last_id[0] != '\0') {
        (void)snprintf(after, sizeof(after), "%s", last_id);
    }
    if (after[0] != '\0') {
        if (parse_id(after, reader) < 0 || !is_on_path(reader)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "after",
                                  "after is no event of this session");
        }
        if (reader->phase == SESSION_PHASE_DONE && !process_is_ended(reader->process)) {
            /* Its end was told, and this program killed before it was written down. */
            reader->phase = SESSION_PHASE_STARTED;
        }
        return 0;
    }
    if (tail != UINT64_MAX && spool_find_tail(reader->process->spool, tail, &reader->at) < 0) {
        return error_set_code(err, ERROR_GONE, "session", "the output is not kept any more");
    }
    return 0;
}

static struct events_reader *reader_new(struct call *call, struct process *p)
{
    struct events_reader *reader = calloc(1, sizeof(*reader));

    if (reader == NULL) {
        return NULL;
    }
    list_init(&reader->link);
    reader->call = call;
    session_reader_init(&reader->session, p);
    reader->comment_timer = loop_timer_new(call->data->node->loop, on_comment, reader);
    if (reader->comment_timer == NULL) {
        reader_free(reader);
        return NULL;
    }
    return reader;
}

/* The reader has it all. An EventSource, which comes again whenever a stream ends, takes this
 * answer, and no other good one, for the end. */
static void answer_over(struct call *call)
{
    const struct http_header headers[] = {
        {"Cache-Control", "no-store"},
        {"X-Request-Id", call->request_id},
    };

    call->answered = true;
    http_exchange_respond(call->exchange, 204, headers, 2, span_make(NULL, 0));
}

void handle_session_events(struct call *call, json_t *body)
{
    const struct http_header headers[] = {
        {"Content-Type", "text/event-stream"},
        {"Cache-Control", "no-store"},
        {"X-Request-Id", call->request_id},
    };
    struct process *p = call_session(call);
    struct events_reader *reader;
    struct error err = {0};
    bool read_only = false;

    (void)body;
    if (p == NULL) {
        return;
    }
    reader = reader_new(call, p);
    if (reader == NULL || call_start_timer(call, 0, on_timer) < 0) {
        if (reader != NULL) {
            reader_free(reader);
        }
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    call->state = reader;
    call->on_close = on_close;
    if (read_position(call, &reader->session, &err) < 0 ||
        call_query_flag(call, "read_only", &read_only, &err) < 0) {
        loop_timer_free(TAKE(call->timer));
        call_fail(call, &err);
        return;
    }
    if (reader->session.phase == SESSION_PHASE_DONE) {
        loop_timer_free(TAKE(call->timer));
        answer_over(call);
        return;
    }
    if (session_reader_attach(&reader->session, &err) < 0) {
        loop_timer_free(TAKE(call->timer));
        call_fail(call, &err);
        return;
    }
    if (!read_only) {
        process_release(p);
    }
    list_append(&call->data->readers, &reader->link);
    loop_timer_start(reader->comment_timer, COMMENT_MS);
    call_watch(call, p, on_event);
    call->answered = true;
    http_exchange_on_drain(call->exchange, on_drain, reader);
    http_exchange_start(call->exchange, 200, headers, 3, -1);
}
