/* VMs made ahead: prepared ones (spawned and jailed, nothing loaded) and warm ones (restored,
 * rehearsed under emulation, silent and stopped, nobody's yet).
 *
 * A request takes a warm VM of its key, else a prepared one, else a new one is spawned. What is
 * given is always loaded, stopped, silent, with its agent connected. Refilling happens one VM at a
 * time in the background, never while a request waits. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "node/base_snapshot.h"

struct json_t;
struct node;
struct pool;
struct pool_request;
struct vm;

struct pool *pool_new(struct node *node, struct error *err);
/* Forgets its VMs without ending them. */
void pool_free(struct pool *pool);
/* Begins to fill; called when the node is ready. */
void pool_start(struct pool *pool);

/* A warm VM at once, or NULL. The caller becomes its owner (vm_set_owner). */
struct vm *pool_take_warm(struct node *node, const struct base_key *key);
/* Exactly one of vm and err is set; comes once, never from inside pool_ask. The receiver becomes
 * the VM's owner. Only a few cold VMs come up at once, or a burst of creates would slow each of
 * them down beyond its deadline: with `counted`, the receiver calls pool_settle once when its VM is
 * up or given up. */
typedef void (*pool_fn)(void *arg, struct vm *vm, bool counted, const struct error *err);
void pool_settle(struct pool *pool);
/* NULL for lack of memory. Without an answer by then, deadline_exceeded after timeout_ms (0: the
 * node's boot plus start timeout). */
struct pool_request *pool_ask(struct node *node, const struct base_key *key, pool_fn fn, void *arg);
/* fn does not come any more. */
void pool_cancel(struct pool_request *request);
/* [{"template", "warm", "warm_target", "filling"}], new reference. */
struct json_t *pool_describe(const struct pool *pool);
unsigned int pool_prepared(const struct pool *pool);
/* Ends one VM that waits, to make room. False when there is none. */
bool pool_give_up_one(struct pool *pool);
/* The same where all VMs together are at their limit: one that is being made ahead goes as well,
 * and none is made for a minute. *ret_slot is what it leaves when it has ended. */
bool pool_yield(struct pool *pool, unsigned int *ret_slot);
