/* What the application sees of one request: accessors, and the answer. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "io/http_conn.h"

struct http_exchange *exchange_new(struct http_conn *conn)
{
    const struct http_server_limits *limits = &conn->server->limits;
    struct http_exchange *exchange =
        calloc(1, sizeof(*exchange) + limits->max_headers * sizeof(exchange->fields[0]));

    if (exchange != NULL) {
        exchange->conn = conn;
        exchange->method = "";
        exchange->path = "";
        exchange->query = "";
        exchange->answer_left = -1;
        http1_head_init(&exchange->head, HTTP1_REQUEST, exchange->fields, limits->max_headers,
                        limits->max_head_bytes);
    }
    return exchange;
}

static const char *slice_text(const struct http_exchange *exchange, struct http1_slice slice)
{
    exchange->text[slice.start + slice.n] = '\0';
    return &exchange->text[slice.start];
}

int exchange_begin(struct http_exchange *exchange, struct span head)
{
    char *question;

    exchange->text = malloc(head.n + 1);
    if (exchange->text == NULL) {
        return -ENOMEM;
    }
    memcpy(exchange->text, head.p, head.n);
    exchange->text[head.n] = '\0';
    /* Every part is followed by a byte that nobody needs any more: a blank, a colon, a CR. */
    exchange->method = slice_text(exchange, exchange->head.method);
    exchange->path = slice_text(exchange, exchange->head.target);
    question = strchr(exchange->path, '?');
    if (question != NULL) {
        *question = '\0';
        exchange->query = &question[1];
    }
    for (unsigned int i = 0; i < exchange->head.field_count; i++) {
        (void)slice_text(exchange, exchange->fields[i].name);
        (void)slice_text(exchange, exchange->fields[i].value);
    }
    exchange->is_head = strcmp(exchange->method, "HEAD") == 0;
    exchange->body = http1_head_body(&exchange->head, false);
    exchange->body_done = exchange->body == HTTP1_BODY_NONE;
    exchange->owes_continue = exchange->head.expects_continue && !exchange->body_done;
    if (exchange->body == HTTP1_BODY_LENGTH) {
        exchange->body_left = (uint64_t)exchange->head.content_length;
    }
    http1_chunks_init(&exchange->chunks);
    return 0;
}

void exchange_finish(struct http_exchange *exchange, bool complete)
{
    if (exchange->on_close != NULL) {
        exchange->on_close(exchange->close_arg, exchange, complete);
    }
    while (exchange->blocks != NULL) {
        struct exchange_block *block = exchange->blocks;

        exchange->blocks = block->next;
        free(block);
    }
    body_release(exchange);
    free(exchange->text);
    free(exchange);
}

/* ---- accessors ---- */

const char *http_exchange_method(const struct http_exchange *exchange)
{
    return exchange->method;
}

const char *http_exchange_path(const struct http_exchange *exchange)
{
    return exchange->path;
}

const char *http_exchange_query(const struct http_exchange *exchange)
{
    return exchange->query;
}

const char *http_exchange_header(const struct http_exchange *exchange, const char *name)
{
    for (unsigned int i = 0; exchange->text != NULL && i < exchange->head.field_count; i++) {
        if (strcasecmp(&exchange->text[exchange->fields[i].name.start], name) == 0) {
            return &exchange->text[exchange->fields[i].value.start];
        }
    }
    return NULL;
}

unsigned int http_exchange_header_count(const struct http_exchange *exchange, const char *name)
{
    unsigned int count = 0;

    for (unsigned int i = 0; exchange->text != NULL && i < exchange->head.field_count; i++) {
        if (strcasecmp(&exchange->text[exchange->fields[i].name.start], name) == 0) {
            count++;
        }
    }
    return count;
}

