/* The server's end of an upgrade: the connection leaves HTTP and becomes a byte_stream. */
#include <strings.h>

#include "io/byte_stream_inner.h"
#include "io/http_conn.h"
#include "io/http_token.h"

static bool exchange_may_upgrade(const struct http_exchange *exchange)
{
    return exchange->head.wants_upgrade && exchange->body == HTTP1_BODY_NONE &&
           exchange->text != NULL && !exchange->is_bad;
}

bool http_exchange_wants_upgrade(const struct http_exchange *exchange, const char *protocol)
{
    for (unsigned int i = 0; exchange_may_upgrade(exchange) && i < exchange->head.field_count;
         i++) {
        if (strcasecmp(&exchange->text[exchange->fields[i].name.start], "upgrade") == 0 &&
            http_token_is_in(protocol, &exchange->text[exchange->fields[i].value.start])) {
            return true;
        }
    }
    return false;
}

static int build_head(struct http_exchange *exchange,
                      const char *protocol,
                      const struct http_header *headers,
                      size_t header_count)
{
    struct buf *out = &exchange->conn->server->head;

    buf_clear(out);
    if (http1_put_status_line(out, 101) < 0 ||
        http1_put_field(out, span_of_str("Upgrade"), span_of_str(protocol)) < 0) {
        return -1;
    }
    buf_put_str(out, "Connection: Upgrade\r\n");
    exchange_put_headers(exchange, out, headers, header_count);
    http1_put_end(out);
    return buf_error(out);
}

static void on_stream_gone(void *owner)
{
    struct http_server *server = owner;

    server->conn_count--;
}

struct byte_stream *http_exchange_upgrade(struct http_exchange *exchange,
                                          const char *protocol,
                                          const struct http_header *headers,
                                          size_t header_count)
{
    struct http_conn *conn = exchange->conn;
    struct byte_stream *stream;

    if (conn->state != CONN_EXCHANGE || exchange->answer != ANSWER_NONE ||
        !http_exchange_wants_upgrade(exchange, protocol)) {
        return NULL;
    }
    stream = byte_stream_new(conn->server->loop);
    if (stream == NULL || build_head(exchange, protocol, headers, header_count) < 0 ||
        http_output_put(&conn->out, buf_span(&conn->server->head)) < 0) {
        byte_stream_free(stream);
        return NULL;
    }
    exchange->answer = ANSWER_ENDED;
    conn_set_upgraded(conn);
    byte_stream_adopt(stream, &conn->transport, &conn->out, &conn->stream);
    byte_stream_set_owner(stream, &conn->server->streams, on_stream_gone, conn->server);
    return stream;
}
