/* GET /n1/events: every sandbox once, `synced`, then every change.
 *
 * Changes wait a moment, and of several of one sandbox only the last is sent: who asked for a
 * change hears of it by the answer, and shall not share the processor with a report of it
 * meanwhile. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/checkpoint.h"
#include "node/data.h"
#include "node/node.h"
#include "node/routes.h"
#include "node/sandbox.h"

#define COMMENT_MS 15000
#define DELAY_MS   25
/* Changes written since the connection last drained: a reader further behind starts over. The
 * listing before them does not count: one that starts over would find it as long again. */
#define BEHIND_MAX_BYTES (16U * 1024U * 1024U)

struct feed_reader {
    struct list link; /* in data->feeds */
    struct call *call;
    size_t behind_bytes;
    bool synced; /* what was written before does not count */
    bool broken; /* to be closed at the next turn */
};

struct feed_change {
    struct list link; /* in data->changes */
    const char *name;
    char sandbox_id[ID_SIZE]; /* or a checkpoint's */
    json_t *record;
};

static void on_close(struct call *call, bool complete)
{
    struct feed_reader *reader = call->state;

    (void)complete;
    list_remove(&reader->link);
    free(reader);
}

static void on_drain(void *arg)
{
    struct feed_reader *reader = arg;

    reader->behind_bytes = 0;
}

static void write_text(struct feed_reader *reader, struct span text)
{
    if (reader->broken) {
        return;
    }
    if (http_exchange_write(reader->call->exchange, text) == 0 && reader->synced) {
        reader->behind_bytes += text.n;
    }
    if (reader->behind_bytes > BEHIND_MAX_BYTES) {
        /* Not from here: the caller walks the list of readers. */
        reader->broken = true;
        loop_timer_start(reader->call->timer, 0);
    }
}

static void write_event(struct feed_reader *reader, const char *name, json_t *value)
{
    _cleanup_json_ json_t *own = value;
    _cleanup_buf_ struct buf text = buf_make(0);

    buf_printf(&text, "event: %s\ndata: ", name);
    if (own != NULL) {
        json_write(own, &text);
    }
    buf_put_str(&text, "\n\n");
    if (own == NULL || buf_error(&text) != 0) {
        reader->broken = true; /* a change must not be skipped in silence */
        loop_timer_start(reader->call->timer, 0);
        return;
    }
    write_text(reader, buf_span(&text));
}

static void on_timer(void *arg)
{
    struct call *call = arg;
    struct feed_reader *reader = call->state;

    if (reader->broken) {
        http_exchange_abort(call->exchange);
        return;
    }
    write_text(reader, span_of_str(": still here\n\n"));
    loop_timer_start(call->timer, reader->broken ? 0 : COMMENT_MS);
}

static void change_free(struct feed_change *change)
{
    list_remove(&change->link);
    json_decref(change->record);
    free(change);
}

void feed_on_timer(void *arg)
{
    struct data *data = arg;

    while (!list_is_empty(&data->changes)) {
        struct feed_change *change = list_entry(data->changes.next, struct feed_change, link);
        struct list *it;
        struct list *following;

        list_foreach(it, following, &data->feeds)
        {
            write_event(list_entry(it, struct feed_reader, link), change->name,
                        json_incref(change->record));
        }
        change_free(change);
    }
}

/* The change of this sandbox that waits, moved to the end, or a new one; NULL for lack of memory.
 */
static struct feed_change *get_change(struct data *data, const char *sandbox_id)
{
    struct feed_change *change;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->changes)
    {
        change = list_entry(it, struct feed_change, link);
        if (strcmp(change->sandbox_id, sandbox_id) == 0) {
            list_remove(&change->link);
            list_append(&data->changes, &change->link);
            return change;
        }
    }
    change = calloc(1, sizeof(*change));
    if (change != NULL) {
        memcpy(change->sandbox_id, sandbox_id, ID_SIZE);
        list_append(&data->changes, &change->link);
    }
    return change;
}

static void put_change(struct data *data, const char *name, const char *id, json_t *record)
{
    struct feed_change *change;
    struct list *it;
    struct list *following;

    if (list_is_empty(&data->changes)) {
        loop_timer_start(data->feed_timer, DELAY_MS);
    }
    change = get_change(data, id);
    if (change != NULL) {
        json_decref(change->record);
        change->name = name;
        change->record = record; /* NULL: the readers have to start over */
        return;
    }
    json_decref(record);
    list_foreach(it, following, &data->feeds)
    {
        write_event(list_entry(it, struct feed_reader, link), name, NULL);
    }
}

void feed_on_change(struct data *data, struct sandbox *sb)
{
    if (!list_is_empty(&data->feeds)) { /* who comes later begins with all of them */
        put_change(data, "sandbox", sandbox_info(sb)->id, sandbox_describe(sb));
    }
}

void feed_on_checkpoint(struct data *data, const struct checkpoint *ck)
{
    if (!list_is_empty(&data->feeds)) {
        put_change(data, "checkpoint", ck->info.id, checkpoint_describe(ck));
    }
}

void feed_on_started(struct data *data)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->feeds)
    {
        write_event(list_entry(it, struct feed_reader, link), "started", json_object());
    }
}

void feed_forget(struct data *data)
{
    while (!list_is_empty(&data->changes)) {
        change_free(list_entry(data->changes.next, struct feed_change, link));
    }
}

void handle_feed(struct call *call, json_t *body)
{
    const struct http_header headers[] = {
        {"Content-Type", "text/event-stream"},
        {"Cache-Control", "no-store"},
        {"X-Request-Id", call->request_id},
    };
    struct feed_reader *reader = calloc(1, sizeof(*reader));
    struct checkpoint_walk walk = {0};
    unsigned int index = 0;
    const struct sandbox *sb;
    const struct checkpoint *ck;
    struct error err = {0};

    (void)body;
    if (reader == NULL || call_start_timer(call, COMMENT_MS, on_timer) < 0) {
        free(reader);
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    reader->call = call;
    call->state = reader;
    call->on_close = on_close;
    call->answered = true;
    list_append(&call->data->feeds, &reader->link);
    http_exchange_on_drain(call->exchange, on_drain, reader);
    http_exchange_start(call->exchange, 200, headers, 3, -1);
    while ((sb = sandbox_next(call->data->node, &index)) != NULL) {
        if (sandbox_info(sb)->state != SANDBOX_STATE_DELETED) {
            write_event(reader, "sandbox", sandbox_describe(sb));
        }
    }
    while ((ck = checkpoint_next(call->data->node, &walk)) != NULL) {
        if (ck->manifest[0] != '\0') {
            write_event(reader, "checkpoint", checkpoint_describe(ck));
        }
    }
    write_event(reader, "synced", json_object());
    reader->synced = true;
}