bool http_exchange_header_at(const struct http_exchange *exchange,
                             unsigned int index,
                             struct http_header *ret_header)
{
    if (exchange->text == NULL || index >= exchange->head.field_count) {
        return false;
    }
    ret_header->name = &exchange->text[exchange->fields[index].name.start];
    ret_header->value = &exchange->text[exchange->fields[index].value.start];
    return true;
}

const char *http_exchange_peer(const struct http_exchange *exchange)
{
    return exchange->conn->peer;
}

void *http_exchange_alloc(struct http_exchange *exchange, size_t size)
{
    struct exchange_block *block;
    size_t total;

    if (__builtin_add_overflow(size, sizeof(*block), &total)) {
        return NULL;
    }
    block = calloc(1, total);
    if (block == NULL) {
        return NULL;
    }
    block->next = exchange->blocks;
    exchange->blocks = block;
    return block->data;
}

int64_t http_exchange_content_length(const struct http_exchange *exchange)
{
    if (exchange->head.is_chunked) {
        return -1;
    }
    return exchange->head.content_length > 0 ? exchange->head.content_length : 0;
}

void http_exchange_on_close(struct http_exchange *exchange, http_close_fn fn, void *arg)
{
    exchange->on_close = fn;
    exchange->close_arg = arg;
}

bool http_exchange_is_started(const struct http_exchange *exchange)
{
    return exchange->answer != ANSWER_NONE;
}

/* ---- the answer ---- */

static bool is_dead(const struct http_exchange *exchange)
{
    return exchange->conn->state == CONN_CLOSED || exchange->conn->state == CONN_UPGRADED;
}

/* Our own mistakes: the client must not see a proper end. */
static void answer_break(struct http_exchange *exchange, const char *why)
{
    log_error("broken answer", "why=%s path=%s", why, LOG_STR(exchange->path));
    http_exchange_abort(exchange);
}

void exchange_put_headers(struct http_exchange *exchange,
                          struct buf *out,
                          const struct http_header *headers,
                          size_t header_count)
{
    bool is_dated = false;

    for (size_t i = 0; i < header_count; i++) {
        is_dated = is_dated || strcasecmp(headers[i].name, "Date") == 0;
        if (http1_put_field(out, span_of_str(headers[i].name), span_of_str(headers[i].value)) < 0) {
            log_error("header left out", "name=%s path=%s", LOG_STR(headers[i].name),
                      LOG_STR(exchange->path));
        }
    }
    if (!is_dated) {
        buf_put_str(out, "Date: ");
        buf_put_str(out, server_date(exchange->conn->server));
        buf_put_str(out, "\r\n");
    }
}

/* Decides on the framing and puts the whole head into the server's scratch buffer. */
static int build_head(struct http_exchange *exchange,
                      int status,
                      const struct http_header *headers,
                      size_t header_count,
                      int64_t content_length)
{
    struct http_conn *conn = exchange->conn;
    struct buf *out = &conn->server->head;

    exchange->is_bodiless = exchange->is_head || status == 204 || status == 304;
    exchange->is_chunked = content_length < 0 && exchange->head.minor == 1;
    exchange->answer_left = content_length;
    if (content_length < 0 && exchange->head.minor == 0 && !exchange->is_bodiless) {
        conn->closes_after = true;
    }
    buf_clear(out);
    if (http1_put_status_line(out, status) < 0) {
        return -EINVAL;
    }
    exchange_put_headers(exchange, out, headers, header_count);
    if (status == 204 || status == 304) {
        exchange->is_chunked = false;
        exchange->answer_left = -1;
    } else if (exchange->is_chunked) {
        buf_put_str(out, "Transfer-Encoding: chunked\r\n");
    } else if (content_length >= 0) {
        buf_printf(out, "Content-Length: %" PRId64 "\r\n", content_length);
    }
    if (exchange->owes_continue) {
        conn->closes_after = true; /* whether the body comes is now the client's choice */
    }
    if (conn->closes_after) {
        buf_put_str(out, "Connection: close\r\n");
    } else if (exchange->head.minor == 0) {
        buf_put_str(out, "Connection: keep-alive\r\n");
    }
    http1_put_end(out);
    return buf_error(out);
}

