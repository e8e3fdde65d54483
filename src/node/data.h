/* The data side of a node: processes, sessions and their output, and the routes of the node
 * protocol. main.c makes it around node_start; the rest is for the data side's own files. */
#pragma once

#include <sys/types.h>

#include "base/error.h"
#include "base/list.h"
#include "node/metrics.h"
#include "node/spool.h"

struct data;
struct http_server;
struct loop_timer;
struct node;

struct data {
    struct node *node;
    struct http_server *server; /* NULL until data_serve */
    struct spool_store spools;
    struct list ended;    /* processes by the time of their end, oldest first */
    struct list unsaved;  /* processes whose end is not on disk yet */
    struct list starting; /* processes whose start is due */
    struct list holding;  /* processes whose output waits for room on the disk */
    struct loop_timer *sweep_timer;
    struct loop_timer *save_timer;
    struct loop_timer *start_timer;
    struct loop_timer *hold_timer;
    struct loop_timer *feed_timer;
    bool save_failed;     /* the disk is full: told once, tried again */
    struct list feeds;    /* readers of GET /n1/events */
    struct list changes;  /* what they are to hear */
    struct list readers;  /* readers of sessions' events */
    struct list attaches; /* attached WebSockets */
    struct metrics_sampler sampler;
    struct list creates;      /* what PUT asked of sandboxes beyond their creation */
    int64_t timeout_guard_ms; /* process_timeout.h */
    uid_t service_uid;        /* who may speak to the node besides root; -1: nobody */
};

/* Fills node->hooks, hooks_ctx and data. Call before node_start, so that adopted sandboxes find
 * it. 0 or -errno. */
int data_new(struct node *node, struct data **ret_data, struct error *err) _must_check_;
/* Serves the node protocol on `<run_dir>/node.sock` from now on. */
int data_serve(struct data *data, struct error *err) _must_check_;
/* Closes the socket and every stream; processes in the guests go on. Call before node_stop. */
void data_free(struct data *data);
/* Marks activity of a sandbox now, if there is one of that id. */
void data_touch(struct data *data, const char *sandbox_id);
/* Whether a peer, as http_exchange_peer names it, may speak to the node. */
bool data_peer_is_allowed(const struct data *data, const char *peer);
