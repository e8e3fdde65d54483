/* Templates made from checkpoints, and the end of template versions.
 *
 * Making one, and what a restart does about it:
 *
 *   checking   a worker makes the directory: disk and variables, the        removed
 *              record under another name; of a checkpoint with memory a
 *              copy of it all, `checkpoints/<version>/`
 *   booting    of a disk: its base snapshot is built, so that a disk that   removed
 *              boots nothing never becomes a template
 *   publishing the record gets its name, `current` points at the newest     removed, or published;
 *                                                                           the repetition of the
 *                                                                           order does the rest
 *
 * It takes nothing of the checkpoint but links and clones, and uses the checkpoint until it is
 * made. A deletion gives the record another name at once; the files follow when nothing needs them
 * (template_prune.h). What works on the files of templates is done one after the other. */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "node/template.h"

struct node;

/* Begins with template_make_begin. */
struct template_set {
    struct list makings;
    struct list withdrawals;
    struct list steps; /* that wait */
    bool is_working;
};

/* One piece of work on the files of templates; zeroed, and its caller's until `done` came. */
struct template_step {
    struct list link;
    struct node *node;
    void (*work)(void *arg); /* on a worker */
    void (*done)(void *arg);
    void *arg;
};

/* Exactly one of json and err is set. */
typedef void (*template_fn)(void *arg, json_t *json, const struct error *err);

struct template_order {
    const char *name;
    const char *version;
    const char *checkpoint_id;
    const char *made_by; /* key; "": not said */
};

/* Blocks; at the start, after checkpoint_load_all. */
void template_make_begin(struct node *node);
void template_make_end(struct node *node);
/* Makes a version; `fn` gets it as template_describe has it. The same order again gives the same
 * one. Refused at once, or by fn: not_found (checkpoint), failed_precondition (state "shipped" or
 * "environment", or "not_bootable"), limit_exceeded, capacity_unavailable, storage_full, internal
 * for a damaged checkpoint, conflict when it was deleted meanwhile. */
int template_make(struct node *node,
                  const struct template_order *order,
                  template_fn fn,
                  void *arg,
                  struct error *err) _must_check_;
/* Deletes a version, or with version "" all of a name; json is what it was (the current one). One
 * in the making comes to nothing. Errors as of template_files_withdraw. */
int template_withdraw(struct node *node,
                      const char *name,
                      const char *version,
                      template_fn fn,
                      void *arg,
                      struct error *err) _must_check_;
/* Whoever waits with this arg is gone. */
void template_cancel_waits(struct node *node, const void *arg);
/* Does it when those before it are done. */
void template_step_submit(struct node *node, struct template_step *step);
/* Removes the memory of versions that are there no more. Reads directories. */
void template_drop_images(struct node *node);
