/* GET …/sessions/{se}/attach: a session over a WebSocket, both ways (docs/output.md).
 *
 * To the client go binary frames, a byte that names the stream and then output, and text frames
 * that are the events of the session. From it come binary frames, a zero byte and then input, and
 * text frames (attach_request.h). As with events, nothing of the output is kept here; input goes to
 * the process's queue, and while that is full no frame is taken from the socket. The object
 * outlives the call that made it: it is freed when the WebSocket is over.
 *
 * Input that a client has sent may still be on its way, or held back before a full queue, when it
 * comes again over a new connection; it would then be taken twice. So a client names the attachment
 * that its new one replaces, and that one is cut first. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/id.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "io/websocket.h"
#include "node/attach_request.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_signal.h"
#include "node/process_stream.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/session_reader.h"

#define MESSAGE_MAX 65537U /* the byte in front and 64 KiB of input */
#define CHUNK_BYTES 65536U /* of output per frame */
/* Written in one turn before others have theirs. */
#define TURN_BYTES (512U * 1024U)
/* The client is told each time the guest has consumed so much more of the input. */
#define STDIN_STEP_BYTES 65536U
#define INPUT_FRAME      0U
#define SIGNALS_MAX      8U /* of one attachment under way */

#define ATTACHMENT_ID_SIZE 17U /* 16 hexadecimal digits */

#define CLOSE_DONE      1000U
#define CLOSE_BAD_FRAME 1003U
#define CLOSE_BAD_TEXT  1007U
#define CLOSE_INTERNAL  1011U

struct attach {
    struct list link; /* in data->attaches */
    struct data *data;
    struct websocket *ws;
    struct session_reader session;
    struct process_watch watch;
    struct loop_timer *timer; /* the next turn */
    struct list signals;      /* under way */
    unsigned int signal_count;
    char id[ATTACHMENT_ID_SIZE];
    char sandbox_id[ID_SIZE];
    uint64_t stdin_told;
    bool read_only;
    bool is_activity; /* of its sandbox, until it ends */
    bool wrote;       /* input came from this client */
    bool waiting;     /* for the socket to drain */
    bool gathering;   /* the timer lets more come first */
    bool paused;      /* for the process to take input */
    bool held;        /* for the client to take answers to what it sent */
    bool closing;
};

/* A signal cannot be called off: it may outlive the attachment. */
struct attach_signal {
    struct list link;
    struct attach *attach; /* NULL once that is gone */
};

static void attach_free(struct attach *a)
{
    if (a->is_activity) {
        data_touch(a->data, a->sandbox_id);
    }
    while (!list_is_empty(&a->signals)) {
        struct attach_signal *s = list_entry(a->signals.next, struct attach_signal, link);

        s->attach = NULL;
        list_remove(&s->link);
    }
    process_watch_remove(&a->watch);
    session_reader_detach(&a->session);
    list_remove(&a->link);
    loop_timer_free(a->timer);
    websocket_free(a->ws);
    free(a);
}

static void close_with(struct attach *a, unsigned int code, const char *reason)
{
    if (!a->closing) {
        a->closing = true;
        websocket_close(a->ws, code, reason);
    }
}

/* ---- to the client ---- */

/* fields (stolen) become a text frame with this type. */
static void send_event(struct attach *a, const char *type, json_t *fields)
{
    _cleanup_json_ json_t *own = fields;
    _cleanup_json_ json_t *event = json_pack("{s:s}", "type", type);
    _cleanup_buf_ struct buf text = buf_make(0);

    if (own != NULL && event != NULL && json_object_update(event, own) == 0) {
        json_write(event, &text);
    }
    if (text.n == 0 || buf_error(&text) != 0) {
        close_with(a, CLOSE_INTERNAL, "out of memory");
        return;
    }
    if (websocket_send(a->ws, true, span_make(NULL, 0), buf_span(&text)) == 0) {
        a->waiting = true;
    }
}

static void update_pause(struct attach *a)
{
    websocket_pause(a->ws, a->paused || a->held);
}

/* Who sends what cannot be done, and reads no answer, is not read either: else they pile up. */
static void send_error(struct attach *a, const struct error *err)
{
    send_event(
        a, "error",
        json_pack("{s:s, s:s}", "code", error_code_name(err->code), "message", err->message));
    if (a->waiting) {
        a->held = true;
        update_pause(a);
    }
}

