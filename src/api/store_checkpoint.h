/* Checkpoint records. One outlives its sandbox; what is in it the node keeps. */
#pragma once

#include <stdint.h>

#include "api/store.h"
#include "api/store_sandbox.h"
#include "base/id.h"

enum checkpoint_state {
    CHECKPOINT_MAKING,
    CHECKPOINT_READY,
    CHECKPOINT_FORKING, /* nobody's: what a fork makes its children from */
    CHECKPOINT_DELETING,
    CHECKPOINT_LOST, /* the node does not have it; it may come back with another volume */
    CHECKPOINT_STATE_COUNT,
};

struct checkpoint {
    int64_t seq;
    char id[ID_SIZE];
    char name[SANDBOX_NAME_SIZE]; /* "": none */
    char sandbox_id[ID_SIZE];
    char key_id[ID_SIZE];
    enum checkpoint_state state;
    bool memory;
    int64_t size_bytes;
    char manifest[SANDBOX_MANIFEST_SIZE]; /* in the object store; "": not there */
    char template_name[SANDBOX_NAME_SIZE];
    char template_version[ID_SIZE];
    int64_t vcpus;
    int64_t memory_mib;
    int64_t disk_mib;
    char *env_names; /* JSON array */
    int64_t created_at;
};

struct checkpoint_filter {
    int64_t before_seq;     /* of a cursor; 0: none */
    const char *sandbox_id; /* NULL: of all */
    const char *name;       /* NULL: with any, or none */
    int64_t limit;
};

typedef int (*checkpoint_visit_fn)(void *arg, const struct checkpoint *checkpoint);

void checkpoint_done(struct checkpoint *checkpoint);
#define _cleanup_checkpoint_ _cleanup_(checkpoint_done)

/* In state making, with the sizes and names of its sandbox. */
int store_checkpoint_insert(struct store *store,
                            const struct checkpoint *checkpoint,
                            struct error *err) _must_check_;
/* 1, 0 or -errno. The caller ends *ret_checkpoint with checkpoint_done. */
int store_checkpoint_get(struct store *store,
                         const char *id,
                         struct checkpoint *ret_checkpoint,
                         struct error *err) _must_check_;
/* What the node says of one that is made. */
int store_checkpoint_settle(struct store *store,
                            const struct checkpoint *checkpoint,
                            struct error *err) _must_check_;
/* It is made, and not to be seen: for the children of a fork. */
int store_checkpoint_set_forking(struct store *store, const char *id, struct error *err)
    _must_check_;
/* It is in the object store, as the node says. */
int store_checkpoint_set_manifest(struct store *store,
                                  const char *id,
                                  const char *manifest,
                                  struct error *err) _must_check_;
int store_checkpoint_set_deleting(struct store *store, const char *id, struct error *err)
    _must_check_;
/* One that is ready becomes lost, or the other way round; others stay as they are. */
int store_checkpoint_set_lost(struct store *store, const char *id, bool is_lost, struct error *err)
    _must_check_;
int store_checkpoint_remove(struct store *store, const char *id, struct error *err) _must_check_;
/* 1 when a create or a rollback that has not ended is to use it, 0, or -errno. */
int store_checkpoint_is_used(struct store *store, const char *id, struct error *err) _must_check_;
/* Those that are ready, the newest first. */
int store_checkpoint_list(struct store *store,
                          const struct checkpoint_filter *filter,
                          checkpoint_visit_fn visit,
                          void *arg,
                          struct error *err) _must_check_;
/* Those that are to be removed at the node. */
int store_checkpoint_each_deleting(struct store *store,
                                   checkpoint_visit_fn visit,
                                   void *arg,
                                   struct error *err) _must_check_;
