/* The context of space-api: what every part of it may reach. Made by api_new, used on the loop
 * thread only. */
#pragma once

#include <stdint.h>

#include "api/key_table.h"
#include "api/transcoder.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "base/settings.h"

struct loop;
struct loop_timer;
struct store;
struct http_server;
struct http_client;
struct node_link;
struct lifecycle;
struct drain;
struct expiry;
struct checkpoint_check;
struct feed;
struct idle;

struct api_options {
    const char *share_dir; /* where openapi.json is */
};

struct api {
    struct settings settings;
    struct loop *loop;
    struct store *store;
    struct http_server *server;
    struct http_client *client; /* to the node */
    struct key_table keys;
    struct node_link *node;
    struct feed *feed;
    struct checkpoint_check *checkpoint_check;
    struct lifecycle *lifecycle;
    struct expiry *expiry;
    struct drain *drain;
    struct list idle_checks;    /* struct idle_check: the node is asked whether they are idle */
    int idle_skip;              /* of the idle ones, those that were asked about in this round */
    int64_t idle_held_until_ms; /* monotonic */
    struct list flights;        /* struct idempotency_flight: requests with a key that still run */
    struct list requests;       /* open ones, by all_link */
    struct list runs;           /* struct run_job: sandboxes of POST /v1/run */
    struct list port_visits;    /* struct port_visit: who is at a port because it is public */
    struct list tunnels;        /* struct tunnel: upgraded connections */
    struct list waiters;        /* requests that wait for an operation, by wait_link */
    uint64_t spilled_bytes;     /* spill.h */
    struct transcoder_pool transcoders;
    struct buf openapi;
    uint8_t secret[32];       /* signs cursors */
    uint8_t token_secret[32]; /* signs tokens */
    bool stopping;
    struct loop_timer *stop_timer;
    int stop_ticks;
};

/* The server exists and listens nowhere; the store is not open yet. */
int api_new(const struct settings *settings,
            struct loop *loop,
            struct api **ret_api,
            struct error *err) _must_check_;
/* Listens on the address of the settings: a descriptor, for api_listen. */
int api_bind(const struct settings *s, struct error *err) _must_check_;
/* Reads the TLS key, where there is one. Takes fd, also when it fails. */
int api_listen(struct api *api, int fd, struct error *err) _must_check_;
/* Opens the store, starts everything else. */
int api_start(struct api *api, const struct api_options *options, struct error *err) _must_check_;
/* Stops accepting; the loop ends when the open requests have, after 4 s at the latest. */
void api_stop(struct api *api);
void api_free(struct api *api);
