/* The context of space-node: settings, loop, and the parts of the machine it manages.
 *
 * Theory of operation. One loop thread owns every struct below. A **vm** (vm.h) is one VMM process
 * with its cgroup, network namespace, sockets and disk; it lives in a numbered slot (`vms/<n>/`)
 * and may belong to nobody (prepared, warm) or to one sandbox. A **sandbox** (sandbox.h) is what
 * clients know: an id, sizes, an environment, a state, and a vm while it runs. Work that blocks
 * (clones, cgroups, namespaces, removal of trees, fsync) runs on the loop's workers. */
#pragma once

#include <stdbool.h>

#include "base/settings.h"

struct checkpoint;
struct loop;
struct node;
struct node_parts; /* the VM layer's own state, node_private.h */
struct sandbox;
struct buf;
struct node_feed;
struct json_t;

/* What the data side (processes, sessions, routes, feed) hangs into the lifecycle. Every hook runs
 * on the loop thread; none may delete the sandbox from inside the call (sandbox_delete is fine: it
 * only begins the deletion). All may be NULL. */
struct node_hooks {
    /* A sandbox's record changed (state, reason, identity, sizes). SANDBOX_STATE_DELETED is the
     * last one; the record is freed at the end of the loop turn. */
    void (*on_change)(void *ctx, struct sandbox *sb);
    /* The agent takes frames from now on. For a create: IDENTITY has just been queued and is not
     * written yet, so a START queued from here travels in the same write. For an adopted sandbox
     * (`adopted`): before HELLO is sent; load kept processes here, the PROCESS reports follow. */
    void (*on_agent)(void *ctx, struct sandbox *sb, bool adopted);
    /* A snapshot in `dir` is about to be woken: before on_agent. Sessions that came with it become
     * the sandbox's. 0 or -errno, which ends the attempt. */
    int (*on_restored)(void *ctx, struct sandbox *sb, const char *dir);
    /* The same for one that boots from its disk after an error: what ran before is lost, and its
     * records say so on return. 0 or -errno, which ends the attempt. */
    int (*on_booted)(void *ctx, struct sandbox *sb);
    /* The VM is gone or going (crash, error, deletion): running processes become `lost`, files
     * below the sandbox's directory are closed. `reason` is "deleted", "crashed" or "rolled_back".
     * The agent must not be used afterwards. */
    void (*on_lost)(void *ctx, struct sandbox *sb, const char *reason);
    /* The VM is about to stand still and be written down: what was received is put into files. 0 or
     * -errno, which ends the attempt. */
    int (*on_silent)(void *ctx, struct sandbox *sb);
    /* The VM goes; its processes are kept, and adopted again by on_agent. */
    void (*on_asleep)(void *ctx, struct sandbox *sb);
    /* A checkpoint is in the object store now. */
    void (*on_checkpoint)(void *ctx, const struct checkpoint *ck);
    /* The accelerator is known: what node_check_start refused may come again. */
    void (*on_started)(void *ctx);
    /* The sandbox's memory is about to be freed: free what sandbox_set_processes hung into it. */
    void (*on_free)(void *ctx, struct sandbox *sb);
};

struct node {
    struct settings settings;
    struct loop *loop;
    struct node_parts *parts;
    struct node_hooks hooks;
    void *hooks_ctx;
    void *data; /* the data side's context */
    int64_t started_at_ms;
};

/* Prepares everything up to adoption, which then runs on the loop. */
int node_start(struct node *node, struct error *err) _must_check_;
/* Ends every VM of the installation (guests that run power off first, if they do so in time) and
 * removes its control groups, namespaces and sockets, without a daemon (which must not run). Disks
 * of sandboxes stay. Blocks; runs the loop. */
int node_stop_all(struct node *node, struct error *err) _must_check_;
/* Stops timers and closes descriptors; VMs keep running. */
void node_stop(struct node *node);
/* Frees the rest, when the loop is gone. */
void node_free(struct node *node);
/* True when adoption is complete: what lives is served. */
bool node_is_ready(const struct node *node);
/* service_unavailable until that and the accelerator are known: nothing is started under a guess.
 * 0 or negative. */
int node_check_start(const struct node *node, struct error *err) _must_check_;
/* The body of GET /n1/node, without `sandboxes`' details. */
struct json_t *node_describe(struct node *node);
/* The items of GET /n1/templates. */
struct json_t *node_list_templates(struct node *node);
