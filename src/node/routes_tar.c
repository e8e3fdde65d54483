/* GET and PUT …/files/tar: a tree of files as an archive, uncompressed. */
#include <errno.h>

#include "node/file_call.h"
#include "node/file_error.h"
#include "wire/url.h"

/* ---- GET ---- */

static const char *on_body(void *arg, const struct service_body *body)
{
    struct file_call *f = arg;
    const struct http_header headers[] = {
        {"Content-Type", "application/x-tar"},
        {"Cache-Control", "no-store"},
        {"X-Request-Id", f->call->request_id},
    };

    if (body->offset != 0 || body->length != SERVICE_LENGTH_UNKNOWN) {
        return "an archive of a known length";
    }
    f->call->answered = true;
    http_exchange_start(f->call->exchange, 200, headers, 3, -1);
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
    (void)error_set(&err, EIO, "the sandbox's agent gave no archive");
    call_fail(f->call, &err);
}

/* `exclude` may be given any number of times. */
static int read_excludes(struct file_call *f, struct error *err)
{
    struct span rest = span_of_str(http_exchange_query(f->call->exchange));
    struct url_pair pair;

    while (url_query_next(&rest, &pair) > 0) {
        char pattern[AGENT_PATH_BYTES];
        int n;

        if (!span_equals_str(pair.name, "exclude")) {
            continue;
        }
        n = url_decode(pair.value, true, pattern, sizeof(pattern));
        if (n <= 0) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "exclude",
                                  "exclude must be a pattern of 1 to %u bytes",
                                  AGENT_PATH_BYTES - 1);
        }
        service_args_add(&f->args, span_make(pattern, (size_t)n));
    }
    return 0;
}

void handle_tar_get(struct call *call, json_t *body)
{
    static const char *const names[] = {"path", "user", "exclude", NULL};
    struct file_call *f = file_call_new(call, "tar-read");
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    f->spec.idle_ms = FILE_TRANSFER_IDLE_MS;
    f->callbacks.on_record = NULL;
    f->callbacks.on_body = on_body;
    f->callbacks.on_bytes = on_bytes;
    f->on_done = on_read_done;
    if (file_call_read_query(f, names, &err) < 0 || read_excludes(f, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    file_call_start(f, true);
}

/* ---- PUT ---- */

static void on_written(struct file_call *f, const struct service_end *end)
{
    json_int_t count = end->count <= INT64_MAX ? (json_int_t)end->count : 0;

    call_respond(f->call, 200, json_pack("{s:I}", "entries", count));
}

/* The archive itself is at fault. */
static bool on_write_failed(struct file_call *f, const struct service_end *end)
{
    struct error err = {0};

    if (end->kind != SERVICE_END_ERROR || (end->errnum != EBADMSG && end->errnum != EPIPE)) {
        return false;
    }
    (void)error_set_errno(&err, ERROR_INVALID_REQUEST, "body", end->errnum,
                          end->errnum == EPIPE ? "the archive ends early"
                                               : "this is no tar archive that can be unpacked");
    call_fail(f->call, &err);
    return true;
}

void handle_tar_put(struct call *call, json_t *body)
{
    static const char *const names[] = {"path", "user", NULL};
    struct file_call *f = file_call_new(call, "tar-write");
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    f->spec.has_input = true;
    f->spec.idle_ms = FILE_TRANSFER_IDLE_MS;
    f->callbacks.on_record = NULL;
    f->callbacks.on_room = file_call_on_room;
    f->on_done = on_written;
    f->on_failed = on_write_failed;
    if (file_call_read_query(f, names, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    file_call_start(f, true);
}
