/* Sessions: events, output and attachments, straight from the node. */
#include <openssl/evp.h>

#include "api/api.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/proxy.h"
#include "api/routes.h"
#include "api/tunnel.h"
#include "api/wake.h"
#include "io/byte_stream.h"
#include "io/http_client.h"

#define PATH_SIZE 256
#define READ_ONLY "read_only=true"

/* A session's id tells its sandbox. Answers and returns false when there is nothing to read: never
 * was (404), or was (410). */
static bool find_session(struct request *rq, char ret_path[PATH_SIZE], const char *rest)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    const char *id = rq->params[0];
    struct error err = {0};
    int r = 0;

    if (id_is_valid(id, "se")) {
        r = store_sandbox_get_shard(rq->api->store, id, &s, &err);
    }
    if (r == 0) {
        request_fail_missing(rq, "session", id);
        return false;
    }
    if (r > 0 && s.deleted_at != 0) {
        r = error_set_code(&err, ERROR_GONE, "session", "the sandbox of session %s was deleted",
                           id);
    }
    if (r < 0) {
        request_fail(rq, &err);
        return false;
    }
    (void)snprintf(ret_path, PATH_SIZE, "/n1/sandboxes/%s/sessions/%s/%s", s.id, id, rest);
    return true;
}

static void events_now(struct request *rq)
{
    char path[PATH_SIZE];
    struct proxy_order order = {.method = "GET", .path = path, .with_query = true};

    if (rq->role < KEY_ROLE_MEMBER) {
        order.more_query = READ_ONLY; /* starts nothing that waits for its first reader */
    }
    if (find_session(rq, path, "events")) {
        proxy_start(rq, &order);
    }
}

void route_session_events(struct request *rq)
{
    char path[PATH_SIZE];

    if (find_session(rq, path, "events")) {
        node_link_need(rq, events_now);
    }
}

static void output_now(struct request *rq)
{
    char path[PATH_SIZE];

    if (find_session(rq, path, "output")) {
        proxy_json(rq, "GET", path, NULL, true);
    }
}

void route_session_output(struct request *rq)
{
    char path[PATH_SIZE];

    if (find_session(rq, path, "output")) {
        node_link_need(rq, output_now);
    }
}

/* ---- attach ---- */

#define WEBSOCKET  "websocket"
#define KEY_LENGTH 24 /* base64 of 16 bytes */
#define KEY_BYTES  16
#define VERSION    "13"

/* The node's answer to the handshake is the client's: the key was handed down. */
static void on_attached(struct request *rq, struct http_call *call, struct byte_stream *far)
{
    const struct http_header headers[] = {
        {"Sec-WebSocket-Accept", http_call_header(call, "Sec-WebSocket-Accept")},
        {"X-Request-Id", rq->id}};
    _cleanup_sandbox_ struct sandbox s = {0};
    struct tunnel_order order = {
        .protocol = WEBSOCKET, .headers = headers, .header_count = 2, .sandbox_id = s.id};
    struct error err = {0};

    /* Known a moment ago: the id of its sandbox is all that is wanted. */
    (void)!store_sandbox_get_shard(rq->api->store, rq->params[0], &s, &err);
    if (headers[0].value == NULL) {
        byte_stream_free(far);
        (void)error_set_code(&err, ERROR_BAD_GATEWAY, NULL, "the node's answer makes no sense");
        request_fail(rq, &err);
        return;
    }
    tunnel_start(rq, far, &order);
}

static void attach_now(struct request *rq)
{
    const struct http_header headers[] = {
        {"Sec-WebSocket-Key", http_exchange_header(rq->exchange, "Sec-WebSocket-Key")},
        {"Sec-WebSocket-Version", VERSION}};
    char path[PATH_SIZE];
    struct proxy_order order = {.method = "GET",
                                .path = path,
                                .with_query = true,
                                .upgrade = WEBSOCKET,
                                .on_upgraded = on_attached,
                                .headers = headers,
                                .header_count = 2};

    if (rq->role < KEY_ROLE_MEMBER) {
        order.more_query = READ_ONLY; /* held to it where the frames are read */
    }
    if (find_session(rq, path, "attach")) {
        proxy_start(rq, &order);
    }
}

static bool is_websocket_key(const char *text)
{
    uint8_t decoded[KEY_BYTES + 2];

    return strlen(text) == KEY_LENGTH &&
           EVP_DecodeBlock(decoded, (const unsigned char *)text, KEY_LENGTH) == KEY_BYTES + 2;
}

static int check_handshake(const struct request *rq, struct error *err)
{
    const char *key = http_exchange_header(rq->exchange, "Sec-WebSocket-Key");
    const char *version = http_exchange_header(rq->exchange, "Sec-WebSocket-Version");
    uint64_t offset = 0;
    int r;

    if (!http_exchange_wants_upgrade(rq->exchange, WEBSOCKET)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Upgrade",
                              "this path takes only WebSocket connections");
    }
    if (version == NULL || strcmp(version, VERSION) != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Sec-WebSocket-Version",
                              "Sec-WebSocket-Version must be " VERSION);
    }
    if (key == NULL || http_exchange_header_count(rq->exchange, "Sec-WebSocket-Key") > 1 ||
        !is_websocket_key(key)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Sec-WebSocket-Key",
                              "Sec-WebSocket-Key must be 16 bytes in base64");
    }
    r = query_unsigned(&rq->query, "stdout", 0, INT64_MAX, &offset, err);
    return r < 0 ? r : query_unsigned(&rq->query, "stderr", 0, INT64_MAX, &offset, err);
}

void route_session_attach(struct request *rq)
{
    char path[PATH_SIZE];
    struct error err;

    if (check_handshake(rq, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    if (find_session(rq, path, "attach")) {
        if (rq->role < KEY_ROLE_MEMBER) {
            node_link_need(rq, attach_now); /* it only reads */
        } else {
            wake_need(rq, attach_now);
        }
    }
}