/* The outcome of a direct write to the connection. */
static void after_send(struct http_conn *conn, int r)
{
    if (r < 0) {
        conn_kill(conn);
        return;
    }
    conn->write_blocked = r != HTTP_FLUSH_EMPTY;
    conn->made_progress = true;
    conn_schedule(conn);
}

void http_exchange_respond(struct http_exchange *exchange,
                           int status,
                           const struct http_header *headers,
                           size_t header_count,
                           struct span body)
{
    struct http_conn *conn = exchange->conn;

    if (is_dead(exchange)) {
        return;
    }
    if (exchange->answer != ANSWER_NONE) {
        answer_break(exchange, "a second answer");
        return;
    }
    if (build_head(exchange, status, headers, header_count, (int64_t)body.n) < 0) {
        answer_break(exchange, "no head could be built");
        return;
    }
    exchange->answer = ANSWER_ENDED;
    if (exchange->is_bodiless) {
        body = span_make(NULL, 0);
    }
    after_send(conn,
               http_output_send(&conn->out, &conn->transport, buf_span(&conn->server->head), body));
}

void http_exchange_start(struct http_exchange *exchange,
                         int status,
                         const struct http_header *headers,
                         size_t header_count,
                         int64_t content_length)
{
    struct http_conn *conn = exchange->conn;

    if (is_dead(exchange)) {
        return;
    }
    if (exchange->answer != ANSWER_NONE) {
        answer_break(exchange, "a second answer");
        return;
    }
    if (build_head(exchange, status, headers, header_count, content_length) < 0 ||
        http_output_put(&conn->out, buf_span(&conn->server->head)) < 0) {
        answer_break(exchange, "no head could be built");
        return;
    }
    exchange->answer = ANSWER_STREAMING;
    conn_schedule(conn); /* the first bytes of the body go along */
}

/* Checks an addition of n bytes to the answer; false when nothing must be queued. */
static bool answer_may_add(struct http_exchange *exchange, uint64_t n)
{
    if (is_dead(exchange) || exchange->answer == ANSWER_ENDED) {
        return false;
    }
    if (exchange->answer == ANSWER_NONE) {
        answer_break(exchange, "a body without a head");
        return false;
    }
    if (exchange->answer_left >= 0) {
        if (n > (uint64_t)exchange->answer_left) {
            answer_break(exchange, "more than the declared length");
            return false;
        }
        exchange->answer_left -= (int64_t)n;
    }
    return n > 0 && !exchange->is_bodiless;
}

static int put_chunk_head(struct http_exchange *exchange, uint64_t n)
{
    char text[HTTP1_CHUNK_HEAD_SIZE];

    if (!exchange->is_chunked) {
        return 0;
    }
    return http_output_put(&exchange->conn->out, span_make(text, http1_format_chunk_head(n, text)));
}

static int put_chunk_end(struct http_exchange *exchange)
{
    return exchange->is_chunked ? http_output_put(&exchange->conn->out, span_of_str("\r\n")) : 0;
}

/* After an addition: 1 when the queue has room for more, else 0. */
static int answer_room(struct http_exchange *exchange)
{
    struct http_conn *conn = exchange->conn;

    conn_schedule(conn);
    if (conn->out.queued >= CONN_FLUSH_BYTES && !conn->write_blocked) {
        conn_flush(conn);
    }
    if (is_dead(exchange)) {
        return 0;
    }
    if (conn->out.queued < conn->server->limits.write_high_bytes) {
        return 1;
    }
    exchange->is_blocked = true;
    exchange->missed_drain = false;
    return 0;
}