static void send_item(struct attach *a, const struct session_item *item, struct buf *bytes)
{
    uint8_t stream = (uint8_t)(AGENT_STDOUT + item->stream);

    if (item->kind != SESSION_ITEM_OUTPUT) {
        send_event(a, session_item_name(&a->session, item), session_item_fields(&a->session, item));
        return;
    }
    if (websocket_send(a->ws, false, span_make(&stream, 1), buf_span(bytes)) == 0) {
        a->waiting = true;
    }
    buf_clear(bytes);
}

/* Writes until the socket is full, all is said, or others have a turn. */
static void pump(struct attach *a)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct session_item item = {.kind = SESSION_ITEM_NONE};
    uint64_t written = 0;

    a->gathering = false;
    while (!a->closing && !a->waiting) {
        int r = session_reader_next(&a->session, CHUNK_BYTES, &bytes, &item);

        if (r < 0) {
            log_warning("session not readable", "session=%s error=\"%s\"",
                        a->session.process->session_id, strerror(-r));
            close_with(a, CLOSE_INTERNAL, "the output cannot be read");
            return;
        }
        if (item.kind == SESSION_ITEM_NONE) {
            break;
        }
        written += item.bytes;
        send_item(a, &item, &bytes);
        if (item.kind == SESSION_ITEM_END) {
            close_with(a, CLOSE_DONE, "");
        } else if (written >= TURN_BYTES) {
            loop_timer_start(a->timer, 0);
            break;
        }
    }
    if (!a->waiting) {
        session_reader_settle(&a->session);
    }
}

static void on_timer(void *arg)
{
    pump(arg);
}

/* The guest has consumed input. A client that takes nothing hears of it when it does. */
static void note_input(struct attach *a, const struct process *p)
{
    if (a->paused && process_input_room(p) > 0) {
        a->paused = false;
        update_pause(a);
    }
    if (a->wrote && !a->waiting && p->input_base - a->stdin_told >= STDIN_STEP_BYTES) {
        a->stdin_told = p->input_base;
        send_event(a, "stdin", json_pack("{s:I}", "offset", (json_int_t)p->input_base));
    }
}

static void on_drain(void *arg, struct websocket *ws)
{
    struct attach *a = arg;

    (void)ws;
    a->waiting = false;
    a->held = false;
    update_pause(a);
    if (a->session.process != NULL) {
        note_input(a, a->session.process);
    }
    session_reader_settle(&a->session);
    loop_timer_start(a->timer, 0);
}

/* The record and its spool end here: says what can be said. */
static void say_last(struct attach *a)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct session_item item;

    a->session.unreadable = true;
    while (process_is_ended(a->session.process) &&
           session_reader_next(&a->session, CHUNK_BYTES, &bytes, &item) == 0 &&
           item.kind != SESSION_ITEM_NONE) {
        send_item(a, &item, &bytes);
    }
    process_watch_remove(&a->watch);
    session_reader_detach(&a->session);
    close_with(a, CLOSE_DONE, "");
}

static void on_event(void *arg, struct process *p, unsigned int events)
{
    struct attach *a = arg;

    if ((events & (PROCESS_EVENT_GONE | PROCESS_EVENT_FAILED)) != 0) {
        say_last(a);
        return;
    }
    if ((events & (PROCESS_EVENT_STDIN | PROCESS_EVENT_ENDED)) != 0) {
        note_input(a, p);
    }
    if (!a->waiting && !a->closing) {
        bool gathers = session_reader_gathers(&a->session);

        if (!gathers || !a->gathering) {
            loop_timer_start(a->timer, gathers ? GATHER_MS : 0);
        }
        a->gathering = gathers;
    }
}

/* ---- from the client ---- */

/* Whether there is a process that takes input; tells the client otherwise. */
static bool takes_input(struct attach *a)
{
    const struct process *p = a->session.process;
    struct error err = {0};

    if (p != NULL && !process_is_ended(p) && p->has_stdin && !p->input_eof && !p->input_closed) {
        return true;
    }
    (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, NULL,
                         p == NULL || process_is_ended(p)
                             ? "the process has ended"
                             : "the process's standard input is closed");
    send_error(a, &err);
    return false;
}

