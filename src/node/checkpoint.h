/* Checkpoints: captures of sandboxes that outlive them, in `<volume>/checkpoints/<ck>/`.
 *
 *   snapshot/        memory, devices and disk; of one without memory a cold snapshot (snapshot.h)
 *   sessions/        of the processes that ran (sessions_copy.h)
 *   env.json         the variables of then
 *   checkpoint.json  what is said of it, with a checksum; written last
 *
 * One whose id is a template version's (tm…) is that template's memory and not listed:
 * template_make.h.
 *
 * Made in `<ck>.new`, synchronised, renamed; removed by way of `<ck>.old`: a directory with its
 * final name is complete. Nothing in it changes. It depends on nothing else: files are shared by
 * links and clones, so neither its sandbox nor the sandboxes made from it keep it, or need it.
 *
 * States: making -> ready -> removing -> freed; damaged (its record cannot be read) -> removing.
 * Everything runs on the loop; what blocks is named so. Pointers are valid while `users` counts
 * their holder, else within a loop turn. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/list.h"
#include "node/id_table.h"
#include "node/objects.h"
#include "node/sandbox.h"

#define CHECKPOINT_PATH_SIZE 480

struct node;
struct snapshot_facts;

enum checkpoint_state {
    CHECKPOINT_STATE_MAKING,
    CHECKPOINT_STATE_READY,
    CHECKPOINT_STATE_DAMAGED,
    CHECKPOINT_STATE_REMOVING
};

struct checkpoint_info {
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    char template_name[SANDBOX_TEMPLATE_SIZE];
    char template_version[ID_SIZE];
    char base_version[ID_SIZE]; /* whose base its memory differs from */
    char user[64];
    unsigned int vcpus;
    unsigned int memory_mib;
    unsigned int disk_mib;
    bool memory;
    bool is_local;         /* of a fork, gone in a moment: not for the object store */
    uint64_t size_bytes;   /* memory, devices, and what the disk's file has, shared extents too */
    int64_t created_at_ms; /* the moment that it shows */
    int64_t paused_total_ms;
    uint64_t identity_epoch; /* of the guest in it */
};

struct checkpoint {
    struct list link;
    struct id_entry by_id;
    struct node *node;
    struct checkpoint_info info;
    enum checkpoint_state state;
    char manifest[OBJECTS_NAME_SIZE]; /* in the object store; "": not there */
    unsigned int users;               /* what is being made from it */
    bool remove_wanted;
    struct list waiters;
};

struct checkpoint_copy {
    char from[CHECKPOINT_PATH_SIZE];
    char building[CHECKPOINT_PATH_SIZE]; /* `<id>.new` */
    const struct json_t *env;
    const struct snapshot_facts *facts;
    uint64_t reserve_mib;
};

struct checkpoint_set {
    struct list checkpoints;
    struct id_table by_id;
};

/* Where a look at all of them is; all zero at first. */
struct checkpoint_walk {
    struct list *following;
    unsigned int seen;
};

/* Exactly one of ck and err is set, but for the end of a removal, which sets neither. */
typedef void (*checkpoint_fn)(void *arg, const struct checkpoint *ck, const struct error *err);

/* Of a template's version, not one that somebody asked for. */
bool checkpoint_is_image(const struct checkpoint *ck);
/* Whether the object store is to have it. */
bool checkpoint_is_stored(const struct checkpoint *ck);
/* Reads what is there and removes what is half-made; blocks. 0 or -errno. */
int checkpoint_load_all(struct node *node) _must_check_;
void checkpoint_free_all(struct node *node);
struct checkpoint *checkpoint_find(struct node *node, const char *id);
/* The next one, NULL at the end. Of them all only the one that was given last may go meanwhile. */
struct checkpoint *checkpoint_next(struct node *node, struct checkpoint_walk *walk);
/* New reference; NULL for lack of memory. */
struct json_t *checkpoint_describe(const struct checkpoint *ck);
/* "<volume>/checkpoints/<id><suffix>/<name>" */
void checkpoint_path(
    const struct checkpoint *ck, const char *suffix, const char *name, char *out, size_t size);

/* A record in state making: checkpoint_settle or checkpoint_fail is due. NULL: no memory. */
struct checkpoint *checkpoint_new(struct node *node, const char *id);
/* One that was not begun. */
void checkpoint_discard(struct checkpoint *ck);
/* Blocks; on a worker: `snapshot` in `<ck>.new` is there; writes the rest, synchronises and puts
 * it in place. env is the sandbox's. Fills info->size_bytes. */
int checkpoint_commit(struct checkpoint_info *info,
                      const char *building,
                      const struct json_t *env,
                      struct error *err) _must_check_;
/* Blocks; on a worker: a copy of `from`, a complete one's directory, under the id in info, which is
 * otherwise its own. facts as of its sandbox: a damaged one, and one of another environment, are
 * refused. */
int checkpoint_copy(const struct checkpoint_copy *copy,
                    struct checkpoint_info *info,
                    struct error *err) _must_check_;
/* It is in place: whoever waits hears so. */
void checkpoint_settle(struct checkpoint *ck, const struct checkpoint_info *info);
/* A record in state making that is to come from the object store; it ends as above. */
int checkpoint_fetch(struct checkpoint *ck,
                     const char *manifest,
                     const char *template_name,
                     const char *template_version,
                     struct error *err) _must_check_;
/* Reads its record, on a worker too. 0 or -EBADMSG. */
int checkpoint_read(const char *dir, const char *id, struct checkpoint_info *ret) _must_check_;
/* It came to nothing: its waiters hear why, its files go. */
void checkpoint_fail(struct checkpoint *ck, const struct error *err);

/* For something that is to be made from it: it stays until checkpoint_release. not_found (resource
 * "checkpoint"), service_unavailable while it is being made, internal for a damaged one. */
int checkpoint_use(struct node *node, const char *id, struct checkpoint **ret_ck, struct error *err)
    _must_check_;
void checkpoint_release(struct checkpoint *ck);
/* The variables in it; NULL: damaged. Reads a small file. */
struct json_t *checkpoint_load_env(const struct checkpoint *ck);

/* Waits for the end of its making, or with checkpoint_remove for that of its removal. An unknown
 * one is removed already: fn comes at once, from inside. 0 or -ENOMEM. */
int checkpoint_wait(struct checkpoint *ck, checkpoint_fn fn, void *arg) _must_check_;
int checkpoint_remove(struct node *node, const char *id, checkpoint_fn fn, void *arg) _must_check_;
void checkpoint_cancel_waits(struct node *node, const void *arg);

/* ---- of sandboxes: sandbox_checkpoint.c, sandbox_restore.c ---- */

/* Captures it, and puts the capture into the checkpoint, which this ends (checkpoint_settle or
 * checkpoint_fail) unless it is refused. Its VM stands still for the capture only; one that is
 * paused or suspended stays so. Without `memory` only the disk is kept. */
int sandbox_checkpoint(struct sandbox *sb, struct checkpoint *ck, bool memory, struct error *err)
    _must_check_;
/* Memory, processes and disk become those of one of its own checkpoints; `fn` comes when it runs.
 * What ran becomes lost ("rolled_back"). Refused, or damaged: the sandbox stays as it was. One that
 * could not wake from the checkpoint is suspended, at the checkpoint. */
int sandbox_rollback(struct sandbox *sb,
                     const char *checkpoint_id,
                     sandbox_wait_fn fn,
                     void *arg,
                     struct error *err) _must_check_;