int http_exchange_write(struct http_exchange *exchange, struct span bytes)
{
    if (!answer_may_add(exchange, bytes.n)) {
        return is_dead(exchange) ? 0 : 1;
    }
    if (put_chunk_head(exchange, bytes.n) < 0 || http_output_put(&exchange->conn->out, bytes) < 0 ||
        put_chunk_end(exchange) < 0) {
        answer_break(exchange, "no memory");
        return 0;
    }
    return answer_room(exchange);
}

/* The next piece has its turn after others, also where all of this one is written already. */
static int ask_for_drain(struct http_exchange *exchange)
{
    exchange->is_blocked = true;
    exchange->missed_drain = false;
    conn_schedule(exchange->conn);
    return 0;
}

int http_exchange_write_file(struct http_exchange *exchange, int fd, int64_t offset, int64_t count)
{
    _cleanup_close_ int copy = -1;

    if (count < 0 || offset < 0) {
        return -EINVAL;
    }
    if (is_dead(exchange)) {
        return 0;
    }
    if (exchange->is_bodiless || count == 0) {
        (void)answer_may_add(exchange, (uint64_t)count);
        return is_dead(exchange) ? 0 : ask_for_drain(exchange);
    }
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        return -errno;
    }
    if (!answer_may_add(exchange, (uint64_t)count)) {
        return 0;
    }
    if (put_chunk_head(exchange, (uint64_t)count) < 0 ||
        http_output_put_file(&exchange->conn->out, copy, offset, (uint64_t)count) < 0) {
        answer_break(exchange, "no memory");
        return -ENOMEM;
    }
    (void)TAKE_FD(copy);
    if (put_chunk_end(exchange) < 0) {
        answer_break(exchange, "no memory");
        return -ENOMEM;
    }
    (void)answer_room(exchange);
    return is_dead(exchange) ? 0 : ask_for_drain(exchange);
}

void exchange_check_drain(struct http_exchange *exchange)
{
    const struct http_conn *conn = exchange->conn;

    if (!exchange->is_blocked || exchange->answer == ANSWER_ENDED ||
        conn->out.queued > conn->server->limits.write_high_bytes / 2) {
        return;
    }
    exchange->is_blocked = false;
    if (exchange->on_drain != NULL) {
        exchange->on_drain(exchange->drain_arg);
    } else {
        exchange->missed_drain = true;
    }
}

void http_exchange_on_drain(struct http_exchange *exchange, void (*fn)(void *arg), void *arg)
{
    exchange->on_drain = fn;
    exchange->drain_arg = arg;
    if (fn != NULL && exchange->missed_drain) {
        /* The queue emptied before anybody asked: say so in the coming turn. */
        exchange->missed_drain = false;
        exchange->is_blocked = true;
        conn_schedule(exchange->conn);
    }
}

void http_exchange_end(struct http_exchange *exchange)
{
    if (is_dead(exchange) || exchange->answer == ANSWER_ENDED) {
        return;
    }
    if (exchange->answer == ANSWER_NONE) {
        answer_break(exchange, "an end without a head");
        return;
    }
    if (exchange->answer_left > 0 && !exchange->is_bodiless) {
        answer_break(exchange, "less than the declared length");
        return;
    }
    if (exchange->is_chunked && !exchange->is_bodiless &&
        http_output_put(&exchange->conn->out, span_of_str("0\r\n\r\n")) < 0) {
        answer_break(exchange, "no memory");
        return;
    }
    exchange->answer = ANSWER_ENDED;
    if (!exchange->conn->write_blocked) {
        conn_flush(exchange->conn);
    }
    conn_schedule(exchange->conn);
}

void http_exchange_abort(struct http_exchange *exchange)
{
    if (is_dead(exchange)) {
        return;
    }
    /* Without a length the close itself is the end: only a reset shows that it is none. */
    exchange->conn->resets = exchange->answer_left < 0 && !exchange->is_chunked;
    exchange->is_aborted = true;
    exchange->answer = ANSWER_ENDED;
    conn_kill(exchange->conn);
}
