/* The keys of the WebSocket handshake, for both ends. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

#define WEBSOCKET_KEY_SIZE    25 /* 24 characters and a NUL */
#define WEBSOCKET_ACCEPT_SIZE 29

/* A new Sec-WebSocket-Key for a client. 0 or -EIO. */
int websocket_key_make(char out[WEBSOCKET_KEY_SIZE]) _must_check_;
/* Whether a client's key is 16 bytes in base64. */
bool websocket_key_is_valid(const char *key);
/* The Sec-WebSocket-Accept for a key. 0 or -EIO. */
int websocket_key_accept(const char *key, char out[WEBSOCKET_ACCEPT_SIZE]) _must_check_;
