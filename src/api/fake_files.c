#include "api/fake_files.h"

#include <string.h>

#include "base/buf.h"
#include "base/list.h"
#include "io/http_server.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "wire/url.h"

#define ENDLESS_BYTES (32U << 20)
#define TICK_MS       20

struct fake_file {
    struct list link;
    char name[600]; /* sandbox and path */
    struct buf content;
};

struct fake_files {
    struct loop *loop;
    struct list all;     /* struct fake_file */
    unsigned int asleep; /* answers of that kind */
};

struct transfer {
    struct fake_files *files;
    struct http_exchange *exchange;
    struct loop_timer *timer;
    char name[600];
    struct buf content;
    uint64_t left;
    unsigned int ticks;
    bool answered;
};

struct fake_files *fake_files_new(struct loop *loop)
{
    struct fake_files *files = calloc(1, sizeof(*files));

    if (files == NULL) {
        abort();
    }
    files->loop = loop;
    list_init(&files->all);
    return files;
}

static struct fake_file *find(struct fake_files *files, const char *name)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &files->all)
    {
        struct fake_file *file = list_entry(it, struct fake_file, link);

        if (strcmp(file->name, name) == 0) {
            return file;
        }
    }
    return NULL;
}

static const char *path_of(const char *name)
{
    return &name[strcspn(name, ":") + 1];
}

static void respond(struct transfer *t, int status, json_t *body)
{
    static const struct http_header type[] = {{"Content-Type", "application/json"}};
    _cleanup_json_ json_t *owned = body;
    _cleanup_buf_ struct buf text = buf_make(0);

    t->answered = true;
    json_write(owned, &text);
    http_exchange_respond(t->exchange, status, type, 1, buf_span(&text));
}

static void respond_error(struct transfer *t, enum error_code code, const char *field)
{
    struct error err;

    (void)error_set_code(&err, code, field, "the fake node says %s", error_code_name(code));
    respond(t, error_code_status(code), json_error_make(&err, "", NULL));
}

static void on_close(void *arg, struct http_exchange *exchange, bool complete)
{
    struct transfer *t = arg;

    (void)exchange;
    if (!complete) {
        (void)fprintf(stderr, "cut %s\n", path_of(t->name));
    }
    loop_timer_free(t->timer);
    buf_done(&t->content);
    free(t);
}

/* ---- uploads ---- */

static void keep(struct transfer *t)
{
    struct fake_file *file = find(t->files, t->name);
    const char *path = path_of(t->name);
    bool is_new = file == NULL;

    if (is_new) {
        file = calloc(1, sizeof(*file));
        if (file == NULL) {
            abort();
        }
        memcpy(file->name, t->name, sizeof(file->name));
        list_append(&t->files->all, &file->link);
    }
    buf_done(&file->content);
    file->content = t->content;
    t->content = buf_make(0);
    respond(t, is_new ? 201 : 200,
            json_pack("{s:o, s:I}", "path", json_string(path), "size_bytes",
                      (json_int_t)file->content.n));
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct transfer *t = arg;

    (void)exchange;
    if (err != NULL || t->answered) {
        return;
    }
    buf_put(&t->content, piece);
    if (strcmp(path_of(t->name), "/full") == 0) {
        respond_error(t, ERROR_STORAGE_FULL, NULL);
    } else if (last && strcmp(path_of(t->name), "/denied") == 0) {
        respond_error(t, ERROR_FORBIDDEN, NULL);
    } else if (last) {
        keep(t);
    }
}

static void on_archive(void *arg,
                       struct http_exchange *exchange,
                       struct span piece,
                       bool last,
                       const struct error *err)
{
    struct transfer *t = arg;

    (void)exchange;
    if (err == NULL) {
        buf_put(&t->content, piece);
        if (last) {
            respond(t, 200, json_pack("{s:I}", "entries", (json_int_t)t->content.n));
        }
    }
}

static void
on_json(void *arg, struct http_exchange *exchange, struct span body, const struct error *problem)
{
    struct transfer *t = arg;
    json_t *value = NULL;
    struct error err;

    (void)exchange;
    if (problem != NULL || json_request_parse(body, true, &value, &err) < 0) {
        respond_error(t, ERROR_INVALID_REQUEST, "body");
        return;
    }
    respond(t, 200,
            json_pack("{s:s, s:o}", "query", http_exchange_query(t->exchange), "body", value));
}

/* ---- downloads ---- */

static void write_more(void *arg)
{
    struct transfer *t = arg;
    char piece[16384];

    memset(piece, 'x', sizeof(piece));
    while (t->left > 0) {
        size_t n = t->left < sizeof(piece) ? (size_t)t->left : sizeof(piece);

        t->left -= n;
        if (http_exchange_write(t->exchange, span_make(piece, n)) == 0 && t->left > 0) {
            return;
        }
    }
    http_exchange_end(t->exchange);
}

