/* Request bodies: framing, and delivery to the application by the way it chose. */
#include <errno.h>

#include "io/http_conn.h"

#define PAYER_PART 4U     /* of max_collected_bytes, what one payer's bodies may take */
#define PAYER_FREE 16384U /* bodies up to this size are not asked for their payer's part */

/* Nothing is delivered from inside a call of the application: a change of mode only schedules a
 * turn that feeds what waits. */
static void body_resume(struct http_exchange *exchange)
{
    exchange->conn->read_ahead = true;
    conn_schedule(exchange->conn);
}

bool body_is_wanted(const struct http_exchange *exchange)
{
    return !exchange->body_done && exchange->mode != BODY_UNDECIDED && !exchange->body_paused;
}

bool body_is_hopeless(const struct http_exchange *exchange)
{
    return exchange->owes_continue || exchange->dropped > CONN_DROP_BYTES ||
           (exchange->body == HTTP1_BODY_LENGTH &&
            exchange->body_left > CONN_DROP_BYTES - exchange->dropped);
}

void body_release(struct http_exchange *exchange)
{
    exchange->conn->server->collected_bytes -= exchange->counted;
    exchange->counted = 0;
    buf_done(&exchange->collected);
}

/* What the other bodies of the same payer take. */
static size_t sum_payer(const struct http_exchange *exchange)
{
    const struct http_server *server = exchange->conn->server;
    size_t sum = 0;

    for (struct list *it = server->conns.next; it != &server->conns; it = it->next) {
        const struct http_exchange *other = list_entry(it, struct http_conn, link)->exchange;

        if (other != NULL && other != exchange && other->payer == exchange->payer) {
            sum += other->counted;
        }
    }
    return sum;
}

/* Whether the collected bodies stay within their limit when this one grows by so much, and those
 * of its payer within a part of it, of which one body may take more. */
static bool body_has_room(const struct http_exchange *exchange, uint64_t more)
{
    const struct http_server *server = exchange->conn->server;
    size_t max = server->limits.max_collected_bytes;
    size_t others = server->collected_bytes - exchange->counted;
    size_t room = more < SIZE_MAX ? buf_room_for(&exchange->collected, (size_t)more) : SIZE_MAX;

    if (room <= exchange->counted) {
        return true; /* it has it */
    }
    if (room > max || others > max - room) {
        return false;
    }
    others = exchange->payer != NULL && room > PAYER_FREE ? sum_payer(exchange) : 0;
    return others == 0 || (room <= max / PAYER_PART && others <= max / PAYER_PART - room);
}

void body_drop(struct http_exchange *exchange)
{
    exchange->mode = BODY_DROP;
    exchange->body_paused = false;
    exchange->body_wants_last = false;
    body_release(exchange);
    if (!exchange->body_done && exchange->conn->in.n > 0) {
        body_resume(exchange);
    }
}

/* Tells the application that its body cannot be had; it answers, and we close. */
static void body_fail(struct http_exchange *exchange,
                      enum error_code code,
                      const char *field,
                      const char *message)
{
    enum body_mode mode = exchange->mode;
    struct error err;

    exchange->is_bad = true;
    exchange->body_done = true;
    exchange->body_wants_last = false;
    exchange->conn->closes_after = true;
    exchange->mode = BODY_DROP;
    body_release(exchange);
    (void)error_set_code(&err, code, field, "%s", message);
    if (mode == BODY_COLLECT) {
        exchange->on_body(exchange->body_arg, exchange, span_make(NULL, 0), &err);
    } else if (mode == BODY_STREAM) {
        exchange->on_piece(exchange->body_arg, exchange, span_make(NULL, 0), true, &err);
    }
}

static void body_fail_large(struct http_exchange *exchange)
{
    char message[80];

    (void)snprintf(message, sizeof(message), "the request body is larger than %zu bytes",
                   exchange->collected.max);
    body_fail(exchange, ERROR_PAYLOAD_TOO_LARGE, "body", message);
}

static void body_fail_crowded(struct http_exchange *exchange)
{
    body_fail(exchange, ERROR_SERVICE_UNAVAILABLE, NULL,
              "too many large request bodies at once; try again");
}

static void body_collect(struct http_exchange *exchange, struct span data)
{
    struct buf *collected = &exchange->collected;

    if (data.n > collected->max - collected->n) {
        body_fail_large(exchange);
        return;
    }
    if (!body_has_room(exchange, data.n)) {
        body_fail_crowded(exchange);
        return;
    }
    buf_put(collected, data);
    exchange->conn->server->collected_bytes += collected->room - exchange->counted;
    exchange->counted = collected->room;
    if (buf_error(collected) < 0) {
        body_fail(exchange, ERROR_CAPACITY_UNAVAILABLE, NULL, "no memory for the request body");
    }
}

static void body_deliver(struct http_exchange *exchange, struct span data)
{
    switch (exchange->mode) {
    case BODY_COLLECT:
        body_collect(exchange, data);
        break;
    case BODY_STREAM:
        if (data.n > 0) {
            exchange->on_piece(exchange->body_arg, exchange, data, false, NULL);
        }
        break;
    case BODY_DROP:
    case BODY_UNDECIDED:
        exchange->dropped += data.n;
        break;
    }
}

