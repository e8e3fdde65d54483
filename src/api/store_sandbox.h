/* Sandbox records. A deleted one stays as a tombstone (deleted_at set) for a while, so that its
 * sessions answer `gone` and a late report of the node is recognised. */
#pragma once

#include <stdint.h>

#include "api/store.h"
#include "base/id.h"

#define SANDBOX_NAME_SIZE     64
#define SANDBOX_MANIFEST_SIZE 65

enum sandbox_state {
    SANDBOX_CREATING,
    SANDBOX_RUNNING,
    SANDBOX_PAUSING,
    SANDBOX_PAUSED,
    SANDBOX_SUSPENDING,
    SANDBOX_SUSPENDED,
    SANDBOX_WAKING,
    SANDBOX_DELETING,
    SANDBOX_ERROR,
    SANDBOX_STATE_COUNT,
};

/* What happens when a limit of `lifecycle` has passed. */
enum lifecycle_action {
    LIFECYCLE_NONE, /* of idle_action: no rule */
    LIFECYCLE_DELETE,
    LIFECYCLE_PAUSE,
    LIFECYCLE_SUSPEND,
};

struct lifecycle_rules {
    int64_t timeout_ms; /* 0: none */
    enum lifecycle_action timeout_action;
    int64_t idle_timeout_ms; /* 0: none */
    enum lifecycle_action idle_action;
    bool auto_wake;
    int64_t keep_suspended_ms; /* then a suspended one is deleted; 0: never */
};

/* Times are milliseconds since 1970, 0 for none; texts are "" or NULL for none. */
struct sandbox {
    int64_t seq;
    char id[ID_SIZE];
    char key_id[ID_SIZE];
    char name[SANDBOX_NAME_SIZE];
    char template_name[SANDBOX_NAME_SIZE];
    char template_version[ID_SIZE];
    enum sandbox_state state;
    char reason_code[64];
    char reason_message[320];
    int64_t vcpus;
    int64_t memory_mib;
    int64_t disk_mib;
    char *metadata;  /* JSON object */
    char *env_names; /* JSON array */
    char *identity;  /* JSON object or NULL */
    bool transient;  /* of POST /v1/run: the node deletes it after the answer */
    struct lifecycle_rules rules;
    char node[64];
    char parent_id[ID_SIZE]; /* of the checkpoint that it was made from; "": none */
    int64_t created_at;
    int64_t running_at;
    int64_t active_at;
    int64_t expires_at;
    char manifest[SANDBOX_MANIFEST_SIZE]; /* of its snapshot in the object store; "": none */
    int64_t suspended_at;                 /* since when it is suspended; 0: it is not */
    int64_t deleted_at;
};

struct sandbox_filter {
    int64_t before_seq;  /* of a cursor; 0: none */
    unsigned int states; /* bit per enum sandbox_state; 0: all */
    const char *template_name;
    const char *name;
    const char *const *metadata; /* pairs of key and value */
    size_t metadata_count;       /* pairs */
    int64_t created_after;       /* 0: none */
    int64_t created_before;
    int limit;
};

/* A part of what a search finds. */
struct id_range {
    int skip;
    int max;
};

struct sandbox_usage {
    int64_t sandboxes;
    int64_t vcpus;
    int64_t memory_mib;
};

/* One visit per record; a non-zero result ends the walk and is returned. */
typedef int (*sandbox_visit_fn)(void *arg, const struct sandbox *sandbox);

/* NULL for none. */
const char *lifecycle_action_name(enum lifecycle_action action);
const char *sandbox_state_name(enum sandbox_state state);
/* -EINVAL for a name that is none. */
int sandbox_state_find(const char *name, enum sandbox_state *ret_state);

void sandbox_done(struct sandbox *sandbox);
#define _cleanup_sandbox_ _cleanup_(sandbox_done)

/* `pending_body`: the node's create body, kept until the create has ended (NULL: not kept).
 * -EEXIST without err when the id or its shard is in use; a name in use is the caller's check. */