/* A suspend came between: "/asleep" says so three times of four, "/never" always. */
static bool serve_asleep(struct transfer *t)
{
    static const struct http_header headers[] = {{"Content-Type", "application/json"},
                                                 {"X-Space-Asleep", "true"}};
    const char *path = path_of(t->name);
    _cleanup_buf_ struct buf text = buf_make(0);
    struct error err;

    if (strcmp(path, "/never") != 0 &&
        (strcmp(path, "/asleep") != 0 || ++t->files->asleep % 4 == 0)) {
        return false;
    }
    (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, "suspending", "it is suspending");
    json_error_format(&err, "x", &text);
    t->answered = true;
    http_exchange_respond(t->exchange, 409, headers, 2, buf_span(&text));
    return true;
}

static void serve_content(struct transfer *t)
{
    struct http_header headers[5] = {{"Content-Type", "application/octet-stream"},
                                     {"Accept-Ranges", "bytes"},
                                     {"ETag", "\"v1\""},
                                     {"Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT"},
                                     {"Content-Range", "bytes 0-3/8"}};
    const char *range = http_exchange_header(t->exchange, "Range");
    const char *known = http_exchange_header(t->exchange, "If-None-Match");
    struct fake_file *file = find(t->files, t->name);

    if (strcmp(path_of(t->name), "/endless") == 0) {
        t->left = ENDLESS_BYTES;
        http_exchange_on_drain(t->exchange, write_more, t);
        http_exchange_start(t->exchange, 200, headers, 4, ENDLESS_BYTES);
        write_more(t);
    } else if (file == NULL) {
        respond_error(t, ERROR_NOT_FOUND, "file");
    } else if (known != NULL && strstr(known, "\"v1\"") != NULL) {
        http_exchange_respond(t->exchange, 304, headers, 4, span_make(NULL, 0));
    } else if (range != NULL && strcmp(range, "bytes=0-3") == 0) {
        http_exchange_respond(t->exchange, 206, headers, 5, span_head(buf_span(&file->content), 4));
    } else {
        http_exchange_respond(t->exchange, 200, headers, 4, buf_span(&file->content));
    }
}

static void serve_archive(struct transfer *t)
{
    static const struct http_header type[] = {{"Content-Type", "application/x-tar"}};
    _cleanup_buf_ struct buf text = buf_make(0);

    for (int i = 0; i < 1000; i++) {
        buf_printf(&text, "archive with %s\n", http_exchange_query(t->exchange));
    }
    http_exchange_start(t->exchange, 200, type, 1, -1);
    (void)http_exchange_write(t->exchange, buf_span(&text));
    http_exchange_end(t->exchange);
}

static void on_tick(void *arg)
{
    struct transfer *t = arg;
    char text[96];

    (void)snprintf(text, sizeof(text), "id: %u\nevent: created\ndata: {\"path\": \"f%u\"}\n\n",
                   t->ticks, t->ticks);
    t->ticks++;
    (void)http_exchange_write(t->exchange, span_of_str(text));
    loop_timer_start(t->timer, TICK_MS);
}

static void serve_watch(struct transfer *t)
{
    static const struct http_header type[] = {{"Content-Type", "text/event-stream"}};
    const char *last = http_exchange_header(t->exchange, "Last-Event-ID");
    uint64_t id = 0;

    if (last != NULL && span_parse_u64(span_of_str(last), 1000000, &id) == 0) {
        t->ticks = (unsigned int)id + 1;
    }
    http_exchange_start(t->exchange, 200, type, 1, -1);
    t->timer = loop_timer_new(t->files->loop, on_tick, t);
    loop_timer_start(t->timer, 1);
}

void fake_files_serve(struct fake_files *files,
                      struct http_exchange *exchange,
                      const char *sandbox_id,
                      const char *rest)
{
    struct span query = span_of_str(http_exchange_query(exchange));
    const char *method = http_exchange_method(exchange);
    struct transfer *t = calloc(1, sizeof(*t));
    char path[500] = "";

    if (t == NULL) {
        abort();
    }
    t->files = files;
    t->exchange = exchange;
    (void)url_query_get(query, "path", path, sizeof(path));
    (void)snprintf(t->name, sizeof(t->name), "%s:%s", sandbox_id, path);
    http_exchange_on_close(exchange, on_close, t);
    if (strcmp(method, "PUT") != 0 && serve_asleep(t)) {
        return;
    }
    if (strcmp(rest, "/files") == 0 && strcmp(method, "PUT") == 0) {
        http_exchange_stream_body(exchange, on_piece, t);
    } else if (strcmp(rest, "/files") == 0 && strcmp(method, "DELETE") != 0) {
        serve_content(t);
    } else if (strcmp(rest, "/files/tar") == 0 && strcmp(method, "PUT") == 0) {
        http_exchange_stream_body(exchange, on_archive, t);
    } else if (strcmp(rest, "/files/tar") == 0) {
        serve_archive(t);
    } else if (strcmp(rest, "/files/watch") == 0) {
        serve_watch(t);
    } else {
        http_exchange_collect_body(exchange, 1U << 20, on_json, t);
    }
}
