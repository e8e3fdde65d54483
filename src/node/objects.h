/* Snapshots in the object store: what a node has to store there, to remove there, or to fetch.
 *
 * What is wanted of an owner (a suspended sandbox, a checkpoint) is one of: nothing, its snapshot
 * stored, everything of it removed. One such job runs at a time, each in a process of
 * space-objects (objects_job.h); a sweep runs only between them. A failure waits and is tried
 * again, later each time, for as long as it takes: the local snapshot stays what it is. Fetches
 * wait for nobody.
 *
 * What survives a restart: `replicated` in a snapshot's directory says that it is stored, and as
 * what; what lacks it is found at the start. A removal that is due is an empty file in
 * `<volume>/objects/forget/`. Everything runs on the loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

#define OBJECTS_NAME_SIZE 65 /* of a manifest: the SHA-256 of it, as text */
#define OBJECTS_MARKER    "replicated"
#define OBJECTS_STORED    "stored" /* in an owner's directory: the store may have something of it */

struct json_t;
struct node;
struct sandbox;

/* node->parts->objects stays NULL without a store. Blocks for a few small files. */
int objects_new(struct node *node, struct error *err) _must_check_;
void objects_free(struct node *node);
/* Adoption is complete: work begins. */
void objects_start(struct node *node);
bool objects_enabled(const struct node *node);

/* Its snapshot is whole and is not to change. */
void objects_keep(struct node *node, const char *owner);
/* What is being stored of it, if anything, is not what it is any more. */
void objects_changed(struct node *node, const char *owner);
/* What the store has of it is not wanted any more. Without a store it is written down, if there was
 * one once. */
void objects_forget(struct node *node, const char *owner);
/* The manifest as which the snapshot in `dir` is stored, "" for none. Reads a small file. */
void objects_read_marker(const char *dir, char out[OBJECTS_NAME_SIZE]);

struct objects_fetch {
    const char *owner;
    const char *manifest; /* its name, 64 hexadecimal digits */
    const char *dir;      /* to be made; removed first if it is there */
    const char *template_name;
    const char *template_version;
};

/* Exactly once, on the loop, never from inside objects_fetch; err NULL: `dir` has the files, all
 * of them root's. Nothing of `dir` is left after an error. */
typedef void (*objects_fn)(void *arg, const struct error *err);
/* service_unavailable while the store cannot be reached, not_found (resource "snapshot"),
 * internal for a damaged one. 0 or -errno. */
int objects_fetch(struct node *node,
                  const struct objects_fetch *fetch,
                  objects_fn fn,
                  void *arg,
                  struct error *err) _must_check_;
/* New reference; null without a store. */
struct json_t *objects_describe(const struct node *node);
