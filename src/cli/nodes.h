/* The nodes of an installation, as the API tells of them to administrators. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "base/error.h"

struct buf;
struct cli;
struct rest;

/* The items of GET /v1/nodes. */
int nodes_ask(struct rest *rest, json_t **ret_items, struct error *err) _must_check_;
/* The same of the installation on this machine, with its own admin key. */
int nodes_ask_here(const struct cli *cli, json_t **ret_items, struct error *err) _must_check_;
/* How many sandboxes have a VM, or are on their way to one or from it. */
int64_t nodes_count_live(const json_t *node);
/* Appends what a node's drain has come to. False, and nothing, when it is not to be drained. */
bool nodes_put_drain(struct buf *out, const json_t *node);
