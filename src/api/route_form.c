/* POST …/files: the files of a multipart form, one PUT to the node after another.
 *
 * States of a form; in all of them the client may go away or the key be revoked, which cuts the
 * file that is under way, and what was written before stays:
 *   BETWEEN  reading up to the next part          idle timeout of the connection
 *   PATH     reading the field that names a file  likewise
 *   FILE     content goes to the node             likewise; the node's own when it takes none
 *   ANSWER   the node says what became of it      the node's deadline
 * Input is read only while it can be handed on; what of a piece comes behind the end of a file
 * waits for the node's answer. */
#include <errno.h>

#include "api/api.h"
#include "api/expiry.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/routes.h"
#include "api/wake.h"
#include "io/http_client.h"
#include "io/json_request.h"
#include "wire/multipart.h"
#include "wire/url.h"

#define FILES_MAX  1000
#define PATH_MAX_N 4095 /* as the guest's kernel has it */
#define ANSWER_MAX (1U << 20)
#define TARGET_MAX (4 * QUERY_TEXT_MAX)

enum form_state {
    FORM_BETWEEN,
    FORM_PATH,
    FORM_FILE,
    FORM_ANSWER,
};

struct form {
    struct request *rq;
    enum form_state state;
    struct http_call *call; /* of the file, in FILE and ANSWER */
    bool blocked;           /* the call takes no more for now */
    bool ended;             /* all input is there */
    struct buf waiting;     /* input that could not be handed on */
    struct buf named;       /* by the field `path`, for the next file */
    struct buf path;        /* of the file at hand, else empty */
    json_t *items;
    struct multipart parser;
};

static void form_free(struct form *form)
{
    if (form->call != NULL) {
        http_call_cancel(form->call);
    }
    buf_done(&form->waiting);
    buf_done(&form->named);
    buf_done(&form->path);
    json_decref(form->items);
    free(form);
}

static void on_gone(void *arg)
{
    form_free(arg);
}

/* Ends the form with this error, which names the file. `details` is stolen. */
static void fail_more(struct form *form, const struct error *err, json_t *details)
{
    struct request *rq = form->rq;
    struct error copy = *err;

    if (details == NULL) {
        details = json_object();
    }
    if (form->path.n > 0) {
        /* NULL, and no key, when the path is no text. */
        (void)json_object_set_new(details, "path", json_string(buf_str(&form->path)));
    }
    (void)json_object_set_new(details, "written",
                              json_integer((json_int_t)json_array_size(form->items)));
    request_on_gone(rq, NULL, NULL);
    form_free(form);
    request_fail_more(rq, &copy, details);
}

static void fail(struct form *form, enum error_code code, const char *field, const char *message)
{
    struct error err;

    (void)error_set_code(&err, code, field, "%s", message);
    fail_more(form, &err, NULL);
}

static void proceed(struct form *form, struct span in);

/* Goes on with what waits, and with what is still to come. */
static void resume(struct form *form)
{
    struct buf waiting = form->waiting;

    form->waiting = buf_make(0);
    proceed(form, buf_span(&waiting));
    buf_done(&waiting);
}

/* ---- the node's side ---- */

static void on_drain(void *arg)
{
    struct form *form = arg;

    if (form->blocked) {
        form->blocked = false;
        resume(form);
    }
}

static void refuse(struct form *form, json_t *answer)
{
    json_t *details = NULL;
    struct error err;

    if (json_error_read(answer, &err) < 0) {
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
    } else {
        details = json_copy(json_object_get(json_object_get(answer, "error"), "details"));
        (void)json_object_del(details, error_code_detail_key(err.code));
    }
    fail_more(form, &err, details);
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct form *form = arg;
    _cleanup_json_ json_t *answer = NULL;
    int status = http_call_status(call);
    struct error ignored;

    form->call = NULL;
    form->blocked = false;
    if (err != NULL) {
        fail_more(form, err, NULL);
    } else if (json_answer_parse(http_call_body(call), &answer, &ignored) < 0 || status < 200 ||
               status > 299) {
        refuse(form, answer);
    } else if (form->state != FORM_ANSWER || json_array_append(form->items, answer) < 0) {
        fail(form, ERROR_BAD_GATEWAY, NULL, "the node took a file before its end");
    } else {
        form->state = FORM_BETWEEN;
        buf_clear(&form->path);
        resume(form);
    }
}

