#include "node/rig_websocket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#define READ_BYTES  65536U
#define MESSAGE_MAX 1048576U

static const uint8_t client_mask[WEBSOCKET_MASK_BYTES] = {1, 2, 3, 4};

/* Bytes of the answer's head, 0 while it is not complete. */
static size_t head_length(const struct buf *in)
{
    const uint8_t *end = in->n == 0 ? NULL : memmem(in->p, in->n, "\r\n\r\n", 4);

    return end == NULL ? 0 : (size_t)(end - in->p) + 4;
}

static bool read_more(struct rig_websocket *w)
{
    uint8_t *to = buf_reserve(&w->in, READ_BYTES);
    ssize_t n;

    assert_non_null(to);
    n = read(w->fd, to, READ_BYTES);
    if (n <= 0) {
        return false;
    }
    buf_commit(&w->in, (size_t)n);
    return true;
}

int rig_websocket_open(const struct rig *rig, const char *path, struct rig_websocket *ret)
{
    uint64_t status = 0;

    memset(ret, 0, sizeof(*ret));
    ret->in = buf_make(0);
    websocket_parser_init(&ret->parser, false, MESSAGE_MAX);
    ret->fd = rig_send_upgrade(rig, path);
    assert_true(ret->fd >= 0);
    while (head_length(&ret->in) == 0) {
        if (!read_more(ret)) {
            return 0;
        }
    }
    assert_int_equal(span_parse_u64(span_make(&ret->in.p[9], 3), 999, &status), 0);
    buf_consume(&ret->in, head_length(&ret->in));
    return (int)status;
}

void rig_websocket_close(struct rig_websocket *w)
{
    if (w->fd > 0) {
        (void)close(w->fd);
    }
    websocket_parser_done(&w->parser);
    buf_done(&w->in);
    buf_done(&w->output[0]);
    buf_done(&w->output[1]);
    json_decref(w->event);
    memset(w, 0, sizeof(*w));
}

void rig_websocket_send(struct rig_websocket *w, enum websocket_opcode opcode, struct span payload)
{
    _cleanup_buf_ struct buf frame = buf_make(0);

    websocket_put_frame(&frame, opcode, payload, client_mask);
    assert_int_equal(buf_error(&frame), 0);
    for (size_t done = 0; done < frame.n;) {
        ssize_t n = send(w->fd, &frame.p[done], frame.n - done, MSG_NOSIGNAL);

        if (n <= 0) {
            return; /* closed: the next receive says so */
        }
        done += (size_t)n;
    }
}

void rig_websocket_write(struct rig_websocket *w, struct span input)
{
    _cleanup_buf_ struct buf payload = buf_make(0);

    buf_put_u8(&payload, 0);
    buf_put(&payload, input);
    rig_websocket_send(w, WEBSOCKET_BINARY, buf_span(&payload));
}

void rig_websocket_tell(struct rig_websocket *w, const char *json)
{
    rig_websocket_send(w, WEBSOCKET_TEXT, span_of_str(json));
}

static void take(struct rig_websocket *w, const struct websocket_message *m)
{
    switch (m->opcode) {
    case WEBSOCKET_TEXT:
        json_decref(w->event);
        w->event = json_loadb((const char *)m->payload.p, m->payload.n, 0, NULL);
        assert_non_null(w->event);
        break;
    case WEBSOCKET_BINARY:
        assert_true(m->payload.n > 1 && (m->payload.p[0] == 1 || m->payload.p[0] == 2));
        buf_put(&w->output[m->payload.p[0] - 1], span_skip(m->payload, 1));
        break;
    case WEBSOCKET_CLOSE:
        w->closed = m->close_code;
        break;
    case WEBSOCKET_PING:
        rig_websocket_send(w, WEBSOCKET_PONG, m->payload);
        break;
    case WEBSOCKET_PONG:
    case WEBSOCKET_CONTINUATION:
        break;
    }
}

bool rig_websocket_receive(struct rig_websocket *w)
{
    for (;;) {
        struct websocket_message message;
        bool has = false;
        int r;

        if (w->closed != 0) {
            return false;
        }
        r = websocket_parser_next(&w->parser, buf_span(&w->in), &has, &message);
        assert_true(r >= 0);
        if (has) {
            take(w, &message);
        }
        buf_consume(&w->in, (size_t)r);
        if (has) {
            return w->closed == 0;
        }
        if (!read_more(w)) {
            w->closed = WEBSOCKET_CUT;
        }
    }
}

void rig_websocket_until(struct rig_websocket *w, const char *type)
{
    do {
        if (!rig_websocket_receive(w)) {
            fail_msg("closed with %u before %s", w->closed, type);
        }
    } while (w->event == NULL || strcmp(rig_websocket_text(w, "type"), type) != 0);
}

void rig_websocket_until_bytes(struct rig_websocket *w, unsigned int stream, size_t n)
{
    while (w->output[stream].n < n) {
        if (!rig_websocket_receive(w)) {
            fail_msg("closed with %u after %zu of %zu bytes", w->closed, w->output[stream].n, n);
        }
    }
}

json_int_t rig_websocket_number(const struct rig_websocket *w, const char *key)
{
    const json_t *value = json_object_get(w->event, key);

    return json_is_integer(value) ? json_integer_value(value) : -1;
}

const char *rig_websocket_text(const struct rig_websocket *w, const char *key)
{
    const char *text = json_string_value(json_object_get(w->event, key));

    return text != NULL ? text : "";
}
