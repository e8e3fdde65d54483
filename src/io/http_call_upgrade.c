/* Answers of 101: the tunnel that opens, and the connection that becomes a byte_stream. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "io/byte_stream_inner.h"
#include "io/http_call.h"
#include "io/http_token.h"
#include "io/json_request.h"

/* Whether the answer switches to what was asked for, and to nothing else. */
static bool is_switch_to(const struct http_call *call, const char *protocol)
{
    bool found = false;

    for (unsigned int i = 0; i < call->head.field_count; i++) {
        if (strcasecmp(&call->text[call->fields[i].name.start], "upgrade") != 0) {
            continue;
        }
        if (found || !http_token_is_in(&call->text[call->fields[i].value.start], protocol)) {
            return false;
        }
        found = true;
    }
    return found && call->head.wants_upgrade;
}

/* From here on we speak to the server behind it. */
static void call_tunnel_opened(struct http_call *call)
{
    call->in_tunnel_request = false;
    call->has_head = false;
    call->got_bytes = false;
    call->interim_count = 0;
    free(TAKE(call->text));
    call->collected.max = call->max_body;
    call_reset_answer(call);
    client_link_send(call->conn, buf_span(&call->request));
    buf_done(&call->request);
    buf_done(&call->tunnel);
}

static void call_offer(struct http_call *call)
{
    if (call->callbacks.on_head != NULL) {
        call->may_take = true;
        call->callbacks.on_head(call->arg, call, call->head.status);
        call->may_take = false;
    }
    if (!call->is_taken) {
        call_bad_answer(call, "an upgrade that nobody took");
    }
}

void call_on_switch(struct http_call *call, struct span head)
{
    const char *protocol = call->in_tunnel_request ? "space-tcp" : call->upgrade;

    if (!call_keep_head(call, head)) {
        return;
    }
    if (protocol == NULL || !is_switch_to(call, protocol)) {
        call->has_head = false;
        call_bad_answer(call, "an upgrade that was not asked for");
    } else if (call->in_tunnel_request) {
        call_tunnel_opened(call);
    } else {
        call_offer(call);
    }
}

void call_tunnel_refused(struct http_call *call)
{
    _cleanup_json_ json_t *envelope = NULL;
    struct error err;

    if (call->is_done) {
        return;
    }
    if (json_answer_parse(buf_span(&call->collected), &envelope, &err) < 0 ||
        json_error_read(envelope, &call->error) < 0) {
        call_bad_answer(call, "it refused the tunnel");
    } else {
        call->is_done = true;
        client_schedule(call);
    }
    buf_done(&call->collected); /* it is not the answer to the call's own request */
}

struct byte_stream *http_call_take_stream(struct http_call *call)
{
    struct client_link *conn = call->conn;
    struct byte_stream *stream;

    if (!call->may_take || call->is_taken) {
        return NULL;
    }
    stream = byte_stream_new(call->client->loop);
    if (stream == NULL) {
        return NULL;
    }
    client_link_silence(conn);
    byte_stream_adopt(stream, &conn->transport, &conn->out, &call->stream);
    call->is_taken = true;
    call->is_done = true;
    client_schedule(call);
    return stream;
}
