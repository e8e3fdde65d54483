/* What a call sends: its request, and the one for the tunnel before it. */
#include <errno.h>
#include <inttypes.h>
#include <strings.h>

#include "io/http_call.h"

static bool is_hop_by_hop(const char *name)
{
    static const char *const names[] = {
        "connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "expect",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_header(const struct http_call_request *request, const char *name)
{
    for (size_t i = 0; i < request->header_count; i++) {
        if (strcasecmp(request->headers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static int put_header(struct http_call *call,
                      const struct http_call_request *request,
                      const struct http_header *header)
{
    if (strcasecmp(header->name, "transfer-encoding") == 0 ||
        strcasecmp(header->name, "content-length") == 0 ||
        (call->is_tunnelled && strcasecmp(header->name, "host") == 0) ||
        (call->is_tunnelled && !request->allow_any_headers && is_hop_by_hop(header->name))) {
        return -EINVAL;
    }
    return http1_put_field(&call->request, span_of_str(header->name), span_of_str(header->value));
}

static int put_upgrade(struct buf *out, const char *protocol)
{
    if (protocol[0] == '\0') {
        return -EINVAL;
    }
    buf_put_str(out, "Connection: Upgrade\r\n");
    return http1_put_field(out, span_of_str("Upgrade"), span_of_str(protocol));
}

/* How the connection is to go on. */
static int put_connection(struct http_call *call, const struct http_call_request *request)
{
    if (request->upgrade != NULL) {
        return has_header(request, "upgrade") ? -EINVAL
                                              : put_upgrade(&call->request, request->upgrade);
    }
    if (call->is_tunnelled && !has_header(request, "connection")) {
        buf_put_str(&call->request, "Connection: close\r\n");
    }
    return 0;
}

static void put_framing(struct http_call *call, const struct http_call_request *request)
{
    bool has_body = request->body.n > 0 || strcmp(request->method, "POST") == 0 ||
                    strcmp(request->method, "PUT") == 0 || strcmp(request->method, "PATCH") == 0;

    if (call->has_length) {
        buf_printf(&call->request, "Content-Length: %" PRIu64 "\r\n", call->stream_left);
    } else if (call->is_streamed) {
        buf_put_str(&call->request, "Transfer-Encoding: chunked\r\n");
    } else if (has_body) {
        buf_printf(&call->request, "Content-Length: %zu\r\n", request->body.n);
    }
}

static int build_request(struct http_call *call, const struct http_call_request *request)
{
    const char *host = call->is_tunnelled && request->host != NULL ? request->host : "localhost";
    struct buf *out = &call->request;

    if (http1_put_request_line(out, span_of_str(request->method), span_of_str(request->target)) <
            0 ||
        http1_put_field(out, span_of_str("Host"), span_of_str(host)) < 0) {
        return -EINVAL;
    }
    for (size_t i = 0; i < request->header_count; i++) {
        if (put_header(call, request, &request->headers[i]) < 0) {
            return -EINVAL;
        }
    }
    if (put_connection(call, request) < 0) {
        return -EINVAL;
    }
    put_framing(call, request);
    http1_put_end(out);
    if (!call->is_streamed) {
        buf_put(out, request->body);
    }
    return buf_error(out);
}

static int build_tunnel(struct http_call *call, const struct http_call_request *request)
{
    struct buf *out = &call->tunnel;

    if (http1_put_request_line(out, span_of_str("GET"), span_of_str(request->tunnel)) < 0) {
        return -EINVAL;
    }
    buf_put_str(out, "Host: localhost\r\n");
    for (size_t i = 0; i < request->tunnel_header_count; i++) {
        if (http1_put_field(out, span_of_str(request->tunnel_headers[i].name),
                            span_of_str(request->tunnel_headers[i].value)) < 0) {
            return -EINVAL;
        }
    }
    if (put_upgrade(out, "space-tcp") < 0) {
        return -EINVAL;
    }
    http1_put_end(out);
    return buf_error(out);
}

int call_build(struct http_call *call, const struct http_call_request *request)
{
    int r = 0;

    call->is_streamed = request->stream_body;
    call->is_sent = !request->stream_body;
    call->has_length = request->stream_body && request->stream_length > 0;
    call->stream_left = call->has_length ? request->stream_length : 0;
    call->is_head = strcmp(request->method, "HEAD") == 0;
    call->is_tunnelled = request->tunnel != NULL;
    call->in_tunnel_request = call->is_tunnelled;
    call->request = buf_make(0);
    call->tunnel = buf_make(0);
    call->max_body = request->max_body > 0 ? request->max_body : CALL_MAX_BODY_BYTES;
    call->collected = buf_make(call->is_tunnelled ? CALL_MAX_REFUSAL : call->max_body);
    call_reset_answer(call);
    if (request->upgrade != NULL) {
        call->upgrade = strdup(request->upgrade);
        r = call->upgrade == NULL ? -ENOMEM : 0;
    }
    if (r == 0 && request->tunnel != NULL) {
        r = build_tunnel(call, request);
    }
    return r < 0 ? r : build_request(call, request);
}