/* The node's target: the file's path, and what of the query is for every file. */
static void put_target(const struct form *form, struct buf *target)
{
    struct span rest = span_of_str(http_exchange_query(form->rq->exchange));

    buf_printf(target, "/n1/sandboxes/%s/files?path=", form->rq->params[0]);
    url_encode(target, buf_span(&form->path), true);
    while (rest.n > 0) {
        struct span pair = span_head(rest, span_find(rest, 0, '&'));

        rest = span_skip(rest, pair.n + 1);
        if (query_pair_is(pair, "user") || query_pair_is(pair, "mode") ||
            query_pair_is(pair, "parents")) {
            buf_put_u8(target, '&');
            buf_put(target, pair);
        }
    }
}

static int open_file(struct form *form, struct error *err)
{
    static const struct http_call_callbacks callbacks = {.on_done = on_done};
    const struct http_header headers[] = {{"X-Request-Id", form->rq->id},
                                          {"Content-Type", "application/octet-stream"}};
    _cleanup_buf_ struct buf target = buf_make(TARGET_MAX);
    struct http_call_request request = {.method = "PUT",
                                        .headers = headers,
                                        .header_count = 2,
                                        .stream_body = true,
                                        .max_body = ANSWER_MAX};

    (void)error_set(err, ENOMEM, "no memory");
    put_target(form, &target);
    if (buf_error(&target) < 0) {
        return -ENOMEM;
    }
    request.target = buf_str(&target);
    form->call = http_client_start(form->rq->api->client, &request, &callbacks, form, err);
    if (form->call == NULL) {
        return -ENOMEM;
    }
    http_call_on_drain(form->call, on_drain, form);
    form->state = FORM_FILE;
    return 0;
}

/* ---- the client's side ---- */

/* Whether a name leads out of the directory that it is to be put in. */
static bool climbs(struct span name)
{
    if (name.n > 0 && name.p[0] == '/') {
        return true;
    }
    while (name.n > 0) {
        struct span segment = span_head(name, span_find(name, 0, '/'));

        if (span_equals_str(segment, "..")) {
            return true;
        }
        name = span_skip(name, segment.n + 1);
    }
    return false;
}

/* The file's path: its name, or that of the field before it, below ?path=. */
static int choose_path(struct form *form, struct error *err)
{
    const char *directory = query_find(&form->rq->query, "path");
    struct span name =
        form->named.n > 0 ? buf_span(&form->named) : span_of_str(form->parser.filename);
    const char *problem = NULL;

    buf_clear(&form->path);
    if (directory != NULL) {
        buf_put_str(&form->path, directory);
        buf_put_str(&form->path, "/");
    }
    buf_put(&form->path, name);
    buf_clear(&form->named);
    if (name.n == 0) {
        problem = "a file of the form has no name";
    } else if (directory != NULL &&
               climbs(span_skip(buf_span(&form->path), strlen(directory) + 1))) {
        problem = "a file's name leads out of path";
    } else if (form->path.n > PATH_MAX_N) {
        problem = "a file's path is too long";
    } else if (json_array_size(form->items) >= FILES_MAX) {
        problem = "the form has too many files";
    }
    if (buf_error(&form->path) < 0) {
        return error_set(err, ENOMEM, "no memory");
    }
    return problem == NULL ? 0 : error_set_code(err, ERROR_INVALID_REQUEST, "body", "%s", problem);
}

/* False when the form has failed and is gone. */
static bool begin_part(struct form *form)
{
    struct error err;

    if (form->parser.has_filename) {
        if (choose_path(form, &err) == 0 && open_file(form, &err) == 0) {
            return true;
        }
        fail_more(form, &err, NULL);
        return false;
    }
    if (strcmp(form->parser.name, "path") != 0) {
        fail(form, ERROR_INVALID_REQUEST, "body",
             "a part of the form is no file, and not the field path");
        return false;
    }
    buf_clear(&form->named);
    form->state = FORM_PATH;
    return true;
}

