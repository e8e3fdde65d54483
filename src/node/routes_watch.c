/* GET …/files/watch: the changes below a directory as server-sent events. A reader holds nothing:
 * it takes the watch's history as its connection has room. */
#include <errno.h>
#include <string.h>

#include "io/loop.h"
#include "node/data.h"
#include "node/file_entry.h"
#include "node/file_query.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/services.h"
#include "node/watch.h"

#define COMMENT_MS 15000
#define TURN_BYTES 65536U /* written in one turn before others have theirs */

struct watch_call {
    struct call *call;
    char user[FILE_USER_SIZE];
    struct buf path;
    struct watch_reader reader;
    char after[EVENT_ID_SIZE];
    bool recursive;
    bool waiting; /* for the connection to drain */
    struct loop_timer *comment_timer;
};

static void on_close(struct call *call, bool complete)
{
    struct watch_call *w = call->state;

    (void)complete;
    watch_leave(&w->reader);
    loop_timer_free(TAKE(w->comment_timer));
    buf_done(&w->path);
}

/* The first event: where the reader stands. */
static void put_watching(struct watch_call *w, struct buf *text)
{
    _cleanup_json_ json_t *data = json_object();
    char id[EVENT_ID_SIZE];
    int r = file_name_set(data, "path", "path_base64", buf_span(&w->reader.watch->path));

    r |= json_object_set_new(data, "recursive", json_boolean(w->recursive));
    watch_format_id(&w->reader, id);
    buf_printf(text, "id: %s\nevent: watching\ndata: ", id);
    json_write(data, text);
    buf_put_str(text, "\n\n");
    if (r != 0) {
        text->error = -ENOMEM;
    }
}

/* The last one: why no more will come. */
static void put_error(struct watch_call *w, struct buf *text)
{
    _cleanup_json_ json_t *envelope =
        json_error_make(&w->reader.watch->error, w->call->request_id, NULL);

    buf_put_str(text, "event: error\ndata: ");
    json_write(json_object_get(envelope, "error"), text);
    buf_put_str(text, "\n\n");
}

static void start_answer(struct watch_call *w, struct buf *text)
{
    const struct http_header headers[] = {
        {"Content-Type", "text/event-stream"},
        {"Cache-Control", "no-store"},
        {"X-Request-Id", w->call->request_id},
    };

    w->call->answered = true;
    http_exchange_start(w->call->exchange, 200, headers, 3, -1);
    loop_timer_start(w->comment_timer, COMMENT_MS);
    put_watching(w, text);
}

/* Writes until the connection is full, all is said, or others have a turn. */
static void pump(void *arg)
{
    struct call *call = arg;
    struct watch_call *w = call->state;
    _cleanup_buf_ struct buf text = buf_make(0);
    const struct watch *watch = w->reader.watch;
    bool more = true;

    if (w->waiting || watch == NULL) {
        return;
    }
    if (!call->answered && !watch->watching) {
        if (watch->is_ended) {
            call_fail(call, &watch->error);
        }
        return;
    }
    if (!call->answered) {
        start_answer(w, &text);
    }
    while (more && text.n < TURN_BYTES) {
        more = watch_next(&w->reader, &text);
    }
    if (!more && watch->is_ended) {
        put_error(w, &text);
    }
    if (buf_error(&text) != 0) {
        http_exchange_abort(call->exchange);
        return;
    }
    w->waiting = text.n > 0 && http_exchange_write(call->exchange, buf_span(&text)) == 0;
    if (!more && watch->is_ended) {
        http_exchange_end(call->exchange);
        watch_leave(&w->reader);
    } else if (more && !w->waiting) {
        loop_timer_start(call->timer, 0);
    }
}

static void on_drain(void *arg)
{
    struct watch_call *w = arg;

    w->waiting = false;
    loop_timer_start(w->call->timer, 0);
}

static void on_news(void *arg)
{
    struct watch_call *w = arg;

    loop_timer_start(w->call->timer, 0);
}

static void on_comment(void *arg)
{
    struct watch_call *w = arg;

    loop_timer_start(w->comment_timer, COMMENT_MS);
    if (!w->waiting) {
        w->waiting = http_exchange_write(w->call->exchange, span_of_str(": still here\n\n")) == 0;
    }
}

static int read_query(struct watch_call *w, struct error *err)
{
    static const char *const names[] = {"path", "user", "recursive", "after", NULL};
    const char *last_id = http_exchange_header(w->call->exchange, "Last-Event-ID");

    if (call_query_check(w->call, names, err) < 0 || file_query_user(w->call, w->user, err) < 0 ||
        file_query_bool(w->call, "recursive", &w->recursive, err) < 0 ||
        call_query_text(w->call, "after", w->after, sizeof(w->after), err) < 0) {
        return -EINVAL;
    }
    if (last_id != NULL && last_id[0] != '\0') {
        (void)snprintf(w->after, sizeof(w->after), "%s", last_id);
    }
    return file_query_path(w->call, &w->path, err);
}

static int join(struct watch_call *w, struct error *err)
{
    struct sandbox *sb = sandbox_find(w->call->data->node, w->call->sandbox_id);
    struct services *services;

    if (read_query(w, err) < 0) {
        return -EINVAL;
    }
    if (sb == NULL || sandbox_info(sb)->state == SANDBOX_STATE_DELETED) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox", "no sandbox %.20s",
                              w->call->sandbox_id);
    }
    if (sandbox_require_running(sb, err) < 0) {
        return -EBUSY;
    }
    services = services_get(w->call->data, sb);
    w->comment_timer = loop_timer_new(w->call->data->node->loop, on_comment, w);
    if (services == NULL || w->comment_timer == NULL || call_start_timer(w->call, 0, pump) < 0) {
        return error_set(err, ENOMEM, "out of memory");
    }
    call_touch(w->call);
    w->reader.fn = on_news;
    w->reader.arg = w;
    list_init(&w->reader.link);
    return watch_join(services, &(struct watch_target){buf_span(&w->path), w->recursive, w->user},
                      w->after, &w->reader, err);
}

void handle_watch(struct call *call, json_t *body)
{
    struct watch_call *w = http_exchange_alloc(call->exchange, sizeof(*w));
    struct error err = {0};

    (void)body;
    if (w == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    memset(w, 0, sizeof(*w));
    w->call = call;
    w->path = buf_make(0);
    call->state = w;
    call->on_close = on_close;
    http_exchange_on_drain(call->exchange, on_drain, w);
    if (join(w, &err) < 0) {
        call_fail(call, &err);
    }
}