static bool body_is_over(const struct http_exchange *exchange)
{
    return exchange->mode == BODY_COLLECT && exchange->body == HTTP1_BODY_LENGTH &&
           exchange->body_left > exchange->collected.max;
}

void body_advance(struct http_exchange *exchange)
{
    if (!exchange->body_wants_last || exchange->body_paused) {
        return;
    }
    if (!exchange->body_done) {
        if (body_is_over(exchange)) {
            body_fail_large(exchange);
        } else if (exchange->is_crowded) {
            body_fail_crowded(exchange);
        }
        return;
    }
    exchange->body_wants_last = false;
    if (exchange->mode == BODY_COLLECT) {
        exchange->on_body(exchange->body_arg, exchange, buf_span(&exchange->collected), NULL);
        body_release(exchange);
    } else if (exchange->mode == BODY_STREAM) {
        exchange->on_piece(exchange->body_arg, exchange, span_make(NULL, 0), true, NULL);
    }
}

static void body_complete(struct http_exchange *exchange)
{
    exchange->body_done = true;
    body_advance(exchange);
}

static size_t feed_length(struct http_exchange *exchange, struct span bytes)
{
    struct span data = bytes;

    if (data.n > exchange->body_left) {
        data = span_head(data, (size_t)exchange->body_left);
    }
    exchange->body_left -= data.n;
    body_deliver(exchange, data);
    if (exchange->body_left == 0 && !exchange->body_done) {
        body_complete(exchange);
    }
    return data.n;
}

static size_t feed_chunks(struct http_exchange *exchange, struct span bytes)
{
    struct span data;
    int used = http1_chunks_next(&exchange->chunks, bytes, &data);

    if (used < 0) {
        if (exchange->mode == BODY_DROP) {
            exchange->dropped += bytes.n;
        }
        body_fail(exchange, ERROR_INVALID_REQUEST, http1_fault_field(exchange->chunks.fault),
                  http1_fault_text(exchange->chunks.fault));
        return bytes.n;
    }
    if (data.n > 0) {
        body_deliver(exchange, data);
    } else if (exchange->mode == BODY_DROP) {
        exchange->dropped += (size_t)used;
    }
    if (http1_chunks_is_done(&exchange->chunks) && !exchange->body_done) {
        body_complete(exchange);
    }
    return (size_t)used;
}

size_t body_feed(struct http_exchange *exchange, struct span bytes)
{
    if (!body_is_wanted(exchange)) {
        return 0;
    }
    exchange->owes_continue = false;
    if (exchange->mode == BODY_DROP && body_is_hopeless(exchange)) {
        return bytes.n; /* conn_settle closes */
    }
    return exchange->body == HTTP1_BODY_LENGTH ? feed_length(exchange, bytes)
                                               : feed_chunks(exchange, bytes);
}

/* Sets the mode; a client that waits for it gets the go-ahead. */
static void body_choose(struct http_exchange *exchange, enum body_mode mode, void *arg)
{
    exchange->mode = mode;
    exchange->body_arg = arg;
    exchange->body_wants_last = true;
    /* A body whose length is known is refused before it is sent. */
    exchange->is_crowded = mode == BODY_COLLECT && exchange->body == HTTP1_BODY_LENGTH &&
                           !body_has_room(exchange, exchange->body_left);
    if (exchange->owes_continue && exchange->answer == ANSWER_NONE && !body_is_over(exchange) &&
        !exchange->is_crowded) {
        exchange->owes_continue = false;
        if (exchange->conn->in.n == 0 &&
            http_output_put(&exchange->conn->out, span_of_str("HTTP/1.1 100 Continue\r\n\r\n")) <
                0) {
            conn_kill(exchange->conn);
            return;
        }
    }
    body_resume(exchange);
}

static bool body_can_choose(const struct http_exchange *exchange)
{
    return exchange->mode == BODY_UNDECIDED && exchange->answer != ANSWER_ENDED &&
           exchange->conn->state == CONN_EXCHANGE;
}

void http_exchange_set_payer(struct http_exchange *exchange, const void *payer)
{
    exchange->payer = payer;
}

void http_exchange_collect_body(struct http_exchange *exchange,
                                size_t max,
                                http_body_fn fn,
                                void *arg)
{
    if (!body_can_choose(exchange)) {
        return;
    }
    exchange->on_body = fn;
    exchange->collected = buf_make(max > 0 ? max : 1);
    body_choose(exchange, BODY_COLLECT, arg);
}

void http_exchange_stream_body(struct http_exchange *exchange, http_piece_fn fn, void *arg)
{
    if (!body_can_choose(exchange)) {
        return;
    }
    exchange->on_piece = fn;
    body_choose(exchange, BODY_STREAM, arg);
}

void http_exchange_pause_body(struct http_exchange *exchange, bool paused)
{
    if (exchange->mode != BODY_STREAM || exchange->body_paused == paused) {
        return;
    }
    exchange->body_paused = paused;
    if (!paused) {
        body_resume(exchange);
    }
}