static bool take_data(struct form *form, struct span data)
{
    if (form->state == FORM_FILE) {
        form->blocked = http_call_write(form->call, data) == 0;
        return true;
    }
    buf_put(&form->named, data);
    if (buf_error(&form->named) < 0 || memchr(data.p, '\0', data.n) != NULL) {
        fail(form, ERROR_INVALID_REQUEST, "body", "the field path is no path");
        return false;
    }
    return true;
}

static bool on_event(struct form *form, enum multipart_event event, struct span data)
{
    switch (event) {
    case MULTIPART_PART:
        return begin_part(form);
    case MULTIPART_DATA:
        return take_data(form, data);
    case MULTIPART_PART_END:
        if (form->state == FORM_FILE) {
            form->state = FORM_ANSWER;
            http_call_end(form->call);
        } else {
            form->state = FORM_BETWEEN;
        }
        return true;
    case MULTIPART_END:
    case MULTIPART_NONE:
        break;
    }
    return true;
}

static void finish(struct form *form)
{
    struct request *rq = form->rq;
    json_t *items;

    if (multipart_finish(&form->parser) < 0) {
        fail(form, ERROR_INVALID_REQUEST, "body", form->parser.fault);
        return;
    }
    if (json_array_size(form->items) == 0) {
        fail(form, ERROR_INVALID_REQUEST, "body", "the form has no file");
        return;
    }
    items = TAKE(form->items);
    request_on_gone(rq, NULL, NULL);
    form_free(form);
    request_answer(rq, 200, json_pack("{s:o}", "items", items));
}

static bool is_waiting(const struct form *form)
{
    return form->blocked || form->state == FORM_ANSWER;
}

/* Handles input as far as that goes now, and keeps the rest. */
static void proceed(struct form *form, struct span in)
{
    while (in.n > 0 && !is_waiting(form)) {
        enum multipart_event event;
        struct span data;
        int used = multipart_next(&form->parser, in, &event, &data);

        if (used < 0) {
            fail(form, ERROR_INVALID_REQUEST, "body", form->parser.fault);
            return;
        }
        in = span_skip(in, (size_t)used);
        if (!on_event(form, event, data)) {
            return;
        }
    }
    buf_put(&form->waiting, in);
    if (buf_error(&form->waiting) < 0) {
        fail(form, ERROR_CAPACITY_UNAVAILABLE, NULL, "no memory");
    } else if (is_waiting(form)) {
        http_exchange_pause_body(form->rq->exchange, true);
    } else if (form->ended) {
        finish(form);
    } else {
        http_exchange_pause_body(form->rq->exchange, false);
    }
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct request *rq = arg;
    struct form *form = rq->gone_arg;

    (void)exchange;
    if (rq->on_gone != on_gone) {
        return; /* it has been answered; what still comes is dropped */
    }
    if (err != NULL) {
        fail_more(form, err, NULL);
        return;
    }
    form->ended = last;
    proceed(form, piece);
}

/* ---- the request ---- */

static int check_headers(const struct request *rq, struct multipart *parser, struct error *err)
{
    const char *type = http_exchange_header(rq->exchange, "Content-Type");
    const char *encoding = http_exchange_header(rq->exchange, "Content-Encoding");

    if (multipart_init(parser, span_of_str(type == NULL ? "" : type)) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Content-Type", "%s", parser->fault);
    }
    if (encoding != NULL && strcasecmp(encoding, "identity") != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Content-Encoding",
                              "a form takes no Content-Encoding");
    }
    return 0;
}

static void form_now(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct form *form;
    struct error err;

    if (!node_call_running(rq, &s)) {
        return;
    }
    expiry_touch(rq->api, s.id);
    form = calloc(1, sizeof(*form));
    (void)error_set(&err, ENOMEM, "no memory");
    if (form == NULL || check_headers(rq, &form->parser, &err) < 0) {
        free(form);
        request_fail(rq, &err);
        return;
    }
    form->rq = rq;
    form->waiting = buf_make(0);
    form->named = buf_make(PATH_MAX_N);
    form->path = buf_make(0);
    form->items = json_array();
    request_on_gone(rq, on_gone, form);
    http_exchange_stream_body(rq->exchange, on_piece, rq);
}

void route_files_form(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s)) {
        wake_need(rq, form_now);
    }
}
