/* GET, HEAD and PUT …/files: the content of one file.
 *
 * What the guest says of the file is held against what it then sends: the range of BODY must be
 * the one that was asked for, of the size in ENTRY, and the answer announces exactly that, or no
 * length where BODY has none. A file may change while it is looked at, so a range that does not fit
 * ends this call and nothing else. When the file shrinks meanwhile, the connection is cut, never
 * ended. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "node/data.h"
#include "node/file_call.h"
#include "node/file_entry.h"
#include "wire/http_range.h"

#define NS_PER_S         1000000000U
#define HEADERS_MAX      8U
#define HEADER_TEXT_SIZE 80

static const char *const content_names[] = {"path", "user", NULL};

struct content {
    bool is_head;
    bool has_range;
    bool has_entry;
    struct http_range range;
    uint64_t size;
    char etag[HEADER_TEXT_SIZE];
    char modified[HEADER_TEXT_SIZE];
    char content_range[HEADER_TEXT_SIZE];
};

/* ---- the answer's head ---- */

static void start_answer(struct file_call *f, int status, int64_t length)
{
    const struct content *c = f->state;
    struct http_header headers[HEADERS_MAX] = {
        {"Content-Type", "application/octet-stream"},
        {"Accept-Ranges", "bytes"},
        {"ETag", c->etag},
        {"Last-Modified", c->modified},
        {"Cache-Control", "no-cache"},
        {"X-Request-Id", f->call->request_id},
    };
    size_t count = 6;

    if (status == 206) {
        headers[count++] = (struct http_header){"Content-Range", c->content_range};
    }
    f->call->answered = true;
    http_exchange_start(f->call->exchange, status, headers, count, length);
}

/* An answer without a body. */
static void answer_head(struct file_call *f, int status)
{
    const struct content *c = f->state;

    file_call_close(f);
    start_answer(f, status, (int64_t)c->size);
    http_exchange_end(f->call->exchange);
}

static void add_range(struct file_call *f)
{
    const struct content *c = f->state;
    char text[HTTP_RANGE_TEXT_SIZE] = "";

    if (c->is_head) {
        (void)snprintf(text, sizeof(text), "0-0"); /* only ENTRY is wanted */
    } else if (c->has_range) {
        http_range_format(&c->range, text);
    }
    service_args_add_str(&f->args, text);
}

/* ---- conditions ---- */

static bool etag_is_among(const char *header, const char *etag)
{
    return header != NULL && (strcmp(header, "*") == 0 || strstr(header, etag) != NULL);
}

/* The range was asked for a version of the file that is not this one: all of it, then. */
static bool is_other_version(const struct file_call *f)
{
    const struct content *c = f->state;
    const char *condition = http_exchange_header(f->call->exchange, "If-Range");

    return c->has_range && condition != NULL && strcmp(condition, c->etag) != 0 &&
           strcmp(condition, c->modified) != 0;
}

static void start_over(struct file_call *f)
{
    struct content *c = f->state;
    struct error err = {0};

    service_close(TAKE(f->service));
    c->has_range = false;
    c->has_entry = false;
    service_args_done(&f->args);
    service_args_init(&f->args, "file-read");
    if (file_call_read_query(f, content_names, &err) < 0) {
        file_call_close(f);
        call_fail(f->call, &err);
        return;
    }
    add_range(f);
    file_call_open(f);
}

/* ---- what the guest says ---- */

