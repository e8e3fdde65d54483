/* The VM layer's shared state, for its own files only. */
#pragma once

#include "node/cgroup.h"
#include "node/checkpoint.h"
#include "node/gate.h"
#include "node/node.h"
#include "node/runtime.h"
#include "node/snapshot_room.h"
#include "node/template_make.h"

struct base_set;
struct memory_guard;
struct objects;
struct netns_pool;
struct pool;
struct probe;
struct sandbox_set;
struct template_pruner;
struct vm;

#define NODE_PATH_SIZE 400

struct node_parts {
    struct runtime runtime;
    struct cgroup cgroup;
    char boot_id[40];
    char volume[NODE_PATH_SIZE];   /* <data_dir>/volume */
    char vm_run[NODE_PATH_SIZE];   /* <run_dir>/<id>/vm: sockets, one directory per slot */
    char vm_disks[NODE_PATH_SIZE]; /* <volume>/vms: disks of VMs without a sandbox */
    char empty_dir[NODE_PATH_SIZE];
    char stage_path[NODE_PATH_SIZE];
    int lock_fd;
    int name_fd;       /* the name on this host (name_claim.h) */
    struct vm **slots; /* [1 … slot_count - 1]; uid = vmm_uid_first + slot */
    unsigned int slot_count;
    unsigned int slot_used;
    struct netns_pool *netns;
    struct base_set *bases;
    struct pool *pool;
    struct template_pruner *pruner;
    struct memory_guard *guard;
    struct sandbox_set *sandboxes;
    struct checkpoint_set checkpoints;
    struct template_set templates;
    struct objects *objects;   /* NULL: there is no store */
    struct snapshot_room room; /* on the volume */
    unsigned int captures;     /* that have a place (capture_gate.h) */
    struct list captures_waiting;
    unsigned int restores; /* that have a place (restore_gate.h) */
    struct list restores_waiting;
    struct gate wakes; /* those that check a snapshot and fill a VMM from it */
    struct gate boots; /* those that boot from their disk, until the guest has answered */
    uint64_t total_mib;
    uint64_t reserve_mib;
    bool reflink;
    struct probe *probe; /* while a test guest boots */
    bool environment_known;
    bool adopted;
    bool stopping;
};

/* node_host.c */
/* Allocates node->parts. */
int node_parts_new(struct node *node, struct error *err) _must_check_;
/* Paths, directories, the locks, boot id, control groups, namespaces, memory facts. Without
 * need_volume, a data volume that is not mounted is no error. */
int node_prepare_host(struct node *node, bool need_volume, struct error *err) _must_check_;
