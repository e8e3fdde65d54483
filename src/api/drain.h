/* Draining the node: nothing new is placed on it or woken, and what runs is suspended, so that the
 * machine can be taken down with nothing lost. See docs/operations.md, "Maintenance".
 *
 * What is wanted is in the store (store_node.h) before anything is done, so that a restart goes on
 * with it; all else follows from the records of the sandboxes. Sandboxes are suspended by the
 * operations that everybody uses, a few at a time, in rounds over all that still have a VM; one
 * that cannot be suspended is a problem that the node's record shows, and is tried again. Those
 * that are being made or deleted, or belong to a POST /v1/run, are waited for.
 *
 *   ready      nothing is wanted;                drain  -> draining
 *   draining   until no sandbox has a VM;        then   -> drained; undrain -> ready
 *   drained    until undrain, unless the node    undrain -> ready
 *              brings one back: -> draining */
#pragma once

#include <jansson.h>

#include "api/request.h"
#include "api/store_node.h"

struct api;
struct drain;

/* Reads the store, and goes on with what is wanted. */
int drain_new(struct api *api, struct drain **ret_drain, struct error *err) _must_check_;
void drain_free(struct drain *drain);
/* Wants it, or no longer. Already so is success. */
int drain_begin(struct api *api, struct error *err) _must_check_;
int drain_end(struct api *api, struct error *err) _must_check_;
const struct store_node *drain_record(const struct api *api);
/* What could not be suspended, [{"sandbox_id", "code", "message", "failed_at", "attempts"}]. */
json_t *drain_problems(struct api *api);
/* 0, or an error of this code when the node is to be drained; `what`: "no sandbox is made". */
int drain_refuse(const struct api *api, enum error_code code, const char *what, struct error *err)
    _must_check_;
/* A job of a sandbox has ended: its place is free. */
void drain_poke(struct api *api);
/* Runs fn(rq) when the node is not draining (any longer), or its wait is over. */
void drain_wait(struct request *rq, request_fn fn);