static void note_entry(struct content *c, const struct service_entry *entry)
{
    time_t seconds = (time_t)(entry->modified_ns / NS_PER_S);
    struct tm tm = {0};

    c->has_entry = true;
    c->size = entry->size_bytes;
    (void)gmtime_r(&seconds, &tm);
    (void)strftime(c->modified, sizeof(c->modified), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    (void)snprintf(c->etag, sizeof(c->etag), "\"%" PRIx64 "-%" PRIx64 "\"", entry->size_bytes,
                   entry->modified_ns);
}

static const char *on_record(void *arg, const struct service_record *record)
{
    struct file_call *f = arg;
    struct content *c = f->state;
    struct service_entry entry;

    if (record->type != SERVICE_RECORD_ENTRY || c->has_entry ||
        service_entry_parse(record->payload, &entry) < 0 || entry.type != SERVICE_ENTRY_FILE ||
        entry.size_bytes > INT64_MAX) {
        return "a bad ENTRY of a file";
    }
    note_entry(c, &entry);
    if (etag_is_among(http_exchange_header(f->call->exchange, "If-None-Match"), c->etag)) {
        answer_head(f, 304);
    } else if (c->is_head) {
        answer_head(f, 200);
    } else if (is_other_version(f)) {
        start_over(f);
    }
    return NULL;
}

static void fail_unsteady(struct file_call *f)
{
    struct error err = {0};

    file_call_close(f);
    (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL,
                         "the file changed while the sandbox's agent looked at it");
    call_fail(f->call, &err);
}

static const char *on_body(void *arg, const struct service_body *body)
{
    struct file_call *f = arg;
    struct content *c = f->state;
    uint64_t offset = 0;
    uint64_t length = c->size;

    if (!c->has_entry) {
        return "BODY without ENTRY";
    }
    if (!c->has_range && body->offset == 0 && body->length == SERVICE_LENGTH_UNKNOWN) {
        start_answer(f, 200, -1); /* made while it is read, as below /proc */
        return NULL;
    }
    if ((c->has_range && http_range_resolve(&c->range, c->size, &offset, &length) < 0) ||
        body->offset != offset || body->length != length) {
        fail_unsteady(f);
        return NULL;
    }
    (void)snprintf(c->content_range, sizeof(c->content_range),
                   "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, offset, offset + length - 1, c->size);
    start_answer(f, c->has_range ? 206 : 200, (int64_t)length);
    return NULL;
}

static void on_bytes(void *arg, struct span bytes)
{
    file_call_write(arg, bytes);
}

static void on_read_done(struct file_call *f, const struct service_end *end)
{
    struct error err = {0};

    (void)end;
    if (http_exchange_is_started(f->call->exchange)) {
        http_exchange_end(f->call->exchange);
        return;
    }
    (void)error_set(&err, EIO, "the sandbox's agent gave no content");
    call_fail(f->call, &err);
}

static bool on_read_failed(struct file_call *f, const struct service_end *end)
{
    const struct content *c = f->state;
    char text[HEADER_TEXT_SIZE];
    const struct http_header header = {"Content-Range", text};
    struct error err = {0};

    if (end->kind != SERVICE_END_ERROR || end->errnum != ERANGE || !c->has_entry || !c->has_range) {
        return false;
    }
    (void)snprintf(text, sizeof(text), "bytes */%" PRIu64, c->size);
    (void)error_set_code(&err, ERROR_RANGE_NOT_SATISFIABLE, NULL,
                         "the file has only %" PRIu64 " bytes", c->size);
    call_fail_with(f->call, &err, &header);
    return true;
}

void handle_file_get(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-read");
    struct content *c = f != NULL ? http_exchange_alloc(call->exchange, sizeof(*c)) : NULL;
    const char *range = http_exchange_header(call->exchange, "Range");
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    if (c == NULL) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    memset(c, 0, sizeof(*c));
    f->state = c;
    f->spec.idle_ms = FILE_TRANSFER_IDLE_MS;
    f->callbacks.on_record = on_record;
    f->callbacks.on_body = on_body;
    f->callbacks.on_bytes = on_bytes;
    f->on_done = on_read_done;
    f->on_failed = on_read_failed;
    c->is_head = strcmp(http_exchange_method(call->exchange), "HEAD") == 0;
    c->has_range = !c->is_head && range != NULL &&
                   http_exchange_header_count(call->exchange, "Range") == 1 &&
                   http_range_parse(span_of_str(range), &c->range) == 0;
    if (file_call_read_query(f, content_names, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    add_range(f);
    file_call_start(f, true);
}

/* ---- upload ---- */

static void on_written(struct file_call *f, const struct service_end *end)
{
    file_call_answer_entry(f, end->count == 1 ? 201 : 200);
}

static int read_put_query(struct file_call *f, struct error *err)
{
    static const char *const names[] = {"path", "user", "mode", "parents", NULL};
    int64_t length = http_exchange_content_length(f->call->exchange);
    bool parents = true;
    char mode[8];
    char size[24] = "";

    if (file_call_read_query(f, names, err) < 0 ||
        file_query_bool(f->call, "parents", &parents, err) < 0 ||
        call_query_text(f->call, "mode", mode, sizeof(mode), err) < 0) {
        return -EINVAL;
    }
    if (mode[0] != '\0' && !file_mode_is_valid(mode)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "mode",
                              "mode must be an octal mode such as 0644");
    }
    if (length >= 0) {
        (void)snprintf(size, sizeof(size), "%" PRId64, length);
    }
    service_args_add_str(&f->args, mode);
    service_args_add_str(&f->args, parents ? "parents" : "");
    service_args_add_str(&f->args, size);
    return 0;
}

void handle_file_put(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-write");
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    f->spec.has_input = true;
    f->spec.idle_ms = FILE_TRANSFER_IDLE_MS;
    f->callbacks.on_room = file_call_on_room;
    f->on_done = on_written;
    if (read_put_query(f, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    file_call_start(f, true);
}