static void take_input(struct attach *a, struct span bytes, bool eof)
{
    struct process *p = a->session.process;

    if (!takes_input(a)) {
        return;
    }
    if (!a->wrote) {
        a->wrote = true;
        a->stdin_told = p->input_base;
    }
    process_put_input(p, bytes, eof);
    if (process_input_room(p) == 0 && !a->paused) {
        a->paused = true;
        update_pause(a);
    }
}

static void on_signalled(void *arg, int result)
{
    struct attach_signal *s = arg;
    struct attach *a = s->attach;
    struct error err = {0};

    list_remove(&s->link);
    free(s);
    if (a != NULL) {
        a->signal_count--;
    }
    if (a != NULL && result != 0 && !a->closing) {
        process_signal_error(a->session.process, result, &err);
        send_error(a, &err);
    }
}

static void take_signal(struct attach *a, const struct attach_request *request)
{
    struct attach_signal *s;
    struct error err = {0};

    if (a->signal_count >= SIGNALS_MAX) {
        (void)error_set_code(&err, ERROR_RATE_LIMITED, "signals",
                             "%u signals are under way; wait for the guest to take them",
                             SIGNALS_MAX);
        send_error(a, &err);
        return;
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        send_error(a, &err);
        return;
    }
    s->attach = a;
    list_append(&a->signals, &s->link);
    a->signal_count++;
    if (a->session.process == NULL) {
        on_signalled(s, ESRCH);
        return;
    }
    process_signal(a->session.process, request->signal, request->scope, on_signalled, s);
}

static void take_request(struct attach *a, const struct attach_request *request)
{
    struct error err = {0};

    switch (request->kind) {
    case ATTACH_EOF:
        take_input(a, span_make(NULL, 0), true);
        break;
    case ATTACH_SIGNAL:
        take_signal(a, request);
        break;
    case ATTACH_RESIZE:
        if (a->session.process == NULL) {
            (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, NULL, "the process has ended");
            send_error(a, &err);
        } else if (process_resize(a->session.process, &request->size, &err) < 0) {
            send_error(a, &err);
        }
        break;
    }
}

static void on_message(void *arg, struct websocket *ws, bool is_text, struct span message)
{
    struct attach_request request;
    struct attach *a = arg;
    struct error err = {0};
    int r = 0;

    (void)ws;
    if (a->closing) {
        return;
    }
    if (!is_text && (message.n == 0 || message.p[0] != INPUT_FRAME)) {
        close_with(a, CLOSE_BAD_FRAME, "a binary frame is a zero byte and input");
        return;
    }
    if (is_text) {
        r = attach_request_parse(message, &request, &err);
    }
    if (r == -EBADMSG) {
        close_with(a, CLOSE_BAD_TEXT, "a text frame is a JSON object with a type");
        return;
    }
    if (a->read_only) {
        (void)error_set_code(&err, ERROR_FORBIDDEN, NULL, "this attachment is read-only");
    }
    if (err.code != ERROR_NONE) {
        send_error(a, &err);
        return;
    }
    if (a->session.process != NULL) {
        sandbox_touch(a->session.process->table->sandbox);
    }
    if (is_text) {
        take_request(a, &request);
    } else {
        take_input(a, span_skip(message, 1), false);
    }
}

static void on_closed(void *arg, struct websocket *ws, unsigned int code)
{
    struct attach *a = arg;

    (void)ws;
    (void)code;
    attach_free(a);
}

/* ---- attaching ---- */

void attach_on_change(struct data *data, struct sandbox *sb)
{
    const char *state = sandbox_state_name(sandbox_info(sb)->state);
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->attaches)
    {
        struct attach *a = list_entry(it, struct attach, link);

        if (a->session.process != NULL && a->session.process->table->sandbox == sb &&
            a->session.phase != SESSION_PHASE_DONE && !a->closing &&
            sandbox_info(sb)->state != SANDBOX_STATE_DELETED) {
            send_event(a, "sandbox", json_pack("{s:s}", "state", state));
        }
    }
}

