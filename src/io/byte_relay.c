#include <stdlib.h>

#include "io/byte_stream.h"

struct relay_side {
    struct byte_relay *relay;
    struct relay_side *other;
    struct byte_stream *stream; /* NULL once it is gone */
};

struct byte_relay {
    struct relay_side sides[2];
    byte_relay_fn on_closed;
    void *arg;
};

static void on_data(void *arg, struct byte_stream *stream, struct span bytes)
{
    struct relay_side *side = arg;

    if (side->other->stream != NULL && byte_stream_write(side->other->stream, bytes) == 0) {
        byte_stream_pause(stream, true);
    }
}

static void on_end(void *arg, struct byte_stream *stream)
{
    struct relay_side *side = arg;

    (void)stream;
    if (side->other->stream != NULL) {
        byte_stream_end(side->other->stream);
    }
}

static void on_drain(void *arg, struct byte_stream *stream)
{
    struct relay_side *side = arg;

    (void)stream;
    if (side->other->stream != NULL) {
        byte_stream_pause(side->other->stream, false);
    }
}

static void on_stream_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    struct relay_side *side = arg;
    struct byte_relay *relay = side->relay;

    (void)stream;
    side->stream = NULL;
    if (side->other->stream == NULL) {
        if (relay->on_closed != NULL) {
            relay->on_closed(relay->arg);
        }
        free(relay);
    } else if (err != NULL) {
        byte_stream_abort(side->other->stream);
    }
    /* Ended properly: the other has our end and has given its own, and closes by itself. */
}

struct byte_relay *
byte_relay_new(struct byte_stream *a, struct byte_stream *b, byte_relay_fn on_closed, void *arg)
{
    static const struct byte_stream_callbacks callbacks = {on_data, on_end, on_drain,
                                                           on_stream_closed};
    struct byte_relay *relay = calloc(1, sizeof(*relay));

    if (relay == NULL) {
        byte_stream_free(a);
        byte_stream_free(b);
        return NULL;
    }
    relay->sides[0] = (struct relay_side){relay, &relay->sides[1], a};
    relay->sides[1] = (struct relay_side){relay, &relay->sides[0], b};
    relay->on_closed = on_closed;
    relay->arg = arg;
    for (int i = 0; i < 2; i++) {
        byte_stream_set_callbacks(relay->sides[i].stream, &callbacks, &relay->sides[i]);
        byte_stream_pause(relay->sides[i].stream, false);
    }
    return relay;
}

void byte_relay_free(struct byte_relay *relay)
{
    if (relay != NULL) {
        byte_stream_free(relay->sides[0].stream);
        byte_stream_free(relay->sides[1].stream);
        free(relay);
    }
}
