#include "api/api.h"

#include <errno.h>
#include <fcntl.h>

#include <sys/stat.h>

#include "api/checkpoint_check.h"
#include "api/drain.h"
#include "api/expiry.h"
#include "api/feed.h"
#include "api/idempotency.h"
#include "api/idle.h"
#include "api/lifecycle.h"
#include "api/node_link.h"
#include "api/port_host.h"
#include "api/request.h"
#include "api/run_once.h"
#include "api/tunnel.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/listen.h"
#include "io/loop.h"

#define NODE_IDLE_CONNECTIONS 64
#define OPENAPI_MAX           (16U * 1024U * 1024U)
#define STOP_TICK_MS          50
#define STOP_TICKS            80

/* No name below the domain is ever the API's. */
static int check_domain(const struct settings *s, struct error *err)
{
    if (!port_host_is_below(span_of_str(s->api_public_url), s->api_domain)) {
        return 0;
    }
    return error_set(err, EINVAL,
                     "api.public_url %.100s is below api.domain %.100s, where only ports of "
                     "sandboxes are: give one of them another name",
                     s->api_public_url, s->api_domain);
}

int api_new(const struct settings *settings,
            struct loop *loop,
            struct api **ret_api,
            struct error *err)
{
    struct http_server_limits limits = {
        .max_connections = (unsigned int)settings->api_max_connections,
        .header_timeout_ms = (int64_t)settings->api_header_timeout_ms,
        .idle_timeout_ms = (int64_t)settings->api_idle_timeout_ms,
        .max_body_bytes = settings->api_max_body_bytes,
    };
    struct http_server_callbacks callbacks = {request_on_head, request_on_refused};
    struct api *api;
    int r = check_domain(settings, err);

    if (r < 0) {
        return r;
    }
    api = calloc(1, sizeof(*api));
    if (api == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    api->settings = *settings;
    api->loop = loop;
    api->transcoders.loop = loop;
    list_init(&api->flights);
    list_init(&api->requests);
    list_init(&api->runs);
    list_init(&api->waiters);
    list_init(&api->port_visits);
    list_init(&api->tunnels);
    list_init(&api->idle_checks);
    r = http_server_new(loop, &limits, &callbacks, api, &api->server, err);
    if (r < 0) {
        api_free(api);
        return r;
    }
    *ret_api = api;
    return 0;
}

int api_bind(const struct settings *s, struct error *err)
{
    int fd = listen_tcp(s->api_listen, err);

    if (fd == -EADDRINUSE) {
        (void)error_set(err, EADDRINUSE,
                        "%s is taken by another program: stop it, or set api.listen to a free port",
                        s->api_listen);
    }
    return fd;
}

int api_listen(struct api *api, int fd, struct error *err)
{
    const struct settings *s = &api->settings;
    bool tls = s->api_tls_certificate[0] != '\0';

    return http_server_listen_fd(api->server, fd, tls ? s->api_tls_certificate : NULL,
                                 tls ? s->api_tls_key : NULL, err);
}

static void read_openapi(struct api *api, const char *share_dir)
{
    char path[SETTINGS_PATH_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%s/openapi.json", share_dir);
    if (file_read(AT_FDCWD, path, OPENAPI_MAX, &api->openapi) < 0) {
        log_warning("openapi", "missing=%s", path);
        buf_done(&api->openapi);
    }
}

static int open_store(struct api *api, struct error *err)
{
    char path[SETTINGS_PATH_SIZE + 32];
    int r;

    (void)snprintf(path, sizeof(path), "%s/store/space.db", api->settings.data_dir);
    (void)umask(0077);
    r = store_open(path, &api->store, err);
    if (r == 0) {
        r = store_use_loop(api->store, api->loop, err);
    }
    if (r == 0) {
        r = store_secret(api->store, "secret", api->secret, err);
    }
    if (r == 0) {
        r = store_secret(api->store, "token_secret", api->token_secret, err);
    }
    return r;
}

int api_start(struct api *api, const struct api_options *options, struct error *err)
{
    char socket_path[SETTINGS_PATH_SIZE + 16];
    int r = open_store(api, err);

    if (r < 0) {
        return r;
    }
    read_openapi(api, options->share_dir);
    (void)snprintf(socket_path, sizeof(socket_path), "%s/node.sock", api->settings.run_dir);
    key_table_init(&api->keys, api->store, &api->settings);
    api->client = http_client_new(api->loop, socket_path, NODE_IDLE_CONNECTIONS);
    api->lifecycle = lifecycle_new(api);
    api->feed = feed_new(api);
    api->checkpoint_check = checkpoint_check_new(api);
    api->expiry = expiry_new(api);
    if (api->client == NULL || api->lifecycle == NULL || api->feed == NULL || api->expiry == NULL ||
        api->checkpoint_check == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    r = lifecycle_load(api, err);
    if (r == 0) {
        r = drain_new(api, &api->drain, err);
    }
    if (r < 0) {
        return r;
    }
    api->node = node_link_new(api);
    return api->node == NULL ? error_set(err, ENOMEM, "no memory") : 0;
}

static void on_stop_tick(void *arg)
{
    struct api *api = arg;

    api->stop_ticks++;
    if (list_is_empty(&api->requests) || api->stop_ticks > STOP_TICKS) {
        loop_stop(api->loop);
        return;
    }
    loop_timer_start(api->stop_timer, STOP_TICK_MS);
}

void api_stop(struct api *api)
{
    struct list *it;
    struct list *following;

    if (api->stopping) {
        return;
    }
    log_info("stopping", "requests=%d", !list_is_empty(&api->requests));
    api->stopping = true;
    http_server_stop_accepting(api->server);
    /* Streams have no end of their own; their readers come again with Last-Event-ID. */
    list_foreach(it, following, &api->requests)
    {
        struct request *rq = list_entry(it, struct request, all_link);

        if (request_is_stream(rq)) {
            http_exchange_abort(rq->exchange);
        }
    }
    tunnels_done(api);
    api->stop_timer = loop_timer_new(api->loop, on_stop_tick, api);
    if (api->stop_timer == NULL) {
        loop_stop(api->loop);
        return;
    }
    on_stop_tick(api);
}

void api_free(struct api *api)
{
    if (api == NULL) {
        return;
    }
    api->stopping = true;
    loop_timer_free(api->stop_timer);
    tunnels_done(api);
    /* Requests first: their ends reach into all the rest. */
    http_server_free(api->server);
    loop_finish_work(api->loop);
    idempotency_done(api);
    run_once_done(api);
    idle_done(api);
    lifecycle_free(api->lifecycle);
    node_link_free(api->node);
    expiry_free(api->expiry);
    drain_free(api->drain);
    feed_free(api->feed);
    checkpoint_check_free(api->checkpoint_check);
    http_client_free(api->client);
    key_table_done(&api->keys);
    store_close(api->store);
    buf_done(&api->openapi);
    free(api);
}