int store_sandbox_insert(struct store *store,
                         const struct sandbox *sandbox,
                         const char *pending_body,
                         struct error *err) _must_check_;
/* 1 found (tombstones included), 0 not, -errno. The caller ends *ret_sandbox with sandbox_done. */
int store_sandbox_get(struct store *store,
                      const char *id,
                      struct sandbox *ret_sandbox,
                      struct error *err) _must_check_;
/* The same by the characters that ids of sandbox, process and session share. */
int store_sandbox_get_shard(struct store *store,
                            const char *any_id,
                            struct sandbox *ret_sandbox,
                            struct error *err) _must_check_;
/* 1 and the id of the living sandbox with this name, 0, -errno. */
int store_sandbox_find_name(struct store *store,
                            const char *name,
                            char ret_id[ID_SIZE],
                            struct error *err) _must_check_;
/* Writes what a PATCH or the node may change; state, reason and times included. */
int store_sandbox_update(struct store *store, const struct sandbox *sandbox, struct error *err)
    _must_check_;
int store_sandbox_set_state(struct store *store,
                            const char *id,
                            enum sandbox_state state,
                            const char *reason_code,
                            const char *reason_message,
                            struct error *err) _must_check_;
/* Makes it a tombstone; its name is free and what only living ones need is wiped. */
int store_sandbox_bury(struct store *store, const char *id, int64_t now, struct error *err)
    _must_check_;
int store_sandbox_touch(struct store *store, const char *id, int64_t now, struct error *err)
    _must_check_;
/* The kept create body, or NULL with err->code 0 when there is none. Free it. */
char *store_sandbox_pending_body(struct store *store, const char *id, struct error *err);
int store_sandbox_drop_pending(struct store *store, const char *id, struct error *err) _must_check_;
int store_sandbox_list(struct store *store,
                       const struct sandbox_filter *filter,
                       sandbox_visit_fn visit,
                       void *arg,
                       struct error *err) _must_check_;
/* All living ones. */
int store_sandbox_each_living(struct store *store,
                              sandbox_visit_fn visit,
                              void *arg,
                              struct error *err) _must_check_;
int store_sandbox_usage(struct store *store,
                        const char *key_id,
                        struct sandbox_usage *ret_usage,
                        struct error *err) _must_check_;
/* The earliest expires_at of a living sandbox that is not being deleted, 0 for none. */
int store_sandbox_next_expiry(struct store *store, int64_t *ret_at, struct error *err) _must_check_;
/* Those that have expired by `now`, the earliest first. Returns how many. */
int store_sandbox_find_expired(struct store *store,
                               int64_t now,
                               char (*ret_ids)[ID_SIZE],
                               struct id_range range,
                               struct error *err) _must_check_;
/* When the first suspended sandbox has been kept for its keep_suspended_ms, 0 for none. */
int store_sandbox_next_retention(struct store *store, int64_t *ret_at, struct error *err)
    _must_check_;
/* Those for which that has passed by `now`, the earliest first. Returns how many. */
int store_sandbox_find_kept(struct store *store,
                            int64_t now,
                            char (*ret_ids)[ID_SIZE],
                            struct id_range range,
                            struct error *err) _must_check_;
/* When the first idle rule of a running sandbox is due, 0 for none. */
int store_sandbox_next_idle(struct store *store, int64_t *ret_at, struct error *err) _must_check_;
/* The running ones whose idle rule is due by `now`. Returns how many. */
int store_sandbox_find_idle(struct store *store,
                            int64_t now,
                            char (*ret_ids)[ID_SIZE],
                            struct id_range range,
                            struct error *err) _must_check_;
/* timeout_seconds has been carried out. */
int store_sandbox_spend_timeout(struct store *store, const char *id, struct error *err)
    _must_check_;
/* Forgets up to 500 tombstones from before `before`, those of runs from before `transient_before`.
 * Returns how many. */
int store_sandbox_prune(struct store *store,
                        int64_t before,
                        int64_t transient_before,
                        struct error *err) _must_check_;