void attach_touch(struct data *data, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->attaches)
    {
        const struct attach *a = list_entry(it, struct attach, link);

        if (a->is_activity && strcmp(a->sandbox_id, sandbox_id) == 0) {
            data_touch(data, sandbox_id);
            return;
        }
    }
}

void attach_touch_all(struct data *data)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->attaches)
    {
        const struct attach *a = list_entry(it, struct attach, link);

        if (a->is_activity) {
            data_touch(data, a->sandbox_id);
        }
    }
}

/* Cuts the attachment that the client had before. */
static void cut_replaced(struct data *data, const struct process *p, const char *id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->attaches)
    {
        struct attach *a = list_entry(it, struct attach, link);

        if (a->session.process == p && strcmp(a->id, id) == 0) {
            attach_free(a);
        }
    }
}

static int read_query(struct call *call, struct attach *a, struct error *err)
{
    static const char *const names[] = {"stdout", "stderr", "read_only", "replaces", NULL};
    struct order_position offsets = {{0, 0}};
    char replaces[ATTACHMENT_ID_SIZE];

    if (call_query_check(call, names, err) < 0 ||
        call_query_unsigned(call, "stdout", INT64_MAX, &offsets.at[0], err) < 0 ||
        call_query_unsigned(call, "stderr", INT64_MAX, &offsets.at[1], err) < 0 ||
        call_query_flag(call, "read_only", &a->read_only, err) < 0 ||
        call_query_text(call, "replaces", replaces, sizeof(replaces), err) < 0) {
        return -EINVAL;
    }
    if (replaces[0] != '\0') {
        cut_replaced(call->data, a->session.process, replaces);
    }
    return session_reader_seek(&a->session, &offsets, err);
}

/* Nobody can name an attachment who was not told of it. */
static int make_id(char out[ATTACHMENT_ID_SIZE])
{
    uint64_t value;
    int r = random_bytes(&value, sizeof(value));

    (void)snprintf(out, ATTACHMENT_ID_SIZE, "%016" PRIx64, value);
    return r;
}

static struct attach *attach_new(struct call *call, struct process *p)
{
    struct attach *a = calloc(1, sizeof(*a));

    if (a == NULL) {
        return NULL;
    }
    a->data = call->data;
    memcpy(a->sandbox_id, call->sandbox_id, sizeof(a->sandbox_id));
    list_init(&a->link);
    list_init(&a->signals);
    session_reader_init(&a->session, p);
    a->timer = loop_timer_new(call->data->node->loop, on_timer, a);
    if (a->timer == NULL || make_id(a->id) < 0) {
        attach_free(a);
        return NULL;
    }
    return a;
}

static void send_attached(struct attach *a)
{
    const struct process *p = a->session.process;

    send_event(a, "attached",
               json_pack("{s:s, s:s, s:I, s:I, s:I}", "attachment_id", a->id, "process_id", p->id,
                         "stdin_offset", (json_int_t)process_input_end(p), "stdout",
                         (json_int_t)a->session.wanted.at[0], "stderr",
                         (json_int_t)a->session.wanted.at[1]));
}

void handle_session_attach(struct call *call, json_t *body)
{
    static const struct websocket_callbacks callbacks = {on_message, on_drain, on_closed};
    struct process *p = call_session(call);
    struct data *data = call->data;
    struct websocket_options options = {
        .loop = data->node->loop, .max_message = MESSAGE_MAX, .callbacks = &callbacks};
    struct error err = {0};
    struct attach *a;

    (void)body;
    if (p == NULL) {
        return;
    }
    a = attach_new(call, p);
    if (a == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    options.arg = a;
    if (read_query(call, a, &err) < 0 || session_reader_attach(&a->session, &err) < 0 ||
        websocket_accept(call->exchange, &options, &a->ws, &err) < 0) {
        attach_free(a);
        call_fail(call, &err);
        return;
    }
    /* The call is over. */
    list_append(&data->attaches, &a->link);
    a->watch.fn = on_event;
    a->watch.arg = a;
    process_watch_add(p, &a->watch);
    send_attached(a);
    if (!a->read_only) {
        process_release(p);
        a->is_activity = true;
        data_touch(data, a->sandbox_id);
    }
    loop_timer_start(a->timer, 0);
}
