#include "api/tunnel.h"

#include <errno.h>

#include "api/api.h"
#include "api/expiry.h"
#include "api/port_visit.h"
#include "api/request.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/byte_stream.h"

struct tunnel {
    struct list link; /* of api->tunnels */
    struct api *api;
    struct byte_relay *relay;
    struct key_hold hold;
    struct port_visit visit;
    int64_t started_ms;
    char request_id[REQUEST_ID_SIZE];
    char sandbox_id[ID_SIZE];
};

static void end(struct tunnel *tunnel, bool is_cut)
{
    double seconds = (double)(clock_monotonic_ms() - tunnel->started_ms) / 1e3;

    log_info("tunnel closed", "id=%s sandbox=%s seconds=%.2f%s", tunnel->request_id,
             tunnel->sandbox_id, seconds, is_cut ? " cut=true" : "");
    expiry_touch(tunnel->api, tunnel->sandbox_id);
    key_release(&tunnel->hold);
    port_visit_end(&tunnel->visit);
    list_remove(&tunnel->link);
    free(tunnel);
}

static void on_closed(void *arg)
{
    end(arg, false);
}

static void cut(void *arg)
{
    struct tunnel *tunnel = arg;

    byte_relay_free(tunnel->relay);
    end(tunnel, true);
}

static void fail(struct request *rq, struct byte_stream *far)
{
    struct error err;

    byte_stream_free(far);
    (void)error_set(&err, ENOMEM, "no memory for a connection");
    request_fail(rq, &err);
}

static struct tunnel *tunnel_new(const struct request *rq, const char *sandbox_id)
{
    struct tunnel *tunnel = calloc(1, sizeof(*tunnel));

    if (tunnel != NULL) {
        tunnel->api = rq->api;
        tunnel->started_ms = clock_monotonic_ms();
        memcpy(tunnel->request_id, rq->id, sizeof(tunnel->request_id));
        (void)snprintf(tunnel->sandbox_id, sizeof(tunnel->sandbox_id), "%s", sandbox_id);
        list_init(&tunnel->link);
    }
    return tunnel;
}

/* Whoever takes nothing of what is there for it is gone. */
static void watch(const struct api *api, struct byte_stream *stream)
{
    byte_stream_set_idle(stream, (int64_t)api->settings.api_idle_timeout_ms, false);
}

void tunnel_start(struct request *rq, struct byte_stream *far, const struct tunnel_order *order)
{
    struct api *api = rq->api;
    struct key_entry *key = rq->key;
    struct tunnel *tunnel = far == NULL ? NULL : tunnel_new(rq, order->sandbox_id);
    struct byte_stream *near = tunnel == NULL
                                   ? NULL
                                   : http_exchange_upgrade(rq->exchange, order->protocol,
                                                           order->headers, order->header_count);

    if (near == NULL) {
        free(tunnel);
        fail(rq, far);
        return;
    }
    rq->answered = true;
    rq->status = 101;
    watch(api, near); /* `far` is the node: it takes nothing while the sandbox is paused */
    list_append(&api->tunnels, &tunnel->link);
    if (key != NULL) {
        key_take_hold(key, &tunnel->hold, cut, tunnel);
    } else {
        port_visit_begin(&tunnel->visit, &api->port_visits, order->port, cut, tunnel);
    }
    tunnel->relay = byte_relay_new(near, far, on_closed, tunnel);
    if (tunnel->relay == NULL) { /* both are gone then */
        end(tunnel, true);
    }
}

bool tunnels_have(const struct api *api, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &api->tunnels)
    {
        if (strcmp(list_entry(it, struct tunnel, link)->sandbox_id, sandbox_id) == 0) {
            return true;
        }
    }
    return false;
}

void tunnels_done(struct api *api)
{
    while (!list_is_empty(&api->tunnels)) {
        cut(list_entry(api->tunnels.next, struct tunnel, link));
    }
}
