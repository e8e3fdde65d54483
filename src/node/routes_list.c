/* GET …/files/list: a walk of a guest's directory, a page at a time. The text of a page is bounded
 * whatever the names are like; what does not fit is the next page's. */
#include <errno.h>
#include <string.h>

#include "node/base64.h"
#include "node/file_call.h"
#include "node/file_entry.h"

#define LIST_DEFAULT   100U
#define LIST_MAX       1000U
#define LIST_DEPTH_MAX 64U
#define LIST_TEXT_MAX  1048576U /* an entry that goes beyond it is the last of its page */

struct list_call {
    uint64_t limit;
    uint64_t count;
    bool failed; /* without memory */
    struct buf text;
    struct buf cursor; /* the last path, coded */
};

/* Owned by the exchange's memory but for its buffers. */
static void list_done(struct list_call *list)
{
    buf_done(&list->text);
    buf_done(&list->cursor);
}

static void answer(struct file_call *f, bool more)
{
    struct list_call *list = f->state;
    struct error err = {0};

    buf_put_str(&list->text, "],\"next_cursor\":");
    if (more && list->count > 0) {
        buf_printf(&list->text, "\"%s\"}", buf_str(&list->cursor));
    } else {
        buf_put_str(&list->text, "null}");
    }
    if (list->failed || buf_error(&list->text) != 0 || buf_error(&list->cursor) != 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(f->call, &err);
    } else {
        call_respond_text(f->call, 200, buf_span(&list->text));
    }
}

static void on_done(struct file_call *f, const struct service_end *end)
{
    answer(f, end->more);
}

static const char *on_record(void *arg, const struct service_record *record)
{
    struct file_call *f = arg;
    struct list_call *list = f->state;
    _cleanup_json_ json_t *object = NULL;
    struct service_entry entry;

    if (record->type != SERVICE_RECORD_ENTRY || service_entry_parse(record->payload, &entry) < 0) {
        return "a bad ENTRY";
    }
    if (list->count == list->limit) {
        return "more entries than it was asked for";
    }
    object = file_entry_describe(&entry);
    if (object == NULL) {
        list->failed = true;
        return NULL;
    }
    if (list->count++ > 0) {
        buf_put_u8(&list->text, ',');
    }
    json_write(object, &list->text);
    buf_clear(&list->cursor);
    base64_format(entry.path, &list->cursor);
    if (list->text.n > LIST_TEXT_MAX) {
        file_call_close(f);
        answer(f, true);
    }
    return NULL;
}

static void on_close(struct call *call, bool complete)
{
    struct file_call *f = call->state;

    list_done(f->state);
    file_call_on_close(call, complete);
}

static int read_cursor(struct file_call *f, struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(AGENT_PATH_BYTES);
    char text[FILE_PATH_TEXT_MAX];

    if (call_query_text(f->call, "cursor", text, sizeof(text), err) < 0) {
        return -EINVAL;
    }
    if (base64_parse(span_of_str(text), &path) < 0 ||
        (path.n > 0 && (path.p[0] != '/' || memchr(path.p, '\0', path.n) != NULL))) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "cursor", "cursor is not valid");
    }
    service_args_add(&f->args, buf_span(&path));
    return 0;
}

static int read_query(struct file_call *f, struct error *err)
{
    static const char *const names[] = {"path", "user", "depth", "limit", "cursor", NULL};
    struct list_call *list = f->state;
    uint64_t depth = 1;
    char number[24];

    if (file_call_read_query(f, names, err) < 0 ||
        call_query_unsigned(f->call, "depth", LIST_DEPTH_MAX, &depth, err) < 0 ||
        call_query_unsigned(f->call, "limit", LIST_MAX, &list->limit, err) < 0) {
        return -EINVAL;
    }
    if (depth == 0 || list->limit == 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, depth == 0 ? "depth" : "limit",
                              "%s must be between 1 and %u", depth == 0 ? "depth" : "limit",
                              depth == 0 ? LIST_DEPTH_MAX : LIST_MAX);
    }
    (void)snprintf(number, sizeof(number), "%u", (unsigned int)depth);
    service_args_add_str(&f->args, number);
    (void)snprintf(number, sizeof(number), "%u", (unsigned int)list->limit);
    service_args_add_str(&f->args, number);
    return read_cursor(f, err);
}

void handle_file_list(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-list");
    struct list_call *list = f != NULL ? http_exchange_alloc(call->exchange, sizeof(*list)) : NULL;
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    if (list == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    *list = (struct list_call){.limit = LIST_DEFAULT, .text = buf_make(0), .cursor = buf_make(0)};
    buf_put_str(&list->text, "{\"items\":[");
    f->state = list;
    f->callbacks.on_record = on_record;
    f->on_done = on_done;
    call->on_close = on_close;
    if (read_query(f, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    file_call_start(f, false);
}
