/* Test support: a blocking WebSocket client of the rig's socket. Failures end the running test. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "node/routes_rig.h"
#include "wire/websocket.h"

struct rig_websocket {
    int fd;
    struct websocket_parser parser;
    struct buf in;        /* received and not looked at */
    struct buf output[2]; /* of binary frames, by stream */
    json_t *event;        /* the last text frame */
    unsigned int closed;  /* the close code, 0 while open */
};

/* Sends the handshake; the status of the answer (101 when it is open). */
int rig_websocket_open(const struct rig *rig, const char *path, struct rig_websocket *ret);
void rig_websocket_close(struct rig_websocket *w);
void rig_websocket_send(struct rig_websocket *w, enum websocket_opcode opcode, struct span payload);
void rig_websocket_write(struct rig_websocket *w, struct span input);
void rig_websocket_tell(struct rig_websocket *w, const char *json);
/* Waits for the next message and takes it into w. False when it is closed. */
bool rig_websocket_receive(struct rig_websocket *w);
/* Reads on to an event of this type, which must come; w->event is it. */
void rig_websocket_until(struct rig_websocket *w, const char *type);
/* Reads on until a stream has so many bytes. */
void rig_websocket_until_bytes(struct rig_websocket *w, unsigned int stream, size_t n);
json_int_t rig_websocket_number(const struct rig_websocket *w, const char *key);
const char *rig_websocket_text(const struct rig_websocket *w, const char *key);

#define _cleanup_rig_websocket_ _cleanup_(rig_websocket_close)
